"""The journal's file: one SQLite database per run, its tables, how it is opened, and what SQLite's
errors mean to the run's owner.

Used by ``reader`` and ``writer``, which say what is in the tables.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Set
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ensemble_core.errors import EnsembleError
from ensemble_core.journal.checksums import WRITE_ALL, add_functions
from ensemble_core.journal.filesystem import read_note, shared_storage
from ensemble_core.journal.job_rows import TABLES
from ensemble_core.journal.lock_owner import LOCK, holder, in_words, is_here, may_live

__all__ = [
    "DAMAGED",
    "LISTED",
    "MIGRATIONS",
    "NAME",
    "PERFORMED",
    "JournalError",
    "Progress",
    "connect",
    "migrate",
    "read_progress",
    "storable",
    "words",
]

#: The file's name in the run's folder.
NAME = "journal.db"

#: Beside it: a :class:`Progress` as text. Not synced, so it may be behind after a power cut, but it
#: is never ahead of what is on disk.
PERFORMED = "performed"

#: "Ense" in a database's header: that this is a journal and no other program's file.
_APPLICATION = 0x456E7365

#: What brings a journal from each version to the next; the first makes it. Never changed, only
#: added to: ``PRAGMA user_version`` says how many of these a file has seen.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE texts (seq INTEGER PRIMARY KEY, file TEXT, text TEXT NOT NULL,
        overrides TEXT NOT NULL);
    CREATE TABLE sessions (number INTEGER PRIMARY KEY, seq INTEGER NOT NULL, began REAL NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, versions TEXT NOT NULL, ended REAL,
        outcome TEXT);
    CREATE TABLE events (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, list TEXT NOT NULL);
    CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, maker TEXT NOT NULL, digest TEXT NOT NULL,
        state BLOB NOT NULL);
    """,
    # Checksums. Older job rows have none and are computed from the events; older snapshots are
    # made again.
    f"""
    DROP TABLE IF EXISTS job_rows;
    DROP TABLE IF EXISTS job_layouts;
    DELETE FROM snapshots;
    ALTER TABLE events ADD COLUMN jobs INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE events ADD COLUMN previous INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE events ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE checksums (name TEXT PRIMARY KEY, total INTEGER NOT NULL) WITHOUT ROWID;
    {WRITE_ALL}
    """,
    # Few of many events are firings or values that jobs reported: these find them.
    """
    CREATE INDEX fired_events ON events (first) WHERE instr(list, '"type":"fired"');
    CREATE INDEX observed_events ON events (first) WHERE instr(list, '"observed"');
    """,
)

#: Versions that can be read without a migration: they only lack checksums or indexes.
_READABLE = (1, 2)

#: The tables of job rows as version 1 had them.
_TABLES_1 = """
    CREATE TABLE job_layouts (number INTEGER PRIMARY KEY, layout TEXT NOT NULL);
    CREATE TABLE job_rows (name TEXT NOT NULL, number INTEGER NOT NULL, layout INTEGER NOT NULL,
        row TEXT NOT NULL, PRIMARY KEY (name, number)) WITHOUT ROWID;
"""

#: What a database was made of.
_MADE = "SELECT type, name, sql FROM sqlite_master WHERE sql NOT NULL"

#: Hints for a damaged and for a missing journal.
DAMAGED = (
    "'ensemble events' shows what can still be read, 'ensemble results' the table of jobs if that "
    "part is intact; the jobs' own output and the queue's records are not affected"
)
LISTED = "'ensemble runs' lists the runs that there are"


#: Seconds that who reads waits for a write of another machine's controller.
_PATIENCE = 1.0
#: Bytes below which an error of the disk is taken for a lack of space.
_LEAST_SPACE = 1 << 20


class JournalError(EnsembleError):
    """A journal that cannot be opened, read or written, in words for the run's owner."""

    exit_code = 2


class Progress(NamedTuple):
    """How far a run has come, recorded outside its journal: the newest event with a decision that
    was carried out, and the newest that was committed. If the journal is cut short, it lacks
    them."""

    performed: int = 0
    committed: int = 0

    def text(self) -> bytes:
        """Return it as text of a fixed length, so that a write replaces the whole."""
        numbers = b"%-20d %-20d" % self
        return numbers + b" %08x\n" % crc32(numbers)


