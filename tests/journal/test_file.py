"""The journal's file: recognition, migration, content, and interrupted writes."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ensemble_core.journal import database as journal_module
from ensemble_core.journal.database import FORMAT, NAME, JournalError, complete, connect
from ensemble_core.journal.event_encoding import decisions_text, event_text, to_list
from ensemble_core.journal.lock import this_process
from ensemble_core.journal.reader import Journal
from ensemble_core.journal.run_folder import LOCK
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Decision, Log
from ensemble_core.model.events import JobEvent, PluginEvent, Started


def written(path: Path, events: int = 5) -> Path:
    writer = JournalWriter(path)
    writer.describe({"tag": "run"})
    writer.store_file_version("e.yaml", "jobs: []", ())
    writer.begin(1.0, {})
    for number in range(events):
        writer.append(Started(float(number)), ())
    writer.end(2.0, {"over": True})
    writer.close()
    return path


def another_program(path: Path) -> bytes:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (text)")
    connection.execute("PRAGMA user_version=1")
    connection.commit()
    connection.close()
    return path.read_bytes()


def test_another_programs_database_is_rejected_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / NAME
    before = another_program(path)
    for opening in (JournalWriter, Journal, complete):
        with pytest.raises(JournalError, match="not the journal") as raised:
            opening(path)
        assert raised.value.exit_code == 2
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1])
def test_a_journal_of_another_format_is_rejected_and_unchanged(
    tmp_path: Path, version: int
) -> None:
    path = written(tmp_path / NAME)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    before = path.read_bytes()
    for opening in (JournalWriter, Journal, complete):
        with pytest.raises(JournalError, match=f"its format is {version}") as raised:
            opening(path)
        assert raised.value.hint == "use the version that wrote it"
    assert path.read_bytes() == before


class Odd:
    def __str__(self) -> str:
        raise ValueError("no text for this")


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "value",
    [{("a", 1): 2}, circle(), Odd(), {1: {None: b"\xff", frozenset((1,)): 1j}}, "\ud800", 1e999],
    ids=["keys", "circle", "odd", "deep", "surrogate", "inf"],
)
def test_the_journal_stores_events_with_any_content(tmp_path: Path, value: object) -> None:
    path = tmp_path / NAME
    writer = JournalWriter(path)
    writer.begin(1.0, {})
    done = threading.Event()
    writer.perform = lambda order: order()
    writer.append(PluginEvent(1.0, "odd", {"value": value}), [Log(message="x")], [done.set])
    writer.append(Started(2.0), ())
    assert done.wait(60), "what was decided on it is never performed"
    writer.end(3.0, {})
    writer.close()
    with Journal(path) as journal:
        rows = list(journal.rows())
        assert [row.event().type for row in rows] == ["plugin", "start"]
        assert rows[0].decisions == decisions_text([Log(message="x")])
        assert Decision.from_dict({"type": "log", "message": "x"}) == Log(message="x")


def test_a_new_journals_name_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory entries of the file and of new folders are synced."""
    folder = tmp_path / "state" / "runs" / "tag"
    folder.mkdir(parents=True)
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    JournalWriter(folder / NAME).close()
    wanted = [folder, folder.parent, folder.parent.parent, tmp_path]
    assert {str(each) for each in wanted} <= set(synced)
    synced.clear()
    JournalWriter(folder / NAME).close()
    assert synced == []


def test_a_damaged_list_of_sessions_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / NAME)
    writer = JournalWriter(path)
    connection = connect(path, write=True)
    connection.execute("DROP TABLE sessions")
    connection.close()
    with pytest.raises(JournalError):
        writer.begin(3.0, {})
    writer.close()


@pytest.mark.parametrize("decisions", [(), (Log(message="x", level="warning"),)])
@pytest.mark.parametrize("context", [{}, {"status": 0}, {"note": 'a "b"\n\u20ac', "at": 0.1}])
@pytest.mark.parametrize("job", ["sim.0", 'od"d\\\u20ac.0', 7])
@pytest.mark.parametrize("time", [1795263651.8033245, 5, 1e-300, float("inf")])
def test_the_fast_encoding_of_events_equals_the_general_one(
    time: float, job: str, context: dict[str, object], decisions: tuple[Decision, ...]
) -> None:
    event = JobEvent(time, job, "finish", context)
    usual = json.dumps(
        to_list(event, decisions), separators=(",", ":"), default=lambda record: record.compact()
    )
    assert event_text(event, decisions) == usual


