"""Pilots that are jobs of a real Slurm, each of two nodes."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_testing import CrashSuite, ExecutorContract, Session, StopSuite
from ensemble_testing.crash import seed_and_rounds
from ensemble_testing.executor import wait_until

from ensemble_core import Cause, Executor
from ensemble_core.local.leftover_jobs import supervisor_pid

(PLUGIN,) = ensemble_executors()
_CLUSTER = Path(__file__).parents[2] / "ensemble-slurm" / "tests" / "conftest.py"
#: These suites take many minutes of CPU; with pilots on this machine, they run always.
#: The variable ``ENSEMBLE_SOAK`` lets them run here, too.
_SOAK = bool(os.environ.get("ENSEMBLE_SOAK"))
#: The cluster has four nodes of two cores.
GIVEN: dict[str, Any] = {
    "queue": "slurm",
    "options": {"look": 1.0, "rate": 50, "exclusive": True},
    "nodes": 2,
    "cores": 2,
    "most": 2,
    "idle": 60,
    "orphan": 5,
    "grace": 0.3,
    "listen": "127.0.0.1",
}
OPTIONS = (
    *("-o", "queue=slurm", "-o", 'options={"look": 1, "rate": 50, "exclusive": true}'),
    *("-o", "nodes=2", "-o", "cores=2", "-o", "most=2", "-o", "idle=2", "-o", "orphan=5"),
    *("-o", "grace=0.3", "-o", "listen=127.0.0.1"),
)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Any]:
    """Start the cluster of the tests of ensemble-slurm."""
    if not _CLUSTER.exists():
        pytest.skip("the tests of ensemble-slurm are not here")
    spec = importlib.util.spec_from_file_location("slurm_cluster", _CLUSTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if (missing := module.programs()) is not None:
        pytest.skip(f"{missing} (Debian: apt install slurm-wlm munge)")
    cluster = module.Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(autouse=True)
def cluster(slurm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Make this process submit to the cluster, and check that no job is left in it."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_")):
            monkeypatch.delenv(name)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.environment[name])
    monkeypatch.chdir(tmp_path)
    yield slurm
    slurm.wait_idle()
    assert slurm.active() == []


class TestPilot(ExecutorContract):
    __test__ = _SOAK
    plugin = PLUGIN
    build_options: ClassVar[dict[str, Any]] = GIVEN
    slots = 8
    many = 20

    def make_executor(self) -> Executor:
        return PLUGIN.build(GIVEN)

    def end_by_memory(self, session: Session) -> Cause:
        """The nodes' supervisors decide about memory, as with pilots on this machine."""
        return "memory"

    def end_by_preempted(self, session: Session) -> Cause:
        """End a pilot with scancel: a job that never started runs elsewhere."""
        job = session.job(*self.lasting)
        session.submit(job)
        session.wait_for(job, "start")
        slurm: Any = self.cluster
        slurm.run("scancel", *[id_ for id_, _, _ in slurm.jobs()])
        session.wait_clean(job)
        return session.cause(job)

    @pytest.fixture(autouse=True)
    def _inside(self, cluster: Any) -> None:
        self.cluster = cluster


@pytest.mark.timeout(240 + 60 * seed_and_rounds(2)[1])
class TestCrash(CrashSuite):
    executor = "pilot"
    options = OPTIONS
    slots = 8


class TestStops(StopSuite):
    __test__ = _SOAK
    executor = "pilot"
    options = OPTIONS
    on_stop = "keep"
    slots = 8


def test_case_of_many_tiny_jobs_on_whole_nodes(cluster: Any, tmp_path: Path) -> None:
    """60 jobs of 0.05 s take at most two allocations of Slurm, and use all nodes of each."""
    before = {id_ for id_, _, _ in cluster.jobs()}
    options = {**GIVEN, "idle": 2}
    with Session(PLUGIN.build(options), tmp_path, 120.0, tidy=True) as session:
        jobs = [
            session.job("sh", "-c", "echo $ENSEMBLE_JOB_ID ${SLURM_JOB_ID-none} >> ran; sleep 0.05")
            for _ in range(60)
        ]
        session.run(*jobs)
        assert {session.cause(job) for job in jobs} == {"exit"}
    lines = (tmp_path / "ran").read_text().splitlines()
    assert sorted(lines) == sorted(f"{job.id} none" for job in jobs)
    assert len({id_ for id_, _, _ in cluster.jobs()} - before) <= 2


def test_node_that_is_down_but_works_starts_nothing_more(cluster: Any, tmp_path: Path) -> None:
    """Its job runs once, elsewhere, although the supervisor has it and continues later."""
    options = {**GIVEN, "nodes": 1, "least": 1}
    with Session(PLUGIN.build(options), tmp_path, 120.0, tidy=True) as session:
        controller = session.executor._controller  # type: ignore[attr-defined]
        wait_until(lambda: controller.gauges["pilots.ready"])
        state = tmp_path / "state" / session.tag / "pilot-1" / "node-0"
        keeper = supervisor_pid(state)
        os.kill(keeper, signal.SIGSTOP)
        job = session.job("sh", "-c", "echo $ENSEMBLE_JOB_ID >> ran")
        session.submit(job)
        wait_until(lambda: controller.request(lambda c: job.id in c.fleet.placed))
        (node,) = set(cluster.run("squeue", "-h", "-t", "R", "-o", "%N").split())
        daemon = cluster._processes[node].pid
        os.kill(daemon, signal.SIGSTOP)  # so that nothing ends the pilot's processes
        cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        try:
            session.wait_clean(job)
            os.kill(keeper, signal.SIGCONT)
            wait_until(lambda: supervisor_pid(state) == 0)
        finally:
            os.kill(daemon, signal.SIGCONT)
            cluster.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        assert session.cause(job) == "exit"
    assert (tmp_path / "ran").read_text().split() == [job.id]
