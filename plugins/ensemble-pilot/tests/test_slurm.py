"""Pilots that are jobs of a real Slurm, each of two nodes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_testing import (
    CrashSuite,
    DecisionSuite,
    ExecutorContract,
    FaultSuite,
    Session,
    StopSuite,
)
from ensemble_testing.crash import seed_and_rounds
from ensemble_testing.executor import wait_until
from pilot_sessions import stop

from ensemble_core import Cause, Executor, Job
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


@pytest.mark.timeout(900 + 300 * seed_and_rounds(2)[1])
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


class TestDecisions(DecisionSuite):
    executor = "pilot"
    options = OPTIONS
    files = (Path(__file__).parents[3] / "examples" / "hello-world.yaml",)


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


@pytest.fixture
def flux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put Flux on the PATH."""
    prefix = os.environ.get("ENSEMBLE_FLUX_PREFIX")
    found = f"{prefix}/bin/flux" if prefix else shutil.which("flux")
    if found is None:
        pytest.skip("no Flux: neither on the PATH nor in ENSEMBLE_FLUX_PREFIX")
    monkeypatch.setenv("PATH", f"{Path(found).parent}:{os.environ['PATH']}")


def test_jobs_of_several_nodes_start_through_flux_and_end_with_their_pilot(
    cluster: Any, flux: None, tmp_path: Path
) -> None:
    """``scancel`` ends the first; the second never started, and runs in another pilot."""
    text = "echo $ENSEMBLE_JOB_ID $PMI_RANK $PMI_SIZE ${SLURM_JOB_ID-none} >> ran; "
    wait = "until [ -e go ]; do sleep 0.05; done"
    options = {**GIVEN, "idle": 5, "most": 1, "inside": "flux"}
    with Session(PLUGIN.build(options), tmp_path, 200.0, tidy=True) as session:
        first, second = (session.job("sh", "-c", text + wait, nodes=2, tasks=4) for _ in "12")
        session.submit(first, second)
        wait_until(lambda: (tmp_path / "ran").exists(), 200.0)
        wait_until(lambda: (tmp_path / "ran").read_text().count("\n") == 4, 200.0)
        cluster.run("scancel", *[id_ for id_, _, _ in cluster.active()])
        session.wait_clean(first)
        assert session.cause(first) == "preempted"
        (tmp_path / "go").touch()
        session.wait_clean(second)
        assert session.cause(second) == "exit"
    lines = sorted((tmp_path / "ran").read_text().splitlines())
    assert lines == [f"{job.id} {rank} 4 none" for job in (first, second) for rank in range(4)]


def test_node_that_is_down_but_works_starts_nothing_more(cluster: Any, tmp_path: Path) -> None:
    """Its job runs once, elsewhere, although the supervisor has it and continues later."""
    options = {**GIVEN, "nodes": 1, "least": 1}
    with Session(PLUGIN.build(options), tmp_path, 120.0, tidy=True) as session:
        controller = session.executor._controller  # type: ignore[attr-defined]
        wait_until(lambda: controller.gauges["pilots.ready"])
        state = tmp_path / "state" / session.tag / "pilot-1" / "node-0"
        keeper = supervisor_pid(state)
        stop(keeper)
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
        assert session.cause(job) == "exit", session.of(job)
    assert (tmp_path / "ran").read_text().split() == [job.id]


