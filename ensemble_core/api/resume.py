"""``run(…, tag=…, or_resume=True)``: goes on with a run that is there already.

As ``ensemble run --or-resume`` does; the program brings its callables again. Called by ``start``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ensemble_core.api.handle import EnsembleRun
from ensemble_core.api.source import Source
from ensemble_core.api.task import Task
from ensemble_core.config.reader import read_text
from ensemble_core.errors import UsageError
from ensemble_core.journal.run_store import look
from ensemble_core.session.kept_run import KeptRun
from ensemble_core.session.plugins import find_plugins
from ensemble_core.session.resume import prepare_resume
from ensemble_core.session.tags import remove_if_never_began

__all__ = ["resume_by_tag"]

_LOG = logging.getLogger("ensemble")


def resume_by_tag(
    tag: str, home: Path, source: Source, overrides: Sequence[str]
) -> EnsembleRun | None:
    """The run with this tag, to be begun again where it is not over; ``None`` where there is none.

    Raises :class:`UsageError` for a run of another file, of one that has changed since, or that was
    begun in another folder.
    """
    folder = home / "runs" / tag
    if not folder.exists() or remove_if_never_began(folder, find_plugins):
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
    taken = prepare_resume(
        folder,
        partial(
            KeptRun,
            None,
            f"{folder}{os.sep}",
            find_plugins=find_plugins,
            warn=_LOG.warning,
            program=source.program,
        ),
        find_plugins,
        partial(_unchanged, source=source, overrides=overrides),
    )
    try:
        task = Task(
            taken.ensemble,
            taken.registry,
            taken.executor,
            name=taken.choice.name,
            tag=tag,
            output=taken.output,
            program=source.program,
            kept=taken.kept,
            engine=taken.engine,
        )
    except BaseException:
        taken.kept.__exit__()
        raise
    return EnsembleRun(tag, folder, task=task, program=source.program)


def _data(text: str) -> str:
    """The data that a text says; ``1``, ``1.0`` and ``true`` are not the same."""
    return json.dumps(read_text(text, "").data)


def _unchanged(past: KeptRun, source: Source, overrides: Sequence[str]) -> None:
    """Raise :class:`UsageError` if the file has changed, or this is not the run's folder."""
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
