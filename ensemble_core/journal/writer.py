"""Writes a run's journal: one thread that commits what has come together since its last commit.

The engine's thread hands over each event with its decisions and the orders that carry them out, and
goes on; this thread writes them and only then lets the orders go. So nothing is performed that is
not on disk, and the more there is to do, the more shares one commit. Used by the runtime.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ensemble_core.journal.codec import event_text, list_text
from ensemble_core.journal.reader import PERFORMED, JournalError, connect, digest, storable, words
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event

__all__ = ["Order", "Recorder"]

Order = Callable[[], None]

#: Most events in one list: what is lost at most where a byte of the file is.
_MOST_IN_LIST = 100
#: Lists written by one statement. Each statement is a turn of waiting for the interpreter, which
#: the engine's thread has.
_MOST_LISTS = 50
#: Events that may wait to be written before the engine's thread waits for them.
_MOST_PENDING = 50_000
#: Events without orders wait this long (seconds) for others to share their commit, up to so many.
_DOZE, _ENOUGH = 0.02, 1000
#: Seconds between tries to write while that fails: first and longest.
_RETRY_FIRST, _RETRY_LONGEST = 0.2, 5.0
_KEPT_SNAPSHOTS = 2
_FORGET_SNAPSHOTS = (
    "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)"
)

#: An event; with what was decided on it and what carries that out, where there is any.
_Pending = Event | tuple[Event, Sequence[Decision], Sequence[Order]]


@cache
def _insert(lists: int) -> str:
    return "INSERT OR REPLACE INTO events VALUES " + ",".join(["(?, ?, ?)"] * lists)


class Recorder:
    """The writing end of one journal.

    ``trouble`` is called on the writing thread with the error when the journal can't be written,
    and with ``None`` when it can be again; meanwhile nothing is lost and nothing is performed.
    Raises :class:`JournalError` where the file cannot be made or opened. ``seq`` is the number of
    the newest event that was handed over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: Callable[[JournalError | None], None] | None = None
        self.in_trouble = False
        #: Why the journal could not be written when that was tried last and failed.
        self._failed: JournalError | None = None
        try:
            new = not path.exists()
            self._connection = connect(path, write=True)
            if new:  # the names of the file, of its folder, and of those that were made with it
                for folder in [*path.absolute().parents][:4]:
                    _sync_folder(folder)
            row = self._connection.execute(
                "SELECT last FROM events ORDER BY first DESC LIMIT 1"
            ).fetchone()
        except (sqlite3.Error, OSError) as error:
            raise words(error, path) from error
        self.seq = int(row[0]) if row else 0
        #: The newest event that the writing thread took over.
        self._taken = self.seq
        self._session = 0
        self._marks: int | None = None
        self._changed = threading.Condition()
        #: The engine's thread adds at one end and the writing thread takes from the other, without
        #: a lock: there is one for each event.
        self._pending: deque[_Pending] = deque()
        #: The writing thread has nothing to write; or nothing that anybody waits for.
        self._asleep = self._dozing = False
        #: Somebody waits for what is pending.
        self._urgent = False
        self._flushing = 0
        self._snapshot: tuple[int, str, bytes] | None = None
        self._working = False
        self._closing = False
        self._given_up = False
        self._thread: threading.Thread | None = None

    # -- before and after the events -----------------------------------------------------------

    def _execute(self, *statements: tuple[str, Sequence[object]]) -> None:
        """Several statements in one transaction. Raises :class:`JournalError`."""
        try:
            self._transact(statements)
        except (sqlite3.Error, OSError) as error:
            raise words(error, self.path) from error

    def _transact(self, statements: Sequence[tuple[str, Sequence[object]]]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            for sql, values in statements:
                connection.execute(sql, values)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def describe(self, about: Mapping[str, Any]) -> None:
        """Say what this run is; what was said under the same keys is replaced."""
        self._execute(
            *(
                ("INSERT OR REPLACE INTO about VALUES (?, ?)", (key, json.dumps(value)))
                for key, value in about.items()
            )
        )

    def text(self, file: str, text: str, overrides: Sequence[str]) -> None:
        """From the next event on this is the ensemble file."""
        self._execute(
            (
                "INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)",
                (self.seq, storable(file), text, json.dumps(list(overrides))),
            )
        )

    def begin(self, now: float, versions: Mapping[str, str]) -> int:
        """A controller takes the run over; the number of its session, from 1."""
        try:
            (number,) = self._connection.execute(
                "SELECT 1 + coalesce(max(number), 0) FROM sessions"
            ).fetchone()
        except sqlite3.Error as error:
            raise words(error, self.path) from error
        self._execute(
            (
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
                (
                    number,
                    self.seq,
                    now,
                    socket.gethostname(),
                    os.getpid(),
                    json.dumps(dict(versions)),
                ),
            )
        )
        self._session = int(number)
        self._thread = threading.Thread(target=self._main, name="journal", daemon=True)
        self._thread.start()
        return self._session

    def end(self, now: float, outcome: Mapping[str, Any]) -> None:
        """The controller leaves; what was handed over is written first. Raises
        :class:`JournalError` where that is not possible: then the run has no end yet, for the
        journal does not have what led to it."""
        if not self.stop(None):
            raise self._failed or JournalError(
                f"the newest events are not in the journal: {self.path}", code="journal"
            )
        self._execute(
            (
                "UPDATE sessions SET ended = ?, outcome = ? WHERE number = ?",
                (now, json.dumps(dict(outcome)), self._session),
            )
        )

    def close(self) -> None:
        """Give the file back. What was not written by then is given up."""
        self.stop(0.0)
        if self._marks is not None:
            os.close(self._marks)
            self._marks = None
        try:
            self._connection.close()
        except sqlite3.Error:
            return  # what is missing was told when it could not be written

    # -- the engine's thread -------------------------------------------------------------------

    def append(
        self, event: Event, decisions: Sequence[Decision], orders: Sequence[Order] = ()
    ) -> None:
        """Take one more event, what was decided on it, and what carries that out."""
        self.seq += 1
        self._pending.append((event, decisions, orders) if decisions or orders else event)
        if orders:
            self._urgent = True
        if self._asleep or (orders and self._dozing):
            with self._changed:
                self._changed.notify_all()
        elif len(self._pending) > _MOST_PENDING:
            with self._changed:
                while len(self._pending) > _MOST_PENDING and not self.in_trouble:
                    self._changed.wait(0.1)

    def snapshot(self, maker: str, state: bytes) -> None:
        """Take the engine's state after the newest event."""
        with self._changed:
            self._snapshot = (self.seq, maker, state)
            self._changed.notify()

    def flush(self, patience: float | None) -> bool:
        """Wait until everything is on disk and its orders went out; whether that was so within
        ``patience`` seconds (``None``: while it can be written at all)."""
        deadline = None if patience is None else time.monotonic() + patience
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._flushed(deadline)
            finally:
                self._flushing -= 1

    def _flushed(self, deadline: float | None) -> bool:
        """Wait, with the lock held, until everything is written."""
        while self._pending or self._working or self._snapshot:
            if self._given_up or self._thread is None or not self._thread.is_alive():
                return False
            if deadline is None and self.in_trouble:
                return False
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(min(left, 0.2))
        return True

    def stop(self, patience: float | None) -> bool:
        """Write what there is and end the writing thread; whether everything was written."""
        thread = self._thread
        if thread is None:
            return True
        written = self.flush(patience)
        with self._changed:
            self._closing = True
            self._given_up = not written
            self._changed.notify_all()
        thread.join()
        self._thread = None
        return written

    # -- the writing thread --------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._work()
        except Exception as error:  # ours or an order's: nobody must wait for a thread that is gone
            self._failed = JournalError(
                f"the journal's writer broke down: {self.path}",
                cause=repr(error),
                hint="this is a fault of Ensemble or a plugin; please report it",
                code="broken",
            )
            with self._changed:
                self.in_trouble = self._given_up = True
                self._working = False
                self._changed.notify_all()
            self._tell(self._failed)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._working = False
                self._changed.notify_all()
                self._wait()
                if self._closing and (self._given_up or not (self._pending or self._snapshot)):
                    return
                self._working = True
                self._urgent = False
                # A snapshot is of the state after an event that is there already.
                snapshot, self._snapshot = self._snapshot, None
                batch = [self._pending.popleft() for _ in range(len(self._pending))]
            first, self._taken = self._taken + 1, self._taken + len(batch)
            if not self._write_at_last(first, batch, snapshot):
                return
            self._mark(first, batch)
            for item in batch:
                if isinstance(item, tuple):
                    for order in item[2]:
                        order()

    def _mark(self, first: int, batch: Sequence[_Pending]) -> None:
        """Note outside the journal up to where it must be whole, for what now is performed."""
        for at in range(len(batch) - 1, -1, -1):
            item = batch[at]
            if isinstance(item, tuple) and item[2]:
                with contextlib.suppress(OSError):  # a safeguard: the journal itself was written
                    if self._marks is None:
                        place = self.path.with_name(PERFORMED)
                        self._marks = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    os.pwrite(self._marks, b"%-20d\n" % (first + at), 0)
                return

    def _wait(self) -> None:
        """Wait, with the lock held, for something to write. What nobody waits for (events without
        orders) is left to come together for a moment."""
        # First the flag, then the look: an event that comes in between is seen or wakes us.
        self._asleep = True
        while not (self._pending or self._snapshot or self._closing):
            self._changed.wait()
        self._dozing = True
        self._asleep = False
        deadline = time.monotonic() + _DOZE
        while not (self._closing or self._flushing or self._snapshot):
            if self._urgent or len(self._pending) > _ENOUGH:
                break
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._changed.wait(left)
        self._dozing = False

    def _write_at_last(
        self, first: int, batch: Sequence[_Pending], snapshot: tuple[int, str, bytes] | None
    ) -> bool:
        """Write until that succeeds; false where it was given up."""
        delay = _RETRY_FIRST
        while True:
            try:
                self._write(first, batch, snapshot)
            except (sqlite3.Error, OSError, MemoryError) as error:
                if not self.in_trouble:
                    self._failed = words(error, self.path)
                    self.in_trouble = True
                    self._tell(self._failed)
                snapshot = None  # what it is good for is not worth the room that events need
                with self._changed:
                    self._changed.notify_all()
                    if not self._given_up:
                        self._changed.wait_for(lambda: self._given_up, delay)
                    if self._given_up:
                        self._working = False
                        return False
                delay = min(2 * delay, _RETRY_LONGEST)
                continue
            if self.in_trouble:
                self.in_trouble = False
                self._tell(None)
            return True

    def _tell(self, error: JournalError | None) -> None:
        if self.trouble is not None:
            self.trouble(error)

    def _write(
        self, first: int, batch: Sequence[_Pending], snapshot: tuple[int, str, bytes] | None
    ) -> None:
        statements: list[tuple[str, Sequence[object]]] = []
        values: list[object] = []
        for at in range(0, len(batch), _MOST_IN_LIST):
            part = batch[at : at + _MOST_IN_LIST]
            texts = [
                event_text(item[0], item[1]) if isinstance(item, tuple) else event_text(item)
                for item in part
            ]
            values += (first + at, first + at + len(part) - 1, list_text(texts))
        for at in range(0, len(values), 3 * _MOST_LISTS):
            some = values[at : at + 3 * _MOST_LISTS]
            statements.append((_insert(len(some) // 3), some))
        if snapshot is not None:
            seq, maker, state = snapshot
            statements.append(
                (
                    "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)",
                    (seq, maker, digest(state), state),
                )
            )
            statements.append((_FORGET_SNAPSHOTS, (_KEPT_SNAPSHOTS,)))
        if len(statements) == 1:
            # A statement by itself is a transaction, and one turn of waiting for the interpreter.
            self._connection.execute(*statements[0])
        else:
            self._transact(statements)


def _sync_folder(folder: Path) -> None:
    """Make sure that a file's name outlives a power cut."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return  # a file system that knows no such thing
    finally:
        os.close(descriptor)
