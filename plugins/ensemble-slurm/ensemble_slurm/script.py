"""Batch scripts: the script that ``sbatch`` is given for a batch, and the options beside it.

The jobs of an array may differ in what they run, where, and where they write: the script has a
table of them by task. What they ask Slurm for they must have in common (``batches``). Each runs
within ``wrapper.sh``. Pure; used by whoever submits.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from ensemble_batch import Place, job_lines, job_table, quote

from ensemble_core import Job, shell_line
from ensemble_slurm.names import Batch, suffix_of

__all__ = ["Address", "Scripts", "render", "shape_of"]

#: What ``nice`` is raised by for each step that ``urgency`` is below the usual 16.
_NICE = 100


@dataclass(frozen=True, slots=True)
class Address:
    """Where wrappers report to: a port, and names of this machine to try in turn. Without names
    they write files only."""

    port: int = 0
    hosts: tuple[str, ...] = ()


def _clock(duration: float) -> tuple[str, str]:
    """How often the wrapper's clock sleeps for a time limit, and for how long."""
    slices = max(1, math.ceil(duration / 60), min(10, int(duration)))
    return f"_ens_slices={slices}", f"_ens_slice={duration / slices:.6f}"


@cache
def _wrapper() -> str:
    return files("ensemble_slurm").joinpath("wrapper.sh").read_text("utf-8")


def shape_of(job: Job) -> tuple[object, ...]:
    """The properties that jobs must share to be tasks of one array: all that Slurm is asked for."""
    options = job.options.get("slurm", {})
    return (
        job.group,
        suffix_of(job),
        job.nodes,
        job.tasks,
        job.cores_per_task,
        job.gpus_per_task,
        job.duration,
        job.urgency,
        repr(sorted(options.items())),
    )


def _nodes(job: Job) -> list[str]:
    """The options for a job's nodes; none where any will do."""
    free = job.options.get("slurm", {}).get("any_nodes", False)
    return [] if free else [f"--nodes={job.nodes}"]


@dataclass(slots=True)
class Scripts:
    """Writes the scripts of one run.

    ``folder`` is what wrappers share with the controller (``spool``), ``token`` proves a report to
    be of this run, ``grace`` are the seconds from SIGTERM to SIGKILL, ``site`` holds options for
    groups that say nothing else, ``chdir`` is where ``ensemble run`` was started.
    """

    tag: str
    token: str
    folder: str
    chdir: str
    grace: float = 10.0
    site: Mapping[str, str] = field(default_factory=dict)
    address: Address = field(default_factory=Address)

    def options(self, batch: Batch, job: Job) -> list[str]:
        """The options of ``sbatch`` for a batch of jobs like this one."""
        words = [
            "--parsable",
            f"--job-name={batch.name}",
            f"--comment={batch.comment}",
            f"--chdir={self.chdir}",
            "--input=/dev/null",
            "--output=/dev/null",
            "--error=/dev/null",
            *_nodes(job),
            f"--ntasks={job.tasks}",
            f"--cpus-per-task={job.cores_per_task}",
        ]
        if batch.array:
            words.append(f"--array=0-{len(batch.indices) - 1}")
        if job.gpus_per_task:
            words.append(f"--gpus-per-task={job.gpus_per_task}")
        if job.duration:
            # Not a minute more: it may be all that the partition allows.
            words.append(f"--time={math.ceil(job.duration / 60)}")
        options = job.options.get("slurm", {})
        if job.urgency == 0:
            words.append("--hold")
        nice = options.get("nice", 0) + max(0, 16 - job.urgency) * _NICE
        if nice and job.urgency:
            words.append(f"--nice={nice}")
        for name in ("partition", "account", "qos", "reservation", "constraint"):
            value = options.get(name, self.site.get(name))
            if value is not None:
                words.append(f"--{name}={value}")
        words += [
            f"--{name.replace('_', '-')}={options[name]}"
            for name in ("mem", "mem_per_cpu", "gres", "licenses")
            if name in options
        ]
        if options.get("exclusive"):
            words.append("--exclusive")
        # A job that Slurm starts again by itself has run twice: only where that was asked for.
        words.append("--requeue" if options.get("requeue") else "--no-requeue")
        words.extend(options.get("extra", ()))
        return words

    def write(self, batch: Batch, jobs: Sequence[tuple[Job, Place]]) -> bytes:
        """The script of a batch; ``jobs`` in the order of its tasks."""
        first = jobs[0][0]
        lines = [
            "#!/bin/bash",
            # An exported SHELLOPTS would have the wrapper end early, or give away the token.
            "set +aeu",
            f"_ens_batch={quote(f'{batch.key}.{batch.attempt}')}",
            f"_ens_dir={quote(self.folder)}",
            f"_ens_token={quote(self.token)}",
            f"_ens_port={self.address.port}",
            f"_ens_hosts={quote(' '.join(self.address.hosts))}",
            f"_ens_limit={f'{first.duration:.3f}' if first.duration else 0}",
            *_clock(first.duration),
            f"_ens_requeue={int(bool(first.options.get('slurm', {}).get('requeue')))}",
            f"_ens_grace={self.grace:g}",
            f"_ens_launch=({self.launcher(first)})",
        ]
        tables = [
            [
                f"_ens_job={quote(job.id)}",
                f"export ENSEMBLE_ATTEMPT={job.attempt}",
                *job_lines(job, place),
            ]
            for job, place in jobs
        ]
        lines += job_table(tables, "$SLURM_ARRAY_TASK_ID", 0)
        lines += [
            # A job that was requeued has a name of its own in the queue: "sim.7~1".
            'export ENSEMBLE_JOB_ID="${_ens_job%%~*}"',
            f"export ENSEMBLE_GROUP={quote(first.group)}",
            # Behind the group's name: "7", or "7-1" for another attempt.
            "_ens_index=${ENSEMBLE_JOB_ID##*.}",
            'export ENSEMBLE_INDEX="${_ens_index%%-*}"',
            f"export ENSEMBLE_RUN={quote(self.tag)}",
        ]
        text = "\n".join(lines) + "\n" + _wrapper()
        return os.fsencode(text)

    def launcher(self, job: Job) -> str:
        """The launcher of the tasks; empty where the command itself does it."""
        launch = job.options.get("slurm", {}).get("launch", "auto")
        if launch == "none" or (launch == "auto" and job.tasks == 1 and job.nodes == 1):
            return ""
        words = [
            "srun",
            "--input=none",
            *_nodes(job),
            f"--ntasks={job.tasks}",
            # What sbatch was told is not passed on, from 22.05 on.
            f"--cpus-per-task={job.cores_per_task}",
        ]
        if job.gpus_per_task:
            words.append(f"--gpus-per-task={job.gpus_per_task}")
        return " ".join(words)


def render(job: Job, site: Mapping[str, str]) -> str:
    """A job as a batch script of its own, without what reports it."""
    scripts = Scripts("RUN", "", ".", ".", site=site)
    batch = Batch("RUN", "KEY", job.group, (job.index,))
    options = [
        f"#SBATCH {_directive(word)}"
        for word in scripts.options(batch, job)
        if word != "--parsable"
    ]
    return "\n".join(["#!/bin/bash", *options, shell_line(job, scripts.launcher(job))])


def _directive(word: str) -> str:
    """An option as a line of a script has it, which sbatch splits at blanks.

    >>> _directive("--comment=a b"), _directive("--nodes=1")
    ("--comment='a b'", '--nodes=1')
    """
    name, equals, value = word.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else word
