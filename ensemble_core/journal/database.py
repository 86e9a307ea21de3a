"""SQLite database of a journal, one file per run: its tables, its SQL views, and their format."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path

from ensemble_core.journal.damage_detection import WRITE_ALL, add_functions
from ensemble_core.journal.job_rows import FIELDS, FIRST_OWN, INTERRUPTED, TABLES
from ensemble_core.journal.lock import describe_owner, holder, is_this_process, may_live
from ensemble_core.journal.run_folder import LOCK, NAME, PERFORMED, JournalError
from ensemble_core.posix import shared_storage

__all__ = [
    "DAMAGED",
    "FORMAT",
    "LISTED",
    "LOCK_WAIT",
    "NAME",
    "PERFORMED",
    "JournalError",
    "complete",
    "connect",
    "journal_error",
    "storable",
]

#: Application id in the header of a journal ("Ense").
_APPLICATION = 0x456E7365

#: Version of the format, in ``PRAGMA user_version``.
FORMAT = 6


def _object(part: int) -> str:
    """Return SQL for a JSON object of a job's parameters (part 0), result (1) or columns (2).

    With a path that is given twice, ``json_extract`` returns a list with two copies of the value as
    it stands in the text. As a number, it would keep 15 digits only.
    """
    first = (FIRST_OWN, "own", "own+json_array_length(names,'$[1]')")[part]
    return (
        "(SELECT json_group_object(n,json(substr(t,2,length(t)/2-1))) FROM"
        " (SELECT n, json_extract(row,p,p) t FROM"
        f" (SELECT value n, '$['||({first}+key)||']' p FROM json_each(names,'$[{part}]'))))"
    )


def _valid(text: str, before: str) -> str:
    """Return SQL for a text as valid JSON: nan and infinity become null.

    SQLite before 3.42 does not read them. ``before`` has the signs that may stand before one. Such
    words in a string stay as they are, unless one of these signs is directly before them.
    """
    valid = text
    for sign in before:
        for word in ("NaN", "Infinity", "-Infinity"):
            valid = f"replace({valid},'{sign}{word}','{sign}null')"
    return f"CASE WHEN json_valid({text}) THEN {text} ELSE {valid} END"


_JOB_FIELDS = ", ".join(
    f"json_extract(row,'$[{place}]') {name}"
    for place, name in enumerate(name for name in FIELDS[2:] if name != "duration")
)
#: The views are for SQLite clients (``docs/sql.md``), which must not depend on the tables. Ensemble
#: itself does not read them.
_PLAIN_VIEWS = f"""
    CREATE VIEW events (seq, time, type, job, name, data, decisions, more) AS
        SELECT first + key, {", ".join(f"json_extract(value,'$[{place}]')" for place in range(7))}
        FROM event_lists, json_each({_valid("list", ":,[")});
    CREATE VIEW jobs AS
        SELECT "group", "index", {", ".join(FIELDS[2:-2])},
            finished - started - coalesce(json_extract(columns,'$.{INTERRUPTED}'), 0) duration,
            core_hours, parameters, result, columns
        FROM (SELECT name AS "group", number AS "index", {_JOB_FIELDS}, {_object(0)} parameters,
                {_object(1)} result, {_object(2)} columns
            FROM (SELECT name, number, layout, {_valid("row", ",")} AS row FROM job_rows)
                JOIN (SELECT number AS layout, layout AS names,
                    {FIRST_OWN} + json_array_length(layout,'$[0]') own FROM job_layouts)
                USING (layout));
    CREATE VIEW failures AS SELECT * FROM jobs WHERE outcome = 'failed';
    CREATE VIEW firings (seq, time, rule, job) AS
        SELECT seq, time, json_extract(value,'$.rule'), job FROM events, json_each(decisions)
        WHERE json_extract(value,'$.type') = 'fired';
