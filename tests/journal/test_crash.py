"""Controllers that are killed with SIGKILL at chosen places and resumed: nothing lost, nothing twice.

Runs and their controllers are in ``tests/journal/crash``; ``ENSEMBLE_CRASH=SEED:COUNT`` chooses the first
seed and how many rounds each ensemble is given. What is printed on failure has the seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.once


CRASH = Path(__file__).parent / "crash"
SEED, COUNT = (
    int(part) for part in (os.environ.get("ENSEMBLE_CRASH", "") or "1:2").partition(":")[::2]
)
ENSEMBLES = (
    "cancel", "chain", "join", "leave", "observed", "paced", "resize", "retry", "terminate",
    "timers", "wild",
)  # fmt: skip


def rounds(base: Path, *args: str) -> list[dict[str, Any]]:
    """What came of each round of the queue that is a file."""
    command = [sys.executable, str(CRASH / "rounds.py"), "--seed", str(SEED), "--base", str(base)]
    return rounds_of([*command, *args])


def rounds_of(command: list[str]) -> list[dict[str, Any]]:
    """What came of each round, all of which must be as they should."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [each for each in found if not each["good"]]
    assert not wrong, "\n\n".join(json.dumps(each, indent=1) for each in wrong)
    assert done.returncode == 0, done.stderr
    assert sum(each["jobs"] for each in found) > 0
    return found


@pytest.mark.timeout(60 + 15 * COUNT)
@pytest.mark.parametrize("name", ENSEMBLES)
def test_a_run_that_is_killed_anywhere_ends_like_one_that_was_not(
    name: str, tmp_path: Path
) -> None:
    found = rounds(tmp_path, "--rounds", str(COUNT), name)
    assert len(found) == COUNT
    assert COUNT < 8 or sum(len(each["killed"]) for each in found) > COUNT // 2


@pytest.mark.timeout(300)
def test_a_run_may_be_killed_at_every_write_and_between_decision_and_performance(
    tmp_path: Path,
) -> None:
    """Each place in turn that a small run reaches; a fifth of them unless more was asked for."""
    step = 5 if COUNT <= 2 else 1
    found = rounds(tmp_path, "--every", str(step), "--start", str(SEED % step), "small")
    assert len(found) > 100 // step
    assert sum(bool(each["killed"]) for each in found) > len(found) // 2


@pytest.mark.timeout(120 + 10 * COUNT)
def test_jobs_on_this_machine_run_once_whenever_their_controller_is_killed(tmp_path: Path) -> None:
    """Each appends its id to a file; their keeper outlives controllers, and leaves nothing behind."""
    command = [sys.executable, str(CRASH / "real.py"), "local", "--base", str(tmp_path)]
    found = rounds_of([*command, "--seed", str(SEED), "--rounds", str(2 * COUNT)])
    assert len(found) == 2 * COUNT + 1
    assert {each["jobs"] for each in found} == {10}
