"""Idempotency log of resize requests, in SQLite.

A repeated request gets the answer of the first one, even after a restart of the service.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ensemble_core import EnsembleError, Resized

#: Maximum number of remembered requests, and the number of old requests dropped at once beyond
#: that.
MOST = 10_000
_FORGOTTEN_AT_ONCE = 100

_ANSWER = ("outcome", "before", "asked", "granted", "reason", "code", "transient")
_COLUMNS = ", ".join(_ANSWER)
_TABLE = f"""
CREATE TABLE IF NOT EXISTS resizes (
  number INTEGER PRIMARY KEY, member TEXT, request TEXT, delta INTEGER, {_COLUMNS}, kept TEXT,
  UNIQUE (member, request))
"""
_BEGIN = "INSERT OR IGNORE INTO resizes (member, request, delta) VALUES (?, ?, ?)"
_ONE = "WHERE member = ? AND request = ?"
_KEEP = f"UPDATE resizes SET kept = ? {_ONE}"
_GET = f"SELECT delta, kept, {_COLUMNS} FROM resizes {_ONE}"
_END = f"UPDATE resizes SET {', '.join(f'{name} = ?' for name in _ANSWER)} {_ONE}"
_FORGET = "DELETE FROM resizes WHERE number <= ?"


@dataclass(frozen=True, slots=True)
class Entry:
    """A resize request and its answer."""

    delta: int
    #: None if not known yet, or if the service was killed while it carried out the request.
    answer: Resized | None = None
    #: What the resizer recorded before the change.
    kept: Mapping[str, Any] | None = None


class ResizeLog:
    """The log of each member's resize requests, with their answers.

    If ``path`` is ``None``, the log is kept in memory. Threads may share a log, but only one
    thread at a time may use it for the same member. Raises :class:`EnsembleError` if the file
    cannot be used.
    """

    def __init__(self, path: Path | None, most: int = MOST) -> None:
        self._path, self._most = path, most
        self._lock = threading.Lock()
        #: Answers that could not be written yet.
        self._unwritten: dict[tuple[str, str], Resized] = {}
        try:
            self._db = _open(path)
        except (sqlite3.Error, OSError) as error:
            raise EnsembleError(
                f"cannot read {path}", cause=str(error), code="cannot-read"
            ) from None

    def begin(self, member: str, request: str, delta: int) -> Entry | None:
        """Record a request before it is carried out, or return its entry if it was begun before.

        Raises :class:`EnsembleError` if the request cannot be recorded; it must then not be carried
        out.
        """
        with self._lock:
            try:
                cursor = self._db.execute(_BEGIN, (member, request, delta))
                if not cursor.rowcount:
                    return self._entry(member, request)
                number = cursor.lastrowid or 0
                if number > self._most and number % _FORGOTTEN_AT_ONCE == 0:
                    self._db.execute(_FORGET, (number - self._most,))
            except sqlite3.Error as error:
                raise self._no_record(error) from None
        return None

    def _no_record(self, error: sqlite3.Error) -> EnsembleError:
        return EnsembleError(
            "cannot record the resize request",
            cause=f"{self._path}: {error}",
            code="no-record",
            transient=True,
        )

    def end(self, member: str, request: str, answer: Resized) -> None:
        """Record the answer. If that fails, keep it in memory and retry later."""
        with self._lock:
            try:
                self._db.execute(_END, (*_values(answer), member, request))
                for key, each in list(self._unwritten.items()):
                    self._db.execute(_END, (*_values(each), *key))
                    del self._unwritten[key]
            except sqlite3.Error:
                self._unwritten[member, request] = answer

    def keep(self, member: str, request: str, kept: Mapping[str, Any]) -> None:
        """Record the step that the resizer is about to take.

        Raises :class:`EnsembleError` if the step cannot be recorded; it must then not be taken.
        """
        with self._lock:
            try:
                self._db.execute(_KEEP, (json.dumps(kept), member, request))
            except sqlite3.Error as error:
                raise self._no_record(error) from None

    def get(self, member: str, request: str) -> Entry | None:
        """Return the entry of a request, or ``None``."""
        with self._lock:
            return self._entry(member, request)

    def _entry(self, member: str, request: str) -> Entry | None:
        row = self._db.execute(_GET, (member, request)).fetchone()
        if row is None:
            return None
        answer = self._unwritten.get((member, request))
        delta, kept, outcome, before, asked, granted, reason, code, transient = row
        if outcome is not None:
            answer = Resized(
                outcome=outcome,
                before=before,
                asked=asked,
                granted=granted,
                reason=reason,
                code=code,
                transient=bool(transient),
            )
        return Entry(delta, answer, json.loads(kept) if kept else None)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:  # make the file private; SQLite's additional files become private too
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        # Use small pages: rows are short, and each change writes whole pages.
        db.execute("PRAGMA page_size = 1024")
        # Only this process uses the folder (``folder_lock``), so no shared memory is needed. Many
        # network file systems lack it.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        # Sync each commit: a request forgotten in a power cut would be carried out again.
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 4000")
        db.execute(_TABLE)
    except BaseException:
        db.close()
        raise
    return db


def _values(a: Resized) -> tuple[Any, ...]:
    return a.outcome, a.before, a.asked, a.granted, a.reason, a.code, a.transient
