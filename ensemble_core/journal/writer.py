"""Writes the journal of a run: a thread commits new events in groups (group commit).

If the writing thread is idle, and no order needs a synced journal, the engine's thread commits an
event with orders itself: a hand-over to another thread would take longer than the commit.

Before a decision is carried out, it is at least as durable as its effect. By default, each commit
is synced, so that it survives a power cut. With :meth:`JournalWriter.sync_late`, a commit is only
written: it survives the death of every process, and is synced a moment later, or at once before an
effect that survives a power cut.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ensemble_core.journal.damage_detection import (
    Progress,
    add_functions,
    list_checksum,
    read_progress,
    sum_of,
)
from ensemble_core.journal.database import (
    LOCK_WAIT,
    PERFORMED,
    JournalError,
    connect,
    journal_error,
    storable,
)
from ensemble_core.journal.event_encoding import event_text, list_text
from ensemble_core.journal.job_rows import JobRow, JobRowWriter, read_layouts
from ensemble_core.journal.reader import FileVersion, Snapshot, digest
from ensemble_core.journal.run_folder import STOP_MARK
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event
from ensemble_core.posix import sync_folder

#: Maximum number of events in a list. A damaged byte affects a whole list.
_MOST_IN_LIST = 100
#: How many lists one SQL statement writes. Each statement has to wait once for the GIL, which the
#: engine's thread holds.
_MOST_LISTS = 50
#: How many events the engine's thread writes itself at most.
_MOST_HERE = 100
#: Back-pressure: the engine's thread waits while more events than this are not written yet.
_MOST_PENDING = 50_000
#: How many seconds events without orders wait, to share a commit with later events.
_PAUSE = 0.02
#: With ``sync_late``: for how many seconds a commit may stay unsynced.
_UNSYNCED = 0.2
#: Backoff after failed writes: the first and the longest wait, in seconds.
_RETRY_FIRST, _RETRY_LONGEST = 0.2, 5.0
_NEWEST_SESSION = "SELECT max(number) FROM sessions"
_KEPT_SNAPSHOTS = 2
_FORGET_SNAPSHOTS = (
    "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)"
)

#: An event with its decisions, its orders, and the jobs that ended with it.
_Entry = tuple[Event, Sequence[Decision], Sequence[Any], Sequence[JobRow]]
_Item = _Entry | Snapshot | Callable[[], object]


@cache
def _insert(lists: int) -> str:
    return "INSERT OR REPLACE INTO event_lists VALUES " + ",".join(["(?, ?, ?, ?, ?, ?)"] * lists)


class JournalWriter:
    """Writer of one journal.

    Raises :class:`JournalError` if the file cannot be created or opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Called with each order whose event is written, in sequence, by the thread that wrote it.
        self.perform: Callable[[Any], object] | None = None
        #: Called with the error if a write fails, and with ``None`` when writes work again.
        self.on_failure: Callable[[JournalError | None], None] | None = None
        #: Why the journal cannot be written at the moment, or ``None``.
        self.failure: JournalError | None = None
        try:
            new = not path.exists()
            self._connection = connect(path, write=True)
            if new:  # the names of the file and of new folders must survive a power cut
                for folder in [*path.absolute().parents][:4]:
                    sync_folder(folder)
            add_functions(self._connection)
            layouts = read_layouts(self._connection)
            self._job_rows = JobRowWriter({layout: number for number, layout in layouts.items()})
            row = self._connection.execute(
                "SELECT last, jobs, crc FROM event_lists ORDER BY first DESC LIMIT 1"
            ).fetchone()
        except (sqlite3.Error, OSError, ValueError) as error:
            raise journal_error(error, path) from error
        #: The columns ``jobs`` and ``crc`` of the last row of ``event_lists``.
        self.seq, self._jobs, self._crc = map(int, row) if row else (0, 0, 0)
        #: The number of the last event on disk.
        self._written = self.seq
        #: The progress that is stored outside the journal.
        self._progress = read_progress(path.parent)
        self._progress_file: int | None = None
        #: With ``sync_late``: which orders need a synced journal, a descriptor of the write-ahead
        #: log, and when it has to be synced (monotonic seconds; ``None`` if it is synced).
        self._lasting: Callable[[Any], bool] | None = None
        self._log: int | None = None
        self._sync_at: float | None = None
        #: The number of the last event that had orders.
        self._ordered = self._progress.performed
        #: What is not written yet. Items are entries, snapshots, functions to call when all earlier
        #: items are done, and ``None`` to end the thread. The engine's thread appends items; they
        #: are removed only under the lock ``_writing``.
        self._items: deque[_Item | list[_Item] | None] = deque()
        self._writing = threading.RLock()
        #: True while the writing thread waits for something in ``_wakeups``.
        self._idle = False
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        #: Items that are being collected for one transaction; ``None`` at other times.
        self._unit: list[_Item] | None = None
        #: Set if the writing thread should write queued items without a pause.
        self._wake_early = threading.Event()
        #: Set if the writing thread should abandon items that are not written.
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None

    # -- before and after the events -----------------------------------------------------------

    def _execute(self, table: str, *statements: tuple[str, Sequence[object]]) -> None:
        """Change a small table in one transaction. Raises :class:`JournalError` if that fails."""
        try:
            self._transact((*statements, (sum_of(table), ())))
        except (sqlite3.Error, OSError) as error:
            raise journal_error(error, self.path) from error

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
        """Store a description of the run. Existing keys are replaced."""
        self._execute(
            "about",
            *(
                ("INSERT OR REPLACE INTO about VALUES (?, ?)", (key, json.dumps(value)))
                for key, value in about.items()
            ),
        )

    def store_file_version(
        self,
        file: str,
        text: str,
        overrides: Sequence[str],
        attached: Mapping[str, str] | None = None,
    ) -> None:
        """Store the version of the ensemble file that applies from now on, with the texts of
        attached files.
        """
        given = FileVersion(self.seq, file, text, tuple(overrides), attached).given()
        self._execute(
            "texts",
            (
                "INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)",
                (self.seq, storable(file), text, given),
            ),
        )

    def forget_snapshots(self) -> None:
        """Remove all snapshots because one is damaged. They can be rebuilt from the events."""
        try:
            self._connection.execute("DELETE FROM snapshots")
        except sqlite3.Error as error:
            raise journal_error(error, self.path) from error

    def begin(self, now: float, versions: Mapping[str, str]) -> None:
        """Start a session and the writing thread, when a controller takes over the run."""
        who = (socket.gethostname(), os.getpid(), json.dumps(dict(versions)))
        self._execute(
            "sessions",
            (
                "INSERT INTO sessions VALUES (NULL, ?, ?, ?, ?, ?, NULL, NULL)",
                (self.seq, now, *who),
            ),
        )
        if self._progress.committed > self.seq:
            # Missing events have been reported. Keep the number of the last event whose decisions
            # were carried out, because these cannot be undone.
            self._note(self._progress._replace(committed=self.seq), sync=True)
        thread = threading.Thread(target=self._main, name="journal", daemon=True)
        thread.start()
        self._thread = thread  # only now: a Ctrl-C must not leave an unstarted thread

    def sync_late(self, lasting: Callable[[Any], bool]) -> None:
        """From now on, sync only before orders for which ``lasting`` is true, before the functions
        of :meth:`then`, at the end, and 0.2 seconds after a commit.

        All other orders may have no effect that survives a power cut. On a network file system,
        each commit is synced nevertheless.
        """

        def start() -> None:
            (mode,) = self._connection.execute("PRAGMA journal_mode").fetchone()
            if mode == "wal":
                name = self.path.with_name(f"{self.path.name}-wal")
                with contextlib.suppress(OSError):  # then each commit is synced
                    self._log = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
                    self._connection.execute("PRAGMA synchronous=NORMAL")
                    self._set_lock_wait(0.0)
                    self._lasting = lasting

        self._put(start)

    def end(self, now: float, outcome: Mapping[str, Any]) -> None:
        """Write all events and end the session, when the controller exits.

        Raises :class:`JournalError` if the events cannot be written. The session then has no end.
        """
        if not self.stop(None):
            raise self.failure or JournalError(
                f"the newest events are not in the journal: {self.path}",
                hint="free some space; then 'ensemble resume' continues after the journal's last "
                "event",
                code="journal",
            )
        self._execute(
            "sessions",
            (
                f"UPDATE sessions SET ended = ?, outcome = ? WHERE number = ({_NEWEST_SESSION})",
                (now, json.dumps(dict(outcome))),
            ),
        )

    def close(self) -> None:
        """Close the file. Events that are not written are abandoned."""
        self.stop(0.0)
        for descriptor in (self._progress_file, self._log):
            if descriptor is not None:
                os.close(descriptor)
        self._progress_file = self._log = None
        try:
            self._connection.close()
        except sqlite3.Error:
            return  # the failed write has been reported

    # -- the engine's thread -------------------------------------------------------------------

    def append(
        self,
        event: Event,
        decisions: Sequence[Decision],
        orders: Sequence[Any] = (),
        over: Sequence[JobRow] = (),
    ) -> None:
        """Queue an event with its decisions, its orders, and the jobs that ended with it.

        With :meth:`sync_late`, an event with orders may be written at once, and its orders
        passed on.
        """
        self.seq += 1
        entry = (event, decisions, orders, over)
        if self._unit is not None:
            self._unit.append(entry)
            return
        self._items.append(entry)
        if orders:
            if self._write_here():
                return
            self._wake_early.set()
        self._wake()
        while len(self._items) > _MOST_PENDING and not self.failure:
            time.sleep(0.001)

    def _write_here(self) -> bool:
        """Write all items on this thread, and pass their orders on.

        Return False if the writing thread has to do that: it is busy, something has to be synced,
        there is more than a few entries, or the write fails.
        """
        if (
            self._lasting is None
            or self.failure
            or len(self._items) > _MOST_HERE
            or not self._writing.acquire(blocking=False)
        ):
            return False
        try:
            batch = [item for item in self._items if isinstance(item, tuple)]
            if (
                len(batch) < len(self._items)
                or self._written + len(batch) < self.seq  # the thread has failed: some are missing
                or any(any(map(self._lasting, entry[2])) for entry in batch)
            ):
                return False
            try:
                self._write(self._written + 1, batch, None)
            except Exception:
                return False  # the writing thread tries again, and reports it
            for _ in batch:
                self._items.popleft()
            if self._sync_at is None:
                self._sync_at = time.monotonic() + _UNSYNCED
                self._wake()
            self._perform(self._count(batch))
            return True
        finally:
            self._writing.release()

    def _wake(self) -> None:
        """Wake the writing thread, if it waits."""
        if self._idle:
            self._idle = False
            self._wakeups.put(None)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all events that are appended within the ``with`` block in one transaction."""
        unit: list[_Item] = []
        self._unit = unit
        try:
            yield
        finally:
            self._unit = None
            self._items.append(unit)
            self._wake_early.set()
            self._wake()

    def snapshot(self, maker: str, state: bytes) -> None:
        """Queue a snapshot of the state after the last event."""
        self._put(Snapshot(self.seq, maker, state))

    def then(self, call: Callable[[], object]) -> None:
        """Call a function on the writing thread when all earlier events are synced."""
        self._put(call)

    def _put(self, item: _Item) -> None:
        if self._unit is not None:
            self._unit.append(item)
        else:
            self._items.append(item)
            self._wake()

    @property
    def stop_mark(self) -> Path:
        """The file beside the journal that records what :meth:`mark_stop` says."""
        return self.path.with_name(STOP_MARK)

    def mark_stop(self) -> bool:
        """Record that a stop cancels the jobs although the journal cannot be written.

        An empty file needs no space. Return False if even this is impossible.
        """
        try:
            self.stop_mark.touch()
            sync_folder(self.path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                self.stop_mark.unlink()
            return False
        return True

    def flush(self, timeout: float | None) -> bool:
        """Wait until all events are synced and their orders were passed on.

        Return False after ``timeout`` seconds. If ``timeout`` is ``None``, return False when the
        journal cannot be written.
        """
        if self._thread is None:
            return not self._items
        done = threading.Event()
        self._items.append(done.set)
        self._wake_early.set()
        self._wake()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._given_up.is_set() and self._thread.is_alive():
            left = 0.2 if deadline is None else deadline - time.monotonic()
            if left <= 0 or (deadline is None and self.failure):
                break
            if done.wait(min(left, 0.2)):
                break
        return done.is_set()

    def stop(self, timeout: float | None) -> bool:
        """Write all events and end the writing thread. Return True if all events were written."""
        thread = self._thread
        if thread is None:
            return True
        written = self.flush(timeout)
        if not written:
            self._given_up.set()
        self._items.append(None)
        self._wake_early.set()
        self._wake()
        thread.join()
        self._thread = None
        if self._lasting is not None:
            self._lasting = None
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA synchronous=FULL")
            self._set_lock_wait(LOCK_WAIT)
        return written

    # -- the writing thread --------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._write_next():
                pass
        except Exception as error:  # callers must not wait for a dead thread
            self._given_up.set()
            self._report(
                JournalError(
                    f"the journal's writer has failed: {self.path}",
                    cause=repr(error),
                    hint="this is an internal error in Ensemble or a plugin; please report it",
                    code="broken",
                )
            )

    def _write_next(self) -> bool:
        """Wait for items, write all that are queued, and pass their orders on.

        Return False after the last item.
        """
        self._wait()
        self._wake_early.wait(_PAUSE)
        self._wake_early.clear()
        batch: list[_Entry] = []
        calls: list[Callable[[], object]] = []
        snapshot: Snapshot | None = None
        going = True
        with self._writing:
            items = deque(self._items.popleft() for _ in range(len(self._items)))
            while items:
                item = items.popleft()
                if isinstance(item, tuple):  # nearly always
                    batch.append(item)
                elif isinstance(item, list):
                    items.extendleft(reversed(item))
                elif isinstance(item, Snapshot):
                    snapshot = item
                elif item is None:
                    going = False
                else:
                    calls.append(item)
            if (batch or snapshot is not None) and not (
                self._write_with_retries(batch, snapshot) and self._order(batch)
            ):
                return False
        late = self._sync_at is not None and time.monotonic() >= self._sync_at
        if (calls or late or not going) and not self._sync():
            return False
        for call in calls:
            call()
        return going

    def _wait(self) -> None:
        """Wait for an item. Sync the journal meanwhile, if that is due."""
        while True:
            self._idle = True
            if self._items:
                break
            with contextlib.suppress(Empty):
                timeout = None
                if self._sync_at is not None:
                    timeout = max(0.0, self._sync_at - time.monotonic())
                self._wakeups.get(timeout=timeout)
            if self._sync_at is not None and time.monotonic() >= self._sync_at:
                self._sync()
        self._idle = False

    def _count(self, batch: Sequence[_Entry]) -> list[Any]:
        """Count events that are written now. Return their orders."""
        first, self._written = self._written + 1, self._written + len(batch)
        all_orders = list[Any]()
        for seq, (_, _, orders, _) in enumerate(batch, first):
            if orders:
                self._ordered = seq
                all_orders += orders
        return all_orders

    def _order(self, batch: Sequence[_Entry]) -> bool:
        """Pass on the orders of events that are written now. Return False if that was abandoned."""
        orders = self._count(batch)
        if self._lasting is not None and self._sync_at is None:
            self._sync_at = time.monotonic() + _UNSYNCED
        if (self._lasting is None or any(map(self._lasting, orders))) and not self._sync():
            return False
        self._perform(orders)
        return True

    def _perform(self, orders: Sequence[Any]) -> None:
        for order in orders:
            assert self.perform is not None
            self.perform(order)

    def _sync(self) -> bool:
        """Sync all commits, and then note the progress, to detect a truncated journal later.

        Return False if that was abandoned.
        """
        with self._writing:
            unsynced, self._sync_at = self._sync_at is not None, None
            progress = Progress(self._ordered, self._written)
        # The engine's thread may commit more during the sync, and then wants another one.
        if unsynced and not self._until_done(self._sync_log):
            return False
        if progress != self._progress:
            self._note(progress)
        return True

    def _sync_log(self) -> None:
        assert self._log is not None
        if self.failure:
            # After a failed sync, the system may drop the data and report that the next sync has
            # worked. Copy all data to the database, which writes and syncs them again.
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            if busy:
                raise sqlite3.OperationalError("database is locked: a command reads the journal")
        else:
            os.fdatasync(self._log)

    def _note(self, progress: Progress, *, sync: bool = False) -> None:
        """Store the progress outside the journal."""
        self._progress = progress
        with contextlib.suppress(OSError):  # the progress is only a safeguard
            if self._progress_file is None:
                path = self.path.with_name(PERFORMED)
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
                self._progress_file = os.open(path, flags, 0o600)
            os.pwrite(self._progress_file, progress.text(), 0)
            if sync:
                os.fsync(self._progress_file)

    def _write_with_retries(self, batch: Sequence[_Entry], snapshot: Snapshot | None) -> bool:
        """Write a batch, and retry until it succeeds. Return False if the write was abandoned."""
        # After a failure, skip the snapshot: events need the space.
        return self._until_done(
            lambda: self._write(
                self._written + 1, batch, None if self.failure is not None else snapshot
            )
        )

    def _until_done(self, act: Callable[[], None]) -> bool:
        """Retry an access to the file until it succeeds. Return False if that was abandoned."""
        delay = _RETRY_FIRST
        while not self._given_up.is_set():
            try:
                self._wait_for_locks(act)
            except (sqlite3.Error, OSError, MemoryError) as error:
                if not self.failure:
                    self._report(journal_error(error, self.path))
                self._given_up.wait(delay)
                delay = min(2 * delay, _RETRY_LONGEST)
                continue
            if self.failure:
                self._report(None)
            return True
        return False

    def _wait_for_locks(self, act: Callable[[], None]) -> None:
        """Access the file. If another program locks it, wait for that program.

        With :meth:`sync_late`, SQLite itself does not wait, because the engine's thread must not.
        """
        try:
            act()
        except sqlite3.OperationalError as error:
            if self._lasting is None or "locked" not in str(error):
                raise
            self._set_lock_wait(LOCK_WAIT)
            try:
                act()
            finally:
                self._set_lock_wait(0.0)

    def _set_lock_wait(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout={seconds * 1000:.0f}")

    def _report(self, error: JournalError | None) -> None:
        self.failure = error
        if self.on_failure is not None:
            self.on_failure(error)

    def _write(self, first: int, batch: Sequence[_Entry], snapshot: Snapshot | None) -> None:
        statements: list[tuple[str, Sequence[object]]] = []
        rows = [row for entry in batch for row in entry[3]]
        ends = [seq for seq, entry in enumerate(batch, first) for _ in entry[3]]
        jobs, crc = self._jobs, self._crc
        of_rows: Sequence[tuple[str, Sequence[object]]] = ()
        if rows:
            of_rows, added = self._job_rows.statements(rows, ends)
            jobs += added
        values: list[object] = []
        for at in range(0, len(batch), _MOST_IN_LIST):
            part = batch[at : at + _MOST_IN_LIST]
            start, end = first + at, first + at + len(part) - 1
            text = list_text([event_text(event, decisions) for event, decisions, _, _ in part])
            previous, crc = crc, list_checksum(start, end, jobs, text)
            values += (start, end, text, jobs, previous, crc)
        for at in range(0, len(values), 6 * _MOST_LISTS):
            some = values[at : at + 6 * _MOST_LISTS]
            statements.append((_insert(len(some) // 6), some))
        if snapshot is not None:
            sql = "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)"
            values = [snapshot.seq, snapshot.maker, digest(snapshot), snapshot.state]
            statements.append((sql, values))
            statements.append((_FORGET_SNAPSHOTS, (_KEPT_SNAPSHOTS,)))
        statements += of_rows
        if len(statements) == 1:
            # A single statement is a transaction by itself, and it waits only once for the GIL.
            self._connection.execute(*statements[0])
        else:
            self._transact(statements)
        self._jobs, self._crc = jobs, crc
        if rows:
            self._job_rows.written()
