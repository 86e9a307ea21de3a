"""Job groups, jobs and job states.

A :class:`JobGroup` is an entry under ``jobs:``; a :class:`Job` is one submission of it, complete
and immutable, as executors receive it. The states are those of Flux (RFC 21).
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ensemble_core.model.codec import NOTHING, Record

__all__ = [
    "BUILTIN_PLACEHOLDERS",
    "FIELD_PLACEHOLDER",
    "PLACEHOLDER",
    "RFC21_EVENTS",
    "Job",
    "JobGroup",
    "JobState",
    "fill",
]

#: Job events of Flux RFC 21, the one event vocabulary; other queues map onto it.
RFC21_EVENTS: tuple[str, ...] = (
    "submit",
    "jobspec-update",
    "resource-update",
    "validate",
    "invalidate",
    "set-flags",
    "dependency-add",
    "dependency-remove",
    "depend",
    "priority",
    "flux-restart",
    "urgency",
    "alloc",
    "prolog-start",
    "prolog-finish",
    "epilog-start",
    "epilog-finish",
    "free",
    "start",
    "release",
    "finish",
    "clean",
    "exception",
    "memo",
    "annotations",
    "debug",
)

#: ``{name}`` in a command, workdir, environment or output path. ``${name}`` is the shell's own,
#: and ``{{name}}`` stands for the literal ``{name}``.
PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|(?<!\$)(?<!\{)\{([A-Za-z_]\w*)\}(?!\})")

#: The same in a message, where a field may have the name of a column: ``{c_msd[4]}``,
#: ``{PotEng.error}``.
FIELD_PLACEHOLDER = re.compile(
    r"\{\{([A-Za-z_]\w*(?:\.\w+|\[\w+\])*)\}\}"
    r"|(?<!\$)(?<!\{)\{([A-Za-z_]\w*(?:\.\w+|\[\w+\])*)\}(?!\})"
)

#: Names that a placeholder may have in any group; a sweep's parameters come beside them. ``here``
#: is the folder of the ensemble file.
BUILTIN_PLACEHOLDERS: frozenset[str] = frozenset({"group", "index", "id", "here"})


class JobState(enum.IntEnum):
    """States of a job in the order they are passed through (RFC 21); INACTIVE is final."""

    NEW = 0
    DEPEND = 1
    PRIORITY = 2
    SCHED = 3
    RUN = 4
    CLEANUP = 5
    INACTIVE = 6

    @property
    def final(self) -> bool:
        return self is JobState.INACTIVE

    @property
    def waiting(self) -> bool:
        """True if the job is in the queue and has no resources yet."""
        return self < JobState.RUN


def fill(text: str, values: Mapping[str, object], pattern: re.Pattern[str] = PLACEHOLDER) -> str:
    """Replace each ``{name}`` that ``values`` knows; ``{{name}}`` becomes ``{name}``.

    >>> fill("run-{T} ${HOME} {{T}}", {"T": 1.5})
    'run-1.5 ${HOME} {T}'
    """

    def replace(match: re.Match[str]) -> str:
        literal, name = match.groups()
        if literal is not None:
            return "{" + literal + "}"
        return str(values[name]) if name in values else match.group()

    return pattern.sub(replace, text) if "{" in text else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Record):
    """One submission of a group, complete: what an executor is given.

    ``id`` is ours (``GROUP.INDEX``) and travels into the queue; ``index`` counts the group's jobs
    from 0 over the whole run. ``duration`` is the time limit in seconds, 0 for none. ``tasks``
    copies of ``command`` are launched over ``nodes`` nodes. ``workdir`` ``None`` means the folder
    the run was started in; ``stdout``/``stderr`` ``None`` mean that the run keeps the output.
    """

    id: str
    group: str
    index: int
    command: tuple[str, ...]
    nodes: int = 1
    tasks: int = 1
    cores_per_task: int = 1
    gpus_per_task: int = 0
    duration: float = 0.0
    workdir: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    stdout: str | None = None
    stderr: str | None = None
    urgency: int = 16
    parameters: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    observe: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    executor: str | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)

    @property
    def cores(self) -> int:
        """Cores the whole job needs: ``tasks * cores_per_task``."""
        return self.tasks * self.cores_per_task

    @property
    def gpus(self) -> int:
        """GPUs the whole job needs: ``tasks * gpus_per_task``."""
        return self.tasks * self.gpus_per_task

    def fill(self, text: str) -> str:
        """``text`` with this job's ``{group}``, ``{index}``, ``{id}`` and parameters filled in.

        For plugins whose options may hold placeholders, a path for instance.

        >>> Job(id="melt.3", group="melt", index=3, command=("lmp",)).fill("log.{index}")
        'log.3'
        """
        names = {"group": self.group, "index": self.index, "id": self.id, **self.parameters}
        return fill(text, names)


#: Fields that each job of a group has from it: as they are, and with placeholders filled in.
_SAME = (
    "nodes", "cores_per_task", "gpus_per_task", "duration", "urgency", "observe", "executor",
    "options",
)  # fmt: skip
_TEXTS = ("workdir", "stdout", "stderr")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """An entry under ``jobs:``. :meth:`jobs` expands it into the jobs of one submit.

    ``parameters`` is a sweep: one job per combination, times ``count``. ``tasks`` ``None`` means
    as many as ``nodes``.
    """

    name: str
    command: tuple[str, ...]
    count: int = 1
    nodes: int = 1
    tasks: int | None = None
    cores_per_task: int = 1
    gpus_per_task: int = 0
    duration: float = 0.0
    workdir: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    stdout: str | None = None
    stderr: str | None = None
    urgency: int = 16
    parameters: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: NOTHING)
    observe: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    executor: str | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    #: The command as the file has it, for display.
    text: str = ""
    #: The folder of the ensemble file: the placeholder ``{here}``.
    here: str = "."

    @property
    def size(self) -> int:
        """Jobs per submit: ``count`` times the number of parameter combinations."""
        size = self.count
        for values in self.parameters.values():
            size *= len(values)
        return size

    def jobs(self, first: int) -> Iterator[Job]:
        """The jobs of one submit; ``first`` is the index of the first of them."""
        index = first
        tasks = self.nodes if self.tasks is None else self.tasks
        same: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        texts: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        for combination in itertools.product(*self.parameters.values()):
            chosen = dict(zip(self.parameters, combination, strict=True))
            for _ in range(self.count):
                job_id = f"{self.name}.{index}"
                values = {
                    "group": self.name,
                    "index": index,
                    "id": job_id,
                    "here": self.here,
                    **chosen,
                }
                filled: dict[str, Any] = {
                    name: text and fill(text, values) for name, text in texts.items()
                }
                yield Job(
                    id=job_id,
                    group=self.name,
                    index=index,
                    command=tuple(fill(word, values) for word in self.command),
                    tasks=tasks,
                    environment={k: fill(v, values) for k, v in self.environment.items()}
                    if self.environment
                    else NOTHING,
                    parameters=chosen or NOTHING,
                    **same,
                    **filled,
                )
                index += 1
