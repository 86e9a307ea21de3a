"""Controllers that are killed with SIGKILL at chosen places and resumed: nothing lost, nothing twice.

The queue is a file (``tests/journal/crash``), so that all that was submitted is known exactly.
``ENSEMBLE_CRASH=SEED:COUNT`` chooses the first seed and how many rounds each ensemble is given; what
is printed on failure has the seed.
"""

from __future__ import annotations

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


def rounds(base: Path, *args: str) -> list[dict[str, Any]]:
    """What came of each round of the queue that is a file."""
    command = [sys.executable, str(CRASH / "rounds.py"), "--seed", str(SEED), "--base", str(base)]
    return read_rounds([*command, *args])


@pytest.mark.timeout(180 + 15 * COUNT)
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
    """Each place in turn that a small run reaches; one in 16 unless more was asked for."""
    step = 16 if COUNT <= 2 else 1
    found = rounds(tmp_path, "--every", str(step), "--start", str(SEED % step), "small")
    assert len(found) > 100 // step
    assert sum(bool(each["killed"]) for each in found) > len(found) // 2
