"""``run(…, tag=…, or_resume=True)``: goes on with a run that is there already.

As ``ensemble run --or-resume`` does; the program brings its callables again. Called by ``start``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ensemble_core.api.handle import EnsembleRun
from ensemble_core.api.source import Source
from ensemble_core.cli.executor_choice import build_executor, check_environment
from ensemble_core.cli.kept_run import KeptRun
from ensemble_core.cli.or_resume import never_began
from ensemble_core.cli.remains import check_not_lost
from ensemble_core.cli.run_control import ControlledRun
from ensemble_core.config.reader import read_text
from ensemble_core.errors import UsageError
from ensemble_core.journal.reader import NAME, migrate
from ensemble_core.journal.requests import forget_requests
from ensemble_core.journal.run_store import HALT, LEAVE, STOP, Lock, look, require_own
from ensemble_core.journal.writer import JournalWriter

__all__ = ["gone_on"]


def gone_on(tag: str, home: Path, source: Source, overrides: Sequence[str]) -> EnsembleRun | None:
    """The run with this tag, to be begun again where it is not over; ``None`` where there is none.

    Raises :class:`UsageError` for a run of another file, of one that has changed since, or that was
    begun in another folder.
    """
    folder = home / "runs" / tag
    if not folder.exists() or never_began(folder):
        return None
    info = look(folder)
    file = os.path.abspath(source.file) if source.file else ""
    if info.state != "unreadable" and info.file != file:
        raise UsageError(
            f"run {tag} is one of {info.file or 'a mapping'}, not of {file or 'this mapping'}",
            hint="choose another tag",
            code="tag-taken",
        )
    if info.state == "ended":
        return EnsembleRun(tag, folder, task=None, program=source.program)
    require_own(folder)
    lock = Lock(folder)
    lock.acquire()
    try:
        return _taken_up(folder, lock, source, overrides)
    except BaseException:
        lock.release()
        raise


def _taken_up(folder: Path, lock: Lock, source: Source, overrides: Sequence[str]) -> EnsembleRun:
    from ensemble_core.api.task import Task

    for asked in (STOP, HALT, LEAVE):
        with contextlib.suppress(OSError):
            (folder / asked).unlink()
    forget_requests(folder)
    if not (folder / NAME).exists():
        check_not_lost(folder)
    migrate(folder / NAME)
    with KeptRun(None, f"{folder}{os.sep}", program=source.program) as past:
        past.journal.check_if_small()
        past.journal.check_newest()
        _check(past, source, overrides)
        name = str(past.executor["name"])
        record = past.registry.lookup("executor", name)
        executor = build_executor(past.registry, record, dict(past.executor.get("options", {})))
        engine = past.recover().engine
        damaged = past.warn_of_damage()
        about, registry = past.journal.about, past.registry
    check_environment(engine.state.ensemble)
    writer = JournalWriter(folder / NAME)
    try:
        if damaged:
            writer.forget_snapshots()
        kept = ControlledRun(folder, lock, writer, registry)
        kept.begin()
        task = Task(
            engine.state.ensemble,
            registry,
            executor,
            name=name,
            tag=folder.name,
            output=Path(str(about.get("output") or folder / "output")),
            program=source.program,
            kept=kept,
            engine=engine,
        )
    except BaseException:
        writer.close()
        raise
    return EnsembleRun(folder.name, folder, task=task, program=source.program)


def _data(text: str) -> str:
    """The data that a text says; ``1``, ``1.0`` and ``true`` are not the same."""
    return json.dumps(read_text(text, "").data)


def _check(past: KeptRun, source: Source, overrides: Sequence[str]) -> None:
    text = past.journal.texts()[-1]
    # The text of a mapping depends on the version of PyYAML, and whether it has libyaml.
    same = text.text == source.text or (not source.file and _data(text.text) == _data(source.text))
    if not same or text.overrides != tuple(overrides):
        raise UsageError(
            f"{source.file or 'the mapping'} has changed since run {past.tag} read it",
            hint="go on with it as it was, or choose another tag; 'ensemble resume "
            "--accept-changes' takes a changed file",
            code="file-changed",
        )
    began_in = str(past.journal.about.get("cwd", "."))
    if began_in != os.getcwd():
        raise UsageError(
            f"run {past.tag} was begun in another folder: {began_in}",
            cause="its jobs' relative paths start there",
            hint=f"os.chdir({began_in!r}) before",
            code="no-folder",
        )
