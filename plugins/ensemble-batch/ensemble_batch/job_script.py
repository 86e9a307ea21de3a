"""Job scripts: the bash scripts that are submitted to a queue.

A script contains a table of a batch's jobs, ``tasks.sh`` and a wrapper, which runs one job. The
queue runs the script once for each job.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from ensemble_batch.output_files import Place
from ensemble_core import Job

if TYPE_CHECKING:
    from ensemble_batch.queue_hooks import QueueHooks


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that are submitted together, with equal requests to the queue.

    The queue must store the batch under its ``name``, so that it can be found again.
    """

    #: ``ens_`` followed by letters, digits and underscores. With ``BatchExecutor``, each submission
    #: attempt has a new name. With ``QueueExecutor``, all attempts have the same name, and the
    #: queue must not accept two batches with it.
    name: str
    jobs: tuple[Job, ...]  #: numbered from 1
    #: Path of the batch's script (bash); empty with ``QueueExecutor``.
    script: str = ""
    places: tuple[Place, ...] = ()  #: folders and output files of the jobs, in order
    tag: str = ""  #: of the run, for people
    run_id: str = ""  #: the run's identity

    @property
    def job(self) -> Job:
        """The first job; the others are like it."""
        return self.jobs[0]

    def environment(self, job: Job) -> dict[str, str]:
        """Return this job's variables that the queue does not set: those of the run and of the job.

        ``ENSEMBLE_TASK_RANK`` is missing, because it differs from task to task.
        """
        return job_variables(job, self.tag) | dict(job.environment)


def job_variables(job: Job, tag: str) -> dict[str, str]:
    """Return the environment variables that identify a job and the run ``tag``."""
    return {
        "ENSEMBLE_JOB_ID": job.label,
        "ENSEMBLE_INDEX": str(job.index),
        "ENSEMBLE_ATTEMPT": str(job.attempt),
        "ENSEMBLE_GROUP": job.group,
        "ENSEMBLE_RUN": tag,
        "ENSEMBLE_TASK_COUNT": str(job.tasks),
        "ENSEMBLE_CORES": str(job.cores_per_task),
    }


def quote(text: str) -> str:
    r"""Return ``text`` quoted as one word of a shell.

    >>> quote("it's")
    "'it'\\''s'"
    """
    # Slurm rejects scripts with DOS line ends anywhere.
    return "'" + text.replace("'", "'\\''").replace("\r", "'$'\\r''") + "'"


def job_lines(job: Job, place: Place) -> list[str]:
    """Return the wrapper's settings for one job, each on a self-contained line."""
    changes = [f"{name}={value}" for name, value in job.environment.items()]
    return [
        f"_ens_workdir={quote(place.workdir)}",
        f"_ens_out={quote(place.out)}",
        f"_ens_err={quote(place.err)}",
        f"_ens_kept=({' '.join(map(quote, place.kept))})",
        # Not in this shell: the job's PATH must not hide the wrapper's tools.
        f"_ens_env=({' '.join(('env', *map(quote, changes)) if changes else ())})",
        "set -- " + " ".join(map(quote, job.command)),
    ]


