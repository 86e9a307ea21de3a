"""Rendering: what a queue would be handed for a job, as text, so that one can look before it is.

An executor's record may have ``render``, which is pure: it is asked by ``ensemble run --dry-run``,
by programs, and by tests.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import call_plugin
from ensemble_core.model.jobs import Job

if TYPE_CHECKING:
    from ensemble_core.plugin.records import ExecutorPlugin

__all__ = ["Rendered", "rendered", "shell_line"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A job as its queue would be handed it: ``text``, of ``media_type`` (``application/json``,
    ``text/x-shellscript`` …)."""

    text: str
    media_type: str = "text/x-shellscript"


def rendered(record: ExecutorPlugin, job: Job, options: Mapping[str, Any]) -> Rendered:
    """Return what the executor would hand to its queue for a job. Raises :class:`PluginError` if
    its ``render`` is at fault."""
    assert record.render is not None
    whose = f"executor {record.name!r}"
    failed = f"{whose} cannot say what its queue is handed for {job.id}"
    made: Rendered = call_plugin(
        record.render, job, options, returns=Rendered, method="render", whose=whose, failed=failed
    )
    return made


def shell_line(job: Job, launcher: str = "") -> str:
    """A job as a shell command line: its folder, environment, command and files.

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
