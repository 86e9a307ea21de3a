"""Watcher that passes a run's events and decisions to the output thread."""

from __future__ import annotations

from collections.abc import Callable

from ensemble_core.display.console import interesting
from ensemble_core.display.output import Output
from ensemble_core.engine.report import Report
from ensemble_core.model.decisions import Decision, Submit
from ensemble_core.model.events import Event, JobEvent, StopRequested
from ensemble_core.runtime.watcher import Watcher

__all__ = ["Feed"]


class Feed(Watcher):
    """Passes events and decisions to the output thread, at minimal cost for the engine's thread."""

    def __init__(self, output: Output, *, everything: bool) -> None:
        self._output = output
        self._everything = everything
        self.wants_ticks = output.block is not None
        #: Makes the lines of a table of results below the live table.
        self.table: Callable[[], list[str] | None] | None = None
        #: Ids of jobs that are submitted and not yet over.
        self.active: set[str] = set()
        #: Tells, once, that the run stops and whether its jobs are left to the queue.
        self.announce: Callable[[bool], None] | None = None
        #: The last event that was not shown. It is shown before a decision that follows from it, so
        #: that the decision has a time.
        self._untold: Event | None = None

    def event(self, event: Event) -> None:
        if isinstance(event, JobEvent) and event.name == "clean":
            self.active.discard(event.job)
        if isinstance(event, StopRequested) and self.announce is not None:
            self.announce(event.then == "keep")
        self._untold = None
        if self._everything or interesting(event):
            self._output.put(event)
        else:
            self._untold = event

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, Submit):
            self.active.update(job.id for job in decision.jobs)
        if self._untold is not None:
            self._output.put(self._untold)
            self._untold = None
        self._output.put(decision)

    def tick(self, report: Report) -> None:
        if self._output.block is not None:
            self._output.block.report = report
            lines = None if self.table is None else self.table()
            if lines is not None:
                self._output.block.table = lines
