"""``ensemble resume RUN``: goes on with a run that was stopped, or whose controller was killed."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.executor_choice import (
    ExecutorChoice,
    build_executor,
    check_environment,
    read_options,
)
from ensemble_core.cli.executor_flags import CommandWithFlags, given_flags
from ensemble_core.cli.kept_run import KeptRun
from ensemble_core.cli.options import (
    Display,
    display_options,
    run_argument,
    set_option,
    state_option,
    wall_option,
)
from ensemble_core.cli.remains import check_not_lost
from ensemble_core.cli.run_control import ControlledRun
from ensemble_core.cli.run_session import RunSession
from ensemble_core.config.source import read
from ensemble_core.engine.engine import Engine
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.reader import NAME, Text, migrate
from ensemble_core.journal.requests import forget_requests
from ensemble_core.journal.run_store import (
    HALT,
    LEAVE,
    STOP,
    Lock,
    find,
    require_own,
    state_folder,
)
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Resumed, StopRequested

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
    return take_up(
        run,
        state,
        display,
        accept_changes=accept_changes,
        overrides=overrides,
        take_over=take_over,
        wall=wall,
    )


def take_up(
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
    """Take a run up again; its exit code. With ``stop_first``, only to cancel what is left: of a
    run that has ended too, where the run does not end by it."""
    folder = find(state_folder(state), run)
    require_own(folder)
    lock = Lock(folder)
    lock.acquire(take_over=take_over)
    try:
        # What an earlier controller was asked. At once: from here on it is this one that is asked,
        # and to read a long history takes a while.
        for asked in (STOP, HALT, LEAVE):
            with contextlib.suppress(OSError):
                (folder / asked).unlink()
        forget_requests(folder)
        if not (folder / NAME).exists():
            check_not_lost(folder)
        migrate(folder / NAME)
        with KeptRun(state, str(folder)) as past:
            return _take_up(past, lock, display, accept_changes, overrides, stop_first, wall)
    finally:
        lock.release()


def _take_up(
    past: KeptRun,
    lock: Any,
    display: Display,
    accept_changes: bool,
    overrides: Sequence[str],
    stop_first: StopRequested | None,
    wall: float | None,
) -> int:
    if past.journal.about.get("simulated"):
        raise UsageError(
            f"run {past.tag} was simulated: no job of it is real, so there is none to go on with",
            hint="'ensemble simulate' plays it again; 'ensemble run' runs it",
            code="run-simulated",
        )
    sessions = past.journal.sessions()
    outcome = sessions[-1].outcome if sessions else None
    over = outcome is not None and bool(outcome.get("over"))
    ended = UsageError(
        f"run {past.tag} has ended, with exit code {(outcome or {}).get('exit_code')}",
        cause=str((outcome or {}).get("reason") or "") or None,
        hint="'ensemble run' starts it anew; a change of its file that gives it something to do "
        "opens it again, with --accept-changes or --set; 'ensemble status' shows how it went",
        code="run-ended",
    )
    ends = stop_first is not None and stop_first.ends
    if over and (ends or (stop_first is None and not (accept_changes or overrides))):
        raise ended
    if not past.journal.texts():
        check_not_lost(past.folder)
        raise UsageError(
            f"run {past.tag} was killed before it began: nothing happened in it",
            hint="'ensemble run' starts it anew, 'ensemble clean' removes what is left of it",
            code="never-began",
        )
    if past.journal.about.get("program") and stop_first is None:
        raise UsageError(
            f"run {past.tag} has functions of the Python program that began it",
            hint=f"go on with it there: ensemble_core.run(…, tag={past.tag!r}, or_resume=True)",
            code="program-absent",
        )
    past.journal.check_if_small()
    if not ends:
        past.journal.check_newest()
    about = past.journal.about
    _go_to(str(about.get("cwd", ".")), past.tag)
    changed = None if stop_first is not None else _changed(past, accept_changes, overrides)
    reopened = over and stop_first is None
    if reopened and (
        changed is None or not _something_to_do(past, past.loading_new("check")(changed))
    ):
        raise ended
    record = past.registry.lookup("executor", str(past.executor["name"]))
    options = dict(past.executor.get("options", {}))
    told = given_flags(record, options)
    if told != options:
        options = read_options(record, (), told)
    executor = build_executor(past.registry, record, options)
    recovered = past.recover(compare=not ends, pending=changed is None)
    ensemble: Ensemble = recovered.engine.state.ensemble
    damaged = past.warn_of_damage()
    # Whoever leaves last tidies the file up, and that is to be the one who writes.
    past.journal.close()
    with contextlib.closing(JournalWriter(past.journal.path)) as writer:
        if damaged:
            writer.forget_snapshots()
        kept = ControlledRun(past.folder, lock, writer, past.registry)
        if changed is not None:
            ensemble = past.loading_new("run")(changed)
        if stop_first is None:
            check_environment(ensemble)
        if changed is not None:
            _adopt(recovered.engine, ensemble)
            writer.text(changed.file, changed.text, changed.overrides, ensemble.attached)
        kept.begin()
        choice = ExecutorChoice(str(past.executor["name"]), record, "", "as the run began", options)
        session = RunSession(ensemble, choice, display)
        return session.run(
            past.registry,
            executor,
            Path(str(about.get("output") or past.folder / "output")),
            past.tag,
            kept,
            engine=recovered.engine,
            stop_first=stop_first,
            wall=wall,
            reopened=reopened,
        )


def _something_to_do(past: KeptRun, ensemble: Ensemble) -> bool:
    """True if a run that has ended goes on with this file: tried on an engine of its own."""
    trial = past.recover(compare=False, pending=False).engine
    trial.adopt(ensemble)
    trial.handle(Resumed(trial.state.now, reopened=True))
    return trial.state.ended is None


def _adopt(engine: Engine, ensemble: Ensemble) -> None:
    """Go on with a changed file; say which rules can have no effect any more."""
    for rule in engine.adopt(ensemble):
        print_warning(
            f"rule {rule}, which joined while the run was under way, speaks of what the changed "
            "file does not have: it is gone"
        )
    for state in engine.state.rules.states.values():
        if engine.state.events and "start" in state.rule.trigger.wakes and not state.fired:
            rule_id = state.rule.id
            print_warning(f"rule {rule_id} waits for the start, which is over: it never fires")


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


def _changed(past: KeptRun, accept: bool, overrides: Sequence[str]) -> Text | None:
    """The ensemble file as it is now, with these overrides after its own, if it differs from what
    the run goes by. Raises :class:`UsageError` with the differences where they are not accepted.
    """
    text = past.journal.texts()[-1]
    changed = _changed_file(past, text, accept)
    if not overrides:
        return changed
    now = changed or replace(text, seq=past.journal.last())
    return replace(now, overrides=(*now.overrides, *overrides))


def _changed_file(past: KeptRun, text: Text, accept: bool) -> Text | None:
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
