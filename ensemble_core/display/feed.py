"""Watcher of a run that passes events and decisions to the output thread."""

from __future__ import annotations

from collections.abc import Callable

from ensemble_core.display.console import is_relevant
from ensemble_core.display.output_thread import Output
from ensemble_core.engine.report import Report
from ensemble_core.model.decisions import Decision, Submit
from ensemble_core.model.events import Event, JobEvent, StopRequested
from ensemble_core.runtime.watcher import Watcher


class Feed(Watcher):
    """Passes events and decisions to the output thread, except events that need no line."""

    def __init__(self, output: Output, *, everything: bool) -> None:
        self._output = output
        self._everything = everything
        self.wants_ticks = output.block is not None
        #: Function that returns the lines of a results table, which are shown below the live table.
        self.table: Callable[[], list[str] | None] | None = None
        #: Ids of jobs that were submitted and are not over.
        self.active: set[str] = set()
        #: Function that is called once when the run stops, with True if jobs are left to the queue.
        self.announce: Callable[[bool], None] | None = None
        #: The last event that was not shown. If it leads to a decision, it is passed on before the
        #: decision, whose line needs the time of the event.
        self._skipped: Event | None = None

    # The engine's thread calls this class, so it does as little as possible.
    def event(self, event: Event) -> None:
        if type(event) is JobEvent:
            if event.name == "clean":
                self.active.discard(event.job)
        elif type(event) is StopRequested and self.announce is not None:
            self.announce(event.then == "keep")
        self._skipped = None
        if self._everything or is_relevant(event):
            self._output.put(event)
        else:
            self._skipped = event

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, Submit):
            self.active.update(job.id for job in decision.jobs)
        if self._skipped is not None:
            self._output.put(self._skipped)
            self._skipped = None
        self._output.put(decision)

    def tick(self, report: Report) -> None:
        if self._output.block is not None:
            self._output.block.report = report
            lines = None if self.table is None else self.table()
            if lines is not None:
                self._output.block.table = lines
