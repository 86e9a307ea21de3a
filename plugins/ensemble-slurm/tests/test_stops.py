"""Stop tests on a real Slurm: stopped runs can be resumed.

A study whose controllers are stopped and killed at random must have the tables of an undisturbed
one. ``make soak`` runs a thousand such rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import StopSuite

STOPS = Path(__file__).resolve().parents[3] / "tests" / "journal" / "crash" / "stops.py"


@pytest.mark.usefixtures("cluster")
class TestSlurm(StopSuite):
    executor = "slurm"
    on_stop = "keep"
    options = ("-o", "look=1", "-o", "rate=50")
    slots = 8


@pytest.mark.checkout
@pytest.mark.timeout(550)
def test_a_randomly_stopped_run_has_the_tables_of_an_undisturbed_one(
    cluster: Any, tmp_path: Path
) -> None:
    words = [sys.executable, str(STOPS), "--rounds", "2", "--on", "slurm", "--base", str(tmp_path)]
    done = subprocess.run(
        [*words, "--", "-o", "look=1", "-o", "rate=50"], capture_output=True, text=True, check=False
    )
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["good"] for each in rounds] == [True, True], done.stdout + done.stderr