STUDY = """
jobs:
  - {name: sim, count: 8, duration: 20s, stdout: /dev/null, command: "sh {here}/job.sh"}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""
JOB = 'echo "$ENSEMBLE_JOB_ID $SLURM_JOB_ID" >> "$(dirname "$0")/ran"; sleep 0.2\n'


def in_allocation(cluster: Any, folder: Path, words: str, *options: str) -> tuple[int, str]:
    """Run ``ensemble`` in a batch job of two nodes. Return its exit code, and what it said."""
    script = folder / "batch.sh"
    program = f"{sys.executable} -m ensemble_core.cli"
    script.write_text(f"#!/bin/sh\n{program} {words} > said 2>&1\necho $? > code\n")
    cluster.run(
        *("sbatch", "--wait", "-N2", "-n2", "-c2", f"--chdir={folder}", "--output=batch.out"),
        *(*options, str(script)),
        check=False,
    )
    code = folder / "code"
    text = code.read_text() if code.exists() else ""
    code.unlink(missing_ok=True)
    return int(text or -1), (folder / "said").read_text()


def test_with_queue_here_the_allocation_itself_is_the_one_pilot(
    cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "e.yaml").write_text(STUDY)
    (tmp_path / "job.sh").write_text(JOB)
    before = {id_ for id_, _, _ in cluster.jobs()}
    words = "run e.yaml --executor pilot -o queue=here -o listen=127.0.0.1 --state state"
    code, said = in_allocation(cluster, tmp_path, words, "--time=10")
    assert code == 0, said
    assert "pilot 1 requested (2 nodes of 2 cores" in said
    assert "pilot 1 ready" in said
    assert ": 4 cores" in said
    lines = (tmp_path / "ran").read_text().splitlines()
    # Jobs do not see the allocation: a step that they start would be outside of their cores.
    assert sorted(lines) == sorted(f"sim.{number} " for number in range(8))
    assert len({id_ for id_, _, _ in cluster.jobs()} - before) == 1, "it has requested nothing"


def test_with_queue_here_jobs_of_several_nodes_start_through_flux(
    cluster: Any, flux: None, tmp_path: Path
) -> None:
    (tmp_path / "e.yaml").write_text(STUDY.replace("count: 8", "count: 2, nodes: 2, tasks: 4"))
    (tmp_path / "job.sh").write_text(
        'echo "$ENSEMBLE_JOB_ID $PMI_RANK $PMI_SIZE ${SLURM_JOB_ID-none}" >> "$(dirname "$0")/ran"\n'
    )
    words = "run e.yaml --executor pilot -o queue=here -o inside=flux -o listen=127.0.0.1"
    code, said = in_allocation(cluster, tmp_path, f"{words} --state state", "--time=10")
    assert code == 0, said
    lines = sorted((tmp_path / "ran").read_text().splitlines())
    assert lines == [f"sim.{number} {rank} 4 none" for number in range(2) for rank in range(4)]


def test_with_queue_here_a_job_that_ended_with_the_allocation_runs_again_in_the_next(
    cluster: Any, tmp_path: Path
) -> None:
    """The resume is in another allocation: nothing is known of the first, except its files."""
    (tmp_path / "e.yaml").write_text(STUDY)
    (tmp_path / "job.sh").write_text(
        JOB + 'd=$(dirname "$0"); until [ -e "$d/go" ]; do sleep 0.05; done\n'
    )
    words = "run e.yaml --executor pilot -o queue=here -o listen=127.0.0.1 --state state --tag h"
    end = threading.Thread(target=_cancel_when_started, args=(cluster, tmp_path))
    end.start()
    in_allocation(cluster, tmp_path, words, "--time=10")
    end.join()
    first = (tmp_path / "ran").read_text().split()
    (tmp_path / "go").touch()
    code, said = in_allocation(cluster, tmp_path, "resume h --state state", "--time=10")
    assert code == 0, said
    ran = Counter((tmp_path / "ran").read_text().split())
    # Those that had started run again, as with the executor 'local' in an allocation.
    assert ran == Counter({f"sim.{n}": 1 + (f"sim.{n}" in first) for n in range(8)})


def _cancel_when_started(cluster: Any, folder: Path) -> None:
    wait_until(lambda: len((folder / "ran").read_text().split()) >= 4
               if (folder / "ran").exists() else False, 100.0)  # fmt: skip
    cluster.run("scancel", *[id_ for id_, _, _ in cluster.active()])


@pytest.mark.timeout(300)
class TestFaults(FaultSuite):
    """The queue of the pilots fails; their jobs are not in it."""

    __test__ = _SOAK
    commands: ClassVar = {
        "connect": "scontrol",
        "submit": "sbatch",
        "ask": "squeue",
        "cancel": "scancel",
    }
    away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    nothing = ""
    partial = "sed 1d"
    names_cancels: ClassVar = ()  # others can only cancel a pilot

    @pytest.fixture
    def queue(self, cluster: Any) -> None: ...

    def make_executor(self, period: float = 1.0) -> Executor:
        return PLUGIN.build({**GIVEN, "options": {**GIVEN["options"], "look": period}})

    def cancel_from_outside(self, session: Session, *jobs: Job) -> None:
        """Cancel the pilots in which jobs run."""
        words = ["scancel", "--name=pilot", "--me"]
        subprocess.run(words, check=True, capture_output=True, timeout=self.timeout)
