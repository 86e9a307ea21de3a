"""``ensemble watch``: shows a queue's gauges and events without a run."""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ensemble_core.cli.error_format import errors_as_json
from ensemble_core.cli.executor_flags import CommandWithFlags, given_flags
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.options import (
    executor_option,
    json_option,
    key_value_option,
    load_plugins,
    plugin_option,
)
from ensemble_core.display.text_style import (
    TextStyle,
    format_clock,
    print_line,
    printable,
    style_of,
)
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.run_store import new_tag
from ensemble_core.model.durations import seconds
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, Problem, Resources
from ensemble_core.model.numbers import format_number
from ensemble_core.plugin.executor import Executor, Run
from ensemble_core.session.executor_choice import build_executor, choose_executor, read_options

#: Seconds between checks whether to end.
_LOOK = 0.5


@click.command(cls=CommandWithFlags)
@executor_option
@key_value_option("Option of the executor. May be repeated.")
@plugin_option
@click.option(
    "--for",
    "length",
    metavar="TIME",
    help='End after this time: seconds or "10m"; 0 shows the gauges once.  [default: until Ctrl-C]',
)
@json_option
def watch(
    executor: str | None,
    options: tuple[str, ...],
    plugins: tuple[str, ...],
    length: str | None,
    as_json: bool,
) -> int:
    """Show a queue's gauges and events, without a run.

    Gauges are current values, such as the number of free nodes. The command first prints all
    gauges, under the names that rules use. Then it prints each change, and the events of other
    users' jobs if the executor sees them, until Ctrl-C or for the given time. Nothing is submitted.
    With --json, each line is an object, as in 'ensemble run --json'.
    """
    with errors_as_json(as_json):
        registry = load_plugins(plugins)
        choice = choose_executor(registry, executor)
        chosen = read_options(choice.record, options, given_flags(choice.record))
        left = None if length is None else _seconds(length)
        built = build_executor(registry, choice.record, chosen)
        return _Watch(built, choice.name, as_json).show(left)


def _seconds(text: str) -> float:
    try:
        return seconds(text)
    except EnsembleError as error:
        raise UsageError(f"--for: {error.what}", hint=error.hint, code=error.code) from None


class _Watch:
    """Shows the gauges and events of one queue."""

    def __init__(self, executor: Executor, name: str, as_json: bool) -> None:
        self._executor = executor
        self._name = name
        self._as_json = as_json
        self._look = style_of(sys.stdout)
        self._heard: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self._gauges: dict[str, float] = {}
        self._lost = False

    def show(self, left: float | None) -> int:
        """Show the queue for ``left`` seconds (``None``: without a limit). Return the exit code."""
        end = None if left is None else time.monotonic() + left
        with tempfile.TemporaryDirectory(prefix="ensemble-watch-") as folder:
            run = Run(tag=new_tag("watch"), folder=Path(folder), clock=time.time)
            self._executor.open(run, self._heard.put)
            try:
                self._print_event(Resources(time.time(), dict(self._executor.resources())))
                if not self._executor.sees_foreign_jobs and not self._as_json and left != 0:
                    said = f"executor {self._name} cannot see other users' jobs here"
                    print_line(self._look.paint(said, "dim"))
                self._wait_until(end)
            except KeyboardInterrupt:
                pass
            finally:
                self._executor.close()
        return 1 if self._lost else 0

    def _wait_until(self, end: float | None) -> None:
        while not self._lost:
            left = _LOOK if end is None else min(_LOOK, end - time.monotonic())
            if left <= 0:
                return
            try:
                for event in self._heard.get(timeout=left):
                    self._print_event(event)
            except queue.Empty:
                continue

    def _print_event(self, event: Event) -> None:
        if isinstance(event, Resources):
            changed = {
                path: value
                for path, value in sorted(event.values.items())
                if self._gauges.get(path) != value
            }
            self._gauges.update(changed)
            if not changed:
                return
            event = Resources(event.timestamp, changed)
        self._lost = self._lost or isinstance(event, ExecutorLost)
        if self._as_json:
            print_line(to_json({"kind": "event", "timestamp": event.timestamp, **event.to_dict()}))
        else:
            clock = self._look.paint(format_clock(event.timestamp), "dim")
            print_line(f"{clock}  {printable(_event_text(event, self._look))}")
        sys.stdout.flush()


def _event_text(event: Event, look: TextStyle) -> str:
    if isinstance(event, Resources):
        return "  ".join(f"{path} {format_number(value)}" for path, value in event.values.items())
    if isinstance(event, JobEvent):
        return f"{event.job}  {event.name}{_context(event.context, look)}"
    if isinstance(event, Problem):
        return f"{event.level}: {event.message}"
    if isinstance(event, ExecutorLost):
        return f"lost the queue: {event.reason}"
    return event.type


def _context(context: Mapping[str, object], look: TextStyle) -> str:
    if not context:
        return ""
    return "  " + json.dumps(dict(context), default=str, ensure_ascii=not look.unicode)
