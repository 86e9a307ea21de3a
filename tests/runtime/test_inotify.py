"""Inotify for growing files: changes that it reports or misses, and the fallback to polling."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import wait_until

from ensemble_core.model.events import Event, Observed
from ensemble_core.plugin.observer import Observer, Row
from ensemble_core.runtime.tail import Follower, change_detection

inotify_simple = pytest.importorskip("inotify_simple")

PATIENCE = 60.0
NEVER = 10_000.0


class Numbers(Observer):
    """Observer: each complete line is one number."""

    def __init__(self) -> None:
        self.rest = b""

    @property
    def path(self) -> str | None:
        return None

    def feed(self, data: bytes) -> Iterable[Row]:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            yield Row({"n": float(line)})

    def truncated(self) -> None:
        self.rest = b""


class Following:
    """A follower with the rows of each job and its warnings."""

    def __init__(self, **options: Any) -> None:
        self.rows: dict[str, list[float]] = {}
        self.said: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.follower = Follower(self.emit, time.time, warn=self.said.append, **options)

    def emit(self, events: Sequence[Event]) -> None:
        for event in events:
            assert isinstance(event, Observed)
            self.rows.setdefault(event.job, []).append(event.values["n"])
        self.gate.wait(PATIENCE)

    def watch(self, path: Path, job: str = "a") -> None:
        self.follower.watch(job, "numbers", Numbers(), path)

    def finish(self, job: str) -> None:
        over = threading.Event()
        self.follower.finish(job, over.set)
        assert over.wait(PATIENCE)

    def until_rows(self, job: str, count: int) -> None:
        wait_until(lambda: len(self.rows.get(job, ())) == count)

    def asleep(self) -> None:
        """Wait until the follower has checked all files."""
        wait_until(lambda: not self.follower._new)
        eyes = self.follower._changes
        wait_until(lambda: not eyes._fresh and eyes._watches is not None and len(eyes._watches))


@pytest.fixture
def following() -> Iterator[Callable[..., Following]]:
    made: list[Following] = []

    def make(**options: Any) -> Following:
        made.append(Following(**options))
        return made[-1]

    yield make
    for one in made:
        one.gate.set()
        one.follower.close()


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling, so that only inotify reports changes."""
    monkeypatch.setattr(change_detection, "_NET", NEVER)
    monkeypatch.setattr(change_detection, "_REMOTE", NEVER)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.mark.usefixtures("deaf")
