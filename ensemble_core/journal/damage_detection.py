"""Detects damage of a journal: flipped bits, missing rows and a truncated file.

- Each row of the tables ``event_lists``, ``job_rows`` and ``job_layouts`` has a column ``crc``:
  the CRC-32 of its content.
- In ``event_lists``, the column ``previous`` repeats the ``crc`` of the previous row. It shows
  whether a row is missing.
- The column ``jobs`` of ``event_lists`` is the sum of all ``crc`` that were written to ``job_rows``
  and ``job_layouts`` before.
- For each of the small tables ``about``, ``texts`` and ``sessions``, the table ``checksums`` has
  the sum of the checksums of its rows.
- The :class:`Progress` of the run is stored outside its journal. It shows whether the last events
  are missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ensemble_core.journal.run_folder import PERFORMED, read_note

#: Journals of up to so many bytes are checked whole before a resume writes to them. Of a larger
#: one, the newest snapshot and the events after it are checked.
CHECKED_WHOLE = 32 << 20
#: The tables with one sum of checksums for all rows, and their columns.
SUMMED = {
    "about": "key, value",
    "texts": "seq, file, text, overrides",
    "sessions": "number, seq, began, host, pid, versions, ended, outcome",
}


def list_checksum(first: int, last: int, jobs: int, text: str) -> int:
    """Return the checksum of a row of ``event_lists``."""
    return crc32(text.encode(), crc32(b"%d %d %d" % (first, last, jobs)))


def job_checksum(group: str, number: int, layout: int, text: str) -> int:
    """Return the checksum of a row of ``job_rows``."""
    return crc32(f"{group} {number} {layout} {text}".encode())


def wrong_job(group: str, rows: Sequence[tuple[int, int, str, int]]) -> int | None:
    """Return the index of the first damaged job row of a group, or ``None``.

    A row is (index, layout, text, checksum).
    """
    found = [crc32(f"{group} {n} {layout} {text}".encode()) for n, layout, text, _ in rows]
    wrong = (row[0] for row, crc in zip(rows, found, strict=True) if row[3] != crc)
    return None if found == [row[3] for row in rows] else next(wrong)


def row_checksum(*values: object) -> int:
    """Return the checksum of a row of ``job_layouts`` or of a small table."""
    return crc32(ascii(values).encode())


def sum_of(table: str) -> str:
    """Return the SQL statement that stores the sum of checksums of a small table."""
    return (
        f"INSERT OR REPLACE INTO checksums SELECT '{table}',"
        f" coalesce(sum(row_checksum({SUMMED[table]})), 0) FROM {table}"
    )


#: SQL statements that add checksums to all rows except job rows.
WRITE_ALL = f"""
    UPDATE event_lists SET crc = list_checksum(first, last, jobs, list);
    UPDATE event_lists SET previous = coalesce((SELECT crc FROM event_lists AS e
        WHERE e.first < event_lists.first ORDER BY e.first DESC LIMIT 1), 0);
    {"; ".join(map(sum_of, SUMMED))};
"""


def add_functions(connection: sqlite3.Connection) -> None:
    """Make ``list_checksum`` and ``row_checksum`` available to SQL statements on this
    connection.
    """
    connection.create_function("list_checksum", 4, list_checksum, deterministic=True)
    connection.create_function("row_checksum", -1, row_checksum, deterministic=True)


class Progress(NamedTuple):
    """Progress of a run, stored outside its journal in order to detect a truncated journal."""

    performed: int = 0  # number of the last event of which a decision was carried out
    committed: int = 0  # number of the last event that was committed

    def text(self) -> bytes:
        """Return the progress as text.

        The length is fixed, so that a write replaces the old text.
        """
        numbers = b"%-20d %-20d" % self
        return numbers + b" %08x\n" % crc32(numbers)


def read_progress(folder: Path) -> Progress:
    """Return the progress stored in a run's folder, or zeros if the file is missing or invalid."""
    try:
        note = read_note(folder / PERFORMED)
        fields = note.split()
        found = Progress(int(fields[0]), int(fields[1]))
    except (OSError, ValueError, IndexError):
        return Progress()
    return found if found.text() == note else Progress()
