"""Runs that share a machine's slots: together they use no more than a single run could."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from ensemble_testing import Session, wait_until

from ensemble_core.errors import ExecutorError
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.shared_slots import SharedSlots
from ensemble_core.model.jobs import Job


class Machine:
    """Runs with one pool, and a log to which each job writes its start and end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.stack = contextlib.ExitStack()

    def run(self, name: str, slots: int = 2, **options: Any) -> Session:
        pool = str(self.folder / "pool")
        executor = LocalExecutor(slots=slots, grace=0.3, pool=pool, **options)
        return self.stack.enter_context(Session(executor, self.folder / name, 90, tidy=True))

    def job(self, run: Session, word: str, seconds: float = 0.05, **fields: Any) -> Job:
        line = "%s %s %s\n"
        script = f'printf "{line}" + {word} 1 >> {self.log}; sleep {seconds}; '
        script += f'printf "{line}" - {word} 1 >> {self.log}'
        return run.job("sh", "-c", script, **fields)

    def begun(self) -> list[str]:
        """Return the names of jobs in the order of their starts."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [word for sign, word, _ in lines if sign == "+"]

    def most(self) -> int:
        """Return the largest number of jobs that ran at once."""
        running = most = 0
        for line in self.log.read_text().splitlines():
            running += 1 if line[0] == "+" else -1
            most = max(most, running)
        return most


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.stack:
        yield machine


def test_two_runs_share_two_slots_and_take_turns(machine: Machine) -> None:
    first, second = machine.run("first"), machine.run("second")
    ours = [machine.job(first, "a") for _ in range(20)]
    first.submit(*ours)
    wait_until(lambda: "a" in machine.begun())
    theirs = [machine.job(second, "b") for _ in range(5)]
    second.run(*theirs)
    before = machine.begun()
    first.wait_clean(*ours)
    assert machine.most() == 2
    # The runs take turns, regardless of the order of submission.
    assert before.count("a") < 20
    assert sorted(machine.begun()) == ["a"] * 20 + ["b"] * 5


def test_a_single_run_may_use_all_slots(machine: Machine) -> None:
    first, second = machine.run("first"), machine.run("second")
    long = [machine.job(first, "a", 600) for _ in range(2)]
    first.submit(*long)
    wait_until(lambda: machine.begun() == ["a", "a"])  # each job logs its start with a delay
    waits = [machine.job(second, "b") for _ in range(4)]
    second.submit(*waits)
    second.wait_for(waits[3], "priority")
    assert machine.begun() == ["a", "a"]
    first.cancel(*long)
    second.wait_clean(*waits)
    assert machine.begun() == ["a", "a", *["b"] * 4]


def test_slots_of_a_killed_supervisor_are_released(machine: Machine) -> None:
    first, second = machine.run("first"), machine.run("second")
    long = machine.job(first, "a", 600, tasks=2)
    first.submit(long)
    first.wait_for(long, "start")
    waits = [machine.job(second, "b") for _ in range(3)]
    second.submit(*waits)
    second.wait_for(waits[2], "priority")
    first.tidy = False
    os.kill(first.executor._require_open().supervisor, signal.SIGKILL)  # type: ignore[attr-defined]  # local
    second.wait_clean(*waits)
    assert machine.begun()[2:] == ["b"] * 3


def test_a_wide_job_is_not_starved(machine: Machine) -> None:
    first, second = machine.run("first"), machine.run("second")
    narrow = [machine.job(first, "a") for _ in range(60)]
    first.submit(*narrow)
    wait_until(lambda: "a" in machine.begun())
    wide = machine.job(second, "w", cores_per_task=2)
    second.run(wide)
    assert machine.begun().count("a") < 60
    first.wait_clean(*narrow)


def test_a_gpu_is_used_by_one_run_at_a_time(machine: Machine) -> None:
    first, second = (machine.run(name, gpus=1) for name in ("first", "second"))
    ours = [machine.job(first, "a", gpus_per_task=1) for _ in range(5)]
    theirs = [machine.job(second, "b", gpus_per_task=1) for _ in range(5)]
    first.submit(*ours)
    second.submit(*theirs)
    first.wait_clean(*ours)
    second.wait_clean(*theirs)
    assert machine.most() == 1
    assert second.context(theirs[0], "alloc")["gpus"] == ["0"]


def test_an_unusable_pool_file_causes_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    executor = LocalExecutor(pool="none/pool")
    refused = pytest.raises(ExecutorError, match=r"slots cannot be shared through .*none/pool")
    with refused as found, Session(executor, tmp_path):
        pass
    assert found.value.code == "no-pool"
    assert "-o pool=FILE" in (found.value.hint or "")


class Turns:
    """The shared slots of one run, whose jobs of one core start and end in turns."""

    def __init__(self, path: str, jobs: int, size: int = 1) -> None:
        self.path, self.running = path, list[Job]()
        self.slots = SharedSlots(path, None, size, size, size)
        self.left = [Job(id=f"a.{n}", group="a", index=n, command=("x",)) for n in range(jobs)]

    def turn(self, ended: int = 0) -> int:
        """Let jobs end, start those that fit, and return how many started."""
        for job in self.running[:ended]:
            self.slots.give_back(job.cores, ())
        del self.running[:ended]
        started = -1
        more = 0
        while started != more:  # as the supervisor does
            started = more
            self.slots.begin_choice(self.next)
            while self.left and self.slots.fits(1, 0):
                self.slots.take(1, 0)
                self.running.append(self.left.pop())
                more += 1
            self.slots.end_choice(self.next)
        return more

    def next(self) -> Job | None:
        return self.left[-1] if self.left else None


def other_run(path: str) -> bool:
    """Return True if another process gets a core. It waits in line otherwise, until it ends."""
    script = (
        "import sys; from ensemble_core.local.shared_slots import SharedSlots as S;"
        "from ensemble_core.model.jobs import Job;"
        "s = S(sys.argv[1], None, 1, 1, 1); job = Job(id='b', group='b', index=0, command=('x',));"
        "s.begin_choice(lambda: job); got = s.fits(1, 0); s.end_choice(lambda: job); print(got)"
    )
    command = [sys.executable, "-c", script, path]
    return subprocess.run(command, check=True, capture_output=True).stdout == b"True\n"


def test_core_goes_to_the_next_job_without_a_look_at_all_cores(tmp_path: Path) -> None:
    run = Turns(str(tmp_path / "pool"), 4)
    assert run.turn() == 1
    for _ in range(2):
        with patch.object(run.slots, "_lock_free", side_effect=AssertionError):
            assert run.turn(ended=1) == 1
            run.slots.settle()
    assert not other_run(run.path)


def test_core_is_free_for_others_after_the_turn_in_which_no_job_takes_it(tmp_path: Path) -> None:
    run = Turns(str(tmp_path / "pool"), 1)
    run.turn()
    assert run.turn(ended=1) == 0
    assert not other_run(run.path)  # the turn is not over
    run.slots.settle()
    assert other_run(run.path)


def test_run_that_waits_gets_the_next_core(tmp_path: Path) -> None:
    run = Turns(str(tmp_path / "pool"), 3)
    run.turn()
    with waiting(run.path) as other:
        assert run.turn(ended=1) == 0
        run.slots.settle()
        assert other.recv(64) == b"!"


def test_cores_that_jobs_give_back_go_to_jobs_of_any_width(tmp_path: Path) -> None:
    cores = range(4)
    path = str(tmp_path / "pool")
    slots = SharedSlots(path, tuple(cores), 4, 4, 4, (), cores)
    chance = random.Random(1)
    running: list[tuple[int, ...]] = []
    for _ in range(300):
        chance.shuffle(running)
        while running and chance.random() < 0.6:
            ended = running.pop()
            slots.give_back(len(ended), (), ended)
        job = Job(id="a", group="a", index=0, command=("x",), tasks=chance.choice([1, 2, 3, 4]))
        slots.begin_choice(lambda job=job: job)  # type: ignore[misc]
        tasks = job.tasks
        while slots.fits(tasks, 0):
            running.append(slots.bind(tasks, 1))
            slots.take(tasks, 0)
            tasks = 1  # narrow jobs follow the wide one
            if chance.random() < 0.3:
                break
        slots.end_choice(lambda: None)
        if chance.random() < 0.5:
            slots.settle()
        bound = [core for each in running for core in each]
        assert len(bound) == len(set(bound)) == slots.used <= 4
        assert set(bound) == slots._held
    for ended in running:
        slots.give_back(len(ended), (), ended)
    slots.settle()
    assert not slots._held
    assert other_run(path)


def test_core_of_a_running_job_goes_to_no_other_after_a_job_whose_core_is_unknown(
    tmp_path: Path,
) -> None:
    slots = SharedSlots(str(tmp_path / "pool"), tuple(range(4)), 4, 4, 4, (), range(4))
    job = Job(id="a", group="a", index=0, command=("x",))
    slots.hold(1, ())  # two jobs of an earlier supervisor, bound to unknown cores
    slots.hold(1, ())
    slots.give_back(1, ())
    bound = []
    for _ in range(4):
        slots.begin_choice(lambda: job)
        while slots.fits(1, 0):
            bound += slots.bind(1, 1)
            slots.take(1, 0)
        slots.end_choice(lambda: job)
        if len(bound) == 3:
            slots.give_back(1, ())
    assert sorted(bound) == [0, 1, 2, 3]


@contextlib.contextmanager
def waiting(path: str) -> Iterator[socket.socket]:
    """Stand for a run that has waited for a core since long ago."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.settimeout(60)
        name = f"ensemble-test-{os.getpid()}"
        other.bind("\0" + name)
        entry = {"name": name, "since": 0.0, "cores": 1, "gpus": 0, "usable": "1"}
        Path(path).write_text(json.dumps([entry]))
        yield other
