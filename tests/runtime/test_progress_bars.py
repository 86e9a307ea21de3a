"""Progress bars, and output that grows faster than it can be read."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ensemble_testing import wait_until

from ensemble_core.builtin.key_value import KeyValue
from ensemble_core.model.events import Event, Observed
from ensemble_core.plugin.observer import Row
from ensemble_core.runtime.tail import Follower, observer_feed, output_file
from ensemble_core.runtime.tail.progress_bars import newest_updates


class Watched:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Observed] = []
        self.values: list[float] = []
        self.missed: list[str] = []
        self.warned: list[str] = []
        self.follower = Follower(
            self.emit,
            lambda: 1000.0,
            warn=self.warned.append,
            miss=lambda message, job: self.missed.append(message),
        )

    def emit(self, events: Sequence[Event]) -> None:
        rows = [event for event in events if isinstance(event, Observed)]
        self.events += rows
        self.values += [event.values["x"] for event in rows]

    def begin(self) -> None:
        self.follower.watch("j.0", "kv", KeyValue(None, ["x"]), self.path)

    def end(self, *, success: bool = True) -> None:
        over: list[bool] = []
        self.follower.finish("j.0", lambda: over.append(True), expected=success)
        wait_until(lambda: bool(over))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    it = Watched(tmp_path / "out")
    it.path.touch()
    yield it
    it.follower.close()


def bar(first: int, last: int) -> bytes:
    return b"".join(b"\r%3d%%|####| x=%d" % (n % 100, n) for n in range(first, last + 1))


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n", b"\r      \r\n", b"\rdone\n"])
def test_the_newest_update_of_a_bar_counts(watched: Watched, end: bytes) -> None:
    watched.path.write_bytes(bar(1, 100_000) + end)
    watched.begin()
    watched.end()

    assert watched.values[-1] == 100_000
    assert watched.values == sorted(watched.values)
    assert len(watched.values) < 1000
    assert not watched.missed


def test_a_bar_gives_rows_while_it_is_drawn(watched: Watched) -> None:
    watched.begin()
    with watched.path.open("ab", buffering=0) as out:
        for n in range(1, 6):
            out.write(bar(1000 * n, 1000 * n + 500))
            # The update that is not complete yet may be the newest.
            wait_until(lambda n=n: bool(watched.values) and watched.values[-1] >= 1000 * n + 499)
        out.write(b"\n")
    watched.end()

    assert watched.values[-1] == 5500


def test_a_slow_bar_gives_a_row_at_each_update(watched: Watched) -> None:
    watched.begin()
    with watched.path.open("ab", buffering=0) as out:
        for n in range(1, 8):
            out.write(b"x=%d\r" % n)
            wait_until(lambda n=n: n in watched.values)
    watched.end()

    assert watched.values == [1, 2, 3, 4, 5, 6, 7]


def test_lines_between_updates_are_all_read(watched: Watched) -> None:
    parts = [bar(n, n + 50) + b"\nx=%d\n" % -n for n in range(1, 20_000, 51)]
    watched.path.write_bytes(b"".join(parts))
    watched.begin()
    watched.end()

    assert [value for value in watched.values if value < 0] == [-n for n in range(1, 20_000, 51)]


def test_no_update_is_cut() -> None:
    """Whatever the pieces, each kept update is a whole one, and the last one is kept."""
    choose = random.Random(7)
    for _ in range(300):
        text = b"".join(
            b"x=%d" % choose.randrange(10**9) + choose.choice((b"\r", b"\r", b"\r", b"\n", b"\r\n"))
            for _ in range(60)
        )
        whole = set(text.replace(b"\r", b"\n").split(b"\n"))
        at, read = 0, b""
        while at < len(text):
            piece = text[at : at + choose.randrange(1, 400)]
            in_line = bool(at) and text[at - 1 : at] not in (b"\n", b"\r")
            kept, used = newest_updates(piece, in_line=in_line, final=choose.random() < 0.1)
            read, at = read + kept, at + used
        updates = read.replace(b"\r", b"\n").split(b"\n")
        assert whole.issuperset(updates)
        assert [each for each in updates if each][-1] == text.split()[-1]


def test_an_observer_that_falls_behind_continues_at_the_end(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_file, "MOST_BEHIND", 1 << 20)
    monkeypatch.setattr(observer_feed, "_LONGEST_CATCH_UP", 0.0)
    watched.path.write_bytes(b"".join(b"x=%d\n" % n for n in range(1_000_000)))
    watched.begin()
    watched.end()

    (warning,) = watched.warned
    assert "MB were skipped" in warning
    assert watched.values[-1] == 999_999
    assert watched.values == sorted(watched.values)
    assert len(watched.values) < 500_000
    assert os.stat(watched.path).st_size > 5 << 20
    assert not watched.missed or "were skipped" in watched.missed[0]


def test_the_speed_of_an_observer_is_not_that_of_its_first_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = [0.0]
    pace = [0.0]

    class Slow(KeyValue):
        def feed(self, data: bytes) -> list[Row]:
            cpu[0] += pace[0] * len(data) / (1 << 20)
            return []

    monkeypatch.setattr(observer_feed.time, "thread_time", lambda: cpu[0])
    feed = observer_feed.ObserverFeed(
        "j.0", "kv", Slow(), "out", skip=0, tell=print, clock=lambda: 0.0, fail=print
    )
    for pace[0], slow in ((0.5, False), (0.001, False), (0.001, False), (0.5, True), (3.0, True)):
        for _ in range(16):
            feed.feed(b"x" * (1 << 16))
        assert feed.is_too_slow(300 << 20) is slow
        assert not feed.is_too_slow(1 << 10)


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_at_most_rate_rows_a_second_are_handed_over_and_the_newest_values_count(
    watched: Watched, end: bytes
) -> None:
    """The first row comes at once, the last one at the end: nothing between them in this time."""
    observer = KeyValue(None, ["x", "y"], "x")
    observer.rate = 1e-4
    watched.follower.watch("j.0", "kv", observer, watched.path)
    with watched.path.open("ab", buffering=0) as out:
        out.write(b"x=0 y=7\n")
        wait_until(lambda: watched.values == [0])
        out.write(b"".join(b"x=%d%b" % (n, end) for n in range(1, 50_000)))
        out.write(b"x=50000 y=8\nx=50001\n")
    watched.end()

    assert watched.values == [0, 50_001]
    assert [event.values["y"] for event in watched.events] == [7, 8]
    assert watched.events[-1].clock == 50_001


def test_a_row_that_is_held_is_handed_over_when_it_is_time(watched: Watched) -> None:
    observer = KeyValue(None, ["x"])
    observer.rate = 20
    watched.follower.watch("j.0", "kv", observer, watched.path)
    watched.path.write_bytes(b"x=1\nx=2\nx=3\n")
    wait_until(lambda: watched.values == [1, 3])
    watched.end()
