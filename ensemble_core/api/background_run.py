"""A live run in a thread of this process.

The run logs its events at level INFO and problems at level WARNING, with the logger ``ensemble``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TextIO, cast

from ensemble_core.display.event_lines import Narrator
from ensemble_core.display.output_thread import Feed, Output
from ensemble_core.display.text_style import TextStyle
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.request_files import RequestInbox
from ensemble_core.plugin.discovery import use_registry
from ensemble_core.plugin.python_callables import Program
from ensemble_core.runtime.controller import STOPPED, Outcome
from ensemble_core.session.interrupts import How, Interrupts
from ensemble_core.session.prepared_run import PreparedRun

_LOG = logging.getLogger("ensemble")


class _LogStream:
    """Text stream that writes each line to the log."""

    def __init__(self, level: int) -> None:
        self._level = level

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                _LOG.log(self._level, "%s", line.strip())
        return len(text)

    def flush(self) -> None:
        """Do nothing, because each line is logged immediately."""


class Task:
    """A live run in its own thread.

    Raises :class:`UsageError` if functions of the file cannot be loaded. In that case, nothing was
    submitted.
    """

    def __init__(self, run: PreparedRun, program: Program) -> None:
        self.ensemble = ensemble = run.ensemble
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._kept = run.kept
        self._registry = run.registry
        self._waiting: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        plain = TextStyle(unicode=True)
        narrator = Narrator(ensemble, plain, plain)

        self._output = Output(
            narrator.tell,
            cast("TextIO", _LogStream(logging.INFO)),
            cast("TextIO", _LogStream(logging.WARNING)),
            redirects=False,
        )
        feed = Feed(self._output, everything=False)
        for record in run.engine.state.table.records.values() if run.engine is not None else ():
            feed.active.add(record.job.id)
            narrator.know(record.job, record.files, asked=record.cancel != "none")
        self.runtime = run.runtime([feed], program=program)
        self._thread = threading.Thread(target=self._main, name=f"ensemble run {run.tag}")

    def start(self) -> None:
        """Start the run's thread. It is no daemon: the run continues if the main thread ends."""
        for text in self.ensemble.warnings:
            _LOG.warning("%s", text)
        self._thread.start()

    def stop(self, reason: str, exit_code: int = STOPPED, how: How = "stop") -> None:
        """Request that the run stops, ends or, with ``leave``, exits without waiting for its
        jobs.
        """
        ended = self.runtime.ended
        if how == "leave" or ended is None or (how == "end" and ended.stopped):
            self.runtime.stop(reason, exit_code, end=how == "end", drain=how == "drain")

    def call_when_done(self, function: Callable[[], None]) -> None:
        """Call ``function`` on the run's thread when the run ends, or immediately if it is over."""
        with self._lock:
            if not self.done.is_set():
                self._waiting.append(function)
                return
        function()

    def join(self, timeout: float | None) -> None:
        """Wait until the run's thread ends, which is after the run is over."""
        self._thread.join(timeout)

    def _main(self) -> None:
        kept = self._kept

        try:
            with (
                use_registry(self._registry, threads=True),
                kept if kept is not None else contextlib.nullcontext(),
                self._output,
            ):
                try:
                    folder = kept.folder if kept is not None else None
                    inbox = (
                        RequestInbox(folder, self.runtime.request) if folder is not None else None
                    )
                    with Interrupts(self.stop, folder, inbox):
                        self.outcome = self.runtime.run()
                finally:
                    problem = kept.end(self.outcome) if kept is not None else None
                    if problem is not None:
                        _LOG.warning("%s", problem)
        except BaseException as error:  # wait() and await raise the error
            self.error = error
        with self._lock:
            self.done.set()
            waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()

    def raise_error(self) -> None:
        """Raise the error that ended the run, if any."""
        error = self.error
        if error is None:
            return
        if isinstance(error, EnsembleError):
            raise error.with_traceback(None)
        raise error
