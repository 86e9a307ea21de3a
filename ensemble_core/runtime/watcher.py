"""Interface of watchers, which receive a live run's events, and the class of a run's outcome."""

from __future__ import annotations

from typing import Literal

from ensemble_core.engine.report import Report
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event
from ensemble_core.quick_dataclass import dataclass


class Watcher:
    """Receives the events and decisions of a run, for example to display them.

    The methods are called on the engine's thread, in order, and must be quick. If ``wants_ticks``
    is set, ``tick`` is called after changes, but at most every 0.2 s.
    """

    wants_ticks = False

    def event(self, event: Event) -> None:
        """Receive an event before the engine handles it."""

    def decision(self, decision: Decision) -> None:
        """Receive a decision before it is performed."""

    def tick(self, report: Report) -> None:
        """Receive a report on the current state of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a run when its controller exits."""

    exit_code: int
    reason: str
    natural: bool  #: True if the controller exited because nothing more could happen.
    seconds: float  #: Duration.
    report: Report
    tag: str
    over: bool = True  #: True if the run has ended; otherwise, it can be resumed.
    stopped: bool = False  #: True if the run was stopped and can be resumed.
    left: int = 0  #: Number of jobs that are still in the queue.

    @property
    def state(self) -> Literal["ended", "stopped", "limited", "interrupted"]:
        """The state of the run, as ``ensemble runs`` shows it."""
        if self.over or self.stopped:
            return "ended" if self.over else "stopped"
        if not self.natural:
            return "interrupted"
        return "limited" if self.exit_code == 4 else "stopped"
