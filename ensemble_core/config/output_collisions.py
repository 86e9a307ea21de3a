"""Warns about jobs that would write to the same output file, which a run reads or requires."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import ObserverPlugin

#: How many jobs of a submit are checked at most.
_MOST = 2000


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