class TestInotifyReports:
    """Changes that inotify reports without polling."""

    def test_reports_every_row(self, following: Callable[..., Following], tmp_path: Path) -> None:
        it, path = following(), tmp_path / "log"
        path.write_text("0\n")
        it.watch(path)
        for number in range(1, 30):
            it.until_rows("a", number)
            append(path, f"{number}\n")
        it.until_rows("a", 30)
        assert it.rows["a"] == [float(number) for number in range(30)]
        assert it.said == []

    def test_reports_new_files_in_new_folders(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, path = following(), tmp_path / "a" / "b" / "c" / "log"
        it.watch(path)
        it.asleep()
        path.parent.mkdir(parents=True)
        path.write_text("1\n")
        wait_until(lambda: it.rows == {"a": [1.0]})
        append(path, "2\n")
        wait_until(lambda: it.rows == {"a": [1.0, 2.0]})

    def test_reports_a_file_that_is_moved_to_its_path(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, path = following(), tmp_path / "a" / "log"
        it.watch(path)
        it.asleep()
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "log").write_text("1\n")
        (tmp_path / "b").rename(tmp_path / "a")
        wait_until(lambda: it.rows == {"a": [1.0]})

    def test_reports_rotated_truncated_removed_and_replaced_files(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, path = following(), tmp_path / "log"
        path.write_text("1\n")
        it.watch(path)
        wait_until(lambda: it.rows == {"a": [1.0]})
        path.rename(tmp_path / "log.1")
        path.write_text("2\n")
        wait_until(lambda: it.rows == {"a": [1.0, 2.0]})
        path.write_text("")
        append(path, "3\n")
        wait_until(lambda: it.rows == {"a": [1.0, 2.0, 3.0]})
        path.unlink()
        it.asleep()
        path.write_text("4\n")
        wait_until(lambda: it.rows == {"a": [1.0, 2.0, 3.0, 4.0]})
        (tmp_path / "new").write_text("5\n")
        (tmp_path / "new").replace(path)
        wait_until(lambda: it.rows == {"a": [1.0, 2.0, 3.0, 4.0, 5.0]})
        append(path, "6\n")
        wait_until(lambda: it.rows["a"][-1] == 6)

    def test_reports_a_replaced_file_that_another_process_holds_open(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, path = following(), tmp_path / "log"
        with path.open("w") as old:
            old.write("1\n")
            old.flush()
            it.watch(path)
            wait_until(lambda: it.rows == {"a": [1.0]})
            path.unlink()
            path.write_text("2\n")
            wait_until(lambda: it.rows == {"a": [1.0, 2.0]})
            old.write("3\n")
            old.flush()
            append(path, "4\n")
            wait_until(lambda: it.rows == {"a": [1.0, 2.0, 4.0]})

    def test_reports_a_link_whose_target_appears_later(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, path, target = following(), tmp_path / "log", tmp_path / "far" / "away"
        path.symlink_to(target)
        it.watch(path)
        it.asleep()
        target.parent.mkdir()
        target.write_text("1\n")
        wait_until(lambda: it.rows == {"a": [1.0]})
        append(target, "2\n")
        wait_until(lambda: it.rows == {"a": [1.0, 2.0]})

    def test_reports_to_all_followers_of_a_file(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, path = following(), tmp_path / "log"
        path.write_text("1\n")
        os.link(path, tmp_path / "same")
        for job, name in (("a", "log"), ("b", "log"), ("c", "same")):
            it.watch(tmp_path / name, job)
        wait_until(lambda: it.rows == {"a": [1.0], "b": [1.0], "c": [1.0]})
        append(path, "2\n")
        wait_until(lambda: it.rows == {"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0]})
        it.finish("a")
        append(path, "3\n")
        wait_until(lambda: [len(it.rows[job]) for job in "abc"] == [2, 3, 3])

    def test_reports_local_writes_on_a_shared_file_system(
        self,
        following: Callable[..., Following],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(change_detection, "filesystem", lambda path: "nfs4")
        it, path = following(), tmp_path / "log"
        path.write_text("1\n")
        it.watch(path)
        wait_until(lambda: it.rows == {"a": [1.0]})
        append(path, "2\n")
        wait_until(lambda: it.rows == {"a": [1.0, 2.0]})

    def test_all_files_are_polled_after_a_queue_overflow(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it = following()
        paths = [tmp_path / name for name in "abc"]
        for path in paths:
            path.write_text("1\n")
            it.watch(path, path.name)
        wait_until(lambda: len(it.rows) == 3)
        # Alternate between files while the follower is blocked: the kernel merges repeated events.
        it.gate.clear()
        append(paths[0], "2\n")
        wait_until(lambda: it.rows["a"] == [1.0, 2.0])
        most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        fds = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in paths[:2]]
        for _ in range(most // 2 + 10):
            for fd in fds:
                os.write(fd, b"7")
        for fd in fds:
            os.close(fd)
        append(paths[2], "3\n")
        it.gate.set()
        wait_until(lambda: it.rows["c"] == [1.0, 3.0])


def test_watches_a_thousand_jobs_with_missing_folders(
    following: Callable[..., Following], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_detection, "_NET", NEVER)
    it, jobs = following(), [f"j.{n}" for n in range(1000)]
    before = len(os.listdir("/proc/self/fd"))
    for job in jobs:
        it.watch(tmp_path / job / "log", job)
    it.asleep()
    for job in jobs:
        (tmp_path / job).mkdir()
        (tmp_path / job / "log").write_text("1\n")
    wait_until(lambda: len(it.rows) == len(jobs))
    append(tmp_path / "j.77" / "log", "2\n")
    wait_until(lambda: it.rows["j.77"] == [1.0, 2.0])
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    for job in jobs:
        it.follower.finish(job)
    watches = it.follower._changes._watches
    assert watches is not None
    wait_until(lambda: not len(watches))
    it.follower.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert sum(len(rows) for rows in it.rows.values()) == len(jobs) + 1
    assert it.said == []


class TestInotifyMisses:
    """Changes that only polling finds."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(change_detection, "_NET", 0.2)

    def test_finds_writes_through_memory_mappings(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, path = following(), tmp_path / "log"
        path.write_bytes(b"1\n" + bytes(4094))
        it.watch(path)
        wait_until(lambda: it.rows == {"a": [1.0]})
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
            memory[2:6] = b"2\n3\n"
            wait_until(lambda: it.rows == {"a": [1.0, 2.0, 3.0]})
            memory[6:8] = b"4\n"
            wait_until(lambda: it.rows == {"a": [1.0, 2.0, 3.0, 4.0]})

    def test_finds_a_replaced_folder(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, folder = following(), tmp_path / "run"
        for name, text in (("run", "1\n"), ("next", "2\n3\n")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "log").write_text(text)
        it.watch(folder / "log")
        wait_until(lambda: it.rows == {"a": [1.0]})
        folder.rename(tmp_path / "old")
        (tmp_path / "next").rename(folder)
        wait_until(lambda: it.rows == {"a": [1.0, 2.0, 3.0]})
        append(folder / "log", "4\n")
        wait_until(lambda: it.rows["a"][-1] == 4)

    def test_finds_a_changed_link(
        self, following: Callable[..., Following], tmp_path: Path
    ) -> None:
        it, path = following(), tmp_path / "log"
        (tmp_path / "1").write_text("1\n")
        (tmp_path / "2").write_text("2\n")
        path.symlink_to("1")
        it.watch(path)
        wait_until(lambda: it.rows == {"a": [1.0]})
        (tmp_path / "other").symlink_to("2")
        (tmp_path / "other").replace(path)
        wait_until(lambda: it.rows == {"a": [1.0, 2.0]})


class TestPollingFallback:
    """Without inotify, files are polled, with a single warning."""

    def follow(self, it: Following, folder: Path) -> None:
        for job in "ab":
            (folder / job).write_text("1\n")
            it.watch(folder / job, job)
        wait_until(lambda: it.rows == {"a": [1.0], "b": [1.0]})
        for job in "ab":
            append(folder / job, "2\n")
        wait_until(lambda: it.rows == {"a": [1.0, 2.0], "b": [1.0, 2.0]})
        it.watch(folder / "later", "c")
        (folder / "later").write_text("1\n")
        wait_until(lambda: it.rows.get("c") == [1.0])

    @pytest.mark.parametrize("kind", ["lustre", "fuse.sshfs", "something-new", ""])
    def test_polls_shared_file_systems(
        self,
        following: Callable[..., Following],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: str,
    ) -> None:
        monkeypatch.setattr(change_detection, "filesystem", lambda path: kind)
        it = following(inotify=False)
        remote = it.follower._changes._remote
        remote._shortest = remote._idle = 0.2
        self.follow(it, tmp_path)
        assert len(remote._files) == 3
        (said,) = it.said
        assert (kind or "of unknown type") in said
        assert "every 2 s" in said

    def test_polls_at_the_limit_of_watches(
        self,
        following: Callable[..., Following],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(change_detection, "_FULL", 0.05)
        monkeypatch.setattr(inotify_simple.INotify, "add_watch", refuse)
        it = following()
        self.follow(it, tmp_path)
        (said,) = it.said
        assert "max_user_watches" in said
        # Once watches are available again, inotify is used.
        monkeypatch.undo()
        eyes = it.follower._changes
        wait_until(lambda: len(eyes._told._files) == 3 and not eyes._here._files)

    @pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSYS])
    def test_polls_without_inotify(
        self,
        following: Callable[..., Following],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        code: int,
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(inotify_simple.INotify, "__init__", refuse)
        it = following()
        self.follow(it, tmp_path)
        (said,) = it.said
        assert os.strerror(code) in said

    def test_polls_without_file_descriptors(
        self,
        following: Callable[..., Following],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, "pipe2", refuse)
        it = following()
        self.follow(it, tmp_path)
        it.finish("a")


def test_a_log_that_grows_too_fast_waits_but_others_do_not(
    following: Callable[..., Following], tmp_path: Path
) -> None:
    it = following(backlog=lambda: 3000)
    big, small = tmp_path / "big", tmp_path / "small"
    big.write_text("1\n" * 150_000)
    it.watch(big, "big")
    wait_until(lambda: it.rows.get("big"))
    small.write_text("1\n")
    it.watch(small, "small")
    for number in range(2, 20):
        it.until_rows("small", number - 1)
        append(small, f"{number}\n")
    assert len(it.rows["big"]) < 70_000
    it.finish("big")
    assert len(it.rows["big"]) == 150_000


def test_preallocated_space_is_not_read(
    following: Callable[..., Following], tmp_path: Path
) -> None:
    it, path = following(), tmp_path / "log"
    path.write_bytes(b"1\n2" + bytes(5))
    it.watch(path)
    wait_until(lambda: it.rows == {"a": [1.0]})
    with path.open("r+b") as file:
        file.seek(3)
        file.write(b"3\n4\n5")
    wait_until(lambda: it.rows == {"a": [1.0, 23.0, 4.0]})
