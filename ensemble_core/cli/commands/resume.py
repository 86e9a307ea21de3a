"""``ensemble resume RUN``: resumes a stopped or interrupted run."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.executor_flags import CommandWithFlags, given_flags
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.options import (
    Display,
    KeptRun,
    display_options,
    load_plugins,
    run_argument,
    set_option,
    state_option,
    take_over_option,
    wall_option,
)
from ensemble_core.cli.run_session import RunSession, check_table, table_lines
from ensemble_core.config.file_text import read_file
from ensemble_core.display.text_style import printable
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.reader import FileVersion
from ensemble_core.journal.run_store import find_run, state_folder
from ensemble_core.model.events import StopRequested
from ensemble_core.quick_dataclass import replace
from ensemble_core.session import kept_run
from ensemble_core.session.executor_choice import read_options
from ensemble_core.session.resume import NewTables, prepare_resume

if TYPE_CHECKING:
    from ensemble_core.plugin.records import ExecutorPlugin


@click.command(cls=CommandWithFlags)
@run_argument
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Accept a changed ensemble file and use it from now on.",
)
@set_option
@take_over_option
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
    """Resume a stopped or interrupted run.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. The command asks the queue
    about each unfinished job. It submits those that never reached the queue or that the stop
    cancelled, and follows all others. The exit codes are those of 'ensemble run'.

    --set changes the run's file from now on: 'limits.core_hours=400'. A run that has ended is
    reopened if the change adds work.

    The executor's options stay as they were. To change them, for example if a service has moved,
    give their flags, such as --host and --port.
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
    request: Mapping[str, Any] | None = None,
    wall: float | None = None,
) -> int:
    """Resume a run and display it. Return the run's exit code.

    With ``stop_first``, the run is not continued: its remaining jobs are only cancelled. With
    ``request``, a run that has ended is reopened by this request.
    """
    folder = find_run(state_folder(state), run)

    def changed(past: kept_run.KeptRun) -> FileVersion | None:
        _change_folder(str(past.journal.about.get("cwd", ".")), past.tag)
        return None if stop_first is not None else _changed_text(past, accept_changes, overrides)

    taken = prepare_resume(
        folder,
        partial(KeptRun, state, str(folder)),
        load_plugins,
        changed,
        with_flags=_with_flags,
        may_reopen=accept_changes or bool(overrides),
        take_over=take_over,
        stop_first=stop_first,
        request=request,
    )
    if isinstance(taken, NewTables):
        return _print_tables(taken, display)
    with taken.kept or nullcontext():
        return RunSession(taken.ensemble, taken.choice, display).run(taken, wall=wall)


def _print_tables(found: NewTables, display: Display) -> int:
    """Print the tables that an accepted change has added to a run that has ended."""
    if display.as_json:
        click.echo(to_json({"type": "tables", "tag": found.tag, "tables": [*found.tables]}))
        return found.exit_code
    check_table(found.engine.state.ensemble, display.show)
    for name in found.tables if display.show is None else (display.show,):
        if not display.quiet:
            click.echo(f" {name}")
            for line in table_lines(found.engine, name):
                click.echo(printable(f"   {line}"))
        for warning in found.engine.tables().warnings(name):
            print_warning(warning)
    if not display.quiet:
        click.echo(
            f"run {found.tag} has ended, and the changed file adds no jobs to run\n"
            f"  to show a table: ensemble results {found.tag} {found.tables[0]}"
        )
    return found.exit_code


def _with_flags(record: ExecutorPlugin, options: dict[str, Any]) -> dict[str, Any]:
    told = given_flags(record, options)
    return options if told == options else read_options(record, (), told)


def _change_folder(folder: str, tag: str) -> None:
    """Change to the folder where the run was started, because relative paths of jobs start
    there.
    """
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"cannot enter the folder in which run {tag} was started: {folder}",
            cause=error.strerror,
            hint="restore the folder: relative paths of jobs refer to it",
            code="no-folder",
        ) from error


def _changed_text(
    past: kept_run.KeptRun, accept: bool, overrides: Sequence[str]
) -> FileVersion | None:
    """Return the current ensemble file with all overrides if it has changed, or ``None``.

    Raises :class:`UsageError` with the differences if changes are not accepted.
    """
    text = past.journal.texts()[-1]
    changed = _changed_file_text(past, text, accept)
    if not overrides:
        return changed
    now = changed or replace(text, seq=past.journal.last())
    return replace(now, overrides=(*now.overrides, *overrides))


def _changed_file_text(
    past: kept_run.KeptRun, text: FileVersion, accept: bool
) -> FileVersion | None:
    if not text.file or past.journal.about.get("made"):
        return None  # the run came from a mapping or a generated file
    try:
        now = read_file(text.file)
    except EnsembleError as error:
        print_warning(f"the run continues with the original file: {error}")
        return None
    if now == text.text:
        # Attached files are read again only if changes are accepted.
        if accept and text.attached:
            return FileVersion(past.journal.last(), text.file, now, text.overrides)
        return None
    lines = difflib.unified_diff(
        text.text.splitlines(),
        now.splitlines(),
        f"{text.file} (used by the run)",
        f"{text.file} (current)",
        lineterm="",
        n=2,
    )
    for line in lines:
        click.echo(line, err=True)
    if not accept:
        raise UsageError(
            f"{text.file} has changed since run {past.tag} read it",
            hint="restore the file, or add --accept-changes to resume with the current one; jobs, "
            "counts and unchanged rules keep their state",
            code="file-changed",
        )
    return FileVersion(past.journal.last(), text.file, now, text.overrides)
