"""Stop test: the controllers of a study on a MiniCluster are stopped and killed at random.

The run's tables must equal those of an undisturbed run. With ``--mock``, each node is a core of
this machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STOPS = Path(__file__).resolve().parents[3] / "tests" / "journal" / "crash" / "stops.py"


@pytest.mark.checkout
@pytest.mark.timeout(550)
def test_a_randomly_stopped_run_has_the_tables_of_an_undisturbed_one(tmp_path: Path) -> None:
    words = [sys.executable, str(STOPS), "--rounds", "1", "--on", "minicluster"]
    words += ["--base", str(tmp_path), "--", "--mock", "-o", "compose=local"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    (found,) = map(json.loads, done.stdout.splitlines())
    assert found["good"], done.stdout + done.stderr
