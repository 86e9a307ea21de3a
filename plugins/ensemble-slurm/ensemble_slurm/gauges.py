"""Gauges of the cluster's nodes, from a periodic ``sinfo``. Used in the loop's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ensemble_batch import CommandResult

from ensemble_slurm.commands import Then
from ensemble_slurm.parse import SINFO, read_nodes

__all__ = ["Gauges", "sinfo"]

#: Seconds between looks, at least; and from the end of a job to a look that is due.
_LEAST, _SOON = 10.0, 1.0
_DEADLINE = 60.0


class Owner(Protocol):
    """The parts of the loop that the gauges need."""

    def after(self, seconds: float, what: Callable[[], None]) -> None: ...

    def ask(self, words: Sequence[str], deadline: float, then: Then) -> None: ...

    def moved(self, before: Mapping[str, float], now: Mapping[str, float]) -> None: ...


def sinfo(partition: str | None) -> list[str]:
    """The command that asks for the nodes, of one partition or of all."""
    words = ["sinfo", "--noheader", "--Node", f"--Format={SINFO}"]
    return words if partition is None else [*words, f"--partition={partition}"]


class Gauges:
    """Looks every ``period`` seconds. ``values`` are replaced, never changed."""

    def __init__(
        self, owner: Owner, partition: str | None, period: float, values: Mapping[str, float]
    ) -> None:
        self._owner = owner
        self._command = sinfo(partition)
        self._period = max(period, _LEAST)
        self._looked = time.monotonic()
        self.values = values

    def begin(self) -> None:
        """Look now and then from here on."""
        self._owner.after(self._period, self._regular)

    def stale(self) -> None:
        """A job has ended, so that what is free has changed."""
        if time.monotonic() - self._looked > self._period:
            self._looked = time.monotonic()
            self._owner.after(_SOON, self._look)

    def _regular(self) -> None:
        if time.monotonic() - self._looked > self._period / 2:
            self._look()
        self._owner.after(self._period, self._regular)

    def _look(self) -> None:
        self._looked = time.monotonic()
        self._owner.ask(self._command, _DEADLINE, self._take)

    def _take(self, done: CommandResult) -> None:
        if not done.good:
            return
        values = read_nodes(done.out)
        before, self.values = self.values, values
        self._owner.moved(before, values)