def test_a_ctrl_c_at_the_start_of_the_writing_thread_leaves_a_closable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    writer = JournalWriter(tmp_path / NAME)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.begin(1.0, {})
    writer.close()


@pytest.mark.parametrize("begun", [True, False])
def test_the_next_reader_rolls_back_an_interrupted_write(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without WAL (shared storage, or a new file), a partial write is in the file itself.
    monkeypatch.setattr(journal_module, "shared_storage", lambda path: "nfs4")
    (tmp_path / "under-way").mkdir()
    file = tmp_path / "under-way" / NAME
    if begun:
        writer = JournalWriter(file)
        writer.describe({"tag": "cut"})
        writer.begin(1.0, {})
        writer.append(Started(1.0, {}), [])
        writer.end(2.0, {})
        writer.close()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA cache_size=5")
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE half (text)")
    connection.executemany("INSERT INTO half VALUES (?)", [("half of it" * 100,)] * 200)
    shutil.copytree(file.parent, tmp_path / "killed")
    connection.close()
    killed = tmp_path / "killed" / NAME
    assert killed.with_name(NAME + "-journal").stat().st_size
    assert b"half of it" in killed.read_bytes()
    if begun:
        with Journal(killed) as journal:
            assert journal.about["tag"] == "cut"
            assert [row.seq for row in journal.rows()] == [1]
    else:
        with pytest.raises(JournalError) as error:
            Journal(killed)
        assert error.value.code == "never-began"
    assert b"half of it" not in killed.read_bytes()


@pytest.fixture
def half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal on shared storage in the middle of a write, without locks."""
    monkeypatch.setattr(journal_module, "shared_storage", lambda path: "nfs4")
    (tmp_path / "under-way").mkdir()
    file = tmp_path / "under-way" / NAME
    writer = JournalWriter(file)
    writer.describe({"tag": "half"})
    writer.begin(1.0, {})
    writer.close()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA cache_size=5")
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE half (text)")
    connection.executemany("INSERT INTO half VALUES (?)", [("half of it" * 100,)] * 200)
    shutil.copytree(file.parent, tmp_path / "seen")
    connection.execute("COMMIT")
    connection.close()
    return tmp_path / "seen" / NAME


def test_a_reader_does_not_roll_back_a_write_of_a_controller_on_another_machine(
    half_written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a mount's locks only work within one machine, the run's lock file decides."""
    monkeypatch.setattr(journal_module, "_TIMEOUT", 0.0)
    lock = {"host": "node17", "pid": 4711, "born": 1, "boot": "another", "since": 1.0}
    half_written.with_name(LOCK).write_text(json.dumps(lock))
    before = half_written.read_bytes()
    with pytest.raises(JournalError, match="process 4711 on node17") as error:
        Journal(half_written)
    assert error.value.code == "locked"
    assert half_written.read_bytes() == before


def test_a_reader_waits_for_a_write_of_a_controller_on_another_machine(
    half_written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = {"host": "node17", "pid": 4711, "born": 1, "boot": "another", "since": 1.0}
    half_written.with_name(LOCK).write_text(json.dumps(lock))

    def finished(_: float) -> None:
        shutil.copy(half_written.parents[1] / "under-way" / NAME, half_written)
        os.truncate(half_written.with_name(NAME + "-journal"), 0)

    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=finished)
    monkeypatch.setattr(journal_module, "time", clock)
    with Journal(half_written) as journal:
        assert journal.about["tag"] == "half"
    assert b"half of it" in half_written.read_bytes()


@pytest.mark.parametrize("who", ["nobody", "one that is gone", "this process"])
def test_an_interrupted_write_is_rolled_back_if_no_other_controller_can_be_alive(
    half_written: Path, who: str
) -> None:
    lock = this_process() | ({} if who == "this process" else {"born": -1})
    half_written.with_name(LOCK).write_text("" if who == "nobody" else json.dumps(lock))
    with Journal(half_written) as journal:
        assert journal.about["tag"] == "half"
    assert b"half of it" not in half_written.read_bytes()
