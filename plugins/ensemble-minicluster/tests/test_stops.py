"""A study on a MiniCluster whose controllers are stopped and killed at random has the tables of one
that nobody disturbed; with ``--mock``, where each node is a core of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STOPS = Path(__file__).resolve().parents[3] / "tests" / "journal" / "crash" / "stops.py"


@pytest.mark.checkout
@pytest.mark.timeout(550)
def test_a_run_that_is_stopped_at_random_has_the_tables_of_one_that_is_not(tmp_path: Path) -> None:
    """Of two rounds, jobs are cancelled by the stops of the one, and left by those of the other."""
    words = [sys.executable, str(STOPS), "--rounds", "2", "--on", "minicluster"]
    words += ["--base", str(tmp_path), "--", "--mock", "-o", "compose=local"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["good"] for each in found] == [True, True], done.stdout + done.stderr
