"""Job scripts of polled queues: what the queue is handed for a batch.

A batch's script is a table of its jobs, of which each task takes its own, and then ``wrapper.sh``.
It needs bash. Used by ``BatchExecutor``; pure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ensemble_batch.output_files import Place
from ensemble_core import Job

__all__ = ["Batch", "job_lines", "job_table", "quote", "script_of"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that are handed to the queue at once: equal in all that the queue is asked for.

    ``name`` is what the queue is to call it, by which it is found again: letters, digits and
    underscores, unique. Where a wrapper claims the jobs, each attempt to hand a batch in has a new
    name, and ``script`` is the path of the batch's script (bash). Without one, all attempts have
    the same name, and the queue must not have two batches of it. Where a batch has several jobs,
    their places in it are numbered from 1. ``places`` are the folders and output files of its jobs,
    in their order; ``tag`` is the run's.
    """

    name: str
    jobs: tuple[Job, ...]
    script: str = ""
    places: tuple[Place, ...] = ()
    tag: str = ""

    @property
    def job(self) -> Job:
        """The first, like which all others are."""
        return self.jobs[0]

    def environment(self, job: Job) -> dict[str, str]:
        """The variables that this job of the batch has beside those of its queue: the run's, and
        the job's own. Without ``ENSEMBLE_TASK_RANK``, which each task has of its own."""
        return job_variables(job, self.tag) | dict(job.environment)


def job_variables(job: Job, tag: str) -> dict[str, str]:
    """The variables that tell a job which one it is, in the run of this tag."""
    return {
        "ENSEMBLE_JOB_ID": job.label,
        "ENSEMBLE_INDEX": str(job.index),
        "ENSEMBLE_ATTEMPT": str(job.attempt),
        "ENSEMBLE_GROUP": job.group,
        "ENSEMBLE_RUN": tag,
        "ENSEMBLE_TASK_COUNT": str(job.tasks),
    }


def quote(text: str) -> str:
    """``text`` as one word of a shell.

    >>> quote("it's")
    "'it'\\\\''s'"
    """
    # Slurm refuses a script that has the line ends of DOS anywhere.
    return "'" + text.replace("'", "'\\''").replace("\r", "'$'\\r''") + "'"


def job_lines(job: Job, place: Place) -> list[str]:
    """The settings of one job for its wrapper, each on a line that stands by itself."""
    changes = [f"{name}={value}" for name, value in job.environment.items()]
    return [
        f"_ens_workdir={quote(place.workdir)}",
        f"_ens_out={quote(place.out)}",
        f"_ens_err={quote(place.err)}",
        f"_ens_kept=({' '.join(map(quote, place.kept))})",
        # Not this shell's: a PATH of the job's own must not keep the wrapper from its tools.
        f"_ens_env=({' '.join(('env', *map(quote, changes)) if changes else ())})",
        "set -- " + " ".join(map(quote, job.command)),
    ]


def job_table(tables: Sequence[Sequence[str]], place: str, first: int) -> list[str]:
    """The settings of a batch's jobs, of which each task takes its own: lines that all have come
    once. ``place`` is what a shell makes of a task's place in its batch, counted from ``first``.

    >>> job_table([["a=1", "b=1"], ["a=1", "b=2"]], "$N", 0)
    ['a=1', 'case "$N" in', '0)', 'b=1', ';;', '1)', 'b=2', ';;', '*) exit 125 ;;', 'esac']
    """
    common = [line for line in tables[0] if all(line in table for table in tables[1:])]
    if len(tables) == 1:
        return common
    shared, lines = set(common), [*common, f'case "{place}" in']
    for number, table in enumerate(tables, first):
        lines += [f"{number})", *(line for line in table if line not in shared), ";;"]
    return [*lines, "*) exit 125 ;;", "esac"]


@cache
def _wrapper() -> str:
    return files("ensemble_batch").joinpath("wrapper.sh").read_text("utf-8")


def script_of(
    key: str,
    jobs: Sequence[tuple[Job, Place]],
    *,
    tag: str,
    folder: str,
    place: str,
    queue_id: str,
    grace: float,
) -> bytes:
    """The script of a batch. ``place`` and ``queue_id`` are what a shell makes of a task's place in
    its batch, from 1, and of the queue's id of it."""
    first = jobs[0][0]
    lines = [
        "#!/bin/bash",
        "set +aeu",
        f". {quote(f'{folder}/environment')}",
        f"_ens_id={queue_id}",
        f'_ens_place="{place}"',  # which may be "$1": a job's command takes its place
        f"_ens_grace={grace:g}",
        f"_ens_limit={f'{first.duration:.3f}' if first.duration else 0}",
        f"_ens_tasks={first.tasks}",
    ]
    tables = [
        [
            *(f"export {name}={quote(text)}" for name, text in job_variables(job, tag).items()),
            f"_ens_report={quote(f'{folder}/reports/{job.id}@{key}')}",
            *job_lines(job, where),
        ]
        for job, where in jobs
    ]
    lines += job_table(tables, "$_ens_place", 1)
    return os.fsencode("\n".join(lines) + "\n" + _wrapper())
