"""Prepares a resume: takes the run's lock, checks the run, and recovers its engine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ensemble_core.engine.job_states import NOT_HANDED_OVER
from ensemble_core.errors import UsageError
from ensemble_core.journal.database import complete
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import NAME, FileVersion, Journal, JournalError
from ensemble_core.journal.replay import reconfigure, results_of
from ensemble_core.journal.request_files import forget_requests
from ensemble_core.journal.run_folder import HALT, LEAVE, STOP, require_own
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Log
from ensemble_core.model.events import Resumed, StopRequested
from ensemble_core.quick_dataclass import replace
from ensemble_core.session.controlled_run import ControlledRun
from ensemble_core.session.executor_choice import ExecutorChoice, build_executor
from ensemble_core.session.lost_journal import check_not_lost
from ensemble_core.session.prepared_run import PreparedRun
from ensemble_core.session.required_variables import check_environment, webhook_errors

if TYPE_CHECKING:
    from ensemble_core.engine.engine import Engine
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.plugin.discovery import FindPlugins
    from ensemble_core.plugin.records import ExecutorPlugin
    from ensemble_core.session.kept_run import KeptRun

_Options = dict[str, Any]


class NewTables(NamedTuple):
    """A run that has ended, whose changed file has other tables and no other work."""

    tag: str
    tables: tuple[str, ...]  #: Those that are new or have changed.
    engine: Engine
    exit_code: int


def prepare_resume(
    folder: Path,
    open_kept: Callable[[], KeptRun],
    find_plugins: FindPlugins,
    changed: Callable[[KeptRun], FileVersion | None],
    *,
    with_flags: Callable[[ExecutorPlugin, _Options], _Options] = lambda record, options: options,
    may_reopen: bool = False,
    take_over: bool = False,
    stop_first: StopRequested | None = None,
    request: Mapping[str, Any] | None = None,
) -> PreparedRun | NewTables:
    """Lock the run in this folder, check that it can be resumed, and recover its engine.

    - ``open_kept`` opens the run.
    - ``changed`` returns the ensemble file if it has changed, or ``None``. When it returns, the
      current folder must be the one in which the run was started.
    - ``with_flags`` changes the executor's options.
    - ``may_reopen``: a run that has ended may be resumed if the changed file adds work. If it
      only has other tables, they are recorded, and :class:`NewTables` is returned.
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
    changed: Callable[[KeptRun], FileVersion | None],
    with_flags: Callable[[ExecutorPlugin, _Options], _Options],
    stop_first: StopRequested | None,
    request: Mapping[str, Any] | None,
) -> PreparedRun | NewTables:
    text = changed(past)
    reopened = _is_over(past) and stop_first is None
    if request is not None:
        _check_request(past, text, request)
    elif reopened:
        if text is None:
            raise _ended_error(past)
        tables = _try(past, text)
        if tables is not None:
            return _record_tables(past, lock, text, tables)
    name = str(past.executor["name"])
    record = past.registry.lookup("executor", name)
    options = with_flags(record, dict(past.executor.get("options", {})))
    executor = build_executor(past.registry, record, options)
    ends = stop_first is not None and stop_first.ends
    engine = past.recover(compare=not ends, pending=text is None).engine
    ensemble: Ensemble = engine.state.ensemble
    damaged = past.warn_of_damage()
    output = Path(str(past.journal.about.get("output") or past.folder / "output"))
    if text is not None:
        before, ensemble = ensemble.kinds, _load(past, text)
        if record.kinds and ensemble.kinds != before:
            past.warn("'pilots' has changed, which has no effect on a run that has begun")
        _reconfigure(engine, ensemble, past)
    if stop_first is None:
        _check_sizes(engine, record, options)
    # The last connection that is closed cleans up SQLite's files, so it must be the writer's.
    past.journal.close()
    writer = JournalWriter(past.journal.path)
    try:
        if damaged:
            writer.forget_snapshots()
        kept = ControlledRun(past.folder, lock, writer, past.registry)
        if stop_first is None:
            check_environment(ensemble, past.warn)
        else:
            webhook_errors(ensemble)  # withholds webhooks from jobs that start in between
        writer.describe({"home": str(past.folder.absolute())})
        if text is not None:
            writer.store_file_version(text.file, text.text, text.overrides, ensemble.attached)
        kept.begin()
    except BaseException:
        writer.close()
        raise
    choice = ExecutorChoice(name, record, "", "as the run began", options)
    return PreparedRun(
        ensemble,
        past.registry,
        choice,
        executor,
        past.tag,
        output,
        kept,
        past.run_id,
        engine=engine,
        stop_first=stop_first,
        reopened=reopened,
        request=request,
    )


