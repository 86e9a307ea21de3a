"""Reads a journal: the durable event log of a run with snapshots, in one SQLite file.

- Events are numbered from 1, in the order in which the engine handled them.
- A row of the table ``event_lists`` contains events that were written together, as JSON (see
  ``journal.event_encoding``). The columns ``first`` and ``last`` have the first and last number.
- An event and its decisions are on disk before any of the decisions is carried out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ensemble_core.journal.damage_detection import (
    CHECKED_WHOLE,
    SUMMED,
    list_checksum,
    read_progress,
    row_checksum,
    wrong_job,
)
from ensemble_core.journal.database import (
    DAMAGED,
    LISTED,
    NAME,
    PERFORMED,
    JournalError,
    connect,
    journal_error,
    storable,
)
from ensemble_core.journal.event_encoding import JournalRow, rows_of
from ensemble_core.journal.job_rows import Layout, read_layouts
from ensemble_core.quick_dataclass import dataclass

__all__ = [
    "DAMAGED",
    "NAME",
    "PERFORMED",
    "FileVersion",
    "Journal",
    "JournalError",
    "Session",
    "Snapshot",
    "connect",
    "journal_error",
    "storable",
]

#: The largest number of an event or job.
_LARGEST = 1 << 62
#: How many job rows are read at a time.
_PORTION = 5_000
#: The columns of ``event_lists`` that :meth:`Journal._verify_row` needs.
_COLUMNS = "first, last, list, jobs, previous, crc"
#: How many events the damaged end of a journal can plausibly have.
_LONGEST_END = 10_000
#: A list of events with more characters than this is cached after it was parsed.
_LONG = 200_000
#: For each kind, a text that every list of events with this kind contains. The first two texts have
#: an index in the database.
_KINDS_OF_LISTS = {
    "fired": '"type":"fired"',
    "observed": '"observed"',
    "resources": '"resources"',
    "placed": '"nodes":[',
    "hosted": '"host":',
}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A version of the ensemble file, with its ``--set`` overrides.

    A resume can change the file; the journal then has several versions.
    """

    seq: int  # the version applies to the events after this one
    file: str
    text: str
    overrides: tuple[str, ...]
    #: Texts of the files that it names; ``None``: read these files.
    attached: Mapping[str, str] | None = None

    def given(self) -> str:
        """Return the overrides and the attached texts, for the column ``overrides``.

        Without attached texts, the result is a list.
        """
        overrides = list(self.overrides)
        return json.dumps(
            {"set": overrides, "files": self.attached} if self.attached else overrides
        )


@dataclass(frozen=True, slots=True)
class Session:
    """The time for which one controller ran, in seconds since the epoch."""

    number: int
    seq: int
    began: float
    host: str
    pid: int
    versions: Mapping[str, str]
    ended: float | None  # ``None``: the controller is running or was killed
    outcome: Mapping[str, Any] | None  # how it ended


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's state after event ``seq``."""

    seq: int
    #: Snapshot format, and versions of Ensemble, Python and plugins. Only these can read it.
    maker: str
    state: bytes


def _text(seq: int, file: str, text: str, given: Any) -> FileVersion:
    """Create a :class:`FileVersion` from the result of :meth:`FileVersion.given`."""
    if isinstance(given, dict):
        return FileVersion(seq, file, text, tuple(given["set"]), dict(given["files"]))
    return FileVersion(seq, file, text, tuple(given), {})


#: Types of the values in the table ``about``. Other types would cause errors later.
_KINDS: dict[str, type] = {
    **dict.fromkeys(("tag", "id", "home", "name", "file", "cwd"), str),
    **dict.fromkeys(("executor", "program"), dict),
    **dict.fromkeys(("plugins", "folders"), list),
}


def _check_about(key: str, value: Any) -> Any:
    """Check and return a value of the table ``about``.

    Raises :class:`ValueError` for a wrong type.
    """
    if value is not None and not isinstance(value, _KINDS.get(key, object)):
        raise ValueError(f"the run's property {key!r} has the wrong type {type(value).__name__}")
    return value


def _outcome(found: Any) -> dict[str, Any]:
    """Check and return the outcome of a session. Raises :class:`ValueError` if it is invalid."""
    code, reason = found.get("exit_code"), found.get("reason")
    good = code is None or (type(code) is int and 0 <= code < 256)
    if not good or not (reason is None or isinstance(reason, str)):
        raise ValueError(
            "invalid outcome: expected an exit code from 0 to 255 and a text as reason"
        )
    return dict(found)


def digest(snapshot: Snapshot) -> str:
    """Return the checksum of a snapshot for the column ``digest``."""
    found = hashlib.sha256(f"{snapshot.seq} {snapshot.maker} ".encode())
    found.update(snapshot.state)
    return found.hexdigest()


