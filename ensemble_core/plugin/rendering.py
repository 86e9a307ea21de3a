"""Rendered jobs: what a queue would receive for a job, as text."""

from __future__ import annotations

import shlex

from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text that a queue would receive for a job."""

    text: str
    media_type: str = "text/x-shellscript"  #: ``application/json``, ``text/x-shellscript`` …


def shell_line(job: Job, launcher: str = "") -> str:
    """Return a job as a shell command line, with its folder, environment, command and output files.

    >>> shell_line(Job(id="a.0", group="a", index=0, command=("echo", "a b"), stdout="out.txt"))
    "echo 'a b' >>out.txt"
    """
    words = [f"cd {shlex.quote(job.workdir)} &&"] if job.workdir else []
    if job.environment:
        changes = (f"{name}={value}" for name, value in job.environment.items())
        words.append(shlex.join(["env", *changes]))
    if launcher:
        words.append(launcher)
    words.append(shlex.join(job.command))
    if job.stdout is not None:
        words.append(f">>{shlex.quote(job.stdout)}")
    if job.stderr is not None:
        same = job.stderr == job.stdout
        words.append("2>&1" if same else f"2>>{shlex.quote(job.stderr)}")
    return " ".join(words)
