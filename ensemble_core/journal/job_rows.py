"""Job rows: a summary of each finished job in the journal.

Without job rows, a table of jobs would have to be computed from millions of events, which takes
minutes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from ensemble_core.engine.job_record import BY_RUN, JobRecord
from ensemble_core.engine.job_states import exit_code
from ensemble_core.journal.damage_detection import job_checksum, row_checksum

#: Fields of every job, in addition to its parameters, result and columns. ``submitted``,
#: ``started``, ``finished`` (seconds since the epoch) and ``duration`` are those of the newest
#: attempt: ``started`` is its first start, and ``duration`` the time that it ran. ``core_hours`` is
#: the sum over all attempts.
FIELDS = (
    *("group", "index", "attempts", "outcome", "exit_code", "cause"),
    *("submitted", "started", "finished", "duration", "core_hours"),
)
#: Column of jobs that were suspended or requeued: the seconds between their start and their end in
#: which they did not run.
INTERRUPTED = "interrupted"
#: Fields that are times.
TIMES = ("submitted", "started", "finished")

#: The kinds of the values of these fields, as in a :class:`Layout`.
KINDS: dict[str, str] = {
    **dict.fromkeys(("group", "outcome", "cause"), "s"),
    **dict.fromkeys(("index", "attempts", "exit_code"), "i"),
    **dict.fromkeys((*TIMES, "duration", "core_hours"), "f"),
}

#: Number of values in a row before those that the layout names: the ``FIELDS`` without group, index
#: and duration.
FIRST_OWN = len(FIELDS) - 3

#: SQL statements that create the tables. The column ``replaced`` is the sum of the checksums of
#: earlier rows of the same job. With it, the rows can be compared with the sum
#: ``event_lists.jobs``, although the writer does not read the rows that it replaces.
TABLES = """
    CREATE TABLE job_layouts (number INTEGER PRIMARY KEY, layout TEXT NOT NULL,
        crc INTEGER NOT NULL);
    CREATE TABLE job_rows (name TEXT NOT NULL, number INTEGER NOT NULL, layout INTEGER NOT NULL,
        crc INTEGER NOT NULL, replaced INTEGER NOT NULL, row TEXT NOT NULL,
        PRIMARY KEY (name, number)) WITHOUT ROWID;
"""

#: How many rows one SQL statement writes. SQLite allows at most 999 values.
_MOST = 190
_KIND_OF = {int: "i", float: "f", bool: "b", type(None): "n"}


class JobRow(NamedTuple):
    """Summary of a job after its newest attempt."""

    group: str
    number: int
    attempts: int
    outcome: str
    exit_code: int | None
    cause: str | None
    submitted: float
    started: float | None
    finished: float | None
    core_hours: float
    parameters: Mapping[str, Any]
    result: Mapping[str, Any]
    columns: Mapping[str, Any]


class Layout(NamedTuple):
    """The names of the parameters, results and columns in a row, and the kinds of their values."""

    parameters: tuple[str, ...]
    result: tuple[str, ...]
    columns: tuple[str, ...]
    #: One letter each: ``i`` or ``f`` (numbers), ``b`` (boolean), ``s`` (string), ``n`` (null).
    kinds: str

    @classmethod
    def read(cls, text: str) -> Layout:
        """Parse a layout from the journal."""
        parameters, result, columns, kinds = json.loads(text)
        return cls(tuple(parameters), tuple(result), tuple(columns), kinds)


def row_of(record: JobRecord) -> JobRow:
    """Return the job row of an attempt. The attempt may still be active."""
    job, outcome, columns = record.job, record.outcome, record.columns or {}
    if record.reused is not None:
        columns = {"reused": record.reused, **columns}
    elif record.began is not None and record.finished is not None:
        columns = with_interruption(columns, record.finished - record.began - record.ran)
    elif record.state == "suspended" or (record.state == "queued" and record.began is not None):
        columns = {**columns, "state": "suspended" if record.suspended else "requeued"}
    if outcome is None:
        outcome = "cancelled" if record.exception == "cancel" else None
    if record.reused is not None:
        columns = {"reused": record.reused, **columns}
    if record.cancelled_by not in (None, BY_RUN):
        columns = {"cancelled_by": record.cancelled_by, **columns}
    return JobRow(
        job.group,
        job.index,
        job.attempt + 1,
        outcome or ("active" if record.why is None else "failed"),
        None if record.status is None else exit_code(record.status),
        (record.cause or "exit") if outcome == "success" else record.why,
        record.submitted,
        record.began,
        record.finished,
        record.spent / 3600,
        job.parameters,
        record.result if outcome == "success" else {},
        columns,
    )


def with_interruption(columns: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the columns of a job that did not run for some seconds between its start and end."""
    return {**columns, INTERRUPTED: seconds} if seconds else columns


