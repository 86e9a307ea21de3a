"""Crash suite: kills the controllers of runs on an executor with SIGKILL, and resumes the runs.

An author's own test file::

    from ensemble_testing import CrashSuite

    class TestMyQueue(CrashSuite):
        executor = "my-queue"
        options = ("-o", "partition=debug")

The suite checks that no job is lost or runs twice, that no firing of a rule is lost or repeated,
and that a replay of the journal makes the same decisions.

The variable ``ENSEMBLE_CRASH=SEED:COUNT`` sets the first seed and the number of killed runs. A
failure prints its seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar


def seed_and_rounds(rounds: int) -> tuple[int, int]:
    """Return the first seed and the number of killed runs, from ``ENSEMBLE_CRASH`` if set."""
    chosen = os.environ.get("ENSEMBLE_CRASH", "") or f"1:{rounds}"
    seed, _, count = chosen.partition(":")
    return int(seed), int(count or rounds)


def read_rounds(command: Sequence[str], timeout: float | None = None) -> list[dict[str, Any]]:
    """Run a program that prints a line of JSON for each round; return the rounds after checking
    them.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [each for each in found if not each["good"]]
    assert not wrong, "\n\n".join(json.dumps(each, indent=1) for each in wrong)
    assert done.returncode == 0, done.stderr
    assert sum(each["jobs"] for each in found) > 0
    return found


class CrashSuite:
    """Tests of the executor with the name ``executor``, which must support ``reattach``.

    Start the queue in a fixture, with the environment variables that your executor needs. Jobs must
    run on this machine, as this user, in their run's folder.
    """

    #: The executor's name, and other options of ``ensemble run``.
    executor: ClassVar[str]
    options: Sequence[str] = ()
    #: Number of one-core jobs that run concurrently; ``None``: use the gauge ``cores.up``. One is
    #: enough if jobs start in the order of submission.
    slots: ClassVar[int | None] = None
    #: Number of killed runs, unless ``ENSEMBLE_CRASH`` is set.
    rounds: ClassVar[int] = 2

    def submitted(self) -> int | None:
        """Return how many jobs the queue has received so far, or ``None`` if it does not count."""
        return None

    def active(self) -> int:
        """Return how many of the queue's jobs are unfinished."""
        return 0

    def test_each_job_runs_once_whenever_its_controller_is_killed(self, tmp_path: Path) -> None:
        from ensemble_testing.crash.__main__ import JOBS
        from ensemble_testing.session import NAME, need

        need(self, executor=NAME)
        seed, count = seed_and_rounds(self.rounds)
        slots = () if self.slots is None else ("--slots", str(self.slots))
        before = self.submitted()
        found = read_rounds(
            [sys.executable, "-m", __name__, self.executor, "--seed", str(seed),
             "--rounds", str(count), "--base", str(tmp_path), *slots, "--", *self.options]
        )  # fmt: skip
        assert len(found) == count + 1  # the first run is not killed
        assert {each["jobs"] for each in found} == {JOBS}
        # The jobs' output shows that none ran twice; the queue shows that none was submitted twice.
        after = self.submitted()
        if before is not None and after is not None:
            assert after - before == JOBS * len(found)
        assert self.active() == 0
