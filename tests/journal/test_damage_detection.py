"""Checksums of the journal: damaged records are reported, intact ones never."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from ensemble_core.journal.damage_detection import Progress, read_progress
from ensemble_core.journal.database import NAME, PERFORMED
from ensemble_core.journal.job_rows import JobRow
from ensemble_core.journal.reader import Journal, JournalError
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Log
from ensemble_core.model.events import Started


def over(number: int, attempt: int = 1) -> JobRow:
    """Return the row of a successful job that printed a number."""
    times = (0.0, 0.5, 1.5, 0.1)
    values = {"E": number} if number % 2 else {"E": number + 0.5}
    return JobRow("sim", number, attempt, "success", 0, "exit", *times, {"T": 2}, {}, values)


def begun(path: Path) -> JournalWriter:
    writer = JournalWriter(path)
    writer.describe({"tag": "run"})
    writer.store_file_version("e.yaml", "jobs: []", ())
    writer.begin(1.0, {})
    return writer


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of 60 events in 6 lists, with a job each; every tenth job has two attempts."""
    path = tmp_path / NAME
    writer = begun(path)
    for number in range(60):
        rows = [over(number)] if number % 10 else [over(number), over(number, 2)]
        writer.append(Started(float(number)), [Log(message="x")], (), rows)
        if number % 10 == 9:
            writer.flush(None)
    writer.snapshot("tests", b"state")
    writer.end(2.0, {"over": True})
    writer.close()
    with Journal(path) as found:
        found.check()
        assert found.damage is None
        assert sum(len(part) for part in found.job_rows("sim")) == 60
    return path


def trouble(path: Path) -> str:
    """Read every record of a journal, and return the error message or an empty text."""
    try:
        with Journal(path) as found:
            found.check_records()
            error = found.damage
    except JournalError as raised:
        error = raised
    return "" if error is None else str(error)


DAMAGE = [
    "DELETE FROM job_rows WHERE number = 7",
    "DELETE FROM job_rows",
    "DELETE FROM job_layouts WHERE number = 1",
    "UPDATE job_rows SET number = 99 WHERE number = 7",
    "UPDATE job_rows SET row = replace(row, '2', '3') WHERE number = 7",
    "UPDATE job_rows SET layout = 1 - layout WHERE number = 7",
    "UPDATE job_rows SET replaced = replaced + 1 WHERE number = 7",
    "UPDATE event_lists SET list = replace(list, '.0', '.5')",
    "UPDATE event_lists SET list = CAST(list AS BLOB) WHERE first = 1",
    "UPDATE event_lists SET (list, crc) = (SELECT list, crc FROM event_lists WHERE first > 20 LIMIT 1)",
    "UPDATE event_lists SET previous = previous + 1 WHERE first > 1",
    "DELETE FROM event_lists WHERE first = 1",
    "DELETE FROM event_lists WHERE last = 60",  # there are more job rows than events
    "DELETE FROM about",
    "DELETE FROM checksums",
    "DELETE FROM texts",
    "DELETE FROM sessions",
    "UPDATE texts SET text = 'jobs: [ ]'",
    "UPDATE sessions SET outcome = '{\"over\": false}'",
    "UPDATE about SET value = '\"ran\"'",
    "UPDATE snapshots SET state = x'00'",
    "UPDATE snapshots SET maker = 'test'",
    "UPDATE snapshots SET seq = 59",
]


@pytest.mark.parametrize("statement", DAMAGE)
def test_changed_missing_or_misplaced_records_of_a_journal_are_reported(
    journal: Path, statement: str
) -> None:
    with sqlite3.connect(journal) as connection:
        assert connection.execute(statement).rowcount
    connection.close()
    assert "the journal is damaged" in trouble(journal)