def read_progress(folder: Path) -> Progress:
    """Return the progress recorded in a run's folder; zeros if the file is missing or invalid."""
    try:
        note = read_note(folder / PERFORMED)
        fields = note.split()
        if len(note) == 21:  # of version 1
            return Progress(int(fields[0]), int(fields[0]))
        found = Progress(int(fields[0]), int(fields[1]))
    except (OSError, ValueError, IndexError):
        return Progress()
    return found if found.text() == note else Progress()


def storable(name: str) -> str | bytes:
    """A file's name as a column may have it: as it is, or its bytes where it is no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def words(error: BaseException, path: Path) -> JournalError:
    """An error of SQLite or of the system about a journal, with what to do."""
    text = str(error)
    name = getattr(error, "sqlite_errorname", "")
    if isinstance(error, OSError):
        text = error.strerror or text
    full = "FULL" in name or "full" in text or "No space" in text or "quota" in text.lower()
    # SQLite says only "disk I/O error" if its shared memory finds no space.
    if full or ("I/O" in text and _is_nearly_full(path.parent)):
        hint = "free some space, or name another folder with --state"
        return JournalError(f"no space for the journal {path}", cause=text, hint=hint, code="full")
    unreadable = (
        isinstance(error, (ValueError, TypeError, AttributeError, RecursionError))
        or "malformed" in text
        or "decode" in text
    )
    if isinstance(error, (TypeError, AttributeError)):
        text = "a value in it is missing, or of another type than what was written"
    if unreadable or "CORRUPT" in name or "NOTADB" in name or "not a database" in text:
        return JournalError(
            f"the journal is damaged: {path}",
            cause=text,
            hint=DAMAGED,
            code="corrupt",
        )
    if "READONLY" in name or "CANTOPEN" in name or "readonly" in text or isinstance(error, OSError):
        return JournalError(
            f"the journal cannot be opened or written: {path}",
            cause=text,
            hint="name a folder that can be written with --state or ENSEMBLE_STATE, or run "
            "without a record with --no-journal",
            code="unwritable",
        )
    return JournalError(
        f"the journal cannot be used: {path}",
        cause=text,
        hint="'ensemble status' and 'ensemble events' show what of it can be read",
        code="journal",
    )


def _is_nearly_full(folder: Path) -> bool:
    """True if the file system has less space left than SQLite needs to open a journal."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return False
    return system.f_blocks > 0 and system.f_bavail * system.f_frsize < _LEAST_SPACE


