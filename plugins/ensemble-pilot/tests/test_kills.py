"""Rounds in which parts of pilots are killed while jobs run: none is lost, and none runs twice.

The variable ``ENSEMBLE_CRASH=SEED:COUNT`` sets the first seed and the number of rounds.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_testing import Session
from ensemble_testing.crash import seed_and_rounds
from ensemble_testing.executor import wait_until

from ensemble_core.local.leftover_jobs import supervisor_pid
from ensemble_core.local.process_tree import parent_of

(PLUGIN,) = ensemble_executors()
OPTIONS = {
    "options": {"slots": 4, "pool": "none"},
    "cores": 2,
    "most": 2,
    "idle": 60,
    "orphan": 5,
    "grace": 0.3,
}
_JOBS = 24
_SEED, _ROUNDS = seed_and_rounds(2)


def processes(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield the processes that work in a folder, each with its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if os.readlink(entry / "cwd") == str(folder) or str(folder) in words:
                    yield int(entry.name), words
            except OSError:
                continue


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def tasks(folder: Path) -> list[int]:
    return sorted(pid for pid, words in processes(folder) if "ensemble_pilot.node" in words)


def supervisors(folder: Path) -> list[int]:
    states = sorted(folder.glob("state/*/pilot-*/node-*"))
    return [pid for state in states if (pid := supervisor_pid(state))]


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    parents: Mapping[int, int | None] = {
        int(entry.name): parent_of(int(entry.name))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    }
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


VICTIMS: Mapping[str, Callable[[random.Random, Path], list[int]]] = {
    "task": lambda chance, folder: chance.sample(tasks(folder), 1),
    "supervisor": lambda chance, folder: chance.sample(supervisors(folder), 1),
    "all of a pilot": lambda chance, folder: family(chance.choice(tasks(folder))),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(_SEED, _SEED + _ROUNDS))
def test_each_job_runs_once_whatever_is_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chance = random.Random(seed)
    with Session(PLUGIN.build(OPTIONS), tmp_path, 120.0, tidy=True) as session:
        jobs = [
            session.job("sh", "-c", f"echo $ENSEMBLE_JOB_ID >> ran; sleep {chance.random() / 5}")
            for _ in range(_JOBS)
        ]
        session.submit(*jobs)
        for count in sorted(chance.sample(range(1, _JOBS), chance.randint(1, 4))):
            session.wait(
                lambda count=count: (
                    sum(not {"start", "clean"}.isdisjoint(session.names(job)) for job in jobs)
                    >= count
                ),  # type: ignore[misc]
                f"the start of {count} jobs",
            )
            victims = VICTIMS[chance.choice(sorted(VICTIMS))]
            try:
                kill(victims(chance, tmp_path))
            except (ValueError, IndexError):
                continue  # at this moment, there is none
        session.wait_clean(*jobs)
        session.check_ended_once()
        causes = {job.id: session.cause(job) for job in jobs}
    ran = (tmp_path / "ran").read_text().split()
    assert len(ran) == len(set(ran)), "a job ran twice"
    # Lost: the job ended at the moment at which its supervisor was killed.
    assert set(causes.values()) <= {"exit", "preempted", "lost"}
    assert {job for job, cause in causes.items() if cause == "exit"} <= set(ran)
    wait_until(lambda: not [words for pid, words in processes(tmp_path) if words], 60.0)
