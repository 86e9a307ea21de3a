"""The local executor on a system that lacks resources or fails."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing.session import Session, alive, wait_until

from ensemble_core.errors import ExecutorError
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.process_tree import become_subreaper
from ensemble_core.local.protocol import Splitter, encode_job, to_event
from ensemble_core.local.slots import Slots
from ensemble_core.local.supervisor_loop import SupervisorLoop
from ensemble_core.local.waiting_jobs import Queue
from ensemble_core.model.events import Event, ExecutorLost
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Emit, Executor, Run


class InProcess(Executor):
    """The supervisor's loop in a thread of this process, so that system calls can be made to fail."""

    def __init__(self, slots: int, grace: float = 0.2) -> None:
        self._slots = Slots(slots, 1, slots)
        self._grace = grace
        self.loop: SupervisorLoop | None = None
        self._closing = False

    def open(self, run: Run, emit: Emit) -> None:
        self._here = os.getcwd()
        assert become_subreaper()
        self.loop = SupervisorLoop(
            run,
            lambda lines: emit([to_event(data) for data in Splitter().feed(b"".join(lines))]),
            self._slots,
            self._grace,
            dict(os.environb),
            self._here,
            lambda: self._closing,
        )
        self.loop.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        assert self.loop is not None
        self.loop.post(("submit", [(job, encode_job(job)) for job in jobs]))

    def cancel(self, jobs: Sequence[str]) -> None:
        assert self.loop is not None
        self.loop.post(("cancel", jobs))

    def resources(self) -> Mapping[str, float]:
        return self._slots.gauges()

    def close(self) -> None:
        assert self.loop is not None
        self._closing = True
        self.loop.post(("end", "closed"))
        self.loop.join()
        self.loop.close()
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
        os.chdir(self._here)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Session]:
    with Session(InProcess(slots=4), tmp_path / "run", 120) as session:
        yield session


