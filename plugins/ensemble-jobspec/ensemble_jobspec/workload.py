"""Workload: the content of a jobspec of any form, frozen, with the place of each part in the file.

``reader`` creates the workload, ``plan`` orders its tasks, and the writers convert it for queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from ensemble_core import Location

__all__ = [
    "Attributes",
    "Form",
    "Group",
    "Name",
    "Request",
    "Script",
    "Step",
    "Task",
    "Vertex",
    "Workload",
]

#: Forms of jobspecs: ``flux`` is Flux's own (RFC 14 and 25), ``transform`` is jobspec 0.0.x, and
#: ``nextgen`` is jobspec 0.1.x.
Form = Literal["flux", "transform", "nextgen"]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NOWHERE = Location("")


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to something by name, and its place in the file."""

    text: str
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Vertex:
    """A resource, such as a node, with the resources within it.

    The flag ``anywhere`` says that its ``count`` units may be on any nodes (the key ``replicas``).
    """

    type: str
    count: int = 1
    within: tuple[Vertex, ...] = ()
    anywhere: bool = False
    label: str | None = None
    exclusive: bool = False
    requires: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Request:
    """The resources of a task or group: one or several alternatives, and the number of tasks.

    The fields ``per_slot`` and ``total`` are Flux's ``count``. The field ``names`` has the
    alternatives' names, if any.
    """

    alternatives: tuple[Vertex, ...]
    names: tuple[str, ...] = ()
    per_slot: int = 1
    total: int | None = None
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Script:
    """A script with its interpreter line; a script without that line is run by ``sh``."""

    text: str
    name: str = "script"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a task, group or resource, or of the whole jobspec.

    The field ``duration`` is in seconds. ``None`` means unset. The field ``extra`` is for Flux
    only.
    """

    duration: float | None = None
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    watch: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    where: Location = _NOWHERE

    def within(self, outer: Attributes) -> Attributes:
        """Return these attributes with the outer attributes as defaults; environments are
        merged.
        """
        return Attributes(
            duration=outer.duration if self.duration is None else self.duration,
            cwd=outer.cwd if self.cwd is None else self.cwd,
            environment={**outer.environment, **self.environment},
            watch=outer.watch if self.watch is None else self.watch,
            extra={**outer.extra, **self.extra},
            where=self.where,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a ``transform``: its name and its options as written in the file."""

    name: str
    options: Mapping[str, Any]
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Task:
    """A task: a command, a script, steps, or a reference to a group.

    The field ``attributes`` includes the attributes of the task's group, its resources and the
    whole jobspec.
    """

    name: str
    command: tuple[str, ...] = ()
    script: Script | None = None
    request: Request | None = None
    replicas: int = 1
    attributes: Attributes = Attributes()
    depends_on: tuple[Name, ...] = ()
    requires: str | None = None
    local: bool = False
    steps: tuple[Step, ...] = ()
    scripts: tuple[Script, ...] = ()
    group: Name | None = None
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Group:
    """A batch: tasks and further groups that share an allocation."""

    name: str
    tasks: tuple[Task, ...] = ()
    groups: tuple[Group, ...] = ()
    request: Request | None = None
    attributes: Attributes = Attributes()
    depends_on: tuple[Name, ...] = ()
    requires: str | None = None
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Workload:
    """The tasks and groups of one jobspec.

    The field ``requires`` has the jobspec's subsystem requirements by name. The field ``warnings``
    lists everything that is ignored.
    """

    form: Form
    name: str
    tasks: tuple[Task, ...]
    groups: tuple[Group, ...] = ()
    requires: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=lambda: _NOTHING)
    warnings: tuple[str, ...] = ()
    file: str = ""

    def every_group(self) -> Iterator[Group]:
        """Yield all groups, outer ones first."""
        stack = list(reversed(self.groups))
        while stack:
            group = stack.pop()
            yield group
            stack.extend(reversed(group.groups))

    def every_task(self) -> Iterator[Task]:
        """Yield all tasks, including those of groups."""
        yield from self.tasks
        for group in self.every_group():
            yield from group.tasks
