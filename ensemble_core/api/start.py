"""``run``, ``load`` and ``open_run``: how a Python program begins a run, checks one, opens one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core.api.handle import EnsembleRun
from ensemble_core.api.notebook import in_notebook
from ensemble_core.api.source import Source, source_of
from ensemble_core.config import load_text
from ensemble_core.errors import UsageError
from ensemble_core.journal.run_store import find, state_folder
from ensemble_core.plugin.program import Program
from ensemble_core.session.executor_choice import (
    check_environment,
    choose_executor,
    read_options,
)
from ensemble_core.session.new_run import new_run
from ensemble_core.session.plugins import find_plugins
from ensemble_core.session.tags import check_tag

if TYPE_CHECKING:
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.plugin.named_code import Purpose
    from ensemble_core.plugin.registry import Registry

__all__ = ["load", "open_run", "run"]

_Callables = Mapping[str, Callable[..., Any]]
_None: Mapping[str, Any] = {}


def load(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    executor: str | None = None,
    functions: _Callables = _None,
    actions: _Callables = _None,
    triggers: _Callables = _None,
    statistics: _Callables = _None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    overrides: Mapping[str, Any] = _None,
    allow_idle: bool = False,
) -> Ensemble:
    """Check an ensemble file or a mapping, and run nothing.

    Takes what :func:`run` takes. Raises :class:`FileErrors` with every error that was found.
    """
    program = Program(
        functions=functions, actions=actions, triggers=triggers, statistics=statistics
    )
    found = source_of(source, program)
    registry = found.program.added_to(find_plugins([os.fspath(plugin) for plugin in plugins]))
    record = None if executor is None else registry.lookup("executor", executor)
    given = _overrides(overrides)
    return _checked(found, registry, record, given, "check", allow_idle=allow_idle)


def run(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    executor: str | None = None,
    options: Mapping[str, Any] = _None,
    functions: _Callables = _None,
    actions: _Callables = _None,
    triggers: _Callables = _None,
    statistics: _Callables = _None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    overrides: Mapping[str, Any] = _None,
    tag: str | None = None,
    or_resume: bool = False,
    state: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    keep: bool = True,
    allow_idle: bool = False,
    wait: bool | None = None,
    show: bool | None = None,
    reuse: Sequence[str | os.PathLike[str]] = (),
) -> EnsembleRun:
    """Run an ensemble: a file, or a mapping that says the same.

    ``executor`` names the queue (default: the best that can work here), ``options`` are its
    options. ``functions``, ``actions``, ``triggers`` and ``statistics`` are callables by the names
    under which the ensemble speaks of them; in a mapping they may stand in its place.
    ``plugins`` are files of plugins, ``overrides`` change values of the file
    (``{"jobs.sim.count": 3}``). The run is kept below ``state`` (default: ``$ENSEMBLE_STATE``, or
    the user's own folder) under ``tag``; where there is such a run already, ``or_resume`` goes on
    with it, or returns it if it is over. ``keep=False`` keeps nothing. Jobs' output goes below
    ``output``. ``allow_idle`` accepts an ensemble in which no rule can fire first, for a run that
    only steers other jobs. ``reuse`` names earlier runs, by tag or folder: their results are taken
    instead of running the same job again.

    Returns when the run is over; with ``wait=False`` at once, and the run goes on in a thread. In a
    notebook its progress is shown, unless ``show`` is false.

    Raises :class:`FileErrors` for a wrong file, :class:`UsageError` for wrong arguments and
    :class:`ExecutorError` where the queue cannot be used: nothing was submitted then. How the
    jobs fared is no error: ``exit_code`` says it.
    """
    if wait is None:
        wait = _may_block()
    program = Program(
        functions=functions, actions=actions, triggers=triggers, statistics=statistics
    )
    found = source_of(source, program)
    files = [os.path.abspath(plugin) for plugin in plugins]
    home = state_folder(state)
    if or_resume and not keep:
        raise UsageError(
            "or_resume=True cannot be combined with keep=False",
            cause="a run that keeps no journal cannot be resumed",
            hint="leave out one of them",
            code="bad-option",
        )
    if or_resume and tag is None:
        raise UsageError("or_resume needs the tag of a run", hint="tag='NAME'", code="bad-tag")
    if tag is not None:
        check_tag(tag, os.fspath(home), new=keep and not or_resume)
    given = _overrides(overrides)
    if tag is not None and or_resume:
        from ensemble_core.api.resume import resume_by_tag

        there = resume_by_tag(tag, home, found, given)
        if there is not None:
            there.begin(wait=wait, show=show is not False and in_notebook())
            return there
    registry = found.program.added_to(find_plugins(files))
    choice = choose_executor(registry, executor)
    chosen = read_options(choice.record, (), options)
    ensemble = _checked(found, registry, choice.record, given, "run", allow_idle=allow_idle)
    check_environment(ensemble)
    begun = new_run(
        ensemble,
        registry,
        choice,
        chosen,
        file=found.file,
        text=found.text,
        overrides=given,
        plugins=files,
        state=home,
        tag=tag,
        output=output,
        keep=keep,
        more={"program": found.program.described()} if found.program else {},
        reuse=[os.fspath(each) for each in reuse],
    )
    kept = begun.kept
    try:
        from ensemble_core.api.task import Task

        task = Task(
            begun.ensemble,
            registry,
            begun.executor,
            name=choice.name,
            tag=begun.tag,
            output=begun.output,
            program=found.program,
            kept=kept,
            earlier=begun.earlier,
        )
    except BaseException:
        if kept is not None:
            kept.end(None)
            kept.__exit__()
        raise
    folder = None if kept is None else kept.folder
    handle = EnsembleRun(begun.tag, folder, task=task, program=found.program)
    handle.begin(wait=wait, show=show is not False and in_notebook())
    return handle


def open_run(
    run: str = "last",
    *,
    state: str | os.PathLike[str] | None = None,
    functions: _Callables = _None,
    actions: _Callables = _None,
    triggers: _Callables = _None,
    statistics: _Callables = _None,
) -> EnsembleRun:
    """Open a kept run: by its tag, a beginning or an end of it that fits no other, its folder, or
    ``last``. It may be under way, in this process or another.

    A run that a program began with callables of its own is given them again where they are needed.
    Raises :class:`UsageError` where there is no such run, :class:`EnsembleError` where its journal
    is damaged.
    """
    from ensemble_core.journal.reader import NAME, Journal

    folder = find(state_folder(state), run)
    program = Program(
        functions=functions, actions=actions, triggers=triggers, statistics=statistics
    )
    with Journal(folder / NAME) as journal:
        journal.check_if_small()
        missing = journal.missing_tail()
        if missing is not None:
            raise missing
        tag = journal.tag
    return EnsembleRun(tag, folder, task=None, program=program if program else None)


def _may_block() -> bool:
    """True where the caller may be kept waiting. Raises :class:`UsageError` within asyncio."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or in_notebook():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    raise UsageError(
        "run() would keep this event loop waiting until the run is over",
        hint="write 'await run(…, wait=False)', or wait=True where that is meant",
        code="event-loop",
    )


def _checked(
    source: Source,
    registry: Registry,
    record: Any,
    overrides: Sequence[str],
    purpose: Purpose,
    *,
    allow_idle: bool,
) -> Ensemble:
    return load_text(
        source.text,
        registry,
        file=source.file,
        executor=record,
        overrides=overrides,
        functions=source.program.functions,
        must_begin=not allow_idle,
        purpose=purpose,
    )


def _overrides(given: Mapping[str, Any]) -> list[str]:
    """Changes as ``--set`` has them."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items()]
