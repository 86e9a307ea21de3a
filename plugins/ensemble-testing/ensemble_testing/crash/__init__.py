"""Crash suite: an executor whose controllers are killed with SIGKILL and resumed.

An author's own test file::

    from ensemble_testing import CrashSuite

    class TestMyQueue(CrashSuite):
        executor = "my-queue"
        options = ("-o", "partition=debug")

Each round is one ``ensemble run`` in a process of its own. It is killed once or several times, at
kill points (between a decision and what it leads to, before and after each write …) and at random
moments, and resumed until it is over. No job may be lost and none may run twice, no rule may fire
again, and deciding everything anew from the journal must come to the same.

``ENSEMBLE_CRASH=SEED:COUNT`` chooses the first seed and the number of rounds; what is printed of a
failure has its seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

__all__ = ["CrashSuite", "read_rounds", "seed_and_rounds"]


def seed_and_rounds(rounds: int) -> tuple[int, int]:
    """The first seed and the number of rounds, as ``ENSEMBLE_CRASH`` has them."""
    chosen = os.environ.get("ENSEMBLE_CRASH", "") or f"1:{rounds}"
    seed, _, count = chosen.partition(":")
    return int(seed), int(count or rounds)


def read_rounds(command: Sequence[str], timeout: float | None = None) -> list[dict[str, Any]]:
    """Run a program that prints a line of JSON for each round; all must be as they should."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [each for each in found if not each["good"]]
    assert not wrong, "\n\n".join(json.dumps(each, indent=1) for each in wrong)
    assert done.returncode == 0, done.stderr
    assert sum(each["jobs"] for each in found) > 0
    return found


class CrashSuite:
    """Tests of an executor by its name; it must be able to find jobs again (``reattach``).

    The queue must be there and be found from the environment: begin it in a fixture. Jobs must run
    on this machine, as this user, in the folder of their run.
    """

    #: The executor's name, and further options of ``ensemble run``.
    executor: ClassVar[str]
    options: Sequence[str] = ()
    #: How many jobs of one core run at once; ``None``: so many as the gauge ``cores.up`` says. One
    #: is enough, if jobs begin in the order in which they were submitted.
    slots: ClassVar[int | None] = None
    #: How many runs are killed, unless ``ENSEMBLE_CRASH`` says otherwise.
    rounds: ClassVar[int] = 2

    def submitted(self) -> int | None:
        """How many jobs the queue was given so far; ``None`` where it keeps no account of that."""
        return None

    def active(self) -> int:
        """How many of the queue's jobs are not over."""
        return 0

    def test_each_job_runs_once_whenever_its_controller_is_killed(self, tmp_path: Path) -> None:
        from ensemble_testing.crash.__main__ import JOBS

        seed, count = seed_and_rounds(self.rounds)
        slots = () if self.slots is None else ("--slots", str(self.slots))
        before = self.submitted()
        found = read_rounds(
            [sys.executable, "-m", __name__, self.executor, "--seed", str(seed),
             "--rounds", str(count), "--base", str(tmp_path), *slots, "--", *self.options]
        )  # fmt: skip
        assert len(found) == count + 1  # the first is not killed
        assert {each["jobs"] for each in found} == {JOBS}
        # What jobs wrote says that none ran twice; the queue says that none was submitted twice.
        after = self.submitted()
        if before is not None and after is not None:
            assert after - before == JOBS * len(found)
        assert self.active() == 0
