"""Kill points: places in a controller where a crash test can kill it.

:func:`instrument` replaces functions of the controller at run time, so its code has no hooks for
tests. At each kill point, the instrumented controller calls :func:`reach`.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.state_validation import validate
from ensemble_core.journal import database, writer
from ensemble_core.journal.lock import Lock
from ensemble_core.model.events import Resumed
from ensemble_core.runtime import controller as runtime
from ensemble_core.runtime import function_calls as calling
from ensemble_core.runtime import orders, resumption, snapshot_schedule
from ensemble_core.session import controlled_run, resume

_lock = threading.Lock()
_kind: str | None = None
_number = 0
_total = 0
#: Number of times that each place was reached.
reached: Counter[str] = Counter()


def kill_at(kind: str | None, number: int) -> None:
    """Kill this process when it reaches the place ``kind`` for the ``number``-th time.

    If ``kind`` is ``None``, all places count. If ``number`` is 0, the process is not killed.
    """
    global _kind, _number
    _kind, _number = kind, number


def reach(kind: str) -> None:
    """Count a visit of this place, and kill the process if :func:`kill_at` says so."""
    global _total
    with _lock:
        reached[kind] += 1
        _total += 1
        if _number and _number == (_total if _kind is None else reached[kind] * (kind == _kind)):
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


class _Connection:
    """A connection to a journal, with kill points before, during and after each write."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        word = sql.split()[0]
        if word in ("SELECT", "PRAGMA"):
            return self._connection.execute(sql, values)
        reach(f"before {word}")
        if word in ("INSERT", "UPDATE") and not self._connection.in_transaction:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                cursor = self._connection.execute(sql, values)
                reach(f"uncommitted {word}")
        else:
            cursor = self._connection.execute(sql, values)
        reach(f"after {word}")
        return cursor


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _wrap_connect(original: Callable[..., sqlite3.Connection]) -> Callable[..., _Connection]:
    return lambda *args, **options: _Connection(original(*args, **options))


def _add_kill_points(owner: Any, name: str, label: str) -> None:
    """Add kill points before and after each call of ``owner.name``."""
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        reach(f"before {label}")
        result = original(*args, **kwargs)
        reach(f"after {label}")
        return result

    setattr(owner, name, wrapped)


def _wrap_append(original: Callable[..., None]) -> Callable[..., None]:
    def append(*given: Any) -> None:
        original(*given)
        reach("appended")

    return append


def _pause_decorator(pause: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a pause after each write, so that more events gather for the
    next.
    """

    def paused(original: Callable[..., None]) -> Callable[..., None]:
        def write(*given: Any) -> None:
            original(*given)
            time.sleep(pause)

        return write

    return paused


def _wrap_handle(original: Callable[..., Any]) -> Callable[..., Any]:
    def handle(self: Any, event: Any, **how: Any) -> Any:
        if type(event) is not Resumed:
            return original(self, event, **how)
        reach("before Resumed")
        decisions = original(self, event, **how)
        reach("after Resumed")
        return decisions

    return handle


def _wrap_engine(original: Callable[..., Any]) -> Callable[..., Any]:
    def handle(self: Engine, event: Any) -> Any:
        decisions = original(self, event)
        validate(self.state)
        return decisions

    return handle


def instrument(chance: random.Random) -> None:
    """Add the kill points, and vary the intervals of commits and snapshots.

    If the variable ``ENSEMBLE_VALIDATE`` is set, the engine's state is validated after each event.
    """
    if os.environ.get("ENSEMBLE_VALIDATE"):
        _replace(Engine, "handle", _wrap_engine)
    pause = chance.choice((0.0, 0.005, 0.02))
    writer._MOST_IN_LIST = chance.choice((1, 3, writer._MOST_IN_LIST))
    snapshot_schedule._SNAPSHOT_EVERY = chance.choice((3, 20, snapshot_schedule._SNAPSHOT_EVERY))
    snapshot_schedule._SNAPSHOT_SHARE = 0
    orders._FORGET_AT_ONCE = chance.choice((1, 4, orders._FORGET_AT_ONCE))
    orders._FORGET_AFTER = chance.choice((0.0, orders._FORGET_AFTER))
    if chance.random() < 0.3:
        _replace(database, "shared_storage", lambda original: lambda path: "nfs4")
    _replace(writer, "connect", _wrap_connect)
    _replace(writer.JournalWriter, "append", _wrap_append)
    _replace(writer.JournalWriter, "_write", _pause_decorator(pause))
    _replace(runtime.Runtime, "_handle", _wrap_handle)
    for owner, name, label in (
        (writer.JournalWriter, "begin", "the session"),
        (writer.JournalWriter, "end", "the session's end"),
        (writer.JournalWriter, "_write", "a write"),
        (orders.Performer, "perform", "an order"),
        (runtime.Runtime, "_begin", "the first event"),
        (resumption.Resumption, "seek", "the search for jobs"),
        (orders.Performer, "_submit", "a submit"),
        (orders.Performer, "_cancel", "a cancel"),
        (orders.Performer, "_resize", "a resize"),
        (snapshot_schedule, "dump", "a snapshot"),
        (calling.Caller, "_perform", "a call"),
        (Lock, "acquire", "the lock"),
        (Lock, "release", "the lock's release"),
        (controlled_run.ControlledRun, "begin", "keeping"),
        (resume, "_prepare", "the run's preparation"),
    ):
        _add_kill_points(owner, name, label)
    _instrument_batch_queues()


def _instrument_batch_queues() -> None:
    """Add kill points around the records of an executor on ensemble-batch: for example between the
    record of a batch and that of its ids.
    """
    try:
        from ensemble_batch import Records
    except ImportError:
        return
    for name, label in (
        ("send", "the record of a batch"),
        ("accept", "the record of a batch's ids"),
        ("tell", "the record of events"),
        ("cancel", "the record of a cancel"),
    ):
        _add_kill_points(Records, name, label)
