"""Local jobs that are stopped and continued by signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ensemble_testing.executor import Session, wait_until

from ensemble_core.local.executor import LocalExecutor
from ensemble_core.model.jobs import Job

GATED = "echo $$ > pid.$ENSEMBLE_TASK_RANK; until [ -e end ]; do sleep 0.05; done; exit 3"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Session]:
    with Session(LocalExecutor(slots=4, grace=0.3), tmp_path / "run", 120, tidy=True) as session:
        yield session


def begin(session: Session, folder: Path, **fields: int) -> Job:
    job = session.job("sh", "-c", GATED, workdir=str(folder), **fields)
    session.submit(job)
    session.wait_for(job, "start")
    tasks = [folder / f"pid.{rank}" for rank in range(job.tasks)]
    wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in tasks))
    return job


def send(folder: Path, number: signal.Signals, rank: int = 0) -> None:
    """Send a signal to all processes of a task."""
    os.killpg(int((folder / f"pid.{rank}").read_text()), number)


def end(session: Session, folder: Path, job: Job) -> None:
    (folder / "end").touch()
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 3 << 8
    assert "exception" not in session.names(job)


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU])
def test_a_stopped_and_continued_job_is_reported_and_ends_by_itself(
    local: Session, tmp_path: Path, number: signal.Signals
) -> None:
    job = begin(local, tmp_path)
    for times in (1, 2):
        send(tmp_path, number)
        # The session of a task is orphaned, so the kernel ignores SIGTSTP, SIGTTIN and SIGTTOU.
        send(tmp_path, signal.SIGSTOP)
        local.wait(lambda times=times: local.names(job).count("suspend") == times, "suspend")
        send(tmp_path, signal.SIGCONT)
        local.wait(lambda times=times: local.names(job).count("unsuspend") == times, "unsuspend")
    end(local, tmp_path, job)


def test_a_job_is_suspended_only_while_all_its_tasks_are_stopped(
    local: Session, tmp_path: Path
) -> None:
    job = begin(local, tmp_path, tasks=2)
    send(tmp_path, signal.SIGSTOP, rank=0)
    other = local.job("sleep", "2.5")  # longer than between two checks
    local.run(other)
    assert "suspend" not in local.names(job)
    send(tmp_path, signal.SIGSTOP, rank=1)
    local.wait_for(job, "suspend")
    send(tmp_path, signal.SIGCONT, rank=0)
    local.wait_for(job, "unsuspend")
    send(tmp_path, signal.SIGCONT, rank=1)
    end(local, tmp_path, job)


def test_time_while_suspended_does_not_count_for_the_limit(local: Session, tmp_path: Path) -> None:
    job = begin(local, tmp_path, duration=12)
    send(tmp_path, signal.SIGSTOP)
    local.wait_for(job, "suspend")
    time.sleep(12)
    assert "finish" not in local.names(job)
    send(tmp_path, signal.SIGCONT)
    local.wait_for(job, "unsuspend")
    end(local, tmp_path, job)


def test_a_suspended_job_has_its_time_limit_afterwards(local: Session, tmp_path: Path) -> None:
    job = begin(local, tmp_path, duration=8)
    send(tmp_path, signal.SIGSTOP)
    local.wait_for(job, "suspend")
    send(tmp_path, signal.SIGCONT)
    local.wait_clean(job)
    assert local.exception(job) == "timeout"


def test_a_suspended_job_can_be_cancelled(local: Session, tmp_path: Path) -> None:
    job = begin(local, tmp_path)
    send(tmp_path, signal.SIGSTOP)
    local.wait_for(job, "suspend")
    local.cancel(job)
    local.wait_clean(job)
    assert local.exception(job) == "cancel"


def test_time_in_which_the_supervisor_is_stopped_too_does_not_count(
    local: Session, tmp_path: Path
) -> None:
    """Queues stop and continue all processes of an allocation or a pilot (``scontrol suspend``)."""
    job = begin(local, tmp_path, duration=12)
    executor = local.executor
    assert isinstance(executor, LocalExecutor)
    assert executor._client is not None
    send(tmp_path, signal.SIGSTOP)
    os.kill(executor._client.supervisor, signal.SIGSTOP)
    time.sleep(14)
    send(tmp_path, signal.SIGCONT)
    os.kill(executor._client.supervisor, signal.SIGCONT)
    local.wait_for(job, "unsuspend")
    end(local, tmp_path, job)
    times = {event.name: event.timestamp for event in local.of(job)}
    assert times["start"] < times["suspend"] < times["unsuspend"] - 13
    assert local.names(job).count("suspend") == local.names(job).count("unsuspend")
