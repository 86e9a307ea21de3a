"""Runs that share a machine's slots: together they use no more than a single run could."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Session, wait_until

from ensemble_core.errors import ExecutorError
from ensemble_core.local.executor import LocalExecutor
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
