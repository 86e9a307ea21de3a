"""Outputs in several files: parts that a pattern names, rotated logs, and files with two writers."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import wait_until

from ensemble_core.builtin.key_value import KeyValue
from ensemble_core.builtin.table_observer import Table
from ensemble_core.model.events import Event, Observed
from ensemble_core.runtime.tail import Follower, file_reading, multi_file_output
from ensemble_core.runtime.tail import output_file as tail_file
from ensemble_core.runtime.tail.multi_file_output import in_order
from ensemble_core.runtime.tail.output_file import File


class Watched:
    """A follower with the values that its observers read, and its warnings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.x: list[float] = []
        self.missed: list[str] = []
        self.follower = Follower(
            self.emit, lambda: 1000.0, miss=lambda message, job: self.missed.append(message)
        )

    def emit(self, events: Sequence[Event]) -> None:
        self.x += [each.values["x"] for each in events if isinstance(each, Observed)]

    def begin(
        self, path: str, job: str = "md.0", *, table: bool = False, **options: object
    ) -> None:
        observer = Table(None, ["x"]) if table else KeyValue(None, ["x"])
        self.follower.watch(job, "kv", observer, self.folder / path, **options)  # type: ignore[arg-type]

    def end(self, job: str = "md.0", *, success: bool = True) -> None:
        over: list[bool] = []
        self.follower.finish(job, lambda: over.append(True), expected=success)
        wait_until(lambda: bool(over))

    def write(self, name: str, *numbers: int, end: str = "\n") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write("\n".join(f"x={number}" for number in numbers) + end)

    def reads(self, *numbers: int) -> None:
        wait_until(lambda: self.x == [*numbers])


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    it = Watched(tmp_path)
    yield it
    it.follower.close()


@pytest.mark.parametrize(
    "names",
    [
        ["md.part0001.log", "md.part0002.log", "md.part0010.log"],
        ["md.part9.log", "md.part10.log", "md.part100.log"],
        ["postProcessing/0/p", "postProcessing/0.5/p", "postProcessing/10/p"],
        ["log[a]_2_run9", "log[a]_2_run10", "log[a]_10_run1"],
    ],
)
def test_parts_are_read_in_the_order_of_their_numbers(watched: Watched, names: list[str]) -> None:
    pattern = names[0].replace("0001", "*").replace("9.log", "*.log").replace("/0/", "/*/")
    pattern = pattern.replace("2_run9", "*")
    watched.begin(pattern)
    watched.write(names[0], 1, 2)
    watched.reads(1, 2)
    watched.write(names[0], 3, end="")  # the last line of a part has an end when the next begins
    watched.write(names[1], 4, 5)
    watched.reads(1, 2, 3, 4, 5)
    watched.write(names[2], 6)
    watched.end()

    assert watched.x == [1, 2, 3, 4, 5, 6]
    assert not watched.missed
    shuffled = random.Random(1).sample(names, len(names))
    assert sorted(shuffled, key=in_order) == names


def test_parts_that_are_all_there_at_the_end_are_read(watched: Watched) -> None:
    for number in range(1, 13):
        watched.write(f"out.{number}.dat", number)
    watched.begin("out.*.dat")
    watched.end()

    assert watched.x == [*range(1, 13)]


def test_an_attempt_that_continues_reads_only_the_further_parts(watched: Watched) -> None:
    watched.begin("md.part*.log")
    watched.write("md.part0001.log", 1, 2)
    watched.end(success=False)
    watched.begin("md.part*.log", "md.0-1", continues=True)
    watched.write("md.part0001.log", 3)
    watched.write("md.part0002.log", 4, 5)
    watched.end("md.0-1")

    assert watched.x == [1, 2, 3, 4, 5]


def test_parts_of_earlier_jobs_are_not_read(watched: Watched) -> None:
    watched.write("md.part0001.log", 1)
    os.utime(watched.folder / "md.part0001.log", (500, 500))
    watched.begin("md.part*.log", since=900.0)
    watched.write("md.part0002.log", 2)
    watched.end()
    assert watched.x == [2]

    os.utime(watched.folder / "md.part0002.log", (500, 500))
    watched.begin("md.part*.log", "md.1", since=900.0)
    watched.end("md.1")
    assert watched.x == [2]
    (missed,) = watched.missed
    assert "no file that the job has written matches" in missed


def test_files_that_grow_at_the_same_time_are_no_parts(watched: Watched) -> None:
    watched.begin("rank*.log")
    watched.write("rank0.log", 1)
    watched.reads(1)
    watched.write("rank1.log", 2)
    watched.reads(1, 2)
    watched.write("rank0.log", 3)
    watched.end()

    (missed,) = watched.missed
    assert "grew after the next part had begun" in missed
    assert watched.x == [1, 2]


