"""Power cuts: unsynced writes are lost, in part or completely, in any order.

A journal is written under strace. From its log, every possible state of the disk is built: all synced
writes, and any subset of the sectors written since. All performed decisions must be recorded, and the
file must open without damage.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import wait_until
from ensemble_testing.crash import read_rounds

from ensemble_core.journal import database as journal_module
from ensemble_core.journal.damage_detection import Progress, read_progress
from ensemble_core.journal.database import JournalError
from ensemble_core.journal.reader import NAME, PERFORMED, Journal
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import PluginEvent

CRASH = Path(__file__).parent / "crash"
CALLS = "openat,pwrite64,write,ftruncate,fsync,fdatasync,unlink,unlinkat"
_SECTOR = 512
_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)")
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"^\d+ +<\.\.\. (\w+) resumed>(.*)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FILE = re.compile(r"^(?:\d+|AT_FDCWD)<([^>]*)>")


@dataclass
class Disk:
    """Content of a disk: for each file, what was synced, and the writes since, in order."""

    synced: dict[str, bytes] = field(default_factory=dict)
    #: Writes since the last sync of each file: ``(offset, bytes)``, or ``(length, None)`` if truncated.
    since: dict[str, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    #: Files whose names may be lost: their folder was not synced since.
    nameless: set[str] = field(default_factory=set)

    def image(self, chance: random.Random) -> dict[str, bytes]:
        """Return a possible state of the files after a power cut at this moment."""
        found = {}
        for name in self.synced.keys() | self.since.keys():
            if name in self.nameless and chance.random() < 0.5:
                continue
            content = bytearray(self.synced.get(name, b""))
            way = chance.random()
            for offset, data in self.since.get(name, ()):
                # Keep all, none or a random part of the unsynced writes.
                share = 1.0 if way < 0.2 else 0.0 if way < 0.4 else 0.5
                if data is None:
                    if chance.random() < share:
                        del content[offset:]
                    continue
                for start in range(0, len(data), _SECTOR):
                    if chance.random() < share:
                        part = data[start : start + _SECTOR]
                        end = offset + start + len(part)
                        content.extend(b"\0" * (end - len(content)))
                        content[offset + start : end] = part
            found[name] = bytes(content)
        return found


@dataclass
class Step:
    """One relevant system call."""

    call: str
    file: str
    data: bytes = b""
    offset: int = 0


def whole(lines: list[str]) -> list[str]:
    """Return the lines of a log with interrupted calls joined.

    A sync is placed at its end, other calls at their start.
    """
    found: dict[int, str] = {}
    begun: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        thread = line.partition(" ")[0]
        if line.endswith(_UNFINISHED):
            begun[thread] = number, line.removesuffix(_UNFINISHED)
        elif match := _RESUMED.match(line):
            at, first = begun.pop(thread)
            found[number if "sync" in match[1] else at] = first + match[2]
        else:
            found[number] = line
    return [found[number] for number in sorted(found)]


def steps(log: Path) -> Iterator[Step]:
    for line in whole(log.read_text().splitlines()):
        match = _CALL.match(line)
        if match is None:
            continue
        call, arguments, result = match.groups()
        if int(result) < 0:
            continue
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
        if call in ("openat", "unlink", "unlinkat"):
            name = texts[0].decode()
            if call != "openat" or "O_CREAT" in arguments:
                yield Step("unlink" if call != "openat" else "create", name)
            continue
        found = _FILE.match(arguments)
        if found is None:
            continue
        file = (
            bytes.fromhex(found[1].replace("\\x", "")).decode() if "\\x" in found[1] else found[1]
        )
        if call == "ftruncate":
            yield Step(call, file, offset=int(arguments.rpartition(",")[2]))
        elif call in ("pwrite64", "write"):
            offset = int(arguments.rpartition(",")[2]) if call == "pwrite64" else -1
            assert len(texts[0]) == int(result), "the log has not all of what was written"
            yield Step(call, file, texts[0], offset)
        else:
            yield Step("sync", file)


@pytest.fixture(scope="module", params=["wal", "truncate", "late"])
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[Step]]:
    """Return a journal written in this mode, and its system calls."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not there: nothing is known of what is synced when")
    folder = tmp_path_factory.mktemp(request.param)
    log = tmp_path_factory.mktemp("log") / "log"
    done = subprocess.run(
        ["strace", "-f", "-y", "-xx", "-s", "200000", "-e", f"trace={CALLS}", "-o", str(log),
         sys.executable, str(CRASH / "power.py"), str(folder), request.param],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip(f"strace cannot trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found = [step for step in steps(log) if Path(step.file).is_relative_to(folder)]
    assert len(found) > 100
    return request.param, folder, found


def lasts(mode: str, step: Step) -> bool:
    """Return whether an order needs a synced journal."""
    return mode != "late" or int(step.data) % 2 == 0


def replayed(mode: str, found: list[Step], folder: Path) -> Iterator[tuple[Disk, int, Step]]:
    """Yield the disk after each step, the newest event with a lasting effect, and the step."""
    disk, performed = Disk(), 0
    for step in found:
        name = Path(step.file).name
        if name == "orders":
            if step.call == "write" and lasts(mode, step):
                performed = int(step.data)
        elif step.file == str(folder):
            disk.nameless.clear()
        elif name.endswith("-shm") or name == PERFORMED:
            continue  # shared memory; and a file that may lag behind
        elif step.call == "create":
            if name not in disk.synced:
                disk.synced[name] = b""
                disk.nameless.add(name)
        elif step.call == "unlink":
            disk.synced.pop(name, None)
            disk.since.pop(name, None)
        elif step.call == "sync":
            content = Disk({name: disk.synced.get(name, b"")}, {name: disk.since.pop(name, [])})
            disk.synced[name] = content.image(All())[name]
        elif step.call == "ftruncate":
            disk.since.setdefault(name, []).append((step.offset, None))
        else:
            assert step.offset >= 0
            disk.since.setdefault(name, []).append((step.offset, step.data))
        yield disk, performed, step


class All(random.Random):
    """Source of random numbers that are always 0, so that no write is lost."""

    def random(self) -> float:
        return 0.0


def test_performed_decisions_are_recorded_before_any_power_cut(
    written: tuple[str, Path, list[Step]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode, folder, found = written
    if mode == "truncate":
        monkeypatch.setattr(journal_module, "shared_storage", lambda path: "nfs4")
    chance = random.Random(4)
    cuts = 0
    for number, (disk, performed, _) in enumerate(replayed(mode, found, folder)):
        if not performed or chance.random() > 0.4:
            continue
        place = tmp_path / str(number)
        place.mkdir()
        for name, content in disk.image(chance).items():
            (place / name).write_bytes(content)
        writer = JournalWriter(place / NAME)
        writer.close()
        with Journal(place / NAME) as journal:
            journal.check()
            kept = [row.seq for row in journal.rows()]
            assert kept == list(range(1, len(kept) + 1))
            assert len(kept) >= performed, f"{performed} was performed, {len(kept)} are on record"
            for row in journal.rows():
                assert row.event().timestamp == row.seq
            snapshots = list(journal.snapshots())
            assert all(snapshot.seq <= len(kept) for snapshot in snapshots)
            assert len(kept) <= 12 or snapshots
        shutil.rmtree(place)
        cuts += 1
    assert cuts > 50


def test_a_commit_is_synced_before_any_lasting_effect_of_it(
    written: tuple[str, Path, list[Step]],
) -> None:
    mode, _, found = written
    unsynced: set[str] = set()
    performed = early = 0
    for step in found:
        name = Path(step.file).name
        if name == "orders":
            if step.call == "write":
                performed += 1
                early += bool(unsynced)
                # The write-ahead log has data that may not be in the main file yet.
                assert not unsynced or not lasts(mode, step), f"{step.data!r}: {unsynced}"
        elif step.call in ("pwrite64", "ftruncate") and not (
            name.endswith("-shm") or name == PERFORMED
        ):
            unsynced.add(name)
        elif step.call == "sync":
            unsynced.discard(name)
    assert performed == 20
    assert (early > 0) == (mode == "late")
    assert not unsynced  # at the end
    names = {Path(step.file).name for step in found}
    assert (f"{NAME}-wal" in names) == (mode != "truncate")


@pytest.mark.timeout(300)
def test_after_a_power_cut_no_job_runs_again_or_is_lost(tmp_path: Path) -> None:
    """Power cuts of the journal, of the local executor's ledger, and of a queue that survives
    (``crash/power_cuts.py``).
    """
    command = [sys.executable, str(CRASH / "power_cuts.py"), "--base", str(tmp_path)]
    found = read_rounds([*command, "--rounds", "4", "--cuts", "15"])
    assert sum(len(each["killed"]) for each in found) == 60


def test_late_commits_are_synced_a_moment_later_and_a_failed_sync_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated sync writes all data again, because the system may have dropped them."""
    performed: list[int] = []
    troubles: list[JournalError | None] = []
    failing = False

    def sync(descriptor: int) -> None:
        if failing:
            raise OSError(errno.EIO, "Input/output error")

    with contextlib.closing(JournalWriter(tmp_path / NAME)) as writer:
        monkeypatch.setattr(os, "fdatasync", sync)
        writer.perform = performed.append
        writer.on_failure = troubles.append
        writer.begin(1.0, {})
        writer.sync_late(lambda order: order == 3)
        assert writer.flush(None)
        writer.append(PluginEvent(1.0, "x"), [], [1])
        wait_until(lambda: read_progress(tmp_path) == Progress(1, 1))
        failing = True
        writer.append(PluginEvent(2.0, "x"), [], [2])
        wait_until(lambda: performed == [1, 2])
        writer.append(PluginEvent(3.0, "third"), [], [3])
        wait_until(lambda: performed == [1, 2, 3])
        assert [each is None for each in troubles[:2]] == [False, True]
        assert b"third" in (tmp_path / NAME).read_bytes()
        writer.end(2.0, {})


def test_what_needs_no_sync_is_written_and_ordered_by_the_thread_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that fails, the writing thread writes the same events again, and passes their orders on."""
    performed: list[tuple[int, str]] = []
    writes: list[int] = []
    write = JournalWriter._write

    def refuse(self: JournalWriter, first: int, *rest: Any) -> None:
        writes.append(first)
        if threading.current_thread().name != "journal":
            raise sqlite3.OperationalError("disk is full")
        write(self, first, *rest)

    here = threading.current_thread().name
    with contextlib.closing(JournalWriter(tmp_path / NAME)) as writer:
        writer.perform = lambda order: performed.append((order, threading.current_thread().name))
        writer.begin(1.0, {})
        writer.append(PluginEvent(1.0, "synced"), [], [1])
        writer.sync_late(lambda order: order == 4)
        busy, rest = threading.Event(), threading.Event()
        writer.then(lambda: (busy.set(), rest.wait()))
        assert busy.wait(30)
        writer.append(PluginEvent(2.0, "earlier"), [])
        writer.append(PluginEvent(3.0, "here"), [], [2])
        assert performed == [(1, "journal"), (2, here)]
        with monkeypatch.context() as patched:
            patched.setattr(JournalWriter, "_write", refuse)
            writer.append(PluginEvent(4.0, "refused"), [], [3])
            rest.set()
            assert writer.flush(None)
        assert writes == [4, 4]
        writer.append(PluginEvent(5.0, "lasting"), [], [4])
        writer.end(6.0, {})
    assert performed[2:] == [(3, "journal"), (4, "journal")]
    with Journal(tmp_path / NAME) as journal:
        assert [row.event().timestamp for row in journal.rows()] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_the_thread_that_decides_does_not_wait_for_a_program_that_locks_the_journal(
    tmp_path: Path,
) -> None:
    """The writing thread waits, and then passes the orders on. Nothing is reported."""
    performed: list[tuple[int, str]] = []
    troubles: list[object] = []
    with contextlib.closing(JournalWriter(tmp_path / NAME)) as writer:
        writer.perform = lambda order: performed.append((order, threading.current_thread().name))
        writer.on_failure = troubles.append
        writer.begin(1.0, {})
        writer.sync_late(lambda order: False)
        assert writer.flush(None)
        with contextlib.closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            began = time.monotonic()
            writer.append(PluginEvent(1.0, "locked"), [], [1])
            assert time.monotonic() - began < 15.0
            time.sleep(0.5)
            assert not performed
            other.execute("COMMIT")
        assert writer.flush(60.0)
        writer.append(PluginEvent(2.0, "here"), [], [2])
        writer.end(3.0, {})
    assert performed == [(1, "journal"), (2, threading.current_thread().name)]
    assert not troubles


def test_interrupted_system_calls_in_the_log_are_joined() -> None:
    lines = [
        "7 write(3</a>, 1) = 1",
        "8 fsync(4</b> <unfinished ...>",
        "7 pwrite64(3</a>, 2 <unfinished ...>",
        "8 <... fsync resumed>)            = 0",
        "7 <... pwrite64 resumed>, 0)      = 1",
    ]
    assert whole(lines) == [
        "7 write(3</a>, 1) = 1",
        "7 pwrite64(3</a>, 2, 0)      = 1",
        "8 fsync(4</b>)            = 0",
    ]
