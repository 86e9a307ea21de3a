"""A log that a restart overwrites, truncates, replaces or appends to: each row comes once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from ensemble_testing import wait_until

from ensemble_core.builtin.key_value import KeyValue
from ensemble_core.model.events import Event, Observed
from ensemble_core.runtime.tail import Follower

TAIL = "averages of the first part\n" * 20


class Watched:
    """A follower with the steps that its observers read, and its warnings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: list[float] = []
        self.missed: list[str] = []
        self.follower = Follower(
            self.emit, lambda: 1000.0, miss=lambda message, job: self.missed.append(message)
        )

    def emit(self, events: Sequence[Event]) -> None:
        self.steps += [each.values["step"] for each in events if isinstance(each, Observed)]

    def begin(self, job: str, *, continues: bool = False) -> None:
        self.follower.watch(job, "kv", KeyValue(None, ["step"]), self.path, continues=continues)

    def end(self, job: str, *, success: bool) -> None:
        over: list[bool] = []
        self.follower.finish(job, lambda: over.append(True), expected=success)
        wait_until(lambda: bool(over))

    def first_attempt(self, text: str) -> None:
        self.path.write_text(text)
        self.begin("md.0")
        self.end("md.0", success=False)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    it = Watched(tmp_path / "md.log")
    yield it
    it.follower.close()


def steps(*numbers: int) -> str:
    return "".join(f"step={number}\n" for number in numbers)


def overwrite(path: Path, position: int, text: str) -> None:
    with path.open("r+") as file:
        file.seek(position)
        file.write(text)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def truncate_to(path: Path, position: int, text: str) -> None:
    os.truncate(path, position)
    append(path, text)


def replace_by_copy(path: Path, position: int, text: str) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    truncate_to(copy, position, text)
    copy.rename(path)


AT = len(steps(1, 2, 3, 4, 5))
BEGINNING = steps(1, 2, 3, 4, 5) + TAIL
#: How a restart at ``AT`` writes, in two parts.
WAYS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "overwritten, then appended": (
        lambda path: overwrite(path, AT, steps(6, 7, 8)),
        lambda path: append(path, steps(9, 10)),
    ),
    "overwritten in two parts": (
        lambda path: overwrite(path, AT, steps(6, 7) + "st"),
        lambda path: overwrite(path, AT + len(steps(6, 7)), steps(8, 9, 10)),
    ),
    "overwritten beyond the end": (
        lambda path: overwrite(path, AT, steps(6, 7, 8) + TAIL * 2),
        lambda path: append(path, steps(9, 10)),
    ),
    "truncated": (
        lambda path: truncate_to(path, AT, steps(6, 7, 8)),
        lambda path: append(path, steps(9, 10)),
    ),
    "truncated and longer than before": (
        lambda path: truncate_to(path, AT, steps(6, 7, 8) + TAIL * 2),
        lambda path: append(path, steps(9, 10)),
    ),
    "replaced by a copy": (
        lambda path: replace_by_copy(path, AT, steps(6, 7, 8)),
        lambda path: append(path, steps(9, 10)),
    ),
    "appended": (
        lambda path: append(path, steps(6, 7, 8)),
        lambda path: append(path, steps(9, 10)),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_restart_that_changes_the_log_gives_each_row_once(watched: Watched, way: str) -> None:
    first, second = WAYS[way]
    watched.first_attempt(BEGINNING)
    watched.begin("md.0-1", continues=True)
    first(watched.path)
    wait_until(lambda: 7 in watched.steps)
    second(watched.path)
    watched.end("md.0-1", success=True)

    assert watched.steps == [*range(1, 11)]
    assert not watched.missed


@pytest.mark.parametrize("way", WAYS)
def test_changes_that_are_found_at_the_end_give_each_row_once(watched: Watched, way: str) -> None:
    first, second = WAYS[way]
    watched.first_attempt(BEGINNING)
    first(watched.path)
    second(watched.path)
    watched.begin("md.0-1", continues=True)
    watched.end("md.0-1", success=True)

    assert watched.steps == [*range(1, 11)]


def test_an_overwritten_line_is_read_as_a_whole(watched: Watched) -> None:
    watched.first_attempt("step=15\nstep=16\nthe end\n")
    watched.begin("md.0-1", continues=True)
    overwrite(watched.path, len("step=15\n"), "step=26\n")
    watched.end("md.0-1", success=True)

    assert watched.steps == [15, 16, 26]


def test_an_attempt_from_the_beginning_reads_a_truncated_log_again(watched: Watched) -> None:
    watched.first_attempt(BEGINNING)
    watched.begin("md.0-1")
    watched.path.write_text(steps(1, 2, 3))
    watched.end("md.0-1", success=True)

    assert watched.steps == [1, 2, 3, 4, 5, 1, 2, 3]


def test_lines_that_the_same_attempt_overwrites_cause_a_warning(watched: Watched) -> None:
    watched.path.write_text(BEGINNING)
    watched.begin("md.0")
    wait_until(lambda: 5 in watched.steps)
    overwrite(watched.path, 0, steps(7))
    os.utime(watched.path, (2_000_000_000, 2_000_000_000))
    watched.end("md.0", success=True)

    (message,) = watched.missed
    assert "were overwritten: their new values are unknown" in message


def test_a_log_that_is_deleted_and_written_again_is_read(watched: Watched) -> None:
    watched.path.write_text(steps(1, 2))
    watched.begin("md.0")
    wait_until(lambda: 2 in watched.steps)
    watched.path.unlink()
    watched.path.write_text(steps(3, 4))
    watched.end("md.0", success=True)

    assert watched.steps == [1, 2, 3, 4]
