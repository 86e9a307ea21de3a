"""Runs an ensemble and displays its progress, for ``ensemble run`` and ``ensemble resume``.

At the end, displays the results table of ``--show`` and the metrics of ``--metrics``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import click

from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.options import Display
from ensemble_core.display.event_lines import Narrator, OutputLine
from ensemble_core.display.live_table import LiveTable, can_be_live
from ensemble_core.display.output_thread import Feed, Output
from ensemble_core.display.summary import kept_secrets, resume_command, summary
from ensemble_core.display.text_style import count_of, format_time, is_terminal, printable, style_of
from ensemble_core.engine.engine import Engine
from ensemble_core.errors import no_such
from ensemble_core.journal.request_files import RequestInbox
from ensemble_core.model.decisions import Decision
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event
from ensemble_core.plugin.discovery import use_registry
from ensemble_core.runtime.controller import Outcome, Runtime
from ensemble_core.runtime.watcher import Watcher
from ensemble_core.session.controlled_run import ControlledRun
from ensemble_core.session.executor_choice import ExecutorChoice
from ensemble_core.session.interrupts import How, Interrupts
from ensemble_core.session.prepared_run import PreparedRun

_USUAL_SIZE = os.terminal_size((80, 24))


class RunSession:
    """A run and its display."""

    def __init__(self, ensemble: Ensemble, choice: ExecutorChoice, display: Display) -> None:
        self._ensemble = ensemble
        self._choice = choice
        self._quiet = display.quiet
        self._as_json = display.as_json
        #: Time of the event that led to the current decisions.
        self._now = 0.0
        self._out: TextIO = sys.stdout
        self._err: TextIO = sys.stderr
        self._look = style_of(self._out)
        self._err_look = style_of(self._err)
        self._narrator = Narrator(
            ensemble,
            self._look,
            self._err_look,
            debug=(display.debug or ensemble.debug) and not (display.quiet or display.as_json),
            errors_only=display.quiet or display.as_json,
        )
        self._block = self._make_block(display.progress)
        self._show = display.show
        if self._show is not None:
            check_table(ensemble, self._show)
        self._metrics = (display.metrics or display.debug or ensemble.debug) and not display.as_json
        self._left = False

    def _make_block(self, progress: bool | None) -> LiveTable | None:
        if progress is False or self._quiet or self._as_json:
            return None
        if not can_be_live(self._out):
            if progress:
                said = "--progress needs a terminal"
                click.echo(self._err_look.warning(said), err=True)
            return None
        return LiveTable(self._look, self._size)

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            return _USUAL_SIZE
        # A terminal without a size reports 0.
        return size if size.columns > 0 and size.lines > 0 else _USUAL_SIZE

    def run(
        self,
        run: PreparedRun,
        *,
        make: Callable[[Sequence[Watcher]], Any] | None = None,
        wall: float | None = None,
    ) -> int:
        """Run to the end. Return the exit code.

        - ``make``: builds another runtime with these watchers. The run then cannot be resumed.
        - ``wall``: the number of seconds after which the run is stopped.
        """
        kept, engine = run.kept, run.engine
        output = Output(
            self._output_lines,
            self._out,
            self._err,
            block=self._block,
            as_json=self._as_json,
        )
        feed = Feed(output, everything=self._as_json or self._narrator.debug)
        runtime: Runtime = run.runtime([feed], wall=wall) if make is None else make([feed])
        if self._show is not None and self._block is not None:
            feed.table = ResultsTable(runtime.engine, self._show).lines
        if engine is not None:
            feed.active.update(engine.state.active())
            for record in engine.state.table.records.values():
                self._narrator.know(record.job, record.files, asked=record.cancel != "none")

        def announce(
            keep: bool, leave: str = "Ctrl-C to exit without waiting", drain: bool = False
        ) -> None:
            feed.announce = None
            jobs = count_of(len(feed.active), "job")
            doing = f"{jobs} left to the queue" if keep else f"cancelling {jobs}"
            if drain:
                doing = f"the allocation ends; what is left of {jobs} runs after a resume"
            note = f"stopping: {doing if feed.active else 'no active jobs'} ({leave})"
            if self._block is not None:
                self._block.note = note
            # Overwrite the "^C" that a terminal shows.
            output.say(f"\r{note}" if is_terminal(self._err) else note, error=True)

        if run.stop_first is None:
            feed.announce = announce

        def stop(reason: str, exit_code: int, how: How) -> None:
            ended = runtime.ended
            if how == "leave":
                self._left = True
                output.say("exiting without waiting", error=True)
            else:
                keeps = runtime.on_stop == "keep" if ended is None else not ended.cancel
                drains = how == "drain" and ended is None and runtime.drains
                announce(how != "end" and keeps, "Ctrl-C again to exit without waiting", drains)
            # At a second stop, exit without waiting. A first stop does not interrupt a run that is
            # ending.
            if how == "leave" or ended is None or (how == "end" and ended.stopped):
                runtime.stop(reason, exit_code, end=how == "end", drain=how == "drain")

        with output, use_registry(run.registry, threads=True):
            self._begin(output, run.tag, kept, engine)
            outcome = None
            try:
                folder_of_run = kept.folder if kept is not None else None
                inbox = RequestInbox(kept.folder, runtime.request) if kept is not None else None
                with Interrupts(stop, folder_of_run, inbox):
                    if self._block is not None:
                        self._block.begin()
                    outcome = runtime.run()
            finally:
                if kept is not None:
                    problem = kept.end(outcome)
                    if problem is not None:
                        self._warn(output, problem)
            lines = self._end(outcome, str(run.output) if run.output.is_dir() else None)
            if not self._quiet:
                lines[-1:-1] = self._requested_lines(runtime.engine)
            resumable = make is None and not outcome.over
            if kept is not None and resumable and not self._as_json:
                again = resume_command(run.tag, runtime.engine, limited=outcome.state == "limited")
                lines.append(f"  to resume this run: {again}")
                lines += kept_secrets(runtime.engine)
            output.close(lines, patience=2.0 if self._left else None)
        if self._left and any(
            thread.is_alive() and not thread.daemon and thread is not threading.main_thread()
            for thread in threading.enumerate()
        ):
            os._exit(outcome.exit_code)  # a user's function may never return
        return outcome.exit_code

    def _requested_lines(self, engine: Engine) -> list[str]:
        """Return the lines of requested tables and metrics, to be printed with the summary."""
        lines: list[str] = []
        if self._show is None and not self._metrics:
            return lines
        if self._show is not None and not self._as_json:
            lines += [self._look.paint(f" {self._show}", "bold")]
            lines += [f"   {line}" for line in table_lines(engine, self._show)]
            lines += [f"   ({each})" for each in engine.tables().warnings(self._show)]
        if self._metrics:
            lines += [self._look.paint(" metrics", "bold")]
            lines += [f"   {line}" for line in metric_lines(engine)]
        return lines

    def _output_lines(self, item: Event | Decision) -> Iterator[OutputLine]:
        if self._as_json:
            kind = "event" if isinstance(item, Event) else "decision"
            self._now = getattr(item, "timestamp", self._now)
            yield OutputLine(to_json({"kind": kind, "timestamp": self._now, **item.to_dict()}))
        for line in self._narrator.tell(item):
            if line.error or not (self._quiet or self._as_json):
                yield line

    def _warn(self, output: Output, text: str) -> None:
        output.say(self._err_look.warning(printable(text)), error=True)

    def _begin(
        self, output: Output, tag: str, kept: ControlledRun | None, engine: Engine | None
    ) -> None:
        for text in self._ensemble.warnings:
            self._warn(output, text)
        if self._as_json:
            about: dict[str, Any] = {
                "type": "run",
                "tag": tag,
                "name": self._ensemble.name,
                "file": self._ensemble.file,
                "executor": self._choice.name,
                "profile": self._choice.profile.name if self._choice.profile else None,
                "groups": list(self._ensemble.groups),
                "rules": [rule.id for rule in self._ensemble.rules],
                "journal": str(kept.journal.path) if kept is not None else None,
                "resumed_after": engine.state.events if engine is not None else None,
            }
            output.say(to_json(about))
        elif not self._quiet:
            begun = f"{self._choice}; {format_time(time.time())}"
            output.say(self._look.paint(printable(begun), "dim"))
            if engine is not None:
                active = len(engine.state.active())
                said = (
                    f"resuming run {tag} after event {engine.state.events} with {active} "
                    f"unfinished job{'' if active == 1 else 's'}"
                )
                output.say(self._look.paint(said, "dim"))
            if kept is not None and is_terminal(self._out) and _has_dashboard():
                said = f"view in a browser: ensemble dashboard {tag}"
                output.say(self._look.paint(said, "dim"))
            if kept is not None and kept.storage is not None:
                said = f"journal on {kept.storage}: using SQLite's rollback journal instead of WAL"
                output.say(self._look.paint(said, "dim"))

    def _end(self, outcome: Outcome, kept: str | None) -> list[str]:
        if self._quiet:
            return []
        if self._as_json:
            told = ("exit_code", "reason", "natural", "seconds")
            ending = {name: getattr(outcome, name) for name in told}
            about = {"type": "summary", "tag": outcome.tag, "name": self._ensemble.name}
            return [to_json({**about, **ending, "output": kept, **outcome.report.to_dict()})]
        return summary(
            outcome.report,
            name=self._ensemble.name,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            how="ended" if outcome.over else "interrupted" if self._left else "stopped",
            seconds=outcome.seconds,
            at=time.time(),
            look=self._look,
            width=self._size().columns if is_terminal(self._out) else None,
            kept=kept,
        )


#: Maximum share of the engine's time that a table may use.
_SHARE = 0.02


def check_table(ensemble: Ensemble, name: str | None) -> None:
    """Raise :class:`UsageError` if the ensemble has no table with this name."""
    if not (name is None or name in ensemble.tables):
        raise no_such("the file", "table", name, ensemble.tables, "the file has no 'results:'")


def table_lines(engine: Engine, name: str) -> list[str]:
    """Return a results table as aligned columns with headings."""
    from ensemble_core.cli.table_output import align_columns

    tables = engine.tables()
    names = tables.columns(name)
    rows = [[row.get(column) for column in names] for row in tables[name]]
    return align_columns(names, rows, missing="-")


def metric_lines(engine: Engine) -> list[str]:
    """Return all metrics with their values as aligned columns."""
    from ensemble_core.cli.table_output import align_columns

    return align_columns(("metric", "value"), sorted(engine.snapshot().items()))[1:]


class ResultsTable:
    """A results table that is recomputed regularly, but less often if computing it takes long."""

    def __init__(
        self, engine: Engine, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._name = name
        self._clock = clock
        self._next = 0.0

    def lines(self) -> list[str] | None:
        """Return the current table, or ``None`` if it is too early to compute it again."""
        began = self._clock()
        if began < self._next:
            return None
        lines = table_lines(self._engine, self._name)
        ended = self._clock()
        self._next = ended + (ended - began) / _SHARE
        return lines


def _has_dashboard() -> bool:
    """Return True if a plugin provides the command ``dashboard``."""
    from ensemble_core.cli.plugin_commands import find_commands

    return "dashboard" in find_commands(()).names
