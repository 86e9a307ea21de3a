"""Batching: jobs that ask Slurm for the same become one job array, submitted by one ``sbatch``.

What a site allows bounds them (``MaxArraySize``), and so does what fits into a comment and a
script. Pure; used by the submitter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ensemble_core import Job
from ensemble_slurm.names import fits
from ensemble_slurm.script import shape_of

__all__ = ["SCRIPT_LIMIT", "batches"]

#: Bytes of commands in one script; Slurm takes 4 MiB of script (``max_script_size``).
SCRIPT_LIMIT = 2 * 1024 * 1024
#: What a job costs in a script beside its words.
_ROW = 300


def batches(jobs: Sequence[Job], tag: str, *, largest: int) -> list[list[Job]]:
    """Jobs by batch: those that may be one array, in ascending order of their indices.

    ``largest`` is how many tasks an array may have; 1 where the site has no arrays. Batches come in
    the order of their first jobs, the more urgent ones first.
    """
    shapes: dict[tuple[object, ...], list[Job]] = {}
    for job in jobs:
        shapes.setdefault(shape_of(job), []).append(job)
    found: list[list[Job]] = []
    for alike in shapes.values():
        alike.sort(key=lambda job: job.index)
        found += _cut(alike, tag, max(1, largest))
    found.sort(key=lambda batch: -batch[0].urgency)
    return found


def _cut(jobs: Iterable[Job], tag: str, largest: int) -> list[list[Job]]:
    found: list[list[Job]] = []
    batch: list[Job] = []
    size = 0
    for job in jobs:
        cost = _ROW + sum(map(len, job.command)) + sum(map(len, job.environment.values()))
        full = len(batch) >= largest or size + cost > SCRIPT_LIMIT
        if batch and not full and job.index != batch[-1].index + 1:
            # Each gap makes the comment longer.
            full = not fits(tag, "k" * 12, job.group, [each.index for each in batch] + [job.index])
        if batch and full:
            found.append(batch)
            batch, size = [], 0
        batch.append(job)
        size += cost
    if batch:
        found.append(batch)
    return found
