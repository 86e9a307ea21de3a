"""Options of ``sbatch`` and ``srun`` for a job."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from ensemble_core import Job, shell_line
from ensemble_slurm.job_names import Label

#: Increase of ``nice`` for each step of ``urgency`` below the default of 16.
_NICE = 100
_MEBI = 1 << 20
#: Options for which a job has the field ``memory_per_task``, and those of ``sbatch`` that exclude
#: one another.
_MEMORY = ("mem", "mem_per_cpu")
_EXTRA = ("--mem", "--mem-per-cpu", "--mem-per-gpu")


def _nodes(job: Job) -> list[str]:
    """Return the ``sbatch`` option ``--nodes``; empty if Slurm may choose the number of nodes."""
    free = job.options.get("slurm", {}).get("any_nodes", False)
    return [] if free else [f"--nodes={job.nodes}"]


def _memory(job: Job) -> str:
    """Return the ``sbatch`` option for a job's memory, in MiB."""
    if job.tasks == job.nodes and not job.options.get("slurm", {}).get("any_nodes"):
        return f"--mem={-(-job.memory_per_task // _MEBI)}M"
    return f"--mem-per-cpu={-(-job.memory_per_task // (job.cores_per_task * _MEBI))}M"


def sbatch_options(
    jobs: Sequence[Job], label: Label, site: Mapping[str, str], error: str = ""
) -> list[str]:
    """Return the ``sbatch`` options for a batch of jobs with equal requests.

    - ``site``: values of options that the group does not set
    - ``error``: path for the messages of slurmstepd
    """
    job = jobs[0]
    words = [
        "--parsable",
        f"--job-name={label.name}",
        f"--comment={label.comment}",
        "--input=/dev/null",
        "--output=/dev/null",
        f"--error={error or '/dev/null'}",
        *_nodes(job),
        f"--ntasks={job.tasks}",
        f"--cpus-per-task={job.cores_per_task}",
    ]
    if len(jobs) > 1:
        words.append(f"--array=0-{len(jobs) - 1}")
    if job.gpus_per_task:
        words.append(f"--gpus-per-task={job.gpus_per_task}")
    if job.duration:
        # Round up to whole minutes, but add no margin: it might exceed the partition's limit.
        # Except for a grace that the group asks for: at --time, Slurm would cut it short.
        words.append(f"--time={math.ceil((job.duration + (job.grace or 0.0)) / 60)}")
    options = job.options.get("slurm", {})
    if job.memory_per_task:
        words.append(_memory(job))
    if job.urgency == 0:
        words.append("--hold")
    nice = options.get("nice", 0) + max(0, 16 - job.urgency) * _NICE
    if nice and job.urgency:
        words.append(f"--nice={nice}")
    for name in ("partition", "account", "qos", "reservation", "constraint"):
        value = options.get(name, site.get(name))
        if value is not None:
            words.append(f"--{name}={value}")
    words += [
        f"--{name.replace('_', '-')}={options[name]}"
        for name in ("mem", "mem_per_cpu", "gres", "licenses")
        if name in options
    ]
    if job.avoid:
        words.append(f"--exclude={','.join(job.avoid)}")
    if options.get("exclusive"):
        words.append("--exclusive")
    # A requeued job runs twice, so requeueing is off unless users request it.
    words.append("--requeue" if options.get("requeue") else "--no-requeue")
    words.extend(options.get("extra", ()))
    return words


def wrong_memory(job: Job) -> str | None:
    """Return what is wrong if a job requests memory in several ways."""
    options = job.options.get("slurm", {})
    extra = [word.partition("=")[0] for word in options.get("extra", ())]
    found = ["memory_per_task"] if job.memory_per_task else []
    found += [name for name in _MEMORY if name in options]
    found += [word for word in extra if word in _EXTRA]
    if len(found) < 2:
        return None
    *others, last = map(repr, found)
    both = "both" if len(found) == 2 else "all"
    return f"{', '.join(others)} and {last} {both} request memory"


def launcher(job: Job) -> list[str]:
    """Return the launcher of a job's tasks; empty if the command starts them itself."""
    launch = job.options.get("slurm", {}).get("launch", "auto")
    if launch == "none" or (launch == "auto" and job.tasks == 1 and job.nodes == 1):
        return []
    words = [
        "srun",
        "--input=none",
        *_nodes(job),
        f"--ntasks={job.tasks}",
        # From 22.05 on, srun does not inherit this option of sbatch.
        f"--cpus-per-task={job.cores_per_task}",
    ]
    if job.gpus_per_task:
        words.append(f"--gpus-per-task={job.gpus_per_task}")
    return words


def render(job: Job, site: Mapping[str, str]) -> str:
    """Return a job as a batch script for users to read or to submit themselves.

    Unlike the executor's own script, it does not report the job's start and end.
    """
    options = [
        f"#SBATCH {_directive(word)}"
        for word in sbatch_options([job], Label.of([job], "RUN", "ID", "BATCH"), site)
        if word != "--parsable"
    ]
    return "\n".join(["#!/bin/bash", *options, shell_line(job, " ".join(launcher(job)))])


def _directive(word: str) -> str:
    """Return an option quoted for a ``#SBATCH`` line, which sbatch splits at blanks.

    >>> _directive("--comment=a b"), _directive("--nodes=1")
    ("--comment='a b'", '--nodes=1')
    """
    name, equals, value = word.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else word
