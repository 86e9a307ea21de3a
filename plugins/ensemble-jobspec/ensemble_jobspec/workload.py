"""Workload: the content of a jobspec of any form, frozen, with the place of everything.

``reader`` creates it, ``plan`` orders its tasks, and the writers convert it for queues.
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

#: ``flux`` is Flux's own (RFC 14 and 25), ``transform`` jobspec 0.0.x, ``nextgen`` jobspec 0.1.x.
Form = Literal["flux", "transform", "nextgen"]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NOWHERE = Location("")


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to a name, and its place."""

    text: str
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Vertex:
    """A resource with its contents. ``anywhere``: the counted units may be on any nodes
    (``replicas``).
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

    ``per_slot`` and ``total`` are Flux's ``count``. ``names`` are the alternatives' names, if any.
    """

    alternatives: tuple[Vertex, ...]
    names: tuple[str, ...] = ()
    per_slot: int = 1
    total: int | None = None
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Script:
    """A script with its interpreter line; without one, ``sh`` runs it."""

    text: str
    name: str = "script"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a task, group, resource or the whole. ``duration`` is in seconds; ``None``
    means unset. ``extra`` is for Flux only.
    """

    duration: float | None = None
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    watch: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    where: Location = _NOWHERE

    def within(self, outer: Attributes) -> Attributes:
        """Return these attributes with the outer ones as defaults; environments are merged."""
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
    """A step of a ``transform``: its name and options as written."""

    name: str
    options: Mapping[str, Any]
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Task:
    """A task: a command or script, or steps, or a group that it runs.

    ``attributes`` include those of its group, its resources and the whole.
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

    ``requires`` are its subsystem requirements by name; ``warnings`` list what is ignored.
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
