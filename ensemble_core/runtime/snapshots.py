"""Snapshots in time: when the controller has the engine's state written beside its events.

Used by the controller, on the thread that owns the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from ensemble_core.engine.engine import Engine
from ensemble_core.journal.snapshot import dump
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.metrics.statistic_state import NoState

__all__ = ["Snapshots"]

#: Events between looks whether a snapshot is due, and how many there must have been since the last
#: for each job in the table: the cost of snapshots stays a share of the cost of events.
_SNAPSHOT_EVERY, _SNAPSHOT_SHARE = 15_000, 20


class Snapshots:
    """The snapshots of one run. ``maker`` says what can read them; ``warn`` tells, once, why there
    are none."""

    def __init__(
        self, journal: JournalWriter, engine: Engine, maker: str, warn: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._engine = engine
        self._maker = maker
        self._warn = warn
        self._told = False
        #: Events since the last one, and how many there are to be before the next.
        self._since = 0
        self._next = _SNAPSHOT_EVERY

    def count(self) -> None:
        """An event was appended: keep the engine's state, where that is not more work than the
        events since the last time."""
        self._since += 1
        if self._since < self._next:
            return
        least = _SNAPSHOT_SHARE * self._engine.busy
        if self._since < least:
            self._next = least
            return
        self._write()
        self._since, self._next = 0, _SNAPSHOT_EVERY

    def last(self) -> None:
        """At the end, so that looking at a run that is over needs no history."""
        # An event that broke off may be in the state, but is not on record.
        if self._since and self._engine.state.events == self._journal.seq:
            self._write()

    def _write(self) -> None:
        try:
            self._journal.snapshot(self._maker, dump(self._engine))
        except NoState as error:
            if not self._told:
                self._told = True
                self._warn(f"{error}\n  a resume will handle every event again, which takes longer")
