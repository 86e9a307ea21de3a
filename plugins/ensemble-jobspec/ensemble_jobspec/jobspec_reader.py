"""Reader of jobspecs: detects the form and returns the workload."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, get_args

from ensemble_core import FileErrors, UsageError
from ensemble_core.cli.toolkit import read_document, read_file
from ensemble_jobspec.flux_reader import read_flux
from ensemble_jobspec.jobspec_errors import Faults, nearest
from ensemble_jobspec.nextgen_reader import read_nextgen
from ensemble_jobspec.transform_reader import read_transform
from ensemble_jobspec.workload import Form, Workload

_READERS: Mapping[str, Callable[[Faults, str], Workload]] = {
    "flux": read_flux,
    "transform": read_transform,
    "nextgen": read_nextgen,
}
_KEYS = ("version", "name", "resources", "tasks", "task", "groups", "attributes", "requires")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")


def read(source: str | os.PathLike[str], form: Form | None = None) -> Workload:
    """Return the workload of a jobspec, given as a file or as text.

    The ``source`` is text if it has several lines or begins with ``{``; otherwise it is a path.
    Raises :class:`~ensemble_core.FileErrors` with all mistakes and their lines.
    """
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return read_jobspec(source, "jobspec", form)
    file = os.fspath(source)
    return read_jobspec(read_file(file), file, form)


def read_jobspec(text: str, file: str, form: Form | None = None) -> Workload:
    """Return the workload of a text. The argument ``file`` is the file's name in messages.

    Raises the errors of :func:`read`.
    """
    document = read_document(text, file)
    faults = Faults(document)
    found: str = form or detect_form(faults)
    if found not in get_args(Form):
        raise UsageError(
            f"unknown jobspec form {found!r}",
            hint=nearest(found, get_args(Form)),
            code="bad-option",
        )
    name = _OTHER.sub("-", FilePath(file).name.partition(".")[0]).strip("-") or "jobspec"
    if not faults.check(found):
        raise FileErrors(faults.errors)
    workload = _READERS[found](faults, name)
    if faults.errors:
        raise FileErrors(faults.errors)
    return replace(workload, file=file, warnings=tuple(faults.warnings))


def detect_form(faults: Faults) -> Form:
    """Return the form of a document, detected by its shape, because all forms have ``version: 1``.

    Raises :class:`~ensemble_core.FileErrors` if the document fits no form, or two.
    """
    data = faults.document.data
    if not isinstance(data, dict):
        raise _unknown_form(faults, "a jobspec is a mapping")
    if "task" in data and "tasks" not in data and "groups" not in data:
        return "transform"
    tasks = data.get("tasks")
    slotted = _any_slot(tasks)
    listed = isinstance(data.get("resources"), list)
    if "task" in data:
        raise _unknown_form(
            faults, "it has both 'task' (jobspec 0.0) and 'tasks' or 'groups' (0.1)"
        )
    if listed and ("groups" in data or (tasks and not slotted)):
        raise _unknown_form(
            faults, "its 'resources' are a list, as in Flux's form, but its tasks name no slot"
        )
    if listed and tasks:
        return "flux"
    if slotted and isinstance(data.get("resources"), dict):
        raise _unknown_form(
            faults, "its tasks name a slot, as in Flux's form, but its 'resources' are a mapping"
        )
    if tasks is not None or "groups" in data or isinstance(data.get("resources"), dict):
        return "nextgen"
    for key in data:
        hint = None if key in _KEYS else nearest(key, ("tasks", "task", "groups"))
        if hint is not None and hint.startswith("did"):
            faults.report((key,), f"unknown key {key!r}", hint=hint, code="unknown-key", key=True)
            raise FileErrors(faults.errors)
    raise _unknown_form(faults, "it has no 'tasks', 'task' or 'groups'")


def _any_slot(tasks: Any) -> bool:
    return isinstance(tasks, list) and any(isinstance(t, dict) and "slot" in t for t in tasks)


def _unknown_form(faults: Faults, why: str) -> FileErrors:
    return FileErrors(
        [
            UsageError(
                "cannot detect the form of this jobspec",
                where=faults.at(()),
                cause=why,
                hint="the forms are: flux ('resources' is a list, tasks have 'slot'), transform "
                "('task'), nextgen ('tasks' or 'groups'); choose one with --form",
                code="jobspec-form",
            )
        ]
    )
