"""Warns if a new run would write to the same folders as an earlier run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ensemble_core.errors import EnsembleError
from ensemble_core.journal.run_folder import NAME
from ensemble_core.journal.run_store import folders
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.placeholders import fill, placeholders

#: How many runs are compared, beginning with the newest.
_MOST = 50


def folders_of(ensemble: Ensemble) -> dict[str, str]:
    """Return the paths of jobs (workdir, stdout, stderr) that are the same in every run.

    The keys are absolute paths. They may contain placeholders, but not ``{run}``. The values are
    the fields that set the paths, such as ``stdout of 'sim'``.
    """
    found: dict[str, str] = {}
    for first in ensemble.groups.values():
        for group in (first, *first.more):
            workdir = group.workdir or ""
            if any(placeholders(_shared(group, workdir))):
                found.setdefault(_shared(group, workdir), f"workdir of {group.name!r}")
            for field in ("stdout", "stderr"):
                file = getattr(group, field)
                if file is not None:
                    path = _shared(group, os.path.join(workdir, file))
                    found.setdefault(path, f"{field} of {group.name!r}")
    return {path: whose for path, whose in found.items() if "{run" not in path}


def _shared(group: JobGroup, path: str) -> str:
    """Fill in those placeholders of a path that have the same value for all jobs and runs."""
    known = {"group": group.name, "here": group.here, "cwd": group.cwd}
    left = {name: value for name, value in known.items() if name not in group.names}
    return os.path.normpath(os.path.join(group.cwd, fill(path, left)))


def folder_warnings(state: Path, used: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each of these folders to which an earlier run has written."""
    left = {path: whose for path, whose in used.items() if os.path.isdir(_fixed_parent(path))}
    if not left:
        return
    from ensemble_core.journal.reader import Journal

    for folder in reversed(folders(state)[-_MOST:]):
        try:
            with Journal(folder / NAME) as journal:
                earlier = set(journal.about.get("folders", ()))
        except (EnsembleError, OSError):
            continue
        for path in [path for path in left if path in earlier]:
            shown = os.path.relpath(path)
            yield (
                f"{shown if not shown.startswith('../..') else path} was used by the run "
                f"{folder.name}: jobs of this run would write among its files; give each run its "
                f"own folder, with {{run}} in {left.pop(path)}"
            )


def _fixed_parent(path: str) -> str:
    """Return the folder that must exist if any job has written below this path."""
    first = next(placeholders(path), None)
    return os.path.dirname(path[: first.start] if first else path)