"""
#: SQL statements that create the views. They use only functions of SQLite 3.31. They are short: if
#: the schema fits in the first page of the file (4 KB), a truncated journal keeps its tables.
_VIEWS = re.sub(r" ?([(),=+-]) ?", r"\1", " ".join(_PLAIN_VIEWS.split()))

#: SQL statements that create a journal. The indexes are of the few events that contain firings or
#: observed values.
_SCHEMA = f"""
    CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE texts (seq INTEGER PRIMARY KEY, file TEXT, text TEXT NOT NULL,
        overrides TEXT NOT NULL);
    CREATE TABLE sessions (number INTEGER PRIMARY KEY, seq INTEGER NOT NULL, began REAL NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, versions TEXT NOT NULL, ended REAL,
        outcome TEXT);
    CREATE TABLE event_lists (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, list TEXT NOT NULL,
        jobs INTEGER NOT NULL DEFAULT 0, previous INTEGER NOT NULL DEFAULT 0,
        crc INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, maker TEXT NOT NULL, digest TEXT NOT NULL,
        state BLOB NOT NULL);
    CREATE TABLE checksums (name TEXT PRIMARY KEY, total INTEGER NOT NULL) WITHOUT ROWID;
    {WRITE_ALL}
    CREATE INDEX fired_events ON event_lists (first) WHERE instr(list, '"type":"fired"');
    CREATE INDEX observed_events ON event_lists (first) WHERE instr(list, '"observed"');
    {TABLES}
    {_VIEWS}
    PRAGMA user_version={FORMAT};
    PRAGMA application_id={_APPLICATION};
"""

#: SQL statement that returns the schema of a database.
_MADE = "SELECT type, name, sql FROM sqlite_master WHERE sql NOT NULL"

#: Hints for a damaged journal and for a missing one.
DAMAGED = (
    "'ensemble events' shows what can still be read, and 'ensemble results' shows the table of "
    "jobs if that part is intact; the jobs' output and the queue's records are not affected"
)
LISTED = "'ensemble runs' lists all runs"


#: How many seconds an access waits while another program locks the database.
LOCK_WAIT = 30.0
#: How many seconds a reader waits while a controller on another machine writes.
_TIMEOUT = 1.0
#: With less free space than this (bytes), an I/O error is reported as a full disk.
_LEAST_SPACE = 1 << 20


def storable(name: str) -> str | bytes:
    """Return a file's name as a value for SQLite: a string, or bytes if it is not valid Unicode."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def journal_error(error: BaseException, path: Path) -> JournalError:
    """Return a :class:`JournalError`, with a hint, for an error of SQLite or of the system."""
    text = str(error)
    name = getattr(error, "sqlite_errorname", "")
    if isinstance(error, OSError):
        text = error.strerror or text
    full = "FULL" in name or "full" in text or "No space" in text or "quota" in text.lower()
    # If SQLite has no space for its shared memory, it says only "disk I/O error".
    if full or ("I/O" in text and _is_nearly_full(path.parent)):
        hint = "free some space, or choose another folder with --state"
        return JournalError(f"no space for the journal {path}", cause=text, hint=hint, code="full")
    unreadable = (
        isinstance(error, (ValueError, TypeError, AttributeError, RecursionError))
        or "malformed" in text
        or "no such table" in text
        or "decode" in text
    )
    if isinstance(error, (TypeError, AttributeError)):
        text = "a value is missing or has a wrong type"
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
            hint="choose a writable folder with --state or ENSEMBLE_STATE, or run without a "
            "journal with --no-journal",
            code="unwritable",
        )
    return JournalError(
        f"the journal cannot be used: {path}",
        cause=text,
        hint="use 'ensemble status' or 'ensemble events' to see its readable part",
        code="journal",
    )


def _is_nearly_full(folder: Path) -> bool:
    """Return True if the file system has less space than SQLite needs to open a journal."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return False
    return system.f_blocks > 0 and system.f_bavail * system.f_frsize < _LEAST_SPACE


def connect(path: Path, *, write: bool, salvage: bool = False) -> sqlite3.Connection:
    """Open the database of a journal. With ``salvage``, it may be truncated.

    Raises SQLite's errors. Raises :class:`JournalError` if another controller may be writing and
    the locks of this file system cannot rule that out.
    """
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            return _open(path, "rwc" if write else "ro", salvage)
        except UnicodeDecodeError as error:  # SQLite's message quotes a damaged schema
            raise sqlite3.DatabaseError("malformed database: its schema is not text") from error
        except sqlite3.OperationalError as error:
            refused = "readonly" in str(error) or "unable to open" in str(error)
            if write or not refused:
                raise
            if not (_has_leftover(path, "-wal") or _has_leftover(path, "-journal")):
                # Even readers create files, which is impossible in other users' folders and on
                # read-only media.
                return _open(path, "ro&immutable=1", salvage)
            if not os.access(path, os.W_OK):
                raise
            other = _writer(path) if _has_leftover(path, "-journal") else None
            if other is None:
                # A write was interrupted. Opening the database for writing rolls it back.
                return _open(path, "rw", salvage)
            if time.monotonic() >= deadline:
                raise JournalError(
                    f"the journal has an unfinished write: {path}",
                    cause=f"{other} may be writing, or was killed",
                    hint="try again in a moment; if the controller that was writing no longer "
                    f"exists, 'ensemble resume {path.parent.name}' rolls back the write",
                    code="locked",
                ) from error
        time.sleep(0.05)


def _has_leftover(path: Path, ending: str) -> bool:
    """Return True if SQLite's file with this ending exists and may contain the last writes."""
    try:
        return path.with_name(path.name + ending).stat().st_size > 0
    except FileNotFoundError:
        return False