def _check_sizes(engine: Engine, record: ExecutorPlugin, options: _Options) -> None:
    """Raise :class:`UsageError` if jobs that will be submitted again can never run, because this
    machine is smaller than the one on which the run began.
    """
    if record.never_here is None:
        return
    from ensemble_core.config.pilots import ask_executor

    sources = {
        id(one.source): one.source
        for one in engine.state.table.records.values()
        if one.state in NOT_HANDED_OVER or one.cancel == "stopping" or not one.newest
    }
    for source in filter(None, sources.values()):
        task = f"say whether jobs of {source.name!r} can run"
        part = replace(source, more=())
        fault = ask_executor(record, options, "never_here", part, task)
        if fault is not None:
            raise UsageError(
                f"unfinished jobs of {source.name!r} can never run here",
                cause=fault[1],
                hint=f"resume it where they fit, or with --set jobs.{source.name}.{fault[0]}=…",
                code="cannot-hold",
            )


def _load(past: KeptRun, text: FileVersion) -> Ensemble:
    """Return the ensemble of a changed file."""
    ensemble = past.loading_new("run")(text)
    if any(each.first_from for each in ensemble.generators.values()):
        from ensemble_core.session.earlier_points import with_earlier_points

        kept_texts = past.journal.texts()[-1].attached or {}
        ensemble = with_earlier_points(ensemble, past.folder.parents[1], past.warn, kept_texts)
    return ensemble


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
        hint="'ensemble retry' runs its failed jobs again; --accept-changes or --set reopens it if "
        "the changed file adds work; 'ensemble run' starts it again",
        code="run-ended",
    )


def _try(past: KeptRun, text: FileVersion) -> tuple[str, ...] | None:
    """Try a changed file with a run that has ended, on a separate engine.

    Return ``None`` if the run has work to do, and otherwise the tables that are new or have
    changed. Raise :class:`UsageError` if there are none.
    """
    trial = past.recover(compare=False, pending=False).engine
    before, ensemble = trial.state.ensemble, past.loading_new("check")(text)
    reconfigure(trial, ensemble, past.journal, past.loading)
    decided = trial.handle(Resumed(trial.state.now, reopened=True))
    said = [each for each in decided if isinstance(each, Log) and each.rule is None]
    if trial.state.ended is None or len(said) + 1 < len(decided):
        return None
    for each in said:
        past.warn(each.message)
    results = {
        name
        for name, group in ensemble.groups.items()
        if name in before.groups and results_of(before.groups[name]) != results_of(group)
    }
    tables = tuple(
        name
        for name, table in ensemble.tables.items()
        if before.tables.get(name) != table or table.of in results
    )
    if not tables:
        raise _ended_error(past)
    return tables


def _record_tables(
    past: KeptRun, lock: Lock, text: FileVersion, tables: tuple[str, ...]
) -> NewTables:
    """Record a changed file that only has other tables in the journal of a run that has ended."""
    from ensemble_core.runtime.snapshot_schedule import Snapshots

    engine = past.recover(pending=False).engine
    ensemble = _load(past, text)
    _reconfigure(engine, ensemble, past)
    outcome = {**_outcome(past)}
    past.warn_of_damage()
    past.journal.close()
    with ControlledRun(past.folder, lock, JournalWriter(past.journal.path), past.registry) as kept:
        writer = kept.journal
        writer.store_file_version(text.file, text.text, text.overrides, ensemble.attached)
        kept.begin()
        snapshots = Snapshots(writer, engine, kept.maker, past.warn)
        event = Resumed(engine.state.now, reopened=True)
        writer.append(event, engine.handle(event))
        snapshots.count()
        snapshots.last()
        writer.end(time.time(), outcome)
    return NewTables(past.tag, tables, engine, int(outcome.get("exit_code", 0)))


def _check_request(past: KeptRun, text: FileVersion | None, request: Mapping[str, Any]) -> None:
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
        reconfigure(trial, past.loading_new("check")(text), past.journal, past.loading)
    refused = refusal(trial.state, request["action"])
    if refused is not None:
        raise refused


def _reconfigure(engine: Engine, ensemble: Ensemble, past: KeptRun) -> None:
    """Apply a changed file. Warn about rules that no longer have an effect."""
    warn = past.warn
    for rule in reconfigure(engine, ensemble, past.journal, past.loading):
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