def rotate(folder: Path, names: Sequence[str]) -> None:
    """Rename the first to the second name, the second to the third, and so on."""
    for new, old in reversed([*zip(names[1:], names, strict=False)]):
        if (folder / old).exists():
            (folder / old).rename(folder / new)


NUMBERED = ["app.log", "app.log.1", "app.log.2", "app.log.3"]


@pytest.mark.parametrize("names", [NUMBERED, ["app.log", "app.log-20250131"], ["app.log", "#old"]])
def test_a_rotated_log_is_read_to_its_end_first(watched: Watched, names: list[str]) -> None:
    watched.begin("app.log")
    watched.write("app.log", 1, 2)
    watched.reads(1, 2)
    rotate(watched.folder, names)
    watched.write(names[1], 3)
    watched.write("app.log", 4)
    watched.reads(1, 2, 3, 4)
    watched.write("app.log", 5)
    watched.end()

    assert watched.x == [1, 2, 3, 4, 5]
    assert not watched.missed


@pytest.mark.parametrize("old", ["app.log.1", "app.log-20250131", "other.log.1"])
def test_a_log_that_was_rotated_before_a_resume_is_said(watched: Watched, old: str) -> None:
    """Its rows that were handled before are counted from the start of the new log."""
    watched.write("earlier", 0)
    since = os.stat(watched.folder / "earlier").st_mtime
    watched.write(old, 1, 2)
    watched.write("app.log", 3, 4, 5)
    watched.begin("app.log", taken=2, since=since)
    watched.end()

    assert watched.x == [5]
    said = [each for each in watched.missed if f"renamed to {watched.folder / old}" in each]
    assert len(said) == (not old.startswith("other"))


def test_several_rotations_between_two_looks_lose_no_row(watched: Watched) -> None:
    """Rotations faster than the follower: it finds where it was, and what was begun after that."""
    path = watched.folder / "app.log"
    watched.write("app.log", 0)
    watched.begin("app.log")
    watched.reads(0)
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=200, backupCount=1000)
    for number in range(1, 500):
        handler.handle(logging.makeLogRecord({"msg": f"x={number}"}))
    handler.close()
    watched.end()

    assert watched.x == [*range(500)]
    assert not watched.missed


class Hostile:
    """The module ``os`` for the follower, with a program that writes rows and rotates its log
    between any two of the follower's calls.
    """

    def __init__(self, path: Path, seed: int, *, dated: bool) -> None:
        self._log = path
        self._dated = dated
        self.rows = 1
        self._chance = random.Random(seed)
        self._left = 60

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def rest(self) -> None:
        self._left = 0

    def act(self, *, often: bool = True) -> None:
        if not self._left or self._chance.random() > (0.6 if often else 0.1):
            return
        self._left -= 1
        if self._chance.random() < 0.5 and self._log.exists():
            numbered = [f"app.log.{n}" for n in range(1, 70)]
            dated = [f"app.log-{20250101 + self._left}"]
            rotate(self._log.parent, ["app.log", *(dated if self._dated else numbered)])
        if self._chance.random() < 0.8:
            with self._log.open("a") as file:
                for _ in range(self._chance.randrange(3)):
                    file.write(f"x={self.rows}\n")
                    self.rows += 1

    def open(self, *args: Any) -> int:
        self.act()
        return os.open(*args)

    def stat(self, path: str) -> os.stat_result:
        self.act()
        return os.stat(path)

    @contextlib.contextmanager
    def scandir(self, folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with os.scandir(folder) as entries:
            yield (entry for entry in entries if self.act(often=False) is None)


@pytest.mark.parametrize("dated", [False, True])
def test_rotations_between_any_two_calls_of_the_follower_lose_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dated: bool
) -> None:
    for seed in range(100):
        path = tmp_path / str(seed) / "app.log"
        path.parent.mkdir()
        path.write_text("x=0\n")
        hostile = Hostile(path, seed, dated=dated)
        rows: list[float] = []
        file = File(
            "sim.0", "kv", KeyValue(None, ["x"]), path, since=None, taken=0,
            tell=lambda event, rows=rows: rows.append(event.values["x"]),  # type: ignore[misc]
            clock=lambda: 0.0, warn=pytest.fail, fail=pytest.fail,
        )  # fmt: skip
        assert file.look()
        file.read()
        for module in (tail_file, multi_file_output, file_reading):
            monkeypatch.setattr(module, "os", hostile)
        for _ in range(30):
            if file.look():
                file.read()
        hostile.rest()
        assert False in (file.read_to_end() for _ in range(2000))
        file.finish()
        monkeypatch.undo()

        assert rows == [*range(hostile.rows)], seed
        assert file.complaint() is None, seed