def failing(monkeypatch: pytest.MonkeyPatch, name: str, codes: list[int]) -> None:
    """Let calls of an ``os`` function fail with these codes, and then work."""
    real: Callable[..., Any] = getattr(os, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if codes:
            code = codes.pop(0)
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ETXTBSY])
def test_a_transient_spawn_error_is_retried(
    local: Session, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing(monkeypatch, "posix_spawn", [code] * 3)
    jobs = [local.job("true", tasks=2) for _ in range(4)]
    local.run(*jobs)
    for job in jobs:
        assert local.names(job).count("start") == 1
        assert local.context(job, "finish")["status"] == 0


def test_a_spawn_error_between_tasks_starts_no_task_twice(
    local: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_spawn
    calls = iter([0, errno.EAGAIN, errno.EAGAIN, 0, 0, errno.EAGAIN])

    def spawn(*args: Any, **kwargs: Any) -> int:
        code = next(calls, 0)
        if code:
            raise OSError(code, "later")
        return real(*args, **kwargs)

    monkeypatch.setattr(os, "posix_spawn", spawn)
    job = local.job("sh", "-c", "echo $ENSEMBLE_TASK_RANK", tasks=4)
    local.run(job)
    text = Path(local.context(job, "start")["stdout"]).read_text()
    assert sorted(text.split()) == ["0", "1", "2", "3"]


def test_a_job_whose_spawn_is_retried_can_be_cancelled(
    local: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "posix_spawn", [errno.EAGAIN] * 10_000)
    job = local.job("true")
    local.submit(job)
    local.wait_for(job, "alloc")
    local.executor.cancel([job.id])
    local.wait_clean(job)
    assert "start" not in local.names(job)
    monkeypatch.undo()
    after = local.job("true")
    local.run(after)
    assert local.context(after, "finish")["status"] == 0


def test_a_permanent_spawn_error_fails_the_job_and_ends_its_tasks(
    local: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_spawn
    calls = iter([0, errno.EACCES])

    def spawn(*args: Any, **kwargs: Any) -> int:
        code = next(calls, 0)
        if code:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, "posix_spawn", spawn)
    job = local.job("sleep", "1000", tasks=2)
    local.run(job)
    assert local.context(job, "exception")["type"] == "exec"
    assert "finish" not in local.names(job)
    assert local.names(job)[-2:] == ["free", "clean"]
    assert local.executor.resources()["cores.free"] == 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_no_space_for_output_fails_the_job(
    local: Session, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    local.run(local.job("true"))
    real = os.open

    def refuse(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        if flags & os.O_CREAT and str(path).endswith("t.1.out"):
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode, **rest)

    monkeypatch.setattr(os, "open", refuse)
    job, good = local.job("true"), local.job("true")
    local.run(job, good)
    assert local.context(job, "exception")["type"] == "output"
    assert local.context(good, "finish")["status"] == 0


def test_a_lack_of_descriptors_delays_jobs_and_loses_none(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Session(InProcess(slots=60), tmp_path / "run", 60) as local:
        in_use = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 12, hard))
        try:
            jobs = [local.job("sleep", "0.2") for _ in range(60)]
            local.run(*jobs)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert {local.context(job, "finish")["status"] for job in jobs} == {0}


def test_an_unexpected_error_of_one_job_does_not_affect_others(
    local: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> int:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(os, "posix_spawn", broken)
    job = local.job("true")
    local.run(job)
    assert "odd" in local.context(job, "exception")["note"]
    monkeypatch.undo()
    local.run(local.job("true"))


def test_a_dead_thread_reports_the_executor_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(InProcess(slots=1), tmp_path, 120) as local:
        job = local.job("sleep", "1000")
        local.submit(job)
        local.wait_for(job, "start")

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("odd")

        monkeypatch.setattr(Queue, "choose", broken)
        local.submit(local.job("true"))
        local.wait(lambda: isinstance(local.events[-1], ExecutorLost), "the loss")
        assert "odd" in str(local.events[-1])


def test_open_fails_with_a_reason_on_an_unsupported_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()

    def emit(events: Sequence[Event]) -> None:
        pytest.fail(f"{events} came from an executor that did not open")

    with pytest.raises(ExecutorError, match="removed"):
        LocalExecutor(slots=1).open(Run(tag="x", folder=tmp_path, clock=float), emit)


def test_a_status_taken_by_other_code_is_reported(
    local: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.waitpid

    def taken(pid: int, options: int) -> tuple[int, int]:
        real(pid, options)
        return real(pid, options)

    monkeypatch.setattr(os, "waitpid", taken)
    job = local.job("true")
    local.run(job)
    assert "other code in the supervisor took" in local.context(job, "exception")["note"]
    assert local.context(job, "finish")["status"] != 0


def test_a_dead_thread_ends_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(InProcess(slots=1), tmp_path / "run", 120) as local:
        job = local.job("sh", "-c", "echo $$; exec sleep 1000")
        local.submit(job)
        path = Path(local.wait_for(job, "start")["stdout"])
        wait_until(lambda: path.read_text() != "")

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("odd")

        monkeypatch.setattr(Queue, "choose", broken)
        local.submit(local.job("true"))
        local.wait(lambda: isinstance(local.events[-1], ExecutorLost), "the loss")
        assert not Path("/proc", path.read_text().strip()).exists()


def test_jobs_end_without_pidfds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    with Session(InProcess(slots=2), tmp_path / "run", 120) as local:
        jobs = [local.job("true") for _ in range(20)]
        text = "sh -c \"trap '' TERM; setsid sleep 1000 & echo \\$! > in; sleep 1000\"; sleep 1000"
        hung = local.job("sh", "-c", text, duration=6, workdir=str(tmp_path))
        local.run(*jobs, hung)
        pid = int((tmp_path / "in").read_text())
        # It may take a while until its new parent reaps it.
        wait_until(lambda: not alive(pid))
