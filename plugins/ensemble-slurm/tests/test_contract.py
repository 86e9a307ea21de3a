"""Contract tests on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from ensemble_slurm import ensemble_executors
from ensemble_slurm.executor import SlurmExecutor
from ensemble_testing.executor import ExecutorContract, Session

from ensemble_core import Cause, Executor, Job, Problem

if TYPE_CHECKING:
    from conftest import Cluster


@pytest.mark.usefixtures("cluster")
class TestSlurm(ExecutorContract):
    (plugin,) = ensemble_executors()
    contains = False  # without cgroups, Slurm tracks child processes
    many: ClassVar[int] = 20

    @pytest.fixture(autouse=True)
    def _inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
        monkeypatch.chdir(tmp_path)
        self.cluster = cluster

    @pytest.fixture
    def session(self, tmp_path: Path) -> Iterator[Session]:
        with Session(self.make_executor(), tmp_path, self.timeout, tidy=True) as session:
            yield session
        # Slurm may still report a node that an earlier test took down.
        problems = [event for event in session.events if isinstance(event, Problem)]
        assert [
            each for each in problems if "waits in slurm: PartitionConfig" not in each.message
        ] == []

    def make_executor(self) -> Executor:
        return SlurmExecutor(look=1.0, rate=50)

    def test_a_job_runs_on_the_only_node_that_it_does_not_avoid(self, session: Session) -> None:
        """The node has Slurm's name, not its host name."""
        job = session.job(*self.succeeding, avoid=("n1", "n2", "n4"))
        session.run(job)
        assert session.context(job, "start")["host"] == "n3"

    def end_by_node_failure(self, session: Session) -> Cause:
        job = self.on_n4(session)
        self.cluster.run("scontrol", "update", "nodename=n4", "state=down", "reason=test")
        try:
            session.wait_clean(job)
        finally:
            self.cluster.run("scontrol", "update", "nodename=n4", "state=resume", check=False)
        assert session.exception(job) == "node-failure"
        assert session.context(job, "finish")["status"] != 0
        return session.cause(job)

    def end_by_preempted(self, session: Session) -> Cause:
        job = self.on_n4(session)
        self.cluster.run(
            "sbatch", "--partition=urgent", "--exclusive", "--wrap=true", "-o/dev/null"
        )
        session.wait_clean(job)
        return session.cause(job)

    def on_n4(self, session: Session) -> Job:
        """Return a job that occupies the last node."""
        job = session.job(
            *self.lasting, options={"slurm": {"extra": ["--nodelist=n4"], "exclusive": True}}
        )
        session.submit(job)
        session.wait_for(job, "start")
        return job
