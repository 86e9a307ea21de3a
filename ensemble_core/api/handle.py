"""Handle with which a Python program watches, steers and evaluates a run."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ensemble_core.api.rows import Rows
from ensemble_core.config.document import plain
from ensemble_core.errors import UsageError
from ensemble_core.journal.job_rows import TIMES
from ensemble_core.plugin.discovery import FindPlugins, find_plugins

if TYPE_CHECKING:
    from ensemble_core.api.background_run import Task
    from ensemble_core.engine.engine import Engine
    from ensemble_core.engine.report import Report
    from ensemble_core.journal.run_state import RunInfo
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.plugin.python_callables import Program
    from ensemble_core.session.inspection import Inspection
    from ensemble_core.session.interrupts import How
    from ensemble_core.session.kept_run import KeptRun

_LOG = logging.getLogger("ensemble")

_T = TypeVar("_T")

#: Seconds between polls of a run in another process, and between updates in a notebook.
_LOOK, _FRAME = 0.5, 0.25


class EnsembleRun:
    """A run of an ensemble: live in this process, live in another process, or over.

    ``tag`` is the run's name. ``folder`` contains its journal, and is ``None`` for a run without a
    journal. In asyncio, use ``await run`` instead of :meth:`wait`.
    """

    def __init__(
        self, tag: str, folder: Path | None, *, task: Task | None, program: Program | None
    ) -> None:
        self.tag = tag
        self.folder = folder
        self._task = task
        self._program = program
        self._over: Engine | None = None
        #: Cache of the run's plugins, so that plugin files are not loaded each time the journal is
        #: read.
        self._find_plugins: FindPlugins = lru_cache(maxsize=1)(find_plugins)

    def __repr__(self) -> str:
        return f"<EnsembleRun {self.tag}: {self.state}>"

    def __str__(self) -> str:
        from ensemble_core.display.summary import report_lines
        from ensemble_core.display.text_style import TextStyle

        lines = report_lines(self.report(), TextStyle(unicode=True))
        code = self.exit_code
        ending = "" if code is None else f", exit code {code}"
        reason = f": {self.reason}" if self.reason else ""
        return "\n".join([f"{self.tag}: {self.state}{ending}{reason}", *lines])

    # -- state -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state, as in ``ensemble runs``.

        ``running``, ``ended``, ``stopped``, ``limited``, ``interrupted``, or ``failed`` if the run
        could not start. Stopped, limited and interrupted runs can be resumed.
        """
        task = self._task
        if task is not None and not task.done.is_set():
            return "running"
        if task is not None and task.error is not None and self.folder is None:
            return "failed"
        if self.folder is not None and self.folder.exists():
            from ensemble_core.journal.run_state import read_info

            return read_info(self.folder).state
        if task is not None and task.outcome is not None:
            return task.outcome.state
        return "failed"

    @property
    def exit_code(self) -> int | None:
        """The exit code that the command line would return; ``None`` while the run is live."""
        if self._task is not None:
            outcome = self._task.outcome
            return None if outcome is None else outcome.exit_code
        return self._info().exit_code

    @property
    def reason(self) -> str:
        """The reason why the run ended.

        Empty while it is live, and if it ended because all work was done.
        """
        if self._task is not None:
            outcome = self._task.outcome
            return "" if outcome is None else outcome.reason
        return self._info().reason

    def report(self) -> Report:
        """Return a report on the run's groups and rules."""
        return self._query(lambda engine: engine.report())

    def watch(self, every: float = 1.0) -> Iterator[Report]:
        """Yield a report every ``every`` seconds until the run is over, then a final report."""
        while self.state == "running":
            yield self.report()
            if self._task is not None:
                self._task.done.wait(every)
            else:
                time.sleep(every)
        yield self.report()

    # -- results ---------------------------------------------------------------------------------

    def results(self, table: str | None = None) -> Rows:
        """Return a table of the ensemble's ``results``, or the points of a generator, best first.

        Without a name, return the same as :meth:`jobs`.

        While the run is live, the table is incomplete. Raises :class:`UsageError` if the ensemble
        defines no table and no generator with this name.
        """
        if table is None:
            return self.jobs()
        name = table

        def found(engine: Engine) -> Rows:
            names, rows = engine.table(name)
            return Rows(names, [dict(row) for row in rows])

        return self._query(found)

    def jobs(self, *, attempts: bool = False) -> Rows:
        """Return a row for each job or, with ``attempts``, for each attempt, including retried
        ones.

        A row contains the outcome, the times (seconds since the epoch), core-hours, parameters,
        result, and the last value of each variable that the job printed.
        """
        with self._kept_run() as kept:
            history = kept.jobs(attempts=attempts)
            try:
                return Rows(history.names, history.rows(), TIMES)
            finally:
                history.close()

    def metric(self, path: str) -> float | None:
        """Return the value of a metric, such as ``mean.sim-energy`` or ``count.sim.success``.

        Return ``None`` if the metric has no value yet. Raises :class:`UsageError` for an invalid
        path.
        """
        from ensemble_core.metrics.store import parse_path

        def found(engine: Engine) -> tuple[float | None, Ensemble]:
            ensemble = engine.state.ensemble
            parse_path(path, ensemble.groups, ensemble.statistics)
            return engine.snapshot().get(path), ensemble

        value, ensemble = self._query(found)
        if value is not None or self.folder is None:
            return value
        # The engine computes statistics of job output only if a rule uses them.
        from ensemble_core.journal.metric_history import metric_of_rows

        with self._kept_run() as kept:
            return metric_of_rows(kept.journal, kept.jobs, ensemble, path)

    def metrics(self) -> dict[str, float]:
        """Return all metrics of the engine by path."""
        return self._query(lambda engine: dict(engine.snapshot()))

    def inspect(self) -> Inspection:
        """Return the data of reports and dashboards: failures by cause, firings, logs of jobs, and
        more.

        Use the result in a ``with`` statement. Damaged runs can be inspected too. Raises
        :class:`UsageError` if the run has no journal.
        """
        from ensemble_core.session.inspection import Inspection

        return Inspection(self._kept_run(salvage=True))

    # -- waiting and steering --------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> EnsembleRun:
        """Wait until the run is over, but at most ``timeout`` seconds, and return the run.

        If an error ended the run, raise this error. Ctrl-C stops the run and then raises
        :class:`KeyboardInterrupt`; a second Ctrl-C raises it immediately and leaves the jobs alone.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._task is None:
            while self.state == "running" and (deadline is None or time.monotonic() < deadline):
                time.sleep(_LOOK)
            return self
        self._wait_interruptibly(self._task, lambda: self._wait_until(deadline))
        return self

    def begin(self, *, wait: bool, show: bool) -> None:
        """Start the run unless it is over. Optionally wait for it and show its progress."""
        task = self._task
        if task is None:
            return
        if not wait:
            task.start()
            return

        def waiting() -> None:
            task.start()
            if not show:
                self._wait_until(None)
                return
            from ensemble_core.api.notebook import progress

            frame = progress(self)
            while not task.done.wait(_FRAME):
                frame()
            frame()

        self._wait_interruptibly(task, waiting)

    def _wait_interruptibly(self, task: Task, waiting: Callable[[], None]) -> None:
        """Call ``waiting``. Until it returns, a signal to this process stops the run."""
        from ensemble_core.session.interrupts import Interrupts

        heard: list[int] = []

        def stop(reason: str, exit_code: int, how: How) -> None:
            heard.append(exit_code)
            task.stop(reason, exit_code, how)

        if threading.current_thread() is threading.main_thread():
            with Interrupts(stop):
                waiting()
        else:
            waiting()
        if not task.done.is_set():
            return
        task.join(None)
        task.raise_error()
        if heard and heard[0] == 130:
            raise KeyboardInterrupt(
                f"run {self.tag} was stopped; open it with open_run({self.tag!r})"
            )
        if heard:
            raise SystemExit(heard[0])

    def _wait_until(self, deadline: float | None) -> None:
        assert self._task is not None
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        self._task.done.wait(left)

    def __await__(self) -> Generator[Any, None, EnsembleRun]:
        return self._finished().__await__()

    async def _finished(self) -> EnsembleRun:
        import asyncio

        task = self._task
        if task is None:
            while self.state == "running":
                await asyncio.sleep(_LOOK)
            return self
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def tell() -> None:
            def settle() -> None:
                if not over.done():
                    over.set_result(None)

            loop.call_soon_threadsafe(settle)

        task.call_when_done(tell)
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            # asyncio turns Ctrl-C into a cancellation.
            self.stop("the task that awaits the run was cancelled")
            await over
            raise
        task.raise_error()
        return self

    def stop(self, reason: str = "stopped by the program") -> None:
        """Request that the run stops, like ``ensemble stop``. Returns immediately.

        ``ensemble resume`` can resume the run. The run may be live in another process. If it is
        live in this process, a second call makes it exit without waiting for its jobs.
        """
        task = self._task
        if task is not None:
            if not task.done.is_set():
                again = task.runtime.ended is not None
                task.stop(reason, how="leave" if again else "stop")
            return
        from ensemble_core.journal.request_files import post_request
        from ensemble_core.journal.run_folder import HALT

        if self.folder is not None and self.state == "running":
            post_request(self.folder, HALT, word=reason)

    def submit(
        self, group: str, parameters: Mapping[str, Any] | None = None, **fields: Any
    ) -> list[str]:
        """Submit jobs of a group, in addition to those that rules submit.

        Return the ids of the jobs that were submitted immediately. ``parameters`` replaces values
        of the group's parameters (a list is a sweep); ``fields`` replaces other fields (``count=2,
        nodes=4``). Raises :class:`UsageError` if the run is not live, or if a rule could not make
        the same request. The journal records who made this or one of the requests below; ``ensemble
        why`` shows it.
        """
        if parameters is not None:
            fields = {**fields, "parameters": dict(parameters)}
        action = {"name": "submit", "label": group}
        decided = self._request({**action, "with": fields} if fields else action)
        return [job["id"] for each in decided if each["type"] == "submit" for job in each["jobs"]]

    def cancel(self, name: str) -> list[str]:
        """Cancel the jobs of a group, or one job (``sim.3``), and return the ids of those that
        were submitted.
        """
        whose = {"jobs": [name]} if "." in name else {"label": name}
        decided = self._request({"name": "cancel", **whose})
        return [job for each in decided if each["type"] == "cancel" for job in each["jobs"]]

    def retry(self, *jobs: str, **fields: Any) -> list[str]:
        """Run these jobs (``sim.3``) of the live run again, or all that failed. Return their ids.

        ``fields`` replaces fields of the jobs (``duration="2h"``). ``ensemble retry`` also reopens
        a run that has ended.
        """
        action: dict[str, Any] = {"name": "retry"}
        if jobs:
            action["jobs"] = list(jobs)
        if fields:
            action["with"] = fields
        decided = self._request(action)
        return [each["job"].partition("-")[0] for each in decided if each["type"] == "retry"]

    def set(self, group: str, **fields: Any) -> None:
        """Change fields of a group.

        The change applies to jobs that are not in the queue yet, and to further attempts; that of
        ``at_once``, ``uses`` and ``retry`` (such as ``retry={"times": 6}``) to all jobs that are
        not over.
        """
        self._request({"name": "set", "label": group, "with": fields})

    def set_limits(self, **limits: Any) -> None:
        """Change limits of the run, such as ``core_hours=500``; ``None`` removes a limit."""
        self._request({"name": "set", "limits": limits})

    def enable(self, *rules: str) -> None:
        """Enable these rules."""
        self._request({"name": "enable", "rules": list(rules)})

    def disable(self, *rules: str) -> None:
        """Disable these rules."""
        self._request({"name": "disable", "rules": list(rules)})

    # -- internals -------------------------------------------------------------------------------

    def _query(self, function: Callable[[Engine], _T]) -> _T:
        """Return the result of ``function`` for the live engine, or for one recovered from the
        journal.
        """
        task = self._task
        if task is not None:
            if task.done.is_set():
                task.raise_error()
            return task.runtime.query(function)
        if self._over is not None:
            return function(self._over)
        with self._kept_run() as kept:
            state = kept.state
            engine = kept.recover(compare=False).engine
        if state == "ended":
            self._over = engine
        return function(engine)

    def _request(self, action: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Request an action from the live run, in this or another process. Return the decisions."""
        from ensemble_core.journal.request_files import ask, requester

        by = f"a program of {requester()}"
        if self._task is not None:
            decided = self._task.runtime.request(plain(action), by).result()
            return [decision.to_dict() for decision in decided]
        assert self.folder is not None
        return ask(self.folder, plain(action), by)

    def _kept_run(self, *, salvage: bool = False) -> KeptRun:
        from ensemble_core.session.kept_run import KeptRun

        if self.folder is None:
            raise UsageError(
                f"run {self.tag} has no journal, but this method reads the journal",
                hint="start the run without keep=False",
                code="no-journal",
            )
        return KeptRun(
            None,
            f"{self.folder}{os.sep}",
            find_plugins=self._find_plugins,
            warn=_LOG.warning,
            salvage=salvage,
            program=self._program,
        )

    def _info(self) -> RunInfo:
        from ensemble_core.journal.run_state import read_info

        assert self.folder is not None
        return read_info(self.folder)

    def _repr_html_(self) -> str:
        from ensemble_core.api.notebook import as_html

        return as_html(self)