def _writer(path: Path) -> str | None:
    """Describe the controller that may be writing to this journal, or return ``None``.

    SQLite's locks are not enough, because on some mounts they work only within one machine.
    """
    named = holder(path.with_name(LOCK))
    if named is None or is_this_process(named) or not may_live(named):
        return None
    return describe_owner(named)


def _open(path: Path, mode: str, salvage: bool) -> sqlite3.Connection:
    write = mode == "rwc"
    # The connection is opened on one thread and used on another, but never on both at once.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=LOCK_WAIT,
        check_same_thread=False,
    )
    try:
        if salvage and not write:
            # Without this, SQLite refuses to read a truncated file.
            connection.execute("PRAGMA writable_schema=ON")
        # Check the version first, to leave files of other programs and of newer versions unchanged.
        empty = _check_format(connection, path, write=write)
        if write:
            shared = shared_storage(path.parent)
            connection.execute(f"PRAGMA journal_mode={'TRUNCATE' if shared else 'WAL'}").fetchall()
            # FULL syncs each commit; EXTRA also syncs the removal of the rollback journal.
            connection.execute(f"PRAGMA synchronous={'EXTRA' if shared else 'FULL'}")
        if empty:
            add_functions(connection)
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def complete(path: Path) -> None:
    """Create the tables of a journal if its creation was interrupted.

    Raises :class:`JournalError`.
    """
    try:
        connect(path, write=True).close()
    except (sqlite3.Error, OSError) as error:
        raise journal_error(error, path) from error


def _check_format(connection: sqlite3.Connection, path: Path, *, write: bool) -> bool:
    """Check that a file is a journal of this format. Return True if it is empty.

    Raises :class:`JournalError` if the file is not a journal, has another format, or is empty and
    opened for reading.
    """
    version: int
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != _APPLICATION:
        raise JournalError(
            f"this is not the journal of a run: {path}",
            cause="it is another program's database",
            hint=LISTED,
            code="no-journal",
        )
    if not tables and not write:
        raise JournalError(
            f"the journal of run {path.parent.name} is empty: {path}",
            cause="its controller was killed at the start, or the journal was lost",
            hint="start it again with 'ensemble run', or remove its files with 'ensemble clean'",
            code="never-began",
        )
    if tables and version != FORMAT:
        raise JournalError(
            f"the journal was written by another version of Ensemble: {path}",
            cause=f"its format is {version}, this version reads only format {FORMAT}",
            hint="use the version that wrote it",
            code="journal-format",
        )
    _check_schema(connection, path)
    return not tables


@cache
def _schema() -> Mapping[str, str]:
    """Return the SQL statement that creates each table and index."""
    with closing(sqlite3.connect(":memory:")) as connection:
        add_functions(connection)
        connection.executescript(_SCHEMA)
        return {name: sql for _, name, sql in connection.execute(_MADE)}


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Reject a journal that has triggers, or that has views or other tables with the names of our
    tables.

    Reading a view or a computed column could take forever.
    """
    found = connection.execute(_MADE).fetchall()
    ours = _schema() if found else {}
    for kind, name, sql in found:
        if kind == "trigger" or ours.get(str(name).lower(), sql) != sql:
            raise JournalError(
                f"this is not the journal of a run: {path}",
                cause=f"Ensemble did not create its {kind} {str(name)[:100]!a}",
                hint=LISTED,
                code="no-journal",
            )
