"""Resumes a run from a Python program: ``run(…, tag=…, or_resume=True)``."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ensemble_core.api.background_run import Task
from ensemble_core.api.handle import EnsembleRun
from ensemble_core.api.mapping_source import Source
from ensemble_core.config.yaml_reader import read_text
from ensemble_core.errors import UsageError
from ensemble_core.journal.reader import FileVersion
from ensemble_core.journal.run_store import read_info
from ensemble_core.session.installed_plugins import find_plugins
from ensemble_core.session.kept_run import KeptRun
from ensemble_core.session.resume import NewTables, prepare_resume
from ensemble_core.session.tag_check import remove_if_never_began

_LOG = logging.getLogger("ensemble")


def resume_by_tag(
    tag: str, home: Path, source: Source, overrides: Sequence[str], *, accept: bool = False
) -> EnsembleRun | None:
    """Return the run with this tag, or ``None`` if there is no such run.

    The method ``begin`` of the returned run resumes it, unless it is over. With ``accept``, the
    file may have changed, and a run that is over is reopened if the change adds work. Raises
    :class:`UsageError` if the run was started from another file or in another folder, or, without
    ``accept``, if the file has changed since then.
    """
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
                warn=_LOG.warning,
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
    return json.dumps(read_text(text, "").data)


def _changed_text(
    past: KeptRun, source: Source, overrides: Sequence[str], accept: bool
) -> FileVersion | None:
    """Return the file if it has changed and this is accepted.

    Raise :class:`UsageError` if it has changed otherwise, or if the run was started in another
    folder.
    """
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