class Journal:
    """A journal that is open for reading. The run may be finished, interrupted or live.

    Raises :class:`JournalError` if the file is missing, damaged or from a newer version. With
    ``salvage``, a damaged file is opened if SQLite can read any part of it; ``about`` may then be
    incomplete, and ``damage`` describes the first damage.
    """

    def __init__(self, path: Path, *, salvage: bool = False) -> None:
        self.path = path
        self.damage: JournalError | None = None
        self._salvage = salvage
        #: Cache of the last long list of events, for :meth:`rows_backwards`. Jobs that were
        #: submitted together are in the same list.
        self._long_list: tuple[tuple[int, int], list[JournalRow]] = (0, 0), []
        # Read the progress before the journal, because this connection may not see later commits.
        self._progress = read_progress(path.parent)
        if not path.is_file():
            raise JournalError(f"there is no journal {path}", hint=LISTED, code="no-journal")
        with self._reading():
            self._connection = connect(path, write=False, salvage=salvage)
        self.about: dict[str, Any] = {}
        try:
            with self._reading():
                for key, value in self._table("about"):
                    self.about[key] = _check_about(key, json.loads(value))
        except JournalError:
            if not salvage:
                self.close()
                raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        # A damaged value may have any type.
        except (
            sqlite3.Error,
            OSError,
            ValueError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise journal_error(error, self.path) from error

    def _damage_error(self, cause: str) -> JournalError:
        return JournalError(
            f"the journal is damaged: {self.path}", cause=cause, hint=DAMAGED, code="corrupt"
        )

    def _note_damage(self, cause: str) -> None:
        """Record damage that does not prevent further reading."""
        self.damage = self.damage or self._damage_error(cause)

    def _table(self, name: str) -> list[Any]:
        """Return the rows of a small table. Raises :class:`JournalError` if they are damaged."""
        columns = SUMMED[name]
        # Use a single statement, because a controller may write at the same time.
        found = self._connection.execute(
            f"SELECT total, {columns} FROM checksums LEFT JOIN {name} WHERE checksums.name = ?"
            " ORDER BY 2",
            (name,),
        ).fetchall()
        rows = [row[1:] for row in found if row[1] is not None]
        if not found or found[0][0] != sum(row_checksum(*row) for row in rows):
            cause = f"its table {name!r} does not match its checksum"
            if not self._salvage:
                raise self._damage_error(cause)
            self._note_damage(cause)
        return rows

    @property
    def tag(self) -> str:
        return str(self.about.get("tag", self.path.parent.name))

    @property
    def mode(self) -> str:
        """SQLite's journal mode: ``wal``, or ``truncate`` on a network file system."""
        with self._reading():
            return str(self._connection.execute("PRAGMA journal_mode").fetchone()[0])

    def last(self) -> int:
        """Return the number of the last event."""
        newest_first = f"SELECT {_COLUMNS} FROM event_lists ORDER BY first DESC"
        # Close the statement immediately, because an open one blocks writers.
        with self._reading(), closing(self._connection.execute(newest_first)) as found:
            damaged: list[int] = []
            for row in found:
                try:
                    newest = self._verify_row(row)[1]
                except (ValueError, TypeError):
                    if not self._salvage:
                        raise
                    damaged += [each for each in row[:2] if isinstance(each, int)]
                    continue
                break
            else:
                newest = 0
            # A damaged list contains at least one event. If the numbers ``first`` and ``last`` are
            # plausible, use them.
            likely = [each for each in damaged if newest < each <= newest + _LONGEST_END]
            return max(likely, default=newest + bool(damaged))

    def rows(
        self,
        after: int = 0,
        until: int | None = None,
        job: str | None = None,
        holding: Sequence[str] = (),
        plain: bool = False,
    ) -> Iterator[JournalRow]:
        """Yield the events with ``after < seq <= until`` in order.

        If ``job`` is set, yield only its events.

        With ``holding``, lists of events that contain none of these texts are skipped quickly. All
        events in the other lists are yielded, even those without the texts. With ``plain``,
        decisions are a list instead of text, which is faster if there are many. The events are read
        in portions, so that a live run is not blocked. Raises :class:`JournalError` if an event is
        missing or damaged.
        """
        limit = until if until is not None else _LARGEST
        texts = (json.dumps(job),) if job is not None else holding
        for first, last, text in self._lists(after, limit):
            if texts and not any(each in text for each in texts):
                continue
            with self._reading():
                rows = rows_of(first, last, text, plain=plain)
            for row in rows:
                if after < row.seq <= limit and (job is None or row.job == job):
                    yield row

    def texts_of_events(self, texts: Sequence[str]) -> Iterator[str]:
        """Yield the lists of events that contain one of these texts, as JSON."""
        for _, _, text in self._lists(0, _LARGEST):
            if any(each in text for each in texts):
                yield text

    def rows_of_kind(self, kind: str, after: int, until: int) -> Iterator[JournalRow]:
        """Yield the events with ``after < seq <= until`` from all lists that contain this ``kind``.

        A kind is a type of event or decision (``fired``, ``observed`` …). Decisions are lists.
        """
        newest = after
        while True:
            with self._reading():
                found = self._connection.execute(
                    f"SELECT {_COLUMNS} FROM event_lists"
                    f" WHERE instr(list, '{_KINDS_OF_LISTS[kind]}') AND first <= ? AND last > ?"
                    " AND first >= (SELECT max(first) FROM event_lists WHERE first <= ?)"
                    " ORDER BY first LIMIT 8",
                    (until, newest, newest + 1),
                ).fetchall()
            if not found:
                return
            for row in found:
                with self._reading():
                    first, newest, text = self._verify_row(row)
                    events = rows_of(first, newest, text, plain=True)
                yield from (each for each in events if after < each.seq <= until)

    def rows_backwards(self, until: int, holding: str) -> Iterator[JournalRow]:
        """Yield the events with ``seq <= until``, newest first, from all lists that contain this
        text.

        Decisions are lists. Only as many events are read as the caller consumes.
        """
        while until > 0:
            with self._reading():
                found = self._connection.execute(
                    f"SELECT {_COLUMNS} FROM event_lists WHERE first <= ?"
                    " ORDER BY first DESC LIMIT 8",
                    (until,),
                ).fetchall()
            if not found:
                return
            for row in found:
                with self._reading():
                    first, last, text = self._verify_row(row)
                    if holding not in text:
                        continue
                    if self._long_list[0] == (first, last):
                        events = self._long_list[1]
                    else:
                        events = rows_of(first, last, text, plain=True)
                    if len(text) > _LONG:
                        self._long_list = (first, last), events
                yield from (each for each in reversed(events) if each.seq <= until)
            until = found[-1][0] - 1

    def _verify_row(self, row: Sequence[Any]) -> tuple[int, int, str]:
        """Return the first three values of a row of ``event_lists`` after checking the row.

        Raises :class:`ValueError` if the row is damaged.
        """
        first, last, text = int(row[0]), int(row[1]), row[2]
        if not isinstance(text, str) or row[5] != list_checksum(first, last, int(row[3]), text):
            raise ValueError(f"events {first} to {last} are damaged")
        return first, last, text

    def _lists(self, after: int, limit: int) -> Iterator[tuple[int, int, str]]:
        """Yield the lists that contain events with ``after < seq <= limit``, in order."""
        crc: int | None = None
        while True:
            with self._reading():
                found = self._connection.execute(
                    f"SELECT {_COLUMNS} FROM event_lists WHERE first <= ? AND first >= coalesce("
                    "(SELECT max(first) FROM event_lists WHERE first <= ?), 0)"
                    " ORDER BY first LIMIT 8",
                    (limit, after + 1),
                ).fetchall()
            before = after
            for row in found:
                with self._reading():
                    first, last, text = self._verify_row(row)
                if last <= after:
                    continue
                if first > after + 1:
                    raise self._damage_error(f"event {after + 1} is missing")
                if crc is not None and row[4] != crc:
                    raise self._damage_error(
                        f"the checksum of event {first - 1} differs from its copy in event {first}"
                    )
                crc = row[5]
                after = last
                yield first, last, text
            if after == before or after >= limit:
                return

    def job_layouts(self) -> dict[int, Layout]:
        """Return the layouts of job rows by number, in the order of their first use."""
        with self._reading():
            return read_layouts(self._connection)

    def job_groups(self) -> list[str]:
        """Return the groups with finished jobs."""
        with self._reading():
            found = self._connection.execute(
                "WITH RECURSIVE names(name) AS (SELECT min(name) FROM job_rows UNION ALL"
                " SELECT (SELECT min(name) FROM job_rows WHERE name > names.name) FROM names"
                " WHERE names.name IS NOT NULL)"
                " SELECT name FROM names WHERE name IS NOT NULL"
            )
            return [str(name) for (name,) in found]

    def job_rows(self, group: str) -> Iterator[list[tuple[int, int, list[Any]]]]:
        """Yield the finished jobs of a group in portions, by index.

        Each job is a tuple of its index, its layout and its values, in the order of the module
        ``job_rows``.
        """
        for found in self._job_rows(group):
            with self._reading():
                values = json.loads(f"[{','.join([row for _, _, row, _ in found])}]")
            yield [(n, layout, row) for (n, layout, *_), row in zip(found, values, strict=True)]

    def job_row(self, group: str, index: int) -> tuple[int, list[Any]] | None:
        """Return the layout and the values of a finished job, or ``None`` if there is no such
        row.
        """
        for ((_, layout, row, _),) in self._job_rows(group, index, index):
            with self._reading():
                return layout, json.loads(row)
        return None

    def _job_rows(
        self, group: str, first: int = 0, last: int = _LARGEST
    ) -> Iterator[list[tuple[int, int, str, int]]]:
        """Yield the job rows of a group in portions, as text, after checking their checksums."""
        while True:
            with self._reading():
                found = self._connection.execute(
                    "SELECT number, layout, row, crc FROM job_rows WHERE name = ?"
                    " AND number BETWEEN ? AND ? ORDER BY number LIMIT ?",
                    (group, first, last, _PORTION),
                ).fetchall()
                if not found:
                    return
                if (at := wrong_job(group, found)) is not None:
                    raise ValueError(f"the record of the finished job {group}.{at} is damaged")
                first = found[-1][0] + 1
            yield found

    def check_job_rows(self) -> None:
        """Raise :class:`JournalError` if job rows are missing."""
        with self._reading():
            # Use a single statement, because a controller may write at the same time.
            there, written = self._connection.execute(
                "SELECT (SELECT coalesce(sum(crc + replaced), 0) FROM job_rows)"
                " + (SELECT coalesce(sum(crc), 0) FROM job_layouts),"
                " coalesce((SELECT jobs FROM event_lists ORDER BY first DESC LIMIT 1), 0)"
            ).fetchone()
            if there != written:
                raise ValueError("records of finished jobs are missing or outdated")

    def texts(self) -> list[FileVersion]:
        """Return all versions of the run's ensemble file, oldest first."""
        with self._reading():
            return [
                _text(int(seq), os.fsdecode(file or ""), str(text), json.loads(overrides))
                for seq, file, text, overrides in self._table("texts")
            ]

    def sessions(self) -> list[Session]:
        """Return the run's sessions, oldest first."""
        with self._reading():
            return [
                Session(
                    *(int(number), int(seq), float(began), str(host), int(pid)),
                    dict(json.loads(versions)),
                    None if ended is None else float(ended),
                    _outcome(json.loads(outcome)) if outcome else None,
                )
                for number, seq, began, host, pid, versions, ended, outcome in (
                    self._table("sessions")
                )
            ]

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield the snapshots, newest first. Damaged snapshots are skipped."""
        with self._reading():
            found = self._connection.execute(
                "SELECT seq, maker, digest, state FROM snapshots ORDER BY seq DESC"
            ).fetchall()
        for seq, maker, checksum, state in found:
            snapshot = Snapshot(seq, maker, state)
            if isinstance(state, bytes) and digest(snapshot) == checksum:
                yield snapshot
            else:
                self._note_damage(f"the snapshot after event {seq} is damaged")

    def check(self) -> None:
        """Check all pages and records of the file. Raises :class:`JournalError`.

        This takes as long as reading the whole file.
        """
        with self._reading():
            found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {found}")
        self.check_records()

    def check_records(self) -> None:
        """Raise :class:`JournalError` if any record is damaged.

        If only a snapshot is damaged, set :attr:`damage` instead.
        """
        self.sessions()
        self.texts()
        for _ in self._lists(0, self.last()):
            pass
        self.job_layouts()
        for group in self.job_groups():
            for _ in self._job_rows(group):
                pass
        self.check_job_rows()
        for _ in self.snapshots():
            pass

    def missing_tail(self) -> JournalError | None:
        """Return an error if committed events are missing at the end of the journal, or
        ``None``.
        """
        last, (performed, committed) = self.last(), self._progress
        if max(performed, committed) <= last:
            return None
        if performed > last:
            which = f"the decisions of event {performed} were already carried out"
            hint = (
                "put that file back; without it, a resume would submit jobs a second time. "
                "'ensemble cancel' cancels the jobs that are known here"
            )
        else:
            which = f"event {committed} was written"
            hint = (
                f"put that file back; or 'ensemble resume {self.path.parent.name}' continues after "
                f"event {last}: no later decision was carried out"
            )
        return JournalError(
            f"the newest part of the journal is missing: {self.path}",
            cause=f"it ends with event {last}, but {which}; {self.path.name}-wal was removed, "
            "damaged or not copied",
            hint=hint,
            code="cut-short",
        )

    def check_newest(self) -> None:
        """Raise :class:`JournalError` if the journal lacks a decision that was carried out.

        A resume would carry out such a decision again.
        """
        missing = self.missing_tail()
        if missing is not None and self._progress.performed > self.last():
            raise missing

    @property
    def is_small(self) -> bool:
        """True if checking the whole journal takes negligible time."""
        return self.path.stat().st_size <= CHECKED_WHOLE

    def check_if_small(self) -> None:
        """Call :meth:`check` if the journal is small."""
        if self.is_small:
            self.check()
