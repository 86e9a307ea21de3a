"""Contract tests of the executor on a real PBS, with decisions, stops and crashes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from ensemble_pbs import ensemble_executors
from ensemble_pbs.executor import PBSExecutor
from ensemble_testing import CrashSuite, DecisionSuite, ExecutorContract, Session, StopSuite
from ensemble_testing.decisions import ensemble_files

from ensemble_core import Cause, Executor

if TYPE_CHECKING:
    from conftest import Complex

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
COMPAT = Path(os.environ.get("ENSEMBLE_COMPAT_DIR") or os.devnull)
#: Examples that run on any queue; empty without the checkout.
PLAIN = ensemble_files(EXAMPLES, "lammps-", "minicluster", "two-members")


def options(pbs: Complex) -> tuple[str, ...]:
    return ("-o", "poll=1", "-o", f"queue={pbs.queue}")


@pytest.mark.usefixtures("pbs")
class TestPBS(ExecutorContract):
    (plugin,) = ensemble_executors()
    contains = False  # PBS kills sessions
    many: ClassVar[int] = 20

    @pytest.fixture(autouse=True)
    def _inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pbs: Complex) -> None:
        monkeypatch.chdir(tmp_path)
        self.pbs = pbs

    def make_executor(self) -> Executor:
        return PBSExecutor(queue=self.pbs.queue, poll=1.0)

    def end_by_submit(self, session: Session) -> Cause:
        """Also check a job whose queue does not exist."""
        job = session.job(*self.succeeding, options={"pbs": {"queue": "none.q"}})
        session.run(job)
        assert session.cause(job) == super().end_by_submit(session)
        return session.cause(job)


@pytest.mark.timeout(300)
class TestDecisions(DecisionSuite):
    executor = "pbs"
    files = (*PLAIN, *ensemble_files(COMPAT, "minicluster"))
    refused = ("grow-shrink.yaml", "workload-demand.yaml")  # a cluster has a fixed size
    timed = ("backoff.yaml", "heartbeat.yaml", "switch-algorithms.yaml")
    unheeded = ("known-enough",)  # cancels waiting jobs

    @pytest.fixture(autouse=True)
    def _queue(self, pbs: Complex) -> None:
        self.options = options(pbs)


class TestStops(StopSuite):
    executor = "pbs"
    on_stop = "keep"

    @pytest.fixture(autouse=True)
    def _queue(self, pbs: Complex) -> None:
        self.options = options(pbs)


@pytest.mark.timeout(600)
class TestCrashes(CrashSuite):
    executor = "pbs"

    @pytest.fixture(autouse=True)
    def _queue(self, pbs: Complex) -> None:
        self.pbs, self.options = pbs, options(pbs)

    def active(self) -> int:
        self.pbs.wait_idle()
        return len(self.pbs.jobs())
