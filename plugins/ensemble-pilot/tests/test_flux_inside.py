"""Jobs of several tasks that start through a real Flux inside pilots, on one node and on several."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from ensemble_testing.processes import process_files
from pilot_sessions import controller, new_session, ran

from ensemble_core import Job
from ensemble_core.local.leftover_jobs import supervisor_pid
from ensemble_core.local.process_tree import parent_of

#: Each task notes that it runs, and each SIGTERM that it gets.
TASK = """
trap 'echo $FLUX_TASK_RANK >> termed' TERM
echo $$ $FLUX_TASK_RANK >> tasks; [ $FLUX_TASK_RANK != 0 ] || echo $ENSEMBLE_JOB_ID >> ran
until [ -e go ]; do sleep 0.05; done
"""
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put Flux on the PATH of the pilots. At the end, no broker is left."""
    prefix = os.environ.get("ENSEMBLE_FLUX_PREFIX")
    found = f"{prefix}/bin/flux" if prefix else shutil.which("flux")
    if found is None:
        pytest.skip("no Flux: neither on the PATH nor in ENSEMBLE_FLUX_PREFIX")
    monkeypatch.setenv("PATH", f"{Path(found).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("FLUX_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    wait_until(lambda: not brokers(tmp_path))


def brokers(folder: Path) -> list[int]:
    place = str(folder).encode()
    return [
        pid
        for pid, text in process_files("cmdline")
        if b"broker\0" in text and b"--config-path=" in text and place in text
    ]


def session_of(folder: Path, **options: Any) -> Session:
    """Return a session whose pilots have two nodes of two cores."""
    local = {"options": {"slots": 8, "pool": "none"}, "nodes": 2, "cores": 2}
    session = new_session(folder, inside="flux", **{**local, **options})
    session.timeout = 200.0
    return session


def numbers(name: str) -> list[int]:
    path = Path(name)
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def alive(*pids: int) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_tasks_on_several_nodes_find_what_mpi_needs_and_the_job_has_their_exit_code(
    tmp_path: Path,
) -> None:
    names = "$FLUX_TASK_RANK $FLUX_JOB_SIZE $FLUX_JOB_NNODES $PMI_RANK $PMI_SIZE"
    ours = "$ENSEMBLE_TASK_RANK $ENSEMBLE_TASK_COUNT $ENSEMBLE_CORES $OMP_NUM_THREADS $KEY"
    text = f"echo {names} {ours} $FLUX_URI >&2; echo out; exit $((3 + $FLUX_TASK_RANK))"
    with session_of(tmp_path) as session:
        job = session.job(
            *("sh", "-c", text), nodes=2, tasks=4, environment={"KEY": "a"},
            stdout="out.txt", stderr="err.txt",
        )  # fmt: skip
        session.run(job)
        assert session.cause(job) == "exit"
        (finish,) = [event for event in session.of(job) if event.name == "finish"]
        assert finish.context["status"] == 6 << 8
    lines = [line.split() for line in Path("err.txt").read_text().splitlines()]
    # FLUX_URI differs: two brokers have started the tasks. Nothing else is in the file.
    assert sorted(line[:-1] for line in lines) == [
        [str(rank), "4", "2", str(rank), "4", str(rank), "4", "1", "1", "a"] for rank in range(4)
    ]
    assert len({line[-1] for line in lines}) == 2
    assert Path("out.txt").read_text() == "out\n" * 4
    assert not list((tmp_path / "state").glob("*/pilot-*/flux-*")), "no key is left"


#: Passes its rank on in a ring, adds all ranks up, and prints both, with the broker's address.
MPI = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
  int rank, size, left, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0,
               &left, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("%d %d %d %d %s\n", rank, size, left, sum, getenv("FLUX_URI"));
  return MPI_Finalize();
}
"""


@pytest.mark.parametrize("library", ["mpich", "openmpi"])
def test_mpi_program_on_several_nodes_has_all_its_ranks(tmp_path: Path, library: str) -> None:
    compiler = shutil.which(f"mpicc.{library}")
    if compiler is None:
        pytest.skip(f"no mpicc.{library} (Debian: lib{library}-dev)")
    Path("mpi.c").write_text(MPI)
    made = subprocess.run(
        [compiler, "mpi.c", "-o", "mpi"], capture_output=True, text=True, check=False
    )
    if made.returncode and "mpi.h" in made.stderr:
        pytest.skip(f"no mpi.h (Debian: lib{library}-dev)")
    assert made.returncode == 0, made.stderr
    with session_of(tmp_path) as session:
        job = session.job(str(tmp_path / "mpi"), nodes=2, tasks=4, stdout="out.txt")
        session.run(job)
        assert session.cause(job) == "exit"
    lines = sorted(line.split() for line in Path("out.txt").read_text().splitlines())
    assert [line[:4] for line in lines] == [
        [str(rank), "4", str((rank - 1) % 4), "6"] for rank in range(4)
    ]
    assert len({line[4] for line in lines}) == 2, "two nodes"


def test_on_one_node_tasks_start_through_flux_and_a_single_one_does_not(tmp_path: Path) -> None:
    text = 'echo "${FLUX_TASK_RANK-none} ${PMI_SIZE-none}"'
    with session_of(tmp_path) as session:
        two = session.job("sh", "-c", text, tasks=2, stdout="two.txt")
        one = session.job("sh", "-c", text, stdout="one.txt")
        session.run(two, one)
        assert [session.cause(job) for job in (two, one)] == ["exit", "exit"]
    assert sorted(Path("two.txt").read_text().splitlines()) == ["0 2", "1 2"]
    assert Path("one.txt").read_text() == "none none\n"


def test_each_task_has_the_gpus_of_its_own_node(tmp_path: Path) -> None:
    """A job on the first node has taken one of its GPUs 0 to 2; the second node has 3 to 5."""
    text = "echo $ENSEMBLE_TASK_RANK $CUDA_VISIBLE_DEVICES"
    options = {"slots": 8, "gpus": 6, "pool": "none"}
    with session_of(tmp_path, gpus=3, cores=3, options=options) as session:
        other = session.job("sh", "-c", "until [ -e go ]; do sleep 0.05; done", gpus_per_task=1)
        session.submit(other)
        session.wait_for(other, "start")
        job = session.job("sh", "-c", text, nodes=2, tasks=4, gpus_per_task=1, stdout="out.txt")
        session.run(job)
        assert session.cause(job) == "exit"
        (tmp_path / "go").touch()
        session.wait_clean(other)
    lines = sorted(Path("out.txt").read_text().splitlines())
    assert lines == ["0 1", "1 2", "2 3", "3 4"]


def test_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with session_of(tmp_path) as session:
        job = session.job("no-such-program", nodes=2, tasks=2, stderr="err.txt")
        session.run(job)
        (finish,) = [event for event in session.of(job) if event.name == "finish"]
        assert finish.context["status"] == 127 << 8
    assert "no-such-program: command not found" in Path("err.txt").read_text()


def started(session: Session, job: Job) -> list[int]:
    """Wait until all tasks of a job run. Return their processes."""
    session.wait_for(job, "start")
    wait_until(lambda: len(numbers("tasks")) == job.tasks or "clean" in session.names(job), 200.0)
    assert "clean" not in session.names(job), list(map(Path.read_text, Path().glob("*.err")))
    return numbers("tasks")


def test_each_task_on_all_nodes_gets_sigterm_once_and_none_is_left_at_the_end(
    tmp_path: Path,
) -> None:
    with session_of(tmp_path, grace=3) as session:
        job = session.job("sh", "-c", TASK, nodes=2, tasks=4)
        session.submit(job)
        tasks = started(session, job)
        session.cancel(job)
        session.wait_clean(job)
        assert session.cause(job) == "cancelled"
        assert not alive(*tasks)
    assert Counter(numbers("termed")) == Counter(range(4))


def test_tasks_that_react_to_sigterm_end_the_job_before_its_grace_is_over(tmp_path: Path) -> None:
    text = TASK.replace("termed'", "termed; exit 0'")
    with session_of(tmp_path, grace=1000) as session:
        job = session.job("sh", "-c", text, nodes=2, tasks=2)
        session.submit(job)
        started(session, job)
        session.cancel(job)
        session.wait_clean(job)
        assert session.cause(job) == "cancelled"


def test_signal_of_a_rule_reaches_each_task_once(tmp_path: Path) -> None:
    text = TASK.replace("' TERM", "' USR1")
    with session_of(tmp_path) as session:
        job = session.job("sh", "-c", text, nodes=2, tasks=2)
        session.submit(job)
        started(session, job)
        session.executor.signal([job.id], "USR1")
        wait_until(lambda: len(numbers("termed")) == 2)
        (tmp_path / "go").touch()
        session.wait_clean(job)
        assert session.cause(job) == "exit"
    assert Counter(numbers("termed")) == Counter(range(2))


def test_when_the_head_is_killed_no_task_on_another_node_outlives_the_job(tmp_path: Path) -> None:
    """Flux alone does not ensure this: tasks of a broker that is killed go on."""
    with session_of(tmp_path) as session:
        job = session.job("sh", "-c", TASK, nodes=2, tasks=2)
        session.submit(job)
        tasks = started(session, job)
        state = tmp_path / "state" / session.tag / "pilot-1" / "node-0"
        (head,) = [
            pid
            for pid, text in process_files("cmdline")
            if b"flux_start.py" in text and parent_of(pid) == supervisor_pid(state)
        ]
        os.kill(head, signal.SIGKILL)
        session.wait_clean(job)
        assert not alive(*tasks)
        assert session.cause(job) == "signal"
        again = session.job("true", nodes=2, tasks=2)
        session.run(again)
        assert session.cause(again) == "exit"


@pytest.mark.parametrize("rank", [0, 1])
def test_when_a_node_is_lost_its_jobs_are_preempted_and_others_run_elsewhere(
    rank: int, tmp_path: Path
) -> None:
    with session_of(tmp_path, most=2) as session:
        first = session.job("sh", "-c", TASK, nodes=2, tasks=4)
        session.submit(first)
        tasks = started(session, first)
        state = tmp_path / "state" / session.tag / "pilot-1" / f"node-{rank}"
        task = parent_of(supervisor_pid(state))
        assert task is not None
        waiting = session.job("sh", "-c", TASK, nodes=2, tasks=4)
        session.submit(waiting)
        os.kill(task, signal.SIGKILL)
        session.wait_clean(first)
        assert session.cause(first) == "preempted"
        wait_until(lambda: not alive(*tasks))
        (tmp_path / "go").touch()
        session.wait_clean(waiting)
        assert session.cause(waiting) == "exit"
    assert ran(tmp_path) == [first.id, waiting.id]


def test_job_that_ends_well_after_sigterm_counts_when_its_pilot_ends(tmp_path: Path) -> None:
    text = TASK.replace("termed'", "termed; sleep 0.5; exit 0'")
    with session_of(tmp_path, grace=60) as session:
        job = session.job("sh", "-c", text, nodes=2, tasks=2)
        session.submit(job)
        started(session, job)
        state = tmp_path / "state" / session.tag / "pilot-1" / "node-1"
        task = parent_of(supervisor_pid(state))
        assert task is not None
        os.kill(task, signal.SIGTERM)  # as a queue that announces the end of a pilot
        session.wait_clean(job)
        assert session.cause(job) == "exit"
    assert Counter(numbers("termed")) == Counter(range(2))


def test_end_waits_for_all_parts_also_if_a_connection_is_lost(tmp_path: Path) -> None:
    with session_of(tmp_path) as session:
        job = session.job("sh", "-c", TASK, nodes=2, tasks=2)
        session.submit(job)
        started(session, job)
        controller(session).request(
            lambda c: [c.nodes.drop(pilot) for pilot in c.fleet.pilots.values()]
        )
        (tmp_path / "go").touch()
        session.wait_clean(job)
        assert session.cause(job) == "exit"
        session.check_ended_once()
        assert controller(session).request(lambda c: c.fleet.members) == {}
    assert ran(tmp_path) == [job.id]


def test_without_flux_on_the_nodes_one_warning_says_so_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = os.environ["PATH"].partition(":")[2]
    if shutil.which("flux", path=place):
        pytest.skip("this machine has another Flux on its PATH")
    monkeypatch.setenv("PATH", place)
    with session_of(tmp_path) as session:
        job = session.job("true", nodes=2, tasks=2)
        session.submit(job)
        session.wait(session.problems, "the warning")
        (problem,) = session.problems()
        assert "'flux' is not on its PATH" in problem
        assert "start" not in session.names(job)
        session.cancel(job)
        session.wait_clean(job)