def job_table(tables: Sequence[Sequence[str]], place: str, first: int) -> list[str]:
    """Return the settings of a batch's jobs as a script in which each task selects its own.

    Lines that all jobs share are written once. The argument ``place`` is a shell expression for a
    task's place in the batch, counted from ``first``.

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
def _wrapper(name: str) -> str:
    folder = files("ensemble_batch")
    return "".join(folder.joinpath(each).read_text("utf-8") for each in ("tasks.sh", name))


def _own_lines(job: Job, place: Place, tag: str) -> list[str]:
    variables = job_variables(job, tag)
    exports = [f"export {name}={quote(text)}" for name, text in variables.items()]
    threads = [
        # PBS sets both to the cores of all tasks.
        '[ "$OMP_NUM_THREADS" != "${NCPUS:--}" ] || unset OMP_NUM_THREADS',
        # Not if the user or the site has set it.
        f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{job.cores_per_task}}}"',
    ]
    return [*exports, *threads, *job_lines(job, place)]


def _quote_path(path: str) -> str:
    """Return a path as one word of a shell in which only ``$_ens_id`` is expanded.

    >>> print(_quote_path("/a b/$_ens_id.err"))
    '/a b/'"$_ens_id"'.err'
    """
    return '"$_ens_id"'.join(map(quote, path.split("$_ens_id")))


def _limit_lines(job: Job) -> list[str]:
    """Return the settings of a job's time limit and of the signal before it.

    The wrapper counts slices, because time while the job is suspended must not count.
    """
    rest = min(job.warn.get("before", 0.0), job.duration)
    lines = [
        f"_ens_limit={f'{job.duration:.3f}' if job.duration else 0}",
        f"_ens_warn={job.warn.get('signal', '')}",
    ]
    for name, seconds in ("slice", job.duration - rest), ("rest", rest):
        slices = math.ceil(max(seconds / 60, min(10, seconds)))
        lines += [f"_ens_{name}s={slices}", f"_ens_{name}={seconds / max(1, slices):.6f}"]
    return lines


def _restart_lines(codes: frozenset[int]) -> list[str]:
    """Return the exit codes that a wrapper must not end with, and the one to use instead.

    >>> _restart_lines(frozenset({100, 99}))
    ['_ens_restart_codes="99 100"', '_ens_failed=1']
    """
    shown = " ".join(map(str, sorted(codes)))
    return [
        f'_ens_restart_codes="{shown}"',
        f"_ens_failed={next((code for code in range(1, 120) if code not in codes), 1)}",
    ]


def script_of(
    key: str,
    jobs: Sequence[tuple[Job, Place]],
    *,
    tag: str,
    folder: str,
    place: str,
    queue_id: str,
    grace: float,
    notice: str = "",
    restart_codes: frozenset[int] = frozenset(),
) -> bytes:
    """Return the script of a batch.

    The arguments ``place`` and ``queue_id`` are shell expressions for a task's place in the batch,
    from 1, and for its id in the queue. The argument ``notice`` is the name of the signal by which
    the queue announces a suspension. After ``restart_codes``, the queue would start a job again.
    """
    first = jobs[0][0]
    lines = [
        "#!/bin/bash",
        "set +aeu",
        # Signals that come before the job starts are acted on when it starts.
        "_ens_early= _ens_noticed=",
        "trap _ens_early=stopped TERM USR1 USR2 XCPU INT HUP QUIT",
        *(["trap _ens_early=deleted USR2", f"trap _ens_noticed=1 {notice}"] if notice else []),
        # The queue signals a process group. With job control, what the wrapper starts is not in it.
        "set -m",
        f"_ens_folder={quote(folder)}",
        f"_ens_id={queue_id}",
        f'_ens_place="{place}"',  # may be "$1", which a job's command replaces
        f"_ens_grace={grace:g}",
        f"_ens_notice={notice}",
        *_restart_lines(restart_codes),
        *_limit_lines(first),
        f"_ens_tasks={first.tasks}",
    ]
    tables = [
        [
            f"_ens_name={quote(f'{job.id}@{key}')}",
            *_own_lines(job, where, tag),
        ]
        for job, where in jobs
    ]
    lines += job_table(tables, "$_ens_place", 1)
    return os.fsencode("\n".join(lines) + "\n" + _wrapper("claim_wrapper.sh"))


def report_script_of(
    name: str,
    jobs: Sequence[tuple[Job, Place]],
    *,
    tag: str,
    folder: str,
    token: str,
    port: int,
    hosts: Sequence[str],
    hooks: QueueHooks,
) -> bytes:
    """Return the self-contained script of a batch whose jobs report over the network."""
    first = jobs[0][0]
    lines = [
        "#!/bin/bash",
        # An exported SHELLOPTS could end the wrapper early, or reveal the token.
        "set +aeu",
        "_ens_early=",
        f"_ens_id={hooks.task_id}",
        f'_ens_place="{hooks.task_place}"',
        f"_ens_life={hooks.task_restarts}",
        f"_ens_queue={quote(hooks.name)}",
        f"_ens_batch={quote(name)}",
        f"_ens_dir={quote(folder)}",
        f"_ens_token={quote(token)}",
        f"_ens_port={port}",
        f"_ens_hosts={quote(' '.join(hosts))}",
        *_limit_lines(first),
        f"_ens_requeue={int(hooks.may_restart(first))}",
        *_restart_lines(hooks.restart_codes),
        f"_ens_grace={hooks.grace_of(first):g}",
        # The id is expanded; the path is not.
        "_ens_messages=" + _quote_path(hooks.messages_file([place for _, place in jobs])),
        f"_ens_launch=({' '.join(map(quote, hooks.launcher(first)))})",
        f"_ens_relay={hooks.relay if hooks.launcher(first) else ''}",
        f"_ens_cgroup={hooks.task_cgroup}",
    ]
    tables = [[f"_ens_job={quote(job.id)}", *_own_lines(job, place, tag)] for job, place in jobs]
    lines += job_table(tables, "$_ens_place", 1)
    return os.fsencode("\n".join(lines) + "\n" + _wrapper("network_wrapper.sh"))
