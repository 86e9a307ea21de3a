"""Contract, decision, stop and crash tests on a real Grid Engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from ensemble_gridengine import ensemble_executors
from ensemble_gridengine.executor import GridEngineExecutor
from ensemble_testing import CrashSuite, DecisionSuite, ExecutorContract, Session, StopSuite

from ensemble_core import Cause, Executor

if TYPE_CHECKING:
    from conftest import Cluster

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
OPTIONS = ("-o", "poll=1", "-o", "environment=smp")


@pytest.mark.usefixtures("cluster")
class TestGridEngine(ExecutorContract):
    (plugin,) = ensemble_executors()
    contains = False  # Grid Engine signals process groups
    many: ClassVar[int] = 20

    @pytest.fixture(autouse=True)
    def _inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
        monkeypatch.chdir(tmp_path)
        self.cluster = cluster

    def make_executor(self) -> Executor:
        return GridEngineExecutor(poll=1.0, environment="smp")

    def test_gauges_are_the_slots_of_the_queues(self, session: Session) -> None:
        assert session.executor.resources()["cores.up"] == 8.0

    def test_avoided_nodes_are_added_to_a_request_for_a_node(self, session: Session) -> None:
        job = session.job(
            *self.succeeding,
            avoid=("n17", "n18"),
            options={"gridengine": {"resources": {"hostname": "localhost|n17"}}},
        )
        session.run(job)
        assert session.context(job, "finish")["status"] == 0

    def end_by_submit(self, session: Session) -> Cause:
        """Also submit a job to a queue that does not exist."""
        job = session.job(*self.succeeding, options={"gridengine": {"queue": "none.q"}})
        session.run(job)
        assert session.cause(job) == super().end_by_submit(session)
        return session.cause(job)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cluster")
class TestDecisions(DecisionSuite):
    executor = "gridengine"
    options = OPTIONS
    # Slurm's tests run all examples, and its executor has the same base.
    files = (EXAMPLES / "grow-shrink.yaml",)
    refused = ("grow-shrink.yaml",)  # a cluster has a fixed size


@pytest.mark.usefixtures("cluster")
class TestStops(StopSuite):
    executor = "gridengine"
    options = OPTIONS
    on_stop = "keep"
    slots = 8


@pytest.mark.timeout(600)
class TestCrashes(CrashSuite):
    executor = "gridengine"
    options = OPTIONS

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def active(self) -> int:
        self.cluster.wait_idle()
        return len(self.cluster.jobs())
