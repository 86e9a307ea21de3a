"""Each task of a local job has its own cores and GPUs, and knows how many cores it has."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Session, wait_until

from ensemble_core import job_environment
from ensemble_core.local import executor as executor_module
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.launch import Launcher
from ensemble_core.local.slots import Slots, Topology
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run

CORES = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
#: Prints the cores to which the shell is bound.
SHOW = "grep Cpus_allowed_list: /proc/self/status | cut -f 2"


class Machine:
    """Runs of one user, whose default pool is a file of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = contextlib.ExitStack()

    def run(self, name: str, **options: Any) -> Session:
        executor = LocalExecutor(grace=0.3, **options)
        return self.stack.enter_context(Session(executor, self.folder / name, 90, tidy=True))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.delenv("ENSEMBLE_POOL", raising=False)
    monkeypatch.delenv("ENSEMBLE_LINEAGE", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(executor_module, "default_pool", lambda: str(tmp_path / "pool"))
    machine = Machine(tmp_path)
    with machine.stack:
        yield machine


def sh(session: Session, script: str, **fields: Any) -> Job:
    return session.job("sh", "-c", script, **fields)


def output(session: Session, job: Job) -> str:
    return Path(session.context(job, "start")["stdout"]).read_text()


def numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.replace("\n", ",").split(","):
        if part:
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


@several
def test_each_task_has_its_own_cores(machine: Machine) -> None:
    run = machine.run("a", slots=2)
    pair = sh(run, SHOW, tasks=2)
    wide = sh(run, SHOW, cores_per_task=2)
    run.run(pair, wide)
    lines = output(run, pair).split()
    assert len(lines) == 2
    assert [len(numbers(line)) for line in lines] == [1, 1]
    assert len(numbers(output(run, pair))) == 2
    assert len(numbers(output(run, wide))) == 2


def cores_of_supervisor(run: Session) -> list[list[int]]:
    """Return the cores on which each thread of the supervisor may run."""
    assert isinstance(run.executor, LocalExecutor)
    threads = os.listdir(f"/proc/{run.executor._require_open().supervisor}/task")
    return [sorted(os.sched_getaffinity(int(thread))) for thread in threads]


@several
def test_the_supervisor_is_not_bound_itself(machine: Machine) -> None:
    run = machine.run("a", slots=2)
    run.run(sh(run, "true"))
    assert all(cores == CORES for cores in cores_of_supervisor(run))


@several
def test_the_supervisor_is_not_bound_if_no_job_follows_one_that_has_ended(machine: Machine) -> None:
    """It goes to the cores of the job that has ended, but the next one needs more."""
    run = machine.run("a", slots=2)
    long, short = sh(run, "sleep 600"), sh(run, "true")
    wide = sh(run, SHOW, cores_per_task=2)
    run.submit(long, short, wide)
    run.wait_clean(short)
    assert all(cores == CORES for cores in cores_of_supervisor(run))
    assert "alloc" not in run.names(wide)
    run.cancel(long)
    run.wait_clean(wide)
    assert len(numbers(output(run, wide))) == 2


@several
@pytest.mark.parametrize("options", [{"bind": False}, {"slots": len(CORES) + 1}])
def test_tasks_are_not_bound_on_request_or_with_more_slots_than_cores(
    machine: Machine, options: dict[str, Any]
) -> None:
    run = machine.run("a", **options)
    job = sh(run, SHOW)
    run.run(job)
    assert sorted(numbers(output(run, job))) == CORES


def test_a_task_knows_how_many_cores_it_has(machine: Machine) -> None:
    run = machine.run("a", slots=4)
    script = "echo $ENSEMBLE_CORES $OMP_NUM_THREADS"
    jobs = [
        sh(run, script, cores_per_task=3, tasks=1),
        sh(run, script, cores_per_task=2, environment={"OMP_NUM_THREADS": "7"}),
    ]
    run.run(*jobs)
    assert [output(run, job).split() for job in jobs] == [["3", "3"], ["2", "7"]]


@several
def test_a_program_on_one_core_counts_it_and_needs_no_variable(machine: Machine) -> None:
    """With ``OMP_NUM_THREADS=1``, GROMACS 2022 on one core was 40 times as slow."""
    run = machine.run("a", slots=2)
    show = "echo $ENSEMBLE_CORES ${OMP_NUM_THREADS-unset} $(nproc)"
    jobs = [
        sh(run, show),
        sh(run, show, cores_per_task=2),
        sh(run, show, environment={"OMP_NUM_THREADS": "1"}),
    ]
    run.run(*jobs)
    assert [output(run, job) for job in jobs] == ["1 unset 1\n", "2 2 2\n", "1 1 1\n"]


@several
def test_a_task_that_cannot_be_bound_gets_the_number_of_threads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator may take cores from the supervisor after its start."""
    run = Run(tag="t", folder=machine.folder, clock=time.time)
    launcher = Launcher(run, {}, str(machine.folder))
    job = Job(id="t.0", group="t", index=0, command=("true",), stdout="out", stderr="out")

    def refuse(process: int, cores: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    prepared = launcher.prepare(job, False)
    os.waitpid(launcher.spawn(job, prepared, 0, (), CORES[:1]), 0)
    assert prepared.environment[b"OMP_NUM_THREADS"] == b"1"
    prepared.close()
    launcher.close()


def test_omp_num_threads_of_the_shell_is_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    run = machine.run("a", slots=2)
    job = sh(run, "echo $OMP_NUM_THREADS")
    run.run(job)
    assert output(run, job).split() == ["5"]


def test_gpus_are_named_for_each_vendor(machine: Machine) -> None:
    """HIP counts the GPUs that ROCR_VISIBLE_DEVICES leaves."""
    run = machine.run("a", slots=2, gpus=4)
    names = "CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK HIP_VISIBLE_DEVICES"
    script = f"for name in {names}; do eval echo \\$$name; done"
    held, two, none = (
        sh(run, script + "; sleep 600", gpus_per_task=1),
        sh(run, script, gpus_per_task=2),
        sh(run, script),
    )
    run.submit(held)
    run.wait_for(held, "start")
    run.run(two, none)
    assert output(run, two).split() == ["1,2", "1,2", "1,2", "0,1"]
    assert output(run, none).split() == ["-1"] * 4
    run.cancel(held)
    run.wait_clean(held)


def test_gpus_are_found_in_the_variables_of_all_vendors(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,3")
    run = machine.run("a", slots=1)
    job = sh(run, "echo $ROCR_VISIBLE_DEVICES", gpus_per_task=2)
    run.run(job)
    assert output(run, job).split() == ["2,3"]


@several
def test_two_runs_of_a_user_never_share_a_core(machine: Machine) -> None:
    first, second = machine.run("a", slots=1), machine.run("b", slots=1)
    ours, theirs = sh(first, SHOW + "; sleep 600"), sh(second, SHOW + "; sleep 600")
    for run, job in ((first, ours), (second, theirs)):
        run.submit(job)
        run.wait_for(job, "start")
    wait_until(lambda: output(first, ours).strip() and output(second, theirs).strip())
    assert numbers(output(first, ours)).isdisjoint(numbers(output(second, theirs)))
    first.cancel(ours)
    second.cancel(theirs)
    first.wait_clean(ours)
    second.wait_clean(theirs)


def test_a_run_waits_for_cores_of_another_run_and_says_so(machine: Machine) -> None:
    first, second = machine.run("a"), machine.run("b")
    all_cores = sh(first, "sleep 600", cores_per_task=len(CORES))
    first.submit(all_cores)
    first.wait_for(all_cores, "start")
    waits = sh(second, "true")
    second.submit(waits)
    second.wait(lambda: any("-o pool=none" in text for text in second.problems()), "the report")
    assert "alloc" not in second.names(waits)
    first.cancel(all_cores)
    second.wait_clean(waits)
    assert second.context(waits, "finish")["status"] == 0


def test_runs_that_opt_out_do_not_wait(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine.run("a")
    all_cores = sh(first, "sleep 600", cores_per_task=len(CORES))
    first.submit(all_cores)
    first.wait_for(all_cores, "start")
    for options in ({"pool": "none"}, {"slots": len(CORES) + 1}):
        other = machine.run(str(options), **options)
        other.run(sh(other, "true"))
    monkeypatch.setenv("ENSEMBLE_LINEAGE", "run:a.0")
    nested = machine.run("nested")
    nested.run(sh(nested, "true"))
    first.cancel(all_cores)
    first.wait_clean(all_cores)


def test_two_runs_of_a_user_never_share_a_gpu(machine: Machine) -> None:
    """Also with more slots than cores, which are then not shared."""
    many = len(CORES) + 1
    first, second = (machine.run(name, slots=many, gpus=1) for name in "ab")
    ours, theirs = sh(first, "sleep 600", gpus_per_task=1), sh(second, "true", gpus_per_task=1)
    first.submit(ours)
    first.wait_for(ours, "start")
    second.submit(theirs)
    second.wait(lambda: bool(second.problems()), "the report")
    assert "alloc" not in second.names(theirs)
    first.cancel(ours)
    second.wait_clean(theirs)
    assert second.context(theirs, "alloc")["gpus"] == ["0"]


def test_an_empty_variable_for_the_pool_means_the_default(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENSEMBLE_POOL", "")
    run = machine.run("a", slots=1)
    run.run(sh(run, "true"))
    assert (machine.folder / "pool").exists()


def test_gpus_with_other_names_are_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first = machine.run("a", pool=None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    second = machine.run("b", slots=len(CORES) + 1)
    ours, theirs = sh(first, "sleep 600", gpus_per_task=1), sh(second, "true", gpus_per_task=1)
    first.submit(ours)
    first.wait_for(ours, "start")
    second.run(theirs)
    first.cancel(ours)
    first.wait_clean(ours)


@several
def test_a_job_keeps_its_core_when_its_supervisor_is_killed(machine: Machine) -> None:
    first = machine.run("a", slots=2)
    job = sh(first, SHOW + "; sleep 600")
    first.submit(job)
    first.wait_for(job, "start")
    wait_until(lambda: bool(output(first, job).strip()))
    core = numbers(output(first, job))
    first.tidy = False
    assert isinstance(first.executor, LocalExecutor)
    os.kill(first.executor._require_open().supervisor, signal.SIGKILL)
    again = LocalExecutor(slots=2, grace=0.3)
    with Session(again, first.folder, 90, tidy=True).resume(first) as second:
        assert again.reattach({job.id: 1.0}) == {job.id: True}
        other = sh(second, SHOW, group="other")
        second.run(other)
        assert numbers(output(second, other)).isdisjoint(core)
        second.cancel(job)
        second.wait_clean(job)


def test_a_pool_of_another_user_is_reported_and_not_used(machine: Machine) -> None:
    (machine.folder / "elsewhere").touch()
    (machine.folder / "pool").symlink_to(machine.folder / "elsewhere")
    run = machine.run("a", slots=1)
    run.run(sh(run, "true"))
    assert any("pool cannot be opened" in text for text in run.problems())


def topology(root: Path, nodes: list[str]) -> Topology:
    cores: list[int] = []
    for number, listed in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(listed + "\n")
        cores += numbers(listed)
    return Topology(cores, sorted(cores), root)


def test_a_task_stays_within_a_numa_node_if_one_has_room(tmp_path: Path) -> None:
    found = topology(tmp_path, ["0-3", "4-7"])
    assert found.choose({3, 4, 5, 6}, 3) == [4, 5, 6]
    # The fullest node with room, so that a wide task finds room on the other.
    assert found.choose({2, 3, 4, 5, 6, 7}, 1) == [2]
    # No node has room: as few nodes as possible.
    assert sorted(found.choose({2, 3, 5, 6, 7}, 4)) == [2, 5, 6, 7]


def test_cores_of_a_job_are_free_again_at_its_end() -> None:
    slots = Slots(4, 1, 4, (), (4, 5, 6, 7))
    first = slots.bind(2, 1)
    slots.take(2, 0)
    second = slots.bind(1, 2)
    slots.take(2, 0)
    assert sorted(first + second) == [4, 5, 6, 7]
    slots.give_back(2, (), first)
    assert sorted(slots.bind(1, 2)) == sorted(first)


@pytest.mark.parametrize("outer", ["ENSEMBLE_CORES", "NCPUS"])  # of another run, of PBS
@pytest.mark.parametrize(("threads", "passed_on"), [("8", False), ("1", True)])
def test_jobs_of_a_run_inside_a_job_have_their_own_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, threads: str, passed_on: bool, outer: str
) -> None:
    for name in ("ENSEMBLE_CORES", "NCPUS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(outer, "8")
    monkeypatch.setenv("OMP_NUM_THREADS", threads)  # 8: the outer run has set it
    assert ("OMP_NUM_THREADS" in job_environment()) == passed_on
