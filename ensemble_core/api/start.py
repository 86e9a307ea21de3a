"""Starts, resumes, checks and opens runs from a Python program: ``run``, ``load``, ``open_run``."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core.api.handle import EnsembleRun
from ensemble_core.api.mapping_source import Source, source_of
from ensemble_core.api.notebook import in_notebook
from ensemble_core.config import load_text
from ensemble_core.errors import UsageError
from ensemble_core.journal.run_store import find_run, state_folder
from ensemble_core.plugin.discovery import find_plugins
from ensemble_core.plugin.python_callables import Program
from ensemble_core.session.executor_choice import choose_executor, profile_options, read_options
from ensemble_core.session.new_run import check_tag, new_run
from ensemble_core.session.profile_files import find_profile
from ensemble_core.session.required_variables import check_environment

if TYPE_CHECKING:
    from pathlib import Path

    from ensemble_core.config.profile import Profile
    from ensemble_core.journal.reader import FileVersion
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.plugin.untrusted_code import Purpose
    from ensemble_core.session.kept_run import KeptRun

_Callables = Mapping[str, Callable[..., Any]]
_None: Mapping[str, Any] = {}


def load(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    executor: str | None = None,
    profile: str | None = None,
    functions: _Callables = _None,
    actions: _Callables = _None,
    triggers: _Callables = _None,
    statistics: _Callables = _None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    overrides: Mapping[str, Any] = _None,
    allow_idle: bool = False,
) -> Ensemble:
    """Check an ensemble file or a mapping without running it.

    The arguments mean the same as those of :func:`run`. Raises :class:`FileErrors`, which
    contains all errors of the file.
    """
    program = Program(
        functions=functions, actions=actions, triggers=triggers, statistics=statistics
    )
    found = source_of(source, program)
    registry = found.program.added_to(find_plugins([os.fspath(plugin) for plugin in plugins]))
    asked = _profile(registry, profile)
    named = executor or (asked and asked.executor)
    record = registry.lookup("executor", named) if named else None
    given = _overrides(overrides)
    return _load_ensemble(
        found, registry, record, given, "check", allow_idle=allow_idle, profile=asked
    )


def run(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    executor: str | None = None,
    options: Mapping[str, Any] = _None,
    profile: str | None = None,
    functions: _Callables = _None,
    actions: _Callables = _None,
    triggers: _Callables = _None,
    statistics: _Callables = _None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    overrides: Mapping[str, Any] = _None,
    tag: str | None = None,
    or_resume: bool = False,
    accept_changes: bool = False,
    state: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    keep: bool = True,
    allow_idle: bool = False,
    wait: bool | None = None,
    show: bool | None = None,
    reuse: Sequence[str | os.PathLike[str]] = (),
) -> EnsembleRun:
    """Run an ensemble, given as a file or as an equivalent mapping.

    - ``executor`` names the queue (default: the best available one); ``options`` are its options.
    - ``profile`` names a profile of the user's or site's configuration file. By default, these
      files are not read.
    - ``functions``, ``actions``, ``triggers`` and ``statistics`` provide the callables that the
      ensemble names. If ``source`` is a mapping, it may also contain the callables themselves.
    - ``plugins`` lists plugin files. ``overrides`` changes values of the file (``{"jobs.sim.count":
      3}``).
    - ``tag`` is the name of the run, and of its folder below ``state`` (default:
      ``$ENSEMBLE_STATE``, or the user's state folder). With ``or_resume``, an existing run with
      this tag is resumed, or returned if it is over. With ``accept_changes`` too, the ensemble may
      have changed: values that were added to a sweep, a larger count and further retries run, also
      if the run was over. With ``keep=False``, the run has no folder and
      no journal.
    - ``output`` is the folder for the output of jobs.
    - ``allow_idle`` accepts an ensemble in which no rule can fire before a job is submitted: all
      rules wait for jobs. By default, such an ensemble is an error.
    - ``reuse`` lists earlier runs by tag or folder. Jobs that one of them has already done are not
      run again; their earlier results are used.
    - ``wait``: by default, the call returns when the run is over. With ``wait=False``, it returns
      immediately, and the run continues in a thread.
    - ``show``: in a notebook, the progress is shown unless ``show`` is false.

    Raises :class:`FileErrors` for an invalid file, :class:`UsageError` for invalid arguments and
    :class:`ExecutorError` if the queue cannot be used. After any of these errors, nothing was
    submitted. Failed jobs do not raise an error; they are reflected in ``exit_code``.
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
            cause="a run without a journal cannot be resumed",
            hint="remove one of them",
            code="bad-option",
        )
    if accept_changes and not or_resume:
        raise UsageError(
            "accept_changes needs or_resume", hint="add or_resume=True", code="bad-option"
        )
    if or_resume and tag is None:
        raise UsageError("or_resume needs a tag", hint="add tag='NAME'", code="bad-tag")
    if tag is not None:
        check_tag(tag, os.fspath(home), new=keep and not or_resume)
    given = _overrides(overrides)
    if tag is not None and or_resume:
        existing = _resume_by_tag(tag, home, found, given, accept=accept_changes)
        if existing is not None:
            existing.begin(wait=wait, show=show is not False and in_notebook())
            return existing
    registry = found.program.added_to(find_plugins(files))
    asked = _profile(registry, profile)
    choice = choose_executor(registry, executor, asked)
    record = choice.record
    chosen = {
        **profile_options(registry, record, asked),
        **read_options(record, (), options),
    }
    ensemble = _load_ensemble(
        found,
        registry,
        record,
        given,
        "run",
        allow_idle=allow_idle,
        profile=asked,
        options=chosen,
    )
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
        from ensemble_core.api.background_run import Task

        task = Task(begun, found.program)
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
    """Open a run by its tag, an unambiguous beginning or end of the tag, its folder, or ``last``.

    If the run was started with callables, pass the same callables again: the run's tables may need
    them. Raises :class:`UsageError` if the run does not exist, and :class:`EnsembleError` if its
    journal is damaged.
    """
    from ensemble_core.journal.reader import NAME, Journal

    folder = find_run(state_folder(state), run)
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


