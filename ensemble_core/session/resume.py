"""Prepares a resume: takes the run's lock, checks the run, and recovers its engine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ensemble_core.errors import UsageError
from ensemble_core.journal.database import complete
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.ownership import require_own
from ensemble_core.journal.reader import NAME, Journal, JournalError, Text
from ensemble_core.journal.request_files import forget_requests
from ensemble_core.journal.run_store import HALT, LEAVE, STOP
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import Resumed, StopRequested
from ensemble_core.session.executor_choice import (
    ExecutorChoice,
    build_executor,
    check_environment,
    webhook_errors,
)
from ensemble_core.session.leftover_jobs import check_not_lost
from ensemble_core.session.run_control import ControlledRun

if TYPE_CHECKING:
    from ensemble_core.engine.engine import Engine
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.plugin.executor import Executor
    from ensemble_core.plugin.records import ExecutorPlugin
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.session.kept_run import KeptRun
    from ensemble_core.session.plugins import FindPlugins

__all__ = ["PreparedResume", "prepare_resume"]

_Options = dict[str, Any]


class PreparedResume(NamedTuple):
    """Everything that a controller needs to resume a run."""

    ensemble: Ensemble
    engine: Engine
    choice: ExecutorChoice
    executor: Executor
    registry: Registry
    run_id: str  #: The run's identity.
    output: Path
    kept: ControlledRun  #: The run's folder, with its lock and journal.
    reopened: bool  #: True if the run had ended.


def prepare_resume(
    folder: Path,
    open_kept: Callable[[], KeptRun],
    find_plugins: FindPlugins,
    changed: Callable[[KeptRun], Text | None],
    *,
    with_flags: Callable[[ExecutorPlugin, _Options], _Options] = lambda record, options: options,
    may_reopen: bool = False,
    take_over: bool = False,
    stop_first: StopRequested | None = None,
    request: Mapping[str, Any] | None = None,
) -> PreparedResume:
    """Lock the run in this folder, check that it can be resumed, and recover its engine.

    - ``open_kept`` opens the run.
    - ``changed`` returns the ensemble file if it has changed, or ``None``. When it returns, the
      current folder must be the one in which the run was started.
    - ``with_flags`` changes the executor's options.
    - ``may_reopen``: a run that has ended may be resumed if the changed file adds work.
    - ``take_over``: ignore a lock whose owner cannot be checked.
    - ``stop_first``: resume the run only to stop it, for example to cancel its remaining jobs. The
      run may have ended.
    - ``request``: a request with which a run that has ended is reopened.

    Raises :class:`EnsembleError` if the run belongs to another user, was simulated, has ended, or
    needs functions of the program that started it. The lock is then released.
    """
    require_own(folder)
    lock = Lock(folder)
    lock.acquire(take_over=take_over)
    try:
        # Remove requests to earlier controllers first. Later ones are meant for this controller,
        # and reading a long journal takes a while.
        for name in (STOP, HALT, LEAVE):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        forget_requests(folder)
        if not (folder / NAME).exists():
            check_not_lost(folder, find_plugins)
        complete(folder / NAME)
        with open_kept() as past:
            _check(past, stop_first, may_reopen or request is not None, find_plugins)
            return _prepare(past, lock, changed, with_flags, stop_first, request)
    except BaseException:
        lock.release()
        raise


def _check(
    past: KeptRun, stop_first: StopRequested | None, may_reopen: bool, find_plugins: FindPlugins
) -> None:
    """Raise :class:`EnsembleError` if this run cannot be resumed."""
    if past.journal.about.get("simulated"):
        raise UsageError(
            f"run {past.tag} was simulated: it has no real jobs to resume",
            hint="'ensemble simulate' simulates it again; 'ensemble run' runs it",
            code="run-simulated",
        )
    ends = stop_first is not None and stop_first.ends
    if _is_over(past) and (ends or (stop_first is None and not may_reopen)):
        raise _ended_error(past)
    if not past.journal.texts():
        check_not_lost(past.folder, find_plugins)
        raise UsageError(
            f"run {past.tag} was killed before its first event",
            hint="'ensemble run' starts it again, 'ensemble clean' removes it",
            code="never-began",
        )
    if past.journal.about.get("program") and stop_first is None and not past.has_program:
        raise UsageError(
            f"run {past.tag} needs functions of the Python program that started it",
            hint=f"resume it there: ensemble_core.run(…, tag={past.tag!r}, or_resume=True)",
            code="program-absent",
        )
    _check_not_copied(past)
    past.journal.check_if_small()
    if not ends:
        past.journal.check_newest()


def _check_not_copied(past: KeptRun) -> None:
    """Raise :class:`UsageError` if the run's folder is a copy, and the original still exists.

    Both have the same identity, so that both would control the same jobs.
    """
    home = Path(str(past.journal.about.get("home") or past.folder))
    try:
        if os.path.samefile(home, past.folder):
            return
        with Journal(home / NAME, salvage=True) as original:
            same = original.about.get("id") == past.run_id
    except (OSError, JournalError):
        return  # moved, not copied
    if same:
        raise UsageError(
            f"{past.folder} is a copy of the run {home}",
            cause="both would control the same jobs, and run each of them twice",
            hint=f"resume the original, 'ensemble resume {home}', or remove it first",
            code="copied-run",
        )


def _prepare(
    past: KeptRun,
    lock: Lock,
    changed: Callable[[KeptRun], Text | None],
    with_flags: Callable[[ExecutorPlugin, _Options], _Options],
    stop_first: StopRequested | None,
    request: Mapping[str, Any] | None,
) -> PreparedResume:
    text = changed(past)
    reopened = _is_over(past) and stop_first is None
    if request is not None:
        _check_request(past, text, request)
    elif reopened and (text is None or not _has_work(past, past.loading_new("check")(text))):
        raise _ended_error(past)
    name = str(past.executor["name"])
    record = past.registry.lookup("executor", name)
    options = with_flags(record, dict(past.executor.get("options", {})))
    executor = build_executor(past.registry, record, options)
    ends = stop_first is not None and stop_first.ends
    engine = past.recover(compare=not ends, pending=text is None).engine
    if executor.shared and not past.has_identity and (waiting := len(engine.in_queue())):
        raise _older_version_error(past, name, waiting)
    ensemble: Ensemble = engine.state.ensemble
    damaged = past.warn_of_damage()
    output = Path(str(past.journal.about.get("output") or past.folder / "output"))
    # The last connection that is closed cleans up SQLite's files, so it must be the writer's.
    kept_texts = past.journal.texts()[-1].attached or {}
    past.journal.close()
    writer = JournalWriter(past.journal.path)
    try:
        if damaged:
            writer.forget_snapshots()
        kept = ControlledRun(past.folder, lock, writer, past.registry)
        if text is not None:
            ensemble = past.loading_new("run")(text)
            if any(each.first_from for each in ensemble.generators.values()):
                from ensemble_core.session.first_points import with_earlier_points

                ensemble = with_earlier_points(
                    ensemble, past.folder.parents[1], past.warn, kept_texts
                )
        if stop_first is None:
            check_environment(ensemble, past.warn)
        else:
            webhook_errors(ensemble)  # withholds webhooks from jobs that start in between
        writer.describe({"home": str(past.folder.absolute())})
        if text is not None:
            _adopt(engine, ensemble, past.warn)
            writer.text(text.file, text.text, text.overrides, ensemble.attached)
        kept.begin()
    except BaseException:
        writer.close()
        raise
    choice = ExecutorChoice(name, record, "", "as the run began", options)
    return PreparedResume(
        ensemble, engine, choice, executor, past.registry, past.run_id, output, kept, reopened
    )


def _outcome(past: KeptRun) -> Mapping[str, Any]:
    """Return how the last controller ended, or an empty mapping if it was killed."""
    sessions = past.journal.sessions()
    return (sessions[-1].outcome if sessions else None) or {}


def _is_over(past: KeptRun) -> bool:
    return bool(_outcome(past).get("over"))


def _ended_error(past: KeptRun) -> UsageError:
    outcome = _outcome(past)
    return UsageError(
        f"run {past.tag} has ended, with exit code {outcome.get('exit_code')}",
        cause=str(outcome.get("reason") or "") or None,
        hint="'ensemble run' starts it again; --accept-changes or --set reopens it if the "
        "changed file adds work; 'ensemble status' shows its result",
        code="run-ended",
    )


def _older_version_error(past: KeptRun, executor: str, jobs: int) -> UsageError:
    return UsageError(
        f"run {past.tag} was begun by a version before 1.0, and {jobs} of its jobs may be in the "
        f"queue of executor {executor}",
        cause="those versions did not mark jobs with the run's identity, so they cannot be found "
        "again: they would run a second time",
        hint="resume or cancel it with the version that began it, or begin a new run with "
        "'ensemble run'",
        code="older-version",
    )


def _has_work(past: KeptRun, ensemble: Ensemble) -> bool:
    """Return True if an ended run has work to do with this file.

    This is tried on a separate engine.
    """
    trial = past.recover(compare=False, pending=False).engine
    trial.adopt(ensemble)
    trial.handle(Resumed(trial.state.now, reopened=True))
    return trial.state.ended is None


def _check_request(past: KeptRun, text: Text | None, request: Mapping[str, Any]) -> None:
    """Raise :class:`EnsembleError` if this request cannot reopen the run, which must have ended."""
    from ensemble_core.engine.requests import refusal

    if not _is_over(past):
        raise UsageError(
            f"run {past.tag} is not live, but it has not ended",
            hint=f"'ensemble resume {past.tag}' resumes it; then repeat the command",
            code="not-under-way",
        )
    trial = past.recover(compare=False, pending=False).engine
    if text is not None:
        trial.adopt(past.loading_new("check")(text))
    refused = refusal(trial.state, request["action"])
    if refused is not None:
        raise refused


def _adopt(engine: Engine, ensemble: Ensemble, warn: Callable[[str], None]) -> None:
    """Apply a changed file. Warn about rules that no longer have an effect."""
    for rule in engine.adopt(ensemble):
        warn(
            f"rule {rule} was added during the run and refers to names that the changed file "
            "lacks: the rule is removed"
        )
    for state in engine.state.rules.states.values():
        if engine.state.events and "start" in state.rule.trigger.events and not state.fired:
            warn(
                f"rule {state.rule.id} has the trigger 'start', but the run has already started: "
                "the rule will never fire"
            )
