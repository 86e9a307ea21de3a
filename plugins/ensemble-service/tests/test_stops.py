"""Stop test: controllers of a study on a remote member are stopped and killed at random.

The study must have the tables of an undisturbed one. ``make soak`` runs a thousand such rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

STOPS = Path(__file__).resolve().parents[3] / "tests" / "journal" / "crash" / "stops.py"


@pytest.mark.checkout
@pytest.mark.timeout(550)
def test_a_randomly_stopped_run_has_the_tables_of_an_undisturbed_one(
    serve_member: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Run one round in which stops cancel jobs, and one in which they leave them."""
    port, token = serve_member(slots=4, grace=0.5)
    words = [sys.executable, str(STOPS), "--rounds", "2", "--on", "remote"]
    words += ["--base", str(tmp_path), "--", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "ENSEMBLE_TOKEN": token}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["good"] for each in found] == [True, True], done.stdout + done.stderr
