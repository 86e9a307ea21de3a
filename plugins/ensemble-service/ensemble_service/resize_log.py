"""Idempotency log of resize requests, in SQLite: what was begun under which name, and the answer.

A request that is asked again gets the answer of the first time, also after a restart of the
service. Of one that was begun and has no answer the service was killed over it: what became of it
is not known, and it is not carried out a second time. Called by ``resizes``, from its threads.
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

__all__ = ["Entry", "ResizeLog"]

#: Requests that are remembered; of more, the oldest are forgotten, so many at once.
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
    """A request that was begun, and its answer once there is one."""

    delta: int
    answer: Resized | None = None
    #: What the resizer put on record before it took effect.
    kept: Mapping[str, Any] | None = None


class ResizeLog:
    """The log of resize requests, by name, with their answers. ``path`` None keeps no file.

    May be called from several threads; of one member, from one at a time. Raises
    :class:`EnsembleError` where the file cannot be used.
    """

    def __init__(self, path: Path | None, most: int = MOST) -> None:
        self._path, self._most = path, most
        self._lock = threading.Lock()
        #: Answers that could not be written, until they are.
        self._unwritten: dict[tuple[str, str], Resized] = {}
        try:
            self._db = _open(path)
        except (sqlite3.Error, OSError) as error:
            raise EnsembleError(
                f"cannot read {path}", cause=str(error), code="cannot-read"
            ) from None

    def begin(self, member: str, request: str, delta: int) -> Entry | None:
        """It is about to be carried out; or what is known of it, where it was begun before.

        Raises :class:`EnsembleError` where it cannot be put on record: then it must not be carried
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
            "the request cannot be put on record",
            cause=f"{self._path}: {error}",
            code="no-record",
            transient=True,
        )

    def end(self, member: str, request: str, answer: Resized) -> None:
        """It was answered. Where that cannot be written, it is remembered until it can be."""
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

        Raises :class:`EnsembleError` if it cannot be recorded: then the step must not be taken.
        """
        with self._lock:
            try:
                self._db.execute(_KEEP, (json.dumps(kept), member, request))
            except sqlite3.Error as error:
                raise self._no_record(error) from None

    def get(self, member: str, request: str) -> Entry | None:
        """The record of a request; ``None`` where there is none."""
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
        """Give the file back."""
        with self._lock:
            self._db.close()


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:  # readable for nobody else, and so are the files that SQLite adds to it
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        # Rows are short, and each change writes whole pages.
        db.execute("PRAGMA page_size = 1024")
        # The folder is this process's alone (``folder_lock``): no memory need be shared with
        # others, which many network file systems cannot.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        # Each commit is synced: a request that a power cut removed from the log would be carried
        # out again.
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 4000")
        db.execute(_TABLE)
    except BaseException:
        db.close()
        raise
    return db


def _values(a: Resized) -> tuple[Any, ...]:
    return a.outcome, a.before, a.asked, a.granted, a.reason, a.code, a.transient