def connect(path: Path, *, write: bool, salvage: bool = False) -> sqlite3.Connection:
    """Open a journal's database; with ``salvage`` also one that is cut off. Raises what SQLite
    raises; :class:`JournalError` where another controller may be about to write, and there are no
    locks that tell."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _open(path, "rwc" if write else "ro", salvage)
        except UnicodeDecodeError as error:  # of SQLite's own words about a schema that is damaged
            raise sqlite3.DatabaseError("malformed: its schema is no text") from error
        except sqlite3.OperationalError as error:
            refused = "readonly" in str(error) or "unable to open" in str(error)
            if write or not refused:
                raise
            if not (_left(path, "-wal") or _left(path, "-journal")):
                # Who reads writes beside it, which others' folders and read-only media do not let.
                return _open(path, "ro&immutable=1", salvage)
            if not os.access(path, os.W_OK):
                raise
            other = _writer(path) if _left(path, "-journal") else None
            if other is None:
                # Interrupted write: the next opening rolls it back.
                return _open(path, "rw", salvage)
            if time.monotonic() >= deadline:
                raise JournalError(
                    f"a write to the journal is not finished: {path}",
                    cause=f"{other} may be at it, or was killed",
                    hint="look again in a moment; if that controller is gone for certain, "
                    f"'ensemble resume {path.parent.name}' undoes what is half of it",
                    code="locked",
                ) from error
        time.sleep(0.05)


def _left(path: Path, ending: str) -> bool:
    """True if what was written last may not be in the file itself yet, or only half of it."""
    try:
        return path.with_name(path.name + ending).stat().st_size > 0
    except FileNotFoundError:
        return False


def _writer(path: Path) -> str | None:
    """The controller that may be writing this journal now, in words. SQLite's locks would tell, but
    mounts there are whose locks hold on one machine only."""
    named = holder(path.with_name(LOCK))
    if named is None or is_here(named) or not may_live(named):
        return None
    return in_words(named)


def _open(path: Path, mode: str, salvage: bool) -> sqlite3.Connection:
    write = mode == "rwc"
    # Made in one thread and used by another, one after the other: never by two at once.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=30.0,
        check_same_thread=False,
    )
    try:
        if salvage and not write:
            # Without this, SQLite reads nothing of a file that is shorter than it says it is.
            connection.execute("PRAGMA writable_schema=ON")
        # Before anything is set: what is not ours, or is from a newer version, is not touched.
        version = _version(connection, path, write=write)
        if write:
            shared = shared_storage(path.parent)
            connection.execute(f"PRAGMA journal_mode={'TRUNCATE' if shared else 'WAL'}").fetchall()
            # Each commit is on disk when it returns; EXTRA: also that the rollback file is gone.
            connection.execute(f"PRAGMA synchronous={'EXTRA' if shared else 'FULL'}")
        if version < len(MIGRATIONS) and write:
            add_functions(connection)
            steps = [*MIGRATIONS[version:], *([] if version else [TABLES])]
            connection.executescript(
                f"BEGIN IMMEDIATE; {';'.join(steps)}; PRAGMA user_version={len(MIGRATIONS)};"
                f" PRAGMA application_id={_APPLICATION}; COMMIT;"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(path: Path) -> None:
    """Bring a journal of an older format up to date. Raises :class:`JournalError`."""
    try:
        connect(path, write=True).close()
    except (sqlite3.Error, OSError) as error:
        raise words(error, path) from error


def _version(connection: sqlite3.Connection, path: Path, *, write: bool) -> int:
    """The version of a journal's format. Refuses what is no journal, one that this version does not
    know, and to read one that must be brought up to date first."""
    version: int
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != _APPLICATION:
        raise JournalError(
            f"this is no journal of a run: {path}",
            cause="another program's database",
            hint=LISTED,
            code="no-journal",
        )
    if not tables and not write:
        raise JournalError(
            f"nothing is on record of run {path.parent.name}: {path}",
            cause="its controller was killed while it began, or the journal was lost",
            hint="'ensemble run' starts it anew, 'ensemble clean' removes what is left of it",
            code="never-began",
        )
    if version > len(MIGRATIONS):
        raise JournalError(
            f"the journal was written by a newer Ensemble: {path}",
            cause=f"its format is {version}, this version knows {len(MIGRATIONS)}",
            hint="use the version that wrote it, or a later one",
            code="newer-journal",
        )
    _check_schema(connection, path)
    if version < len(MIGRATIONS) and not write and version not in _READABLE:
        raise JournalError(
            f"the journal is of an older format ({version}): {path}",
            hint="'ensemble resume' brings it up to date; the version that wrote it can "
            "look at it as it is",
            code="older-journal",
        )
    return version


@cache
def _schema(migrations: tuple[str, ...]) -> Mapping[str, Set[str]]:
    """Statements that made each table of a journal, in any version, as SQLite keeps them."""
    with closing(sqlite3.connect(":memory:")) as connection:
        add_functions(connection)
        found: dict[str, set[str]] = {}
        for script in (migrations[0], _TABLES_1, *migrations[1:], TABLES):
            connection.executescript(script)
            for _, name, sql in connection.execute(_MADE):
                found.setdefault(name, set()).add(sql)
        return found


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a journal in which something else has the name of a table of ours, or happens with
    what is written: what is read of a view, or of a column that is computed, may never end."""
    ours = _schema(MIGRATIONS)
    for kind, name, sql in connection.execute(_MADE):
        table = ours.get(str(name).lower())
        if kind == "trigger" or (table is not None and sql not in table):
            raise JournalError(
                f"this is no journal of a run: {path}",
                cause=f"Ensemble makes no {kind} {str(name)[:100]!a} like that in one",
                hint=LISTED,
                code="no-journal",
            )
