"""Watchers of a run, and its outcome.

``display.feed`` implements the watcher for the console, the live table and ``--json``. The commands
and the Python API read the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ensemble_core.engine.report import Report
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event
from ensemble_core.model.value import Value

__all__ = ["Outcome", "Watcher"]


class Watcher:
    """Receives the events and decisions of a run, as the console and progress displays do.

    The methods are called on the engine's thread, in order, and must be quick. If ``wants_ticks``
    is set, ``tick`` is called at most every 0.2 s, and only after changes.
    """

    wants_ticks = False

    def event(self, event: Event) -> None:
        """Receive an event before the engine handles it."""

    def decision(self, decision: Decision) -> None:
        """Receive a decision before it is performed."""

    def tick(self, report: Report) -> None:
        """Receive the state of the run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Outcome(Value):
    """How a controller ended or left a run. ``seconds`` is the duration.

    ``natural`` is true if the run ended because nothing more could happen, ``over`` if nothing is
    left to do, and ``stopped`` if the run can be resumed. ``left`` is the number of jobs that are
    still in the queue.
    """

    exit_code: int
    reason: str
    natural: bool
    seconds: float
    report: Report
    tag: str
    over: bool = True
    stopped: bool = False
    left: int = 0

    @property
    def state(self) -> Literal["ended", "stopped", "limited", "interrupted"]:
        """The state as ``ensemble runs`` shows it."""
        if self.over or self.stopped:
            return "ended" if self.over else "stopped"
        if not self.natural:
            return "interrupted"
        return "limited" if self.exit_code == 4 else "stopped"
