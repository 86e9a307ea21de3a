"""Checks the keys ``outputs`` (required files) and ``discard`` (files to remove) of job groups.

Warns about jobs that would write to the same file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import ObserverPlugin

#: How many seconds to wait for a file on a network file system, if the entry does not say it.
_WAIT = 5.0
#: How many jobs of a submit are compared at most.
_MOST = 2000


def _entries(
    context: Context, path: Path, given: list[Any]
) -> Iterator[tuple[dict[str, Any], str, Path]]:
    """Yield each valid entry as a mapping, with its path and the place of this path."""
    for number, each in enumerate(given):
        place = (*path, number)
        if context.is_valid(place):
            short = isinstance(each, str)
            entry = {"path": each} if short else each
            yield entry, entry["path"], place if short else (*place, "path")


def read_outputs(context: Context, path: Path, given: list[Any]) -> dict[str, float] | None:
    """Return for each file how many seconds to wait for it, or ``None`` after reporting errors."""
    before = len(context.errors)
    found: dict[str, float] = {}
    for entry, name, at in _entries(context, path, given):
        wait: float | None = _WAIT
        if "wait" in entry:
            wait = context.duration((*at[:-1], "wait"), entry["wait"])
        if "\0" in name:
            context.report(at, "a file's name cannot contain a NUL character", code="bad-value")
        elif name in found:
            context.report(
                at,
                f"{name!r} is listed twice",
                hint="remove one of the entries",
                code="duplicate-name",
            )
        elif wait is not None:
            found[name] = wait
    return found if len(context.errors) == before else None


def check_visible(context: Context, path: Path, spec: Mapping[str, Any]) -> None:
    """Report ``outputs`` if jobs of the executor write where the run cannot look."""
    why = "" if context.executor is None else context.executor.unseen
    for key, do, instead in (
        ("outputs", "be checked", "check the files in the job's command: sim && test -s traj.xtc"),
        ("discard", "be removed", "remove the files in the job's command: sim && rm -r scratch"),
    ):
        if spec.get(key) and why and context.executor is not None:
            context.report(
                (*path, key),
                f"files of {key!r} cannot {do} with the executor {context.executor.name}: {why}",
                hint=f"remove {key!r}, and {instead}",
                code="bad-value",
                where=context.document.at_key((*path, key)),
            )


def read_discard(context: Context, path: Path, given: list[Any]) -> dict[str, str] | None:
    """Return for each pattern when to remove its files, or ``None`` after reporting errors."""
    before = len(context.errors)
    found: dict[str, str] = {}
    for entry, name, at in _entries(context, path, given):
        wrong = _not_below(name)
        if wrong or name in found:
            context.report(
                at,
                f"{name!r} {wrong or 'is listed twice'}",
                hint="name files and folders below the job's workdir: scratch/ or *.tmp"
                if wrong
                else "remove one of the entries",
                code="bad-value" if wrong else "duplicate-name",
            )
        else:
            found[name] = entry.get("when", "success")
    return found if len(context.errors) == before else None


def _not_below(name: str) -> str:
    """Return why a path does not name something below the job's workdir; empty if it does."""
    parts = PurePosixPath(name).parts
    if "\0" in name:
        return "has a NUL character"
    if name.startswith(("/", "{here}", "{cwd}")):
        return "is an absolute path"
    if ".." in parts:
        return "leads out of the job's workdir"
    return "" if parts else "is the job's workdir itself"


def check_discard(context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup) -> None:
    """Report patterns of ``discard`` that would remove too much."""
    for number, name in enumerate(group.discard if "discard" in spec else ()):
        entry = spec["discard"][number]
        at = (*path, "discard", number, *(() if isinstance(entry, str) else ("path",)))
        kept = [each for each in group.outputs if _covers(name, each)]
        if kept:
            what = f"{name!r} would remove {kept[0]!r}, which 'outputs' requires"
            hint = "choose a narrower pattern, or remove the entry of 'outputs'"
        elif group.workdir is None and not PurePosixPath(name).parts[0].strip("*?"):
            what = f"{name!r} would remove everything in the folder where the run is started"
            hint = "give each job its own folder: workdir: runs/{run}/{group}/{index}"
        else:
            continue
        context.report(at, what, hint=hint, code="bad-value")


def _covers(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path or one of its folders."""
    where = PurePosixPath(path)
    parents = [each for each in (where, *where.parents) if each.parts]
    return any(
        len(each.parts) == len(PurePosixPath(pattern).parts) and each.match(pattern)
        for each in parents
    )


def warn_of_shared_files(
    groups: Iterable[JobGroup], observers: Mapping[str, ObserverPlugin]
) -> Iterator[str]:
    """Yield a warning for each file that two jobs of a group would write, if an observer reads it
    or ``outputs`` names it.
    """
    for group in groups:
        if not (group.observe or group.outputs) or group.size < 2:
            continue
        pair = _folder_collision(group)
        if pair is None:
            continue
        for path in sorted(pair[0].outputs.keys() & pair[1].outputs.keys()):
            yield _warning(pair, path, "'outputs' names: the file of one job would do for both")
        for name, options in group.observe.items():
            try:
                # An observer without a path reads the standard output.
                paths = [observers[name].build(job, options).path or job.stdout for job in pair]
            except Exception:  # an error in a plugin, which the run reports
                continue
            if paths[0] is not None and paths[0] == paths[1]:
                yield _warning(pair, paths[0], f"the observer {name!r} reads")


def _warning(pair: tuple[Job, Job], path: str, why: str) -> str:
    one, other = pair
    file = os.path.normpath(os.path.join(one.workdir or "", path))
    return (
        f"{one.id} and {other.id} would both write {file}, which {why}; give each job a separate "
        "folder: workdir: runs/{run}/{group}/{index}"
    )


def _folder_collision(group: JobGroup) -> tuple[Job, Job] | None:
    """Return two jobs of one submit that have the same workdir, or ``None``."""
    seen: dict[str, Job] = {}
    for job in islice(group.jobs(0), _MOST):
        earlier = seen.setdefault(os.path.normpath(job.workdir or ""), job)
        if earlier is not job:
            return earlier, job
    return None
