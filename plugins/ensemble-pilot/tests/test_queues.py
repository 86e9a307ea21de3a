"""Pilots that are jobs of a real Flux, Grid Engine or PBS, or an allocation of one of them."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_pilot.current_allocation import allocation
from ensemble_pilot.node import without_queue
from ensemble_pilot.pilot_controller import Controller
from ensemble_testing import Session
from ensemble_testing.executor import wait_until

from ensemble_core import Job, UsageError

(PLUGIN,) = ensemble_executors()
_PLUGINS = Path(__file__).parents[2]
GIVEN: dict[str, Any] = {
    "cores": 1,
    "most": 2,
    "idle": 60,
    "orphan": 20,
    "grace": 0.3,
    "listen": "127.0.0.1",
    "patience": 0,
}


def fixtures_of(plugin: str) -> Any:
    """Return the module with the fixtures of another plugin's tests."""
    path = _PLUGINS / plugin / "tests" / "conftest.py"
    if not path.exists():
        pytest.skip(f"the tests of {plugin} are not here")
    spec = importlib.util.spec_from_file_location(f"{plugin.replace('-', '_')}_queue", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Queue:
    """A queue. ``options`` are those of pilots in it, and of an executor that submits them."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = name
        self.options: dict[str, Any] = {**GIVEN, "queue": name}
        module = fixtures_of(f"ensemble-{name}")
        if name == "flux":
            command = module.command()
            if command is None:
                pytest.skip("no Flux: neither on the PATH nor in ENSEMBLE_FLUX_PREFIX")
            monkeypatch.setenv("PATH", f"{Path(command).parent}:{os.environ['PATH']}")
            self._real = module.Instance(command, size=4)
            monkeypatch.setenv("FLUX_URI", self._real.uri)
            self.options["nodes"] = 2
            return
        reason = module.lacking()
        if reason is not None:
            pytest.skip(reason)
        if name == "gridengine":
            self._real = module.Cluster()
            for key in ("PATH", "SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"):
                monkeypatch.setenv(key, self._real.environment[key])
        else:
            self._real = module.Complex()
            self.options["options"] = {"queue": self._real.queue}

    def submit(self, script: Path) -> list[str]:
        """Return the command that submits a script and waits for its end.

        The allocation has two nodes in Flux, and one in the other queues; two cores on each, and a
        time limit of ten minutes.
        """
        if self.name == "flux":
            return ["flux", "alloc", "-N2", "--exclusive", "-t10m", str(script)]
        if self.name == "gridengine":
            # With -notify, a job that ends gets a signal some time before it is killed.
            return ["qsub", "-V", "-cwd", "-sync", "y", "-notify", "-pe", "smp", "2",
                    "-l", "h_rt=0:10:0", "-j", "y", "-o", "batch.out", str(script)]  # fmt: skip
        return ["qsub", "-V", "-Wblock=true", "-q", self._real.queue, "-lselect=1:ncpus=2",
                "-lwalltime=10:00", "-joe", str(script)]  # fmt: skip

    def delete_all(self) -> None:
        if self.name == "flux":
            self._real.flux("cancel", "--all", check=False)
        elif self.name == "gridengine":
            self._real.tried("qdel", "-u", "root")
        else:
            self._real.run("qdel", *self._real.jobs())

    def close(self) -> None:
        if self.name == "gridengine":
            self.delete_all()
        self._real.close()


@pytest.fixture(params=["flux", "gridengine", "pbs"])
def queue(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Yield a queue in which this process can submit jobs."""
    made = Queue(request.param, monkeypatch)
    yield made
    made.close()


WORK = (
    'echo "$ENSEMBLE_JOB_ID ${FLUX_JOB_ID-}${JOB_ID-}${PBS_JOBID-}" >> ran;'
    " until [ -e go ]; do sleep 0.05; done"
)


@pytest.mark.checkout  # needs the plugins of these queues
@pytest.mark.timeout(300)
def test_jobs_run_once_in_pilots_of_this_queue_also_if_one_is_deleted(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pilot that is deleted in the queue ends its jobs; the other jobs run in the next one."""
    monkeypatch.chdir(tmp_path)
    nodes = queue.options.get("nodes", 1)
    with Session(PLUGIN.build(queue.options), tmp_path, 120.0, tidy=True) as session:
        first = [session.job("sh", "-c", WORK) for _ in range(2 * nodes)]
        session.submit(*first)
        for each in first:
            session.wait_for(each, "start")
        controller: Controller = session.executor._controller  # type: ignore[attr-defined]
        ending = on_pilot(controller, first, 1)
        controller.pilots.outers[""].cancel(["pilot.1"])
        session.wait_clean(*ending)
        assert [session.cause(each) for each in ending] == ["preempted"] * nodes
        more = [session.job("sh", "-c", WORK) for _ in range(3)]
        session.submit(*more)
        (tmp_path / "go").touch()
        rest = [each for each in [*first, *more] if each not in ending]
        session.wait_clean(*rest)
        assert {session.cause(each) for each in rest} == {"exit"}
        session.check_ended_once()
    lines = (tmp_path / "ran").read_text().splitlines()
    assert sorted(lines) == sorted(f"{each.id} " for each in (*first, *more))


def on_pilot(controller: Controller, jobs: list[Job], number: int) -> list[Job]:
    def find(c: Controller) -> list[Job]:
        placed = c.fleet.placed
        return [each for each in jobs if placed[each.id].pilot.number == number]

    found: Callable[[Controller], list[Job]] = find
    return controller.request(found)


STUDY = """
jobs:
  - {name: sim, count: 8, duration: 20s, stdout: /dev/null, command: "sh {here}/job.sh"}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""
#: Notes that it runs, and on how many cores; then waits for the file ``go``.
JOB = (
    'cd "$(dirname "$0")"\n'
    'echo "$ENSEMBLE_JOB_ID ${FLUX_JOB_ID-}${JOB_ID-}${PBS_JOBID-}$OMP_NUM_THREADS" >> ran\n'
    "until [ -e go ]; do sleep 0.05; done\n"
)
RUN = "run e.yaml --executor pilot -o queue=here -o listen=127.0.0.1 --state state --tag h"


def in_allocation(queue: Queue, folder: Path, words: str) -> tuple[int, str]:
    """Run ``ensemble`` in an allocation. Return its exit code (-1: killed), and what it said."""
    script = folder / "batch.sh"
    program = f"{sys.executable} -m ensemble_core.cli"
    script.write_text(
        # A login shell may have another PATH, on which the commands of another queue are first.
        f"#!/bin/sh\nPATH={shlex.quote(os.environ['PATH'])}\ncd {folder}\n"
        f"{program} {words} > said 2>&1\necho $? > code\n"
    )
    script.chmod(0o755)
    command = queue.submit(script)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    code, said = folder / "code", folder / "said"
    text = code.read_text() if code.exists() else "-1"
    code.unlink(missing_ok=True)
    assert said.exists(), done
    return int(text), said.read_text()


@pytest.mark.checkout  # needs the plugins of these queues
@pytest.mark.timeout(300)
def test_with_queue_here_the_allocation_itself_is_the_one_pilot(
    queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "e.yaml").write_text(STUDY)
    (tmp_path / "job.sh").write_text(JOB)
    (tmp_path / "go").touch()
    code, said = in_allocation(queue, tmp_path, RUN)
    assert code == 0, said
    nodes = "2 nodes" if queue.name == "flux" else "1 node"
    assert f"pilot 1 requested ({nodes} of 2 cores, 9" in said, "the time limit is known"
    assert "pilot 1 ready" in said
    lines = (tmp_path / "ran").read_text().splitlines()
    # The variable of a job's threads is not that of the allocation, and its queue is not seen.
    assert {line.partition(" ")[2] for line in lines} <= {"", "1"}
    assert sorted(line.partition(" ")[0] for line in lines) == [f"sim.{n}" for n in range(8)]


@pytest.mark.checkout  # needs the plugins of these queues
@pytest.mark.timeout(300)
def test_with_queue_here_a_job_that_ended_with_the_allocation_runs_again_in_the_next(
    queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "e.yaml").write_text(STUDY)
    (tmp_path / "job.sh").write_text(JOB)
    at_once = 4 if queue.name == "flux" else 2

    def ran() -> list[str]:
        path = tmp_path / "ran"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[0] for line in lines]

    def delete_when_started() -> None:
        wait_until(lambda: len(ran()) >= at_once, 100.0)
        queue.delete_all()

    end = threading.Thread(target=delete_when_started)
    end.start()
    in_allocation(queue, tmp_path, RUN)
    end.join()
    first = ran()
    assert len(first) == at_once
    (tmp_path / "go").touch()
    code, said = in_allocation(queue, tmp_path, "resume h --state state")
    assert code == 0, said
    assert Counter(ran()) == Counter(f"sim.{n}" for n in range(8)) + Counter(first)


@pytest.fixture
def flux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put Flux on the PATH, whatever the queue is."""
    command = fixtures_of("ensemble-flux").command()
    if command is None:
        pytest.skip("no Flux: neither on the PATH nor in ENSEMBLE_FLUX_PREFIX")
    monkeypatch.setenv("PATH", f"{Path(command).parent}:{os.environ['PATH']}")


#: Each task notes its rank, and whether it sees the job of the queue.
RANK = (
    'echo "$ENSEMBLE_JOB_ID $PMI_RANK $PMI_SIZE ${FLUX_JOB_NNODES-}'
    ' ${JOB_ID-}${PBS_JOBID-}${SLURM_JOB_ID-}" >> ran'
)


@pytest.mark.checkout  # needs the plugins of these queues
@pytest.mark.timeout(300)
def test_tasks_of_a_job_start_through_flux_inside_pilots_of_this_queue(
    queue: Queue, flux: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = queue.options.get("nodes", 1)
    options = {**queue.options, "cores": 2, "inside": "flux", "most": 1}
    if queue.name == "gridengine":
        options["options"] = {"environment": "smp"}
    with Session(PLUGIN.build(options), tmp_path, 200.0, tidy=True) as session:
        job = session.job("sh", "-c", RANK, nodes=nodes, tasks=2 * nodes)
        session.run(job)
        assert session.cause(job) == "exit"
    lines = sorted((tmp_path / "ran").read_text().splitlines())
    size = 2 * nodes
    assert lines == [f"{job.id} {rank} {size} {nodes} " for rank in range(size)]


@pytest.mark.checkout  # needs the plugins of these queues
@pytest.mark.timeout(300)
def test_with_queue_here_tasks_of_a_job_start_through_flux_inside_the_allocation(
    queue: Queue, flux: None, tmp_path: Path
) -> None:
    nodes = 2 if queue.name == "flux" else 1
    text = STUDY.replace("count: 8", f"count: 2, nodes: {nodes}, tasks: {2 * nodes}")
    (tmp_path / "e.yaml").write_text(text)
    (tmp_path / "job.sh").write_text(f'cd "$(dirname "$0")"\n{RANK}\n')
    code, said = in_allocation(queue, tmp_path, f"{RUN} -o inside=flux")
    assert code == 0, said
    lines = sorted((tmp_path / "ran").read_text().splitlines())
    size = 2 * nodes
    assert lines == [f"sim.{n} {rank} {size} {nodes} " for n in range(2) for rank in range(size)]


@pytest.mark.checkout  # needs ensemble-flux
@pytest.mark.parametrize("queue", ["flux"], indirect=True)
def test_queue_here_in_flux_needs_an_instance_that_is_the_allocation(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise, the one pilot would be all nodes of a cluster."""
    with pytest.raises(UsageError) as refused:
        allocation(os.environ)
    assert "is the instance of a whole cluster" in str(refused.value)
    assert "flux batch" in str(refused.value)
    # The same instance is the allocation of the program that 'flux start' has started.
    code = "import os; from ensemble_pilot.current_allocation import allocation; print(allocation(os.environ))"
    words = ["flux", "start", "--test-size=3", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "nodes=3" in done.stdout
    assert "ends=0.0" in done.stdout
    monkeypatch.setenv("FLUX_JOB_ID", "fabc")
    with pytest.raises(UsageError, match="a task of the Flux job fabc"):
        allocation(os.environ)


def test_jobs_do_not_see_the_pilots_own_job() -> None:
    own = {"FLUX_JOB_ID": "f", "PBS_JOBID": "1", "PBS_NODEFILE": "n", "JOB_ID": "2", "NSLOTS": "4"}
    kept = {"FLUX_URI": "local:///tmp/flux", "PBS_SERVER": "s", "SGE_ROOT": "/ge", "HOME": "/root"}
    assert without_queue({**own, **kept}) == kept
    users = {"QUEUE": "mine", "PE": "mpi", "HOME": "/root"}
    assert without_queue({"SLURM_JOB_ID": "1", **users}) == users