def _resume_by_tag(
    tag: str, home: Path, source: Source, overrides: Sequence[str], *, accept: bool = False
) -> EnsembleRun | None:
    """Return the run with this tag, or ``None`` if there is no such run.

    The method ``begin`` of the returned run resumes it, unless it is over. With ``accept``, the
    file may have changed, and a run that is over is reopened if the change adds work. Raises
    :class:`UsageError` if the run was started from another file or in another folder, or, without
    ``accept``, if the file has changed since then.
    """
    from functools import partial

    from ensemble_core.api.background_run import Task
    from ensemble_core.journal.run_state import read_info
    from ensemble_core.session.kept_run import KeptRun
    from ensemble_core.session.lost_journal import remove_if_never_began
    from ensemble_core.session.resume import NewTables, prepare_resume

    folder = home / "runs" / tag
    if not folder.exists() or remove_if_never_began(folder, find_plugins):
        return None
    info = read_info(folder)
    file = os.path.abspath(source.file) if source.file else ""
    if info.state != "unreadable" and info.file != file:
        raise UsageError(
            f"run {tag} was started from {info.file or 'a Python mapping'}, "
            f"not from {file or 'a Python mapping'}",
            hint="choose another tag",
            code="tag-taken",
        )
    over = EnsembleRun(tag, folder, task=None, program=source.program)
    if info.state == "ended" and not accept:
        return over
    try:
        taken = prepare_resume(
            folder,
            partial(
                KeptRun,
                None,
                f"{folder}{os.sep}",
                find_plugins=find_plugins,
                warn=logging.getLogger("ensemble").warning,
                program=source.program,
            ),
            find_plugins,
            partial(_changed_text, source=source, overrides=overrides, accept=accept),
            may_reopen=accept,
        )
    except UsageError as error:
        if error.code != "run-ended":
            raise
        return over  # nothing in the file adds work
    if isinstance(taken, NewTables):
        return over
    try:
        task = Task(taken, source.program)
    except BaseException:
        if taken.kept is not None:
            taken.kept.__exit__()
        raise
    return EnsembleRun(tag, folder, task=task, program=source.program)


def _data(text: str) -> str:
    """Return the data in a file's text as a string for comparison, in which 1, 1.0 and true
    differ.
    """
    from ensemble_core.config.yaml_reader import read_document

    return json.dumps(read_document(text, "").data)


def _changed_text(
    past: KeptRun, source: Source, overrides: Sequence[str], accept: bool
) -> FileVersion | None:
    """Return the file if it has changed and this is accepted.

    Raise :class:`UsageError` if it has changed otherwise, or if the run was started in another
    folder.
    """
    from ensemble_core.journal.reader import FileVersion

    text = past.journal.texts()[-1]
    # Compare the data, because the text of a mapping depends on PyYAML's version and on libyaml.
    same = text.text == source.text or (not source.file and _data(text.text) == _data(source.text))
    same = same and text.overrides == tuple(overrides)
    if not same and not accept:
        raise UsageError(
            f"{source.file or 'the mapping'} has changed since run {past.tag} read it",
            hint="undo the change, choose another tag, or pass accept_changes=True",
            code="file-changed",
        )
    began_in = str(past.journal.about.get("cwd", "."))
    if began_in != os.getcwd():
        raise UsageError(
            f"run {past.tag} was started in another folder: {began_in}",
            cause="relative paths of its jobs refer to that folder",
            hint=f"call os.chdir({began_in!r}) first",
            code="no-folder",
        )
    if same:
        return None
    return FileVersion(past.journal.last(), source.file, source.text, tuple(overrides))


def _may_block() -> bool:
    """Return True if ``run`` may block by default. Raises :class:`UsageError` inside asyncio."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or in_notebook():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    raise UsageError(
        "run() would block this event loop until the run is over",
        hint="write 'await run(…, wait=False)', or pass wait=True to block it",
        code="event-loop",
    )


def _profile(registry: Registry, name: str | None) -> Profile | None:
    return None if name is None else find_profile(registry, name, flag="profile=")


def _load_ensemble(
    source: Source,
    registry: Registry,
    record: Any,
    overrides: Sequence[str],
    purpose: Purpose,
    *,
    allow_idle: bool,
    profile: Profile | None = None,
    options: Mapping[str, Any] | None = None,
) -> Ensemble:
    return load_text(
        source.text,
        registry,
        file=source.file,
        executor=record,
        options=options,
        overrides=overrides,
        functions=source.program.functions,
        must_begin=not allow_idle,
        purpose=purpose,
        profile=profile,
    )


def _overrides(given: Mapping[str, Any]) -> list[str]:
    """Convert overrides to the form of ``--set``."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items()]
