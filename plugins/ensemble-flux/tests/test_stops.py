"""Stop tests on a real Flux instance: a stopped and resumed study has the same tables.

``make soak`` runs a thousand rounds of the random stops.
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


@pytest.mark.usefixtures("instance")
class TestFlux(StopSuite):
    executor = "flux"
    on_stop = "keep"


@pytest.mark.checkout
@pytest.mark.timeout(550)
def test_a_randomly_stopped_run_has_the_tables_of_an_undisturbed_one(
    instance: Any, tmp_path: Path
) -> None:
    words = [sys.executable, str(STOPS), "--rounds", "2", "--on", "flux", "--base", str(tmp_path)]
    done = subprocess.run([*words], capture_output=True, text=True, check=False)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["good"] for each in rounds] == [True, True], done.stdout + done.stderr
