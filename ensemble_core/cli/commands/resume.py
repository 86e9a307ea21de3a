"""``ensemble resume RUN``: goes on with a run that was stopped, or whose controller was killed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.executor_flags import CommandWithFlags, given_flags
from ensemble_core.cli.options import (
    Display,
    KeptRun,
    display_options,
    load_plugins,
    run_argument,
    set_option,
    state_option,
    wall_option,
)
from ensemble_core.cli.run_session import RunSession
from ensemble_core.config.source import read
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.reader import Text
from ensemble_core.journal.run_store import find, state_folder
from ensemble_core.model.events import StopRequested
from ensemble_core.session import kept_run
from ensemble_core.session.executor_choice import read_options
from ensemble_core.session.resume import prepare_resume

if TYPE_CHECKING:
    from ensemble_core.plugin.records import ExecutorPlugin

__all__ = ["resume"]


@click.command(cls=CommandWithFlags)
@run_argument
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on with the ensemble file as it is now, although it has changed.",
)
@set_option
@click.option(
    "--take-over",
    is_flag=True,
    help="Believe that the controller is gone, where nothing else can tell.",
)
@state_option
@wall_option
@display_options
def resume(
    run: str,
    accept_changes: bool,
    overrides: tuple[str, ...],
    take_over: bool,
    state: str | None,
    wall: float | None,
    display: Display,
) -> int:
    """Go on with a run that was stopped, or whose controller was killed.

    RUN is the run's tag, a beginning or an end of it that fits no other, or 'last'. The queue is
    asked what became of each job that was not over; only what never arrived, and what the stop
    cancelled, is submitted. The exit code is the run's, as of 'ensemble run'.

    --set changes the file that the run goes by, for all that comes: 'limits.core_hours=400'. A run
    that has ended is opened again where a change gives it something to do.

    An executor is used as it was, unless one of its flags says otherwise: of a service that has
    moved, --host and --port.
    """
    return resume_run(
        run,
        state,
        display,
        accept_changes=accept_changes,
        overrides=overrides,
        take_over=take_over,
        wall=wall,
    )


def resume_run(
    run: str,
    state: str | None,
    display: Display,
    *,
    accept_changes: bool = False,
    overrides: Sequence[str] = (),
    take_over: bool = False,
    stop_first: StopRequested | None = None,
    wall: float | None = None,
) -> int:
    """Resume a run and show it; its exit code. With ``stop_first``, only to cancel what is left: of
    a run that has ended too, where the run does not end by it."""
    folder = find(state_folder(state), run)

    def changed(past: kept_run.KeptRun) -> Text | None:
        _go_to(str(past.journal.about.get("cwd", ".")), past.tag)
        return None if stop_first is not None else _changed(past, accept_changes, overrides)

    taken = prepare_resume(
        folder,
        partial(KeptRun, state, str(folder)),
        load_plugins,
        changed,
        with_flags=_with_flags,
        may_reopen=accept_changes or bool(overrides),
        take_over=take_over,
        stop_first=stop_first,
    )
    with taken.kept:
        return RunSession(taken.ensemble, taken.choice, display).run(
            taken.registry,
            taken.executor,
            taken.output,
            folder.name,
            taken.kept,
            engine=taken.engine,
            stop_first=stop_first,
            wall=wall,
            reopened=taken.reopened,
        )


def _with_flags(record: ExecutorPlugin, options: dict[str, Any]) -> dict[str, Any]:
    told = given_flags(record, options)
    return options if told == options else read_options(record, (), told)


def _go_to(folder: str, tag: str) -> None:
    """Relative paths of jobs start at the folder in which the run was started."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"the folder in which run {tag} was started cannot be entered: {folder}",
            cause=error.strerror,
            hint="make it again: its jobs' relative paths start there",
            code="no-folder",
        ) from error


def _changed(past: kept_run.KeptRun, accept: bool, overrides: Sequence[str]) -> Text | None:
    """The ensemble file as it is now, with these overrides after its own, if it differs from what
    the run goes by. Raises :class:`UsageError` with the differences where they are not accepted.
    """
    text = past.journal.texts()[-1]
    changed = _changed_file(past, text, accept)
    if not overrides:
        return changed
    now = changed or replace(text, seq=past.journal.last())
    return replace(now, overrides=(*now.overrides, *overrides))


def _changed_file(past: kept_run.KeptRun, text: Text, accept: bool) -> Text | None:
    if not text.file or past.journal.about.get("made"):
        return None  # it was a mapping of a program, or made of another file
    try:
        now = read(text.file)
    except EnsembleError as error:
        print_warning(f"the run goes on with the file as it was: {error}")
        return None
    if now == text.text:
        # Files that it names are read anew only where changes are accepted.
        if accept and text.attached:
            return Text(past.journal.last(), text.file, now, text.overrides)
        return None
    lines = difflib.unified_diff(
        text.text.splitlines(),
        now.splitlines(),
        f"{text.file} (as the run goes by it)",
        f"{text.file} (as it is now)",
        lineterm="",
        n=2,
    )
    for line in lines:
        click.echo(line, err=True)
    if not accept:
        raise UsageError(
            f"{text.file} has changed since run {past.tag} read it",
            hint="--accept-changes goes on with the file as it is now; jobs and counts stay as "
            "they are, and rules that say the same go on where they stood",
            code="file-changed",
        )
    return Text(past.journal.last(), text.file, now, text.overrides)
