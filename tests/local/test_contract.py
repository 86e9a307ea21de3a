"""The local executor satisfies the contract of executors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ensemble_testing.executor import ExecutorContract, Session, wait_until

from ensemble_core.local.executor import LocalExecutor, ensemble_executors
from ensemble_core.model.causes import Cause
from ensemble_core.plugin.executor import Executor

CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def little_memory() -> Iterator[Callable[[], object]]:
    """Limit processes that start in this context to 100 MB in total, with cgroups v1 or v2.

    Yields a function that moves the test's process out of the cgroup, so that the kernel does not
    kill it.
    """
    memory = CGROUPS / "memory"
    old = memory.is_dir()
    folder = (memory if old else CGROUPS) / f"ensemble-test-{os.getpid()}"
    places = Path("/proc/self/cgroup").read_text().splitlines()
    place = next(line for line in places if (":memory:" if old else "0::") in line).split(":", 2)[2]
    home = folder.parent / place.lstrip("/") / "cgroup.procs"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text("100000000")
        if not old:
            (folder / "memory.swap.max").write_text("0")
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    try:
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield lambda: home.write_text(str(os.getpid()))
        finally:
            home.write_text(str(os.getpid()))
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


class LocalContract(ExecutorContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def end_by_memory(self, session: Session) -> Cause:
        small = Session(self.make_executor(), self.folder / "small", self.timeout)
        much = "echo 1000 > /proc/self/oom_score_adj; exec python3 -c 'bytearray(300_000_000)'"
        with little_memory() as leave, small as session:
            session.run(session.job("true"))  # starts the supervisor, which stays in the cgroup
            leave()
            job = session.job("sh", "-c", much)
            session.run(job)
            return session.cause(job)

    def end_by_submit(self, session: Session) -> Cause:
        """Includes a job with a missing program."""
        job = session.job(*self.missing)
        session.run(job)
        assert session.cause(job) == super().end_by_submit(session)
        return session.cause(job)

    def end_by_lost(self, session: Session) -> Cause:
        """Kill the supervisor; the next controller reattaches."""
        job = session.job("sh", "-c", "echo $PPID > parent; sleep 1", workdir=str(self.folder))
        session.submit(job)
        parent = self.folder / "parent"
        wait_until(lambda: parent.exists() and parent.read_text() != "", self.timeout)
        os.kill(int(parent.read_text()), signal.SIGKILL)
        later = Session(self.make_executor(), self.folder, self.timeout, tidy=True)
        later.resume(session)
        with later:
            assert later.executor.reattach({job.id: 0.0}) == {job.id: True}
            later.wait_clean(job)
            return later.cause(job)


class TestLocalExecutorWithOneSlot(LocalContract):
    many = 5

    def make_executor(self) -> Executor:
        return LocalExecutor(slots=1, grace=0.3)


class TestLocalExecutor(LocalContract):
    (plugin,) = ensemble_executors()

    def make_executor(self) -> Executor:
        return LocalExecutor(slots=2, min_slots=1, max_slots=4, gpus=2, grace=0.3)
