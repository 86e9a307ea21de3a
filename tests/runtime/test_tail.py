"""Following growing files: no row is lost, duplicated, or taken from another job."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from ensemble_testing import wait_until

from ensemble_core.builtin.key_value import KeyValue
from ensemble_core.model.events import Event, Observed
from ensemble_core.plugin.observer import Observer, Row
from ensemble_core.runtime.tail import Follower
from ensemble_core.runtime.tail.output_file import File

PATIENCE = 60.0


class Lines(Observer):
    """Observer: each complete line is one number; an incomplete last line counts at the end."""

    def __init__(self) -> None:
        self.rest = b""
        self.pieces: list[int] = []
        self.began_anew = 0
        self.finished = 0

    @property
    def path(self) -> str | None:
        return "out.txt"

    def feed(self, data: bytes) -> Iterable[Row]:
        self.pieces.append(len(data))
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            yield Row({"n": float(line)}, clock=float(line))

    def truncated(self) -> None:
        self.began_anew += 1
        self.rest = b""

    def finish(self) -> Iterable[Row]:
        self.finished += 1
        if self.rest:
            yield Row({"rest": float(self.rest)})


class Counter(Observer):
    """Observer that counts lines and yields one row per ``feed``."""

    def __init__(self) -> None:
        self.lines = 0

    @property
    def path(self) -> str | None:
        return None

    def feed(self, data: bytes) -> Iterable[Row]:
        self.lines += data.count(b"\n")
        yield Row({"bytes": float(len(data))})


class Failing(Observer):
    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.asked = 0

    @property
    def path(self) -> str | None:
        return None

    def feed(self, data: bytes) -> Iterable[Row]:
        self.asked += 1
        raise self.error


class Watched:
    """A follower with its events and warnings."""

    def __init__(self) -> None:
        self.events: list[Observed] = []
        self.batches: list[int] = []
        self.warnings: list[str] = []
        self.follower = Follower(self.emit, lambda: 1000.0, warn=self.warnings.append)

    def emit(self, events: Sequence[Event]) -> None:
        self.batches.append(len(events))
        for event in events:
            assert isinstance(event, Observed)
            self.events.append(event)

    def numbers(self, job: str = "j.0") -> list[float]:
        return [e.values["n"] for e in self.events if e.job == job and "n" in e.values]

    def finish(self, job: str = "j.0", *, expected: bool = False) -> None:
        over = threading.Event()
        self.follower.finish(job, over.set, expected=expected)
        assert over.wait(PATIENCE)


@pytest.fixture
def watched() -> Iterator[Watched]:
    it = Watched()
    yield it
    it.follower.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_rows_come_while_the_file_grows(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("1\n2")
    watched.follower.watch("j.0", "lines", Lines(), path)
    wait_until(lambda: watched.numbers() == [1])
    append(path, "0\n3\n")
    wait_until(lambda: watched.numbers() == [1, 20, 3])
    event = watched.events[0]
    assert (event.job, event.observer, event.clock, event.timestamp) == ("j.0", "lines", 1.0, 1000)


def test_a_file_may_appear_later(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "out.txt"
    other = tmp_path / "other.txt"
    other.write_text("7\n")
    watched.follower.watch("j.0", "lines", Lines(), path)
    watched.follower.watch("k.0", "lines", Lines(), other)
    wait_until(lambda: watched.numbers("k.0") == [7])
    path.parent.mkdir(parents=True)
    path.write_text("1\n")
    wait_until(lambda: watched.numbers() == [1])
    assert watched.warnings == []


def test_the_last_rows_come_before_the_end(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    observer = Lines()
    watched.follower.watch("j.0", "lines", observer, path)
    path.write_text("".join(f"{n}\n" for n in range(5000)) + "99")
    seen: list[int] = []
    over = threading.Event()

    def then() -> None:
        seen.append(len(watched.events))
        over.set()

    watched.follower.finish("j.0", then)
    assert over.wait(PATIENCE)
    assert watched.numbers() == list(range(5000))
    assert watched.events[-1].values == {"rest": 99.0}
    assert seen == [5001]
    assert observer.finished == 1
    assert max(watched.batches) <= 1000


def test_nothing_is_read_after_the_end(watched: Watched, tmp_path: Path) -> None:
    path, other = tmp_path / "out.txt", tmp_path / "other.txt"
    path.write_text("1\n")
    watched.follower.watch("j.0", "lines", Lines(), path)
    watched.finish()
    append(path, "2\n")
    other.write_text("3\n")
    watched.follower.watch("k.0", "lines", Lines(), other)
    wait_until(lambda: watched.numbers("k.0") == [3])
    assert watched.numbers() == [1]


def test_the_end_of_a_job_without_files_is_reported_at_once(watched: Watched) -> None:
    told: list[str] = []
    watched.follower.finish("j.0", lambda: told.append(threading.current_thread().name))
    assert told == [threading.current_thread().name]
    watched.follower.finish("j.0")


def test_the_end_is_reported_if_the_file_never_appears(watched: Watched, tmp_path: Path) -> None:
    observer = Lines()
    watched.follower.watch("j.0", "lines", observer, tmp_path / "out.txt")
    watched.finish()
    assert watched.events == []
    assert observer.finished == 1


def test_a_missing_file_is_reported_once_per_group(watched: Watched, tmp_path: Path) -> None:
    here, left = tmp_path / "here.txt", tmp_path / "left.txt"
    here.write_text("")
    left.write_text("1\n")
    os.utime(left, (500, 500))
    for index in range(3):
        watched.follower.watch(f"j.{index}", "lines", Lines(), tmp_path / f"{index}.txt")
        watched.finish(f"j.{index}", expected=index > 0)
    watched.follower.watch("k.0", "lines", Lines(), here)
    watched.finish("k.0", expected=True)
    watched.follower.watch("l.0", "lines", Lines(), left, since=1000)
    watched.finish("l.0", expected=True)
    never, old = watched.warnings
    assert never == (
        f"job j.1 succeeded, but {tmp_path / '1.txt'} does not exist: the observer 'lines' "
        "read nothing"
    )
    assert old.startswith(f"job l.0 succeeded, but {left} is older than the job")


def test_warning_about_one_job_does_not_hide_another_one_about_the_next_job(
    watched: Watched, tmp_path: Path
) -> None:
    for index in range(6):
        file = tmp_path / f"{index}.txt"
        if index > 1:
            file.write_text("E=1\nE=2\n" if index < 4 else "E=1\nE=********\n")
        watched.follower.watch(f"j.{index}", "key-value", KeyValue(fields=["E"]), file)
        if index in (2, 3):
            job = f"j.{index}"
            wait_until(lambda job=job: sum(e.job == job for e in watched.events) == 2)
            file.write_text("E=3\n")
        watched.finish(f"j.{index}", expected=True)
    assert [text.partition(" succeeded, but ")[0] for text in watched.warnings] == [
        "job j.0",
        "job j.2",
        "job j.4",
    ]
    for part, text in zip(
        ("does not exist", "was truncated", "could not be read"), watched.warnings, strict=True
    ):
        assert part in text


def test_output_that_is_no_regular_file_counts_as_unread(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "out.txt").mkdir()
    watched.follower.watch("j.0", "lines", Lines(), tmp_path / "out.txt")
    watched.finish("j.0", expected=True)
    assert watched.warnings[-1] == (
        f"job j.0 succeeded, but {tmp_path / 'out.txt'} is not a regular file and cannot be "
        "followed: the observer 'lines' read nothing"
    )


@pytest.mark.parametrize(("rows", "seconds", "warned"), [(20, 45, 1), (20, 5, 0), (3, 45, 0)])
def test_rows_only_at_the_end_of_a_long_job_cause_a_warning_about_buffering(
    tmp_path: Path, rows: int, seconds: float, warned: int
) -> None:
    file, told, now = tmp_path / "out.txt", list[str](), [1000.0]
    observed = File(
        "a.0", "test", Lines(), file, since=None, taken=0, tell=lambda event: None,
        clock=lambda: now[0], warn=told.append, fail=told.append,
    )  # fmt: skip
    file.write_text("1\n" * rows)
    now[0] += seconds
    while observed.read_to_end():
        pass
    observed.finish()
    said = observed.complaint()
    assert (said is not None) == bool(warned)
    assert said is None or (f"all {rows} rows" in said and "stdbuf -oL" in said)


def test_a_process_that_still_writes_does_not_delay_a_jobs_end(
    watched: Watched, tmp_path: Path
) -> None:
    path = tmp_path / "out.txt"
    path.write_text("1\n")
    stop = threading.Event()

    def orphan() -> None:
        with path.open("ab", buffering=0) as file:
            while not stop.is_set() and file.tell() < 1 << 30:
                file.write(b"1\n" * 500_000)

    thread = threading.Thread(target=orphan)
    thread.start()
    try:
        watched.follower.watch("j.0", "count", Counter(), path)
        watched.finish()
    finally:
        stop.set()
        thread.join()


def test_a_truncated_file_is_read_from_its_start(watched: Watched, tmp_path: Path) -> None:
    path, observer = tmp_path / "out.txt", Lines()
    path.write_text("1\n2\n3")
    watched.follower.watch("j.0", "lines", observer, path)
    wait_until(lambda: watched.numbers() == [1, 2])
    path.write_text("8\n")
    wait_until(lambda: watched.numbers() == [1, 2, 8])
    assert observer.began_anew == 1


def test_a_file_truncated_and_grown_between_polls_is_read_from_its_start(
    watched: Watched, tmp_path: Path
) -> None:
    path, observer = tmp_path / "out.txt", Lines()
    path.write_text("1\n2\n")
    watched.follower.watch("j.0", "lines", observer, path)
    wait_until(lambda: watched.numbers() == [1, 2])
    with path.open("r+") as file:
        file.truncate(0)
        file.write("5\n6\n7\n8\n")
    wait_until(lambda: len(watched.numbers()) > 2)
    assert watched.numbers() == [1, 2, 5, 6, 7, 8]
    assert observer.began_anew == 1


def test_a_replaced_file_is_read_from_its_start(watched: Watched, tmp_path: Path) -> None:
    path, observer = tmp_path / "out.txt", Lines()
    path.write_text("1\n2\n")
    watched.follower.watch("j.0", "lines", observer, path)
    wait_until(lambda: watched.numbers() == [1, 2])
    (tmp_path / "new").write_text("1\n3\n4\n")
    (tmp_path / "new").replace(path)
    wait_until(lambda: len(watched.numbers()) == 5)
    assert watched.numbers() == [1, 2, 1, 3, 4]
    assert observer.began_anew == 1


def test_a_file_that_disappears_and_reappears_is_followed(watched: Watched, tmp_path: Path) -> None:
    path, other = tmp_path / "out.txt", tmp_path / "other.txt"
    path.write_text("1\n")
    watched.follower.watch("j.0", "lines", Lines(), path)
    wait_until(lambda: watched.numbers() == [1])
    path.unlink()
    other.write_text("5\n")
    watched.follower.watch("k.0", "lines", Lines(), other)
    wait_until(lambda: watched.numbers("k.0") == [5])
    path.write_text("2\n3\n")
    wait_until(lambda: watched.numbers() == [1, 2, 3])


def test_a_missing_file_does_not_delay_the_end(watched: Watched, tmp_path: Path) -> None:
    path, observer = tmp_path / "out.txt", Lines()
    path.write_text("1\n2")
    watched.follower.watch("j.0", "lines", observer, path)
    wait_until(lambda: watched.numbers() == [1])
    path.unlink()
    watched.finish()
    assert observer.finished == 1
    assert watched.warnings == []


class TestALogThatAnEarlierJobLeft:
    """A rule must not fire on what an earlier run in the same folder wrote."""

    def stale(self, path: Path, now: float) -> None:
        path.write_text("111\n222\n")
        os.utime(path, (now - 60, now - 60))

    def test_is_skipped(self, watched: Watched, tmp_path: Path) -> None:
        path, now = tmp_path / "out.txt", time.time()
        self.stale(path, now)
        watched.follower.watch("j.0", "lines", Lines(), path, since=now)
        watched.finish()
        assert watched.events == []

    def test_is_read_once_the_job_has_overwritten_it(
        self, watched: Watched, tmp_path: Path
    ) -> None:
        path, other, now = tmp_path / "out.txt", tmp_path / "other.txt", time.time()
        self.stale(path, now)
        observer = Lines()
        watched.follower.watch("j.0", "lines", observer, path, since=now)
        other.write_text("5\n")
        watched.follower.watch("k.0", "lines", Lines(), other)
        wait_until(lambda: watched.numbers("k.0") == [5])
        path.write_text("333\n444\n")
        wait_until(lambda: watched.numbers() == [333, 444])
        assert observer.began_anew == 0

    def test_is_read_if_it_was_written_since(self, watched: Watched, tmp_path: Path) -> None:
        path, now = tmp_path / "out.txt", time.time()
        path.write_text("1\n")
        watched.follower.watch("j.0", "lines", Lines(), path, since=now)
        watched.finish()
        assert watched.numbers() == [1]

    @pytest.mark.parametrize(("written", "rows"), [(1000, [1]), (999, [])])
    def test_is_read_if_whole_seconds_do_not_show_that_it_is_older(
        self, written: float, rows: list[int], watched: Watched, tmp_path: Path
    ) -> None:
        """Lustre keeps no fractions of a second."""
        path = tmp_path / "out.txt"
        path.write_text("1\n")
        os.utime(path, (written, written))
        watched.follower.watch("j.0", "lines", Lines(), path, since=1000.9)
        watched.finish()
        assert watched.numbers() == rows


def test_a_file_that_is_not_regular_is_rejected_once(watched: Watched, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    good = tmp_path / "out.txt"
    good.write_text("1\n")
    for name in ("fifo", "dir"):
        watched.follower.watch(f"{name}.0", "lines", Lines(), tmp_path / name)
    watched.follower.watch("null.0", "lines", Lines(), Path("/dev/null"))
    watched.follower.watch("j.0", "lines", Lines(), good)
    wait_until(lambda: watched.numbers() == [1])
    append(good, "2\n")
    wait_until(lambda: watched.numbers() == [1, 2])
    for job in ("fifo.0", "dir.0", "null.0"):
        watched.finish(job)
    assert sorted(warning.split(":")[0] for warning in watched.warnings) == [
        "job dir.0",
        "job fifo.0",
        "job null.0",
    ]
    assert all("not a regular file" in warning for warning in watched.warnings)


def test_an_unreadable_file_causes_one_warning(
    permissions_hold: None, watched: Watched, tmp_path: Path
) -> None:
    path = tmp_path / "out.txt"
    path.write_text("1\n")
    path.chmod(0)
    watched.follower.watch("j.0", "lines", Lines(), path)
    watched.finish()
    assert len(watched.warnings) == 1


def test_an_impossible_path_causes_a_warning(watched: Watched, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    watched.follower.watch("j.0", "lines", Lines(), loop)
    watched.follower.watch("j.0", "lines", Lines(), tmp_path / "a\0b")
    watched.finish()
    assert len(watched.warnings) == 2


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), RecursionError()])
def test_an_observer_that_raises_is_dropped_without_affecting_others(
    watched: Watched, tmp_path: Path, error: BaseException
) -> None:
    path, failing = tmp_path / "out.txt", Failing(error)
    path.write_text("1\n")
    watched.follower.watch("j.0", "bad", failing, path)
    watched.follower.watch("j.0", "lines", Lines(), path)
    wait_until(lambda: watched.numbers() == [1])
    append(path, "2\n")
    wait_until(lambda: watched.numbers() == [1, 2])
    watched.finish()
    assert failing.asked == 1
    assert len(watched.warnings) == 1
    assert "'bad'" in watched.warnings[0]
    assert type(error).__name__ in watched.warnings[0]


def test_following_continues_if_the_receiver_raises(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    events: list[Event] = []
    refused: list[int] = []

    def emit(batch: Sequence[Event]) -> None:
        if not refused:
            refused.append(len(batch))
            raise RuntimeError("not now")
        events.extend(batch)

    follower = Follower(emit, time.time)
    path.write_text("1\n")
    follower.watch("j.0", "lines", Lines(), path)
    wait_until(lambda: refused)
    append(path, "2\n")
    wait_until(lambda: len(events) == 1)

    def then() -> None:
        raise RuntimeError("not now either")

    over = threading.Event()
    follower.finish("j.0", then)
    follower.watch("k.0", "lines", Lines(), path)
    follower.finish("k.0", over.set)
    assert over.wait(PATIENCE)
    follower.close()


def test_a_large_file_does_not_delay_small_ones(watched: Watched, tmp_path: Path) -> None:
    big, small, observer = tmp_path / "big.txt", tmp_path / "small.txt", Counter()
    line = b"1234567\n"
    with big.open("wb") as file:
        for _ in range(100):
            file.write(line * (1 << 17))
    small.write_text("1\n")
    watched.follower.watch("big.0", "count", observer, big)
    watched.follower.watch("j.0", "lines", Lines(), small)
    lines: list[int] = []
    watched.follower.finish("j.0", lambda: lines.append(observer.lines))
    wait_until(lambda: lines)
    assert lines[0] < 100 << 17, "the small file waited for all of the big one"
    watched.finish("big.0")
    assert observer.lines == 100 << 17
    sizes = [event.values["bytes"] for event in watched.events if event.job == "big.0"]
    assert sum(sizes) == big.stat().st_size
    assert max(sizes) <= 1 << 20


def test_reading_pauses_while_events_pile_up(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("1\n" * 300_000)
    events: list[Event] = []
    held = [0]
    follower = Follower(events.extend, time.time, backlog=lambda: len(events) - held[0])
    follower.watch("j.0", "lines", Lines(), path)
    over = threading.Event()
    follower.finish("j.0", over.set)
    wait_until(lambda: len(events) > 20_000)
    assert not over.wait(0.3)
    assert len(events) < 200_000
    held[0] = 10_000_000
    assert over.wait(PATIENCE)
    assert len(events) == 300_000
    follower.close()


def test_close_completes_ended_jobs(tmp_path: Path) -> None:
    watched = Watched()
    over = threading.Event()
    for job in range(50):
        path = tmp_path / f"{job}.txt"
        path.write_text("1\n" * 10)
        watched.follower.watch(f"j.{job}", "lines", Lines(), path)
        watched.follower.finish(f"j.{job}", over.set if job == 49 else lambda: None)
    watched.follower.close()
    assert over.is_set()
    assert len(watched.events) == 500
    told: list[int] = []
    watched.follower.watch("k.0", "lines", Lines(), tmp_path / "1.txt")
    watched.follower.finish("k.0", lambda: told.append(1))
    assert told == [1]
    watched.follower.close()
    assert len(watched.events) == 500


def test_close_abandons_slow_files_and_still_reports_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("1\n" * 1_000_000)
    over = threading.Event()
    events: list[Event] = []
    follower = Follower(events.extend, time.time, backlog=lambda: len(events))
    follower.watch("j.0", "lines", Lines(), path)
    follower.finish("j.0", over.set)
    wait_until(lambda: len(events) > 20_000)
    follower.close(timeout=0.05)
    assert over.wait(60)


def test_a_thousand_files_need_few_descriptors_and_little_cpu(
    watched: Watched, tmp_path: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for n in range(1000):
        path = tmp_path / f"{n}.txt"
        path.write_text(f"{n}\n")
        watched.follower.watch(f"j.{n}", "lines", Lines(), path)
    wait_until(lambda: len(watched.events) == 1000)
    assert len(os.listdir("/proc/self/fd")) < before + 10
    usage = resource.getrusage(resource.RUSAGE_SELF)
    start, began = usage.ru_utime + usage.ru_stime, time.monotonic()
    append(tmp_path / "500.txt", "-1\n")
    wait_until(lambda: watched.numbers("j.500") == [500, -1])
    while time.monotonic() < began + 1.0:
        time.sleep(0.05)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert usage.ru_utime + usage.ru_stime - start < 0.5 * (time.monotonic() - began)
    assert sorted(e.values["n"] for e in watched.events) == [-1, *range(1000)]


def test_a_crash_of_the_thread_is_reported(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("ensemble_core.runtime.tail.change_detection.ChangeDetector.news", broken)
    watched.follower.watch("a.0", "lines", Lines(), tmp_path / "out.txt")
    wait_until(lambda: watched.warnings)
    assert "will not fire: MemoryError: no room" in watched.warnings[0]
    ended = threading.Event()
    watched.follower.finish("a.0", ended.set)
    assert ended.wait(PATIENCE)


@pytest.mark.parametrize(("failures", "rows"), [(3, [1.0, 2.0]), (10**9, [])])
def test_the_end_of_a_file_is_retried_without_descriptors(
    watched: Watched,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    rows: list[float],
) -> None:
    path, left, opened = tmp_path / "out.txt", [failures], os.open

    def refused(name: str, *more: int, **others: int) -> int:
        if name == str(path) and left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files", name)
        return opened(name, *more, **others)

    path.write_text("1\n2\n")
    monkeypatch.setattr("ensemble_core.runtime.tail.output_file._PATIENCE", 0.2)
    monkeypatch.setattr(os, "open", refused)
    watched.follower.watch("j.0", "lines", Lines(), path)
    watched.finish()
    assert watched.numbers() == rows
    assert ["Too many open files" in text for text in watched.warnings] == [True]