def test_a_link_to_the_newest_log_gives_each_row_once(watched: Watched) -> None:
    path = watched.folder / "app.log"
    for number in (1, 2, 3):
        watched.write(f"app.log-2025010{number}", number, number + 0.5)
        path.unlink(missing_ok=True)
        path.symlink_to(f"app.log-2025010{number}")
        if number == 1:
            watched.begin("app.log")
        watched.reads(*(each / 2 for each in range(2, 2 * number + 2)))
    watched.end()

    assert watched.x == [1, 1.5, 2, 2.5, 3, 3.5]
    assert not watched.missed


def test_a_log_that_is_only_renamed_at_the_end_is_read(watched: Watched) -> None:
    watched.write("app.log", 1)
    watched.begin("app.log")
    watched.reads(1)
    watched.write("app.log", 2)
    (watched.folder / "app.log").rename(watched.folder / "final.log")
    watched.write("final.log", 3)
    watched.end()

    assert watched.x == [1, 2, 3]


def test_a_new_log_without_the_old_one_is_said(watched: Watched) -> None:
    watched.write("app.log", 1)
    watched.begin("app.log")
    watched.reads(1)
    (watched.folder / "app.log").unlink()
    watched.write("app.log", 2)
    watched.end()

    assert watched.x == [1, 2]
    (missed,) = watched.missed
    assert "rows may be missing" in missed


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_log_that_was_rotated_before_it_was_read_is_said(watched: Watched, packed: str) -> None:
    since = time.time()
    watched.write("app.log", 1)
    (watched.folder / "app.log").rename(watched.folder / f"app.log.1{packed}")
    watched.write("app.log", 2)
    watched.write("other.log.1", 3)
    watched.begin("app.log", since=since)
    watched.end()

    assert watched.x == [2]
    (missed,) = watched.missed
    assert f"app.log.1{packed} before it was read, so rows may be missing" in missed


def test_a_log_that_was_read_to_its_end_and_rotated_is_no_complaint(watched: Watched) -> None:
    old = watched.folder / "app.log.0"
    old.write_text("x=7\n")
    os.utime(old, (1000.0, 1000.0))  # of an earlier job
    since = time.time()
    watched.begin("app.log", since=since)
    watched.write("app.log", 1)
    watched.reads(1)
    (watched.folder / "app.log").rename(watched.folder / "app.log.1")
    watched.write("app.log", 2)
    watched.end()

    assert watched.x == [1, 2]
    assert not watched.missed


def test_a_deleted_log_is_said(watched: Watched) -> None:
    watched.write("app.log", 1)
    watched.begin("app.log")
    watched.reads(1)
    (watched.folder / "app.log").unlink()
    watched.end()

    (missed,) = watched.missed
    assert "app.log was deleted while it was read, so rows may be missing" in missed


def test_an_empty_log_that_is_deleted_has_lost_nothing(tmp_path: Path) -> None:
    """Ensemble removes empty files of a job's output."""
    path = tmp_path / "app.log"
    path.touch()
    file = File(
        "sim.0", "kv", KeyValue(None, ["x"]), path, since=None, taken=0, tell=pytest.fail,
        clock=lambda: 0.0, warn=pytest.fail, fail=pytest.fail,
    )  # fmt: skip
    assert file.look()
    path.unlink()

    assert not file.read_to_end()
    file.finish()
    complaint = file.complaint()
    assert complaint is not None
    assert complaint.endswith("no lines")


def test_a_file_that_is_written_again_as_a_whole_gives_each_row_once(watched: Watched) -> None:
    """Programs that save a table at each step replace the file by a longer one."""
    watched.begin("m.csv", table=True)
    for last in range(1, 8):
        new = watched.folder / "m.csv.tmp"
        new.write_text("step,x\n" + "".join(f"{x},{x}\n" for x in range(1, last + 1)))
        new.rename(watched.folder / "m.csv")
        watched.reads(*range(1, last + 1))
    watched.end()

    assert watched.x == [1, 2, 3, 4, 5, 6, 7]
    assert not watched.missed


def test_two_jobs_that_write_to_one_file_are_named(watched: Watched) -> None:
    watched.begin("shared.log", "a.0")
    watched.begin("shared.log", "b.0")
    watched.write("shared.log", 1)
    wait_until(lambda: watched.x == [1, 1])
    watched.end("a.0")
    watched.end("b.0")

    (missed,) = watched.missed
    assert all(text in missed for text in ("a.0", "b.0"))
    assert "read the same file" in missed


def test_two_programs_of_a_job_that_overwrite_each_other_are_said(watched: Watched) -> None:
    """Both have opened the file without appending, so each writes at its own position."""
    path = watched.folder / "out"
    with path.open("wb", buffering=0) as one, path.open("r+b", buffering=0) as other:
        watched.begin("out")
        one.write(b"x=1\nx=2\nx=3\n")
        watched.reads(1, 2, 3)
        other.write(b"x=7\n")
        os.utime(path, (2_000_000_000, 2_000_000_000))
        wait_until(lambda: True)
        watched.end()

    (missed,) = watched.missed
    assert "overwritten" in missed or "rows may be missing or count twice" in missed
