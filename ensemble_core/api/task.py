"""A live run in a thread of this process.

The run logs its events at level INFO and problems at level WARNING, with the logger ``ensemble``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from ensemble_core.display.console import Narrator, OutputLine
from ensemble_core.display.feed import Feed
from ensemble_core.display.output import Output
from ensemble_core.display.text_style import TextStyle
from ensemble_core.engine.engine import Engine
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.request_files import RequestInbox
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event
from ensemble_core.plugin.discovery import use_registry
from ensemble_core.plugin.executor import Executor
from ensemble_core.plugin.program import Program
from ensemble_core.plugin.registry import Registry
from ensemble_core.runtime.controller import STOPPED, Outcome, Runtime
from ensemble_core.session.interrupts import How, Interrupts
from ensemble_core.session.run_control import ControlledRun

if TYPE_CHECKING:
    from ensemble_core.journal.earlier_jobs import EarlierJobs
    from ensemble_core.model.decisions import Decision

__all__ = ["Task"]

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

    def __init__(
        self,
        ensemble: Ensemble,
        registry: Registry,
        executor: Executor,
        *,
        name: str,
        tag: str,
        run_id: str,
        output: Path,
        program: Program,
        kept: ControlledRun | None,
        engine: Engine | None = None,  # of a resumed run: recovered from the journal
        earlier: EarlierJobs | None = None,  # jobs of the runs that this run reuses
    ) -> None:
        self.ensemble = ensemble
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._kept = kept
        self._registry = registry
        self._waiting: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        plain = TextStyle(unicode=True)
        narrator = Narrator(ensemble, plain, plain)

        def tell(item: Event | Decision) -> Iterator[OutputLine]:
            return narrator.tell(item)

        self._output = Output(
            tell,
            cast("TextIO", _LogStream(logging.INFO)),
            cast("TextIO", _LogStream(logging.WARNING)),
            redirects=False,
        )
        feed = Feed(self._output, everything=False)
        for record in engine.state.table.records.values() if engine is not None else ():
            feed.active.add(record.job.id)
            narrator.know(record.job, record.files, asked=record.cancel != "none")
        self.runtime = Runtime(
            ensemble,
            executor,
            actions=registry.actions,
            observers=registry.observers,
            watchers=[feed],
            folder=output,
            tag=tag,
            run_id=run_id,
            name=name,
            journal=kept.journal if kept is not None else None,
            maker=kept.maker if kept is not None else "",
            state=kept.executor_folder if kept is not None else None,
            functions=program.functions,
            engine=engine,
            earlier=earlier,
        )
        self._thread = threading.Thread(target=self._main, name=f"ensemble run {tag}")

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
