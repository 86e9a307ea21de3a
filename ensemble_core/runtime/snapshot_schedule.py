"""Writes snapshots of the engine's state to the journal, and decides when."""

from __future__ import annotations

from collections.abc import Callable

from ensemble_core.engine.engine import Engine
from ensemble_core.journal.snapshot_encoding import dump
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.metrics.statistic_state import NoState

#: A snapshot is due after ``_SNAPSHOT_EVERY`` events, but not before ``_SNAPSHOT_SHARE`` events for
#: each job in the table. Snapshots thus cost a bounded share of the time that events take.
_SNAPSHOT_EVERY, _SNAPSHOT_SHARE = 15_000, 20


class Snapshots:
    """Writes the snapshots of a run.

    - ``maker``: the versions of Ensemble, Python and plugins. Only the same versions can read the
      snapshots.
    - ``warn``: called once if a snapshot cannot be made.
    """

    def __init__(
        self, journal: JournalWriter, engine: Engine, maker: str, warn: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._engine = engine
        self._maker = maker
        self._warn = warn
        self._told = False
        #: Number of events since the last snapshot, and the number at which the next one is due.
        self._since = 0
        self._next = _SNAPSHOT_EVERY

    def count(self) -> None:
        """Count an event that was appended to the journal, and write a snapshot if one is due."""
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
        """Write a last snapshot, so that a finished run can be shown without replaying its
        events.
        """
        # After an exception, the state may include an event that is not in the journal.
        if self._since and self._engine.state.events == self._journal.seq:
            self._write()

    def _write(self) -> None:
        try:
            self._journal.snapshot(self._maker, dump(self._engine))
        except NoState as error:
            if not self._told:
                self._told = True
                self._warn(f"{error}\n  a resume will be slower: it handles every event again")
