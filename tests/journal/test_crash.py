"""Runs whose controller is killed with SIGKILL at chosen places: no job is lost or duplicated.

The queue is a file (``tests/journal/crash``), so all submissions are known exactly.
``ENSEMBLE_CRASH=SEED:COUNT`` sets the first seed and the number of rounds for each ensemble. Failures
print the seed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing.crash import read_rounds, seed_and_rounds

CRASH = Path(__file__).parent / "crash"
SEED, COUNT = seed_and_rounds(2)
ENSEMBLES = (
    "cancel", "chain", "join", "leave", "observed", "paced", "resize", "retry", "terminate",
    "timers", "wild",
)  # fmt: skip


BROKEN = """
import random
from ensemble_testing import Story
from ensemble_testing.crash.kill_points import instrument
from ensemble_core.model.events import Resources

instrument(random.Random(0))
story = Story("jobs: [{name: sim, command: x}]\\nrules: [{trigger: start, action: {name: submit}}]")
story.engine.state.table.groups["sim"].running = 5
story.engine.handle(Resources(0.0, {}))
"""


@pytest.fixture(autouse=True)
def _validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validate the engine's state after each event."""
    monkeypatch.setenv("ENSEMBLE_VALIDATE", "1")


def rounds(base: Path, *args: str) -> list[dict[str, Any]]:
    """Return the result of each round with the file queue."""
    command = [sys.executable, str(CRASH / "rounds.py"), "--seed", str(SEED), "--base", str(base)]
    return read_rounds([*command, *args])


@pytest.mark.timeout(180 + 15 * COUNT * len(ENSEMBLES))
def test_a_run_killed_anywhere_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    """One process for all ensembles, so that imports happen only once."""
    found = rounds(tmp_path, "--rounds", str(COUNT), *ENSEMBLES)
    assert [each["name"] for each in found] == [*ENSEMBLES] * COUNT
    for name in ENSEMBLES:
        kills = sum(len(each["killed"]) for each in found if each["name"] == name)
        assert COUNT < 8 or kills > COUNT // 2, name


@pytest.mark.timeout(300)
def test_a_run_survives_a_kill_at_every_write(tmp_path: Path) -> None:
    """A small run is killed at each place in turn; by default at every 32nd."""
    step = 32 if COUNT <= 2 else 1
    found = rounds(tmp_path, "--every", str(step), "--start", str(SEED % step), "small")
    assert len(found) > 100 // step
    assert sum(bool(each["killed"]) for each in found) > len(found) // 2


@pytest.mark.parametrize("asked", [True, False])
def test_a_killed_controller_validates_its_state_after_each_event_if_asked(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENSEMBLE_VALIDATE", "1" if asked else "")
    command = [sys.executable, "-c", BROKEN]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ("InconsistentState: sim: running is 5" in found.stderr) is asked, found.stderr
    assert (found.returncode != 0) is asked