def test_events_of_another_history_are_reported(journal: Path, tmp_path: Path) -> None:
    """For example, of a WAL file that was restored after the run had continued without it."""
    (tmp_path / "other").mkdir()
    other = begun(tmp_path / "other" / NAME)
    for number in range(60):
        other.append(Started(number + 0.5), (), (), [over(number)])
        if number % 10 == 9:
            other.flush(None)
    other.close()
    with sqlite3.connect(journal) as connection:
        connection.execute("ATTACH ? AS other", (str(tmp_path / "other" / NAME),))
        connection.execute("UPDATE event_lists SET (list, jobs, previous, crc) = (SELECT list, jobs,"
            " previous, crc FROM other.event_lists AS o WHERE o.first = event_lists.first"
            " AND o.last = event_lists.last) WHERE first = (SELECT max(first) FROM event_lists"
            " WHERE last < 60)")  # fmt: skip
    connection.close()
    assert "does not follow" in trouble(journal) or "damaged" in trouble(journal)


def test_a_journal_that_is_being_written_is_never_reported_as_damaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / NAME
    writer = begun(path)
    writer.perform = lambda order: None
    written = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not written.is_set():
            try:
                with Journal(path) as found:
                    found.check_records()
                    error = found.damage or found.missing_tail()
            except JournalError as raised:
                error = raised
            if error is not None:
                wrong.append(str(error))
                return

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(4000):
        writer.append(Started(float(number)), (), ["order"], [over(number // 3, number % 3)])
        if number % 50 == 0:
            writer.flush(None)
    writer.flush(None)
    written.set()
    reader.join()
    writer.close()
    assert not wrong
    assert not trouble(path)


# -- missing end -----------------------------------------------------------------------------------


def copied(path: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in (NAME, f"{NAME}-wal"):
        shutil.copy(path.with_name(name), folder)
    return folder / NAME


@pytest.mark.parametrize("orders", [(), ("order",)])
def test_missing_committed_events_are_reported(tmp_path: Path, orders: tuple[str, ...]) -> None:
    (tmp_path / "run").mkdir()
    writer = begun(tmp_path / "run" / NAME)
    writer.perform = lambda order: None
    for number in range(5):
        writer.append(Started(float(number)), (), ["first"])
        writer.flush(None)
    before = copied(writer.path, tmp_path / "before")
    writer.append(Started(5.0), (), orders)
    writer.flush(None)
    after = copied(writer.path, tmp_path / "after")
    note = read_progress(tmp_path / "run")
    assert note == Progress(6 if orders else 5, 6)
    for path in (before, after):
        shutil.copy(tmp_path / "run" / PERFORMED, path.parent)
    writer.close()
    with Journal(after) as journal:
        assert journal.missing_tail() is None
    with Journal(before) as journal:
        journal.check()  # the rest is intact
        missing = journal.missing_tail()
        assert missing is not None
        assert missing.code == "cut-short"
        assert "it ends with event 5" in str(missing.cause)
        if orders:
            with pytest.raises(JournalError, match="newest part"):
                journal.check_newest()
        else:
            journal.check_newest()
    # A later resume does not report it again; the performed event stays known.
    writer = JournalWriter(before)
    writer.begin(2.0, {})
    writer.close()
    assert read_progress(before.parent) == Progress(6 if orders else 5, 5)
    with Journal(before) as journal:
        assert (journal.missing_tail() is None) == (not orders)


@pytest.mark.parametrize("damage", [b"", b"\0" * 51, b"7" * 51, b"9" * 20_000, b"6 7 00000000\n"])
def test_a_damaged_progress_file_is_ignored(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / PERFORMED).write_bytes(damage)
    assert read_progress(tmp_path) == Progress()
    (tmp_path / PERFORMED).write_bytes(Progress(6, 7).text())
    assert read_progress(tmp_path) == Progress(6, 7)
    (tmp_path / PERFORMED).write_bytes(Progress(6, 7).text().replace(b"7 ", b"5 ", 1))
    assert read_progress(tmp_path) == Progress()


@pytest.mark.parametrize("last", [59, 1 << 40, 0, -1], ids=["one less", "huge", "zero", "negative"])
def test_a_damaged_number_of_the_last_event_is_detected(journal: Path, last: int) -> None:
    with sqlite3.connect(journal) as connection:
        connection.execute("DELETE FROM event_lists WHERE first = 51")
        connection.execute("UPDATE event_lists SET last = ? WHERE first = 41", (last,))
    connection.close()
    with Journal(journal, salvage=True) as found:
        assert 40 < found.last() <= 41 + (last == 59) * 18
        with pytest.raises(JournalError, match="damaged"):
            found.check_records()