def _kind(value: object) -> str:
    kind = _KIND_OF.get(type(value), "s")
    # An integer column has 64 bits, including the sign.
    return "f" if kind == "i" and value.bit_length() > 63 else kind  # type: ignore[attr-defined]


def values_of(row: JobRow) -> list[Any]:
    """Return the values of the parameters, results and columns in a row."""
    return [*row[10].values(), *row[11].values(), *row[12].values()]


def layout_of(row: JobRow) -> Layout:
    """Return the layout of a row."""
    kinds = "".join(map(_kind, values_of(row)))
    return Layout(tuple(row[10]), tuple(row[11]), tuple(row[12]), kinds)


#: Encoder of rows. Creating an encoder takes longer than using it, so there is only one.
_text = json.JSONEncoder(separators=(",", ":"), default=str).encode


def _texts(rows: Sequence[list[object]]) -> list[str]:
    """Encode each row as text.

    One call encodes all rows, which takes two thirds of the time of separate calls. The result is
    then split at the separator. If a value contains the separator, each row is encoded separately.
    """
    parts = _text(rows)[2:-2].split("],[")
    return [f"[{part}]" for part in parts] if len(parts) == len(rows) else [*map(_text, rows)]


class JobRowWriter:
    """Creates the SQL statements that write job rows.

    ``known`` has the layouts that are in the journal.
    """

    def __init__(self, known: Mapping[Layout, int]) -> None:
        self._known = dict(known)
        self._new: dict[Layout, int] = {}
        #: Cache of the numbers of layouts, by the names and types of values.
        self._numbers: dict[tuple[object, ...], int] = {}

    def statements(
        self, rows: Sequence[JobRow], ends: Sequence[int] = ()
    ) -> tuple[list[tuple[str, Sequence[object]]], int]:
        """Return the SQL statements that write these rows and any new layouts, and the sum of
        checksums.

        Execute the statements in one transaction. ``ends`` has, for each job, the number of the
        event that ended it. This number becomes the last value of the row.
        """
        numbers: list[int] = []
        kept: list[list[object]] = []
        for row in rows:
            parameters, result, columns = row[10:]
            own = [*parameters.values(), *result.values(), *columns.values()]
            # For speed, do not call a function for each value.
            types = [t if (t := type(v)) is not int or v.bit_length() < 64 else float for v in own]
            key = (*parameters, None, *result, None, *columns, *types)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = self._number(layout_of(row))
            numbers.append(number)
            kept.append([*row[2:10], *own])
        for line, end in zip(kept, ends, strict=False):
            line.append(end)
        values: list[object] = []
        total = 0
        for row, number, text in zip(rows, numbers, _texts(kept), strict=True):
            crc = job_checksum(row[0], row[1], number, text)
            total += crc
            values += (row[0], row[1], number, crc, text)
        made: list[tuple[str, Sequence[object]]] = []
        for layout, number in self._new.items():
            text = _text(layout)
            crc = row_checksum(number, text)
            total += crc
            made.append(("INSERT INTO job_layouts VALUES (?, ?, ?)", (number, text, crc)))
        for at in range(0, len(values), 5 * _MOST):
            part = values[at : at + 5 * _MOST]
            made.append((_insert(len(part) // 5), part))
        return made, total

    def written(self) -> None:
        """Confirm that the statements of the last call were executed."""
        self._known.update(self._new)
        self._new = {}

    def _number(self, layout: Layout) -> int:
        number = self._known.get(layout)
        if number is None:
            number = self._new.setdefault(layout, len(self._known) + len(self._new))
        return number


def read_layouts(connection: sqlite3.Connection) -> dict[int, Layout]:
    """Return the layouts in a journal by number. Raises :class:`ValueError` if one is damaged."""
    found = connection.execute("SELECT number, layout, crc FROM job_layouts ORDER BY 1").fetchall()
    for number, text, crc in found:
        if crc != row_checksum(number, text):
            raise ValueError(f"the column names for finished jobs are damaged (layout {number})")
    return {number: Layout.read(text) for number, text, _ in found}


@cache
def _insert(rows: int) -> str:
    return (
        f"INSERT INTO job_rows VALUES {','.join(['(?, ?, ?, ?, 0, ?)'] * rows)}"
        " ON CONFLICT (name, number) DO UPDATE SET layout = excluded.layout,"
        " replaced = replaced + crc, crc = excluded.crc, row = excluded.row"
    )
