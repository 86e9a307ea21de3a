"""Workload: what a jobspec of any form describes, frozen, with the place of everything.

Made by ``reader``; ``plan`` puts its tasks in order, the writers turn it into what queues take.
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
    """A name of something else, and where it stands."""

    text: str
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Vertex:
    """A resource with what is in it. ``anywhere`` says that its count may be spread freely
    (``replicas``)."""

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
    """The resources of a task or group: one of several alternatives, and how many tasks are in it.

    ``per_slot`` and ``total`` are Flux's ``count``. ``names`` are those of the alternatives, where
    they have any.
    """

    alternatives: tuple[Vertex, ...]
    names: tuple[str, ...] = ()
    per_slot: int = 1
    total: int | None = None
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Script:
    """A script with its interpreter line, or without one (then ``sh`` runs it)."""

    text: str
    name: str = "script"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a task, a group, a resource or of all. ``duration`` is in seconds; ``None``
    where nothing is said. ``extra`` is what only Flux knows."""

    duration: float | None = None
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    watch: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    where: Location = _NOWHERE

    def within(self, outer: Attributes) -> Attributes:
        """These where they say something, else the outer ones; environments are merged."""
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
    """A step of a ``transform``: its name and its options as they were written."""

    name: str
    options: Mapping[str, Any]
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Task:
    """A task: a command or script, or steps, or a group that it stands for.

    ``attributes`` have what its group, its resources and the whole say merged in.
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
    """The tasks and groups that one jobspec describes.

    ``requires`` are its subsystem requirements by name; ``warnings`` are about what is passed over.
    """

    form: Form
    name: str
    tasks: tuple[Task, ...]
    groups: tuple[Group, ...] = ()
    requires: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=lambda: _NOTHING)
    warnings: tuple[str, ...] = ()
    file: str = ""

    def every_group(self) -> Iterator[Group]:
        """All groups, outer ones first."""
        stack = list(reversed(self.groups))
        while stack:
            group = stack.pop()
            yield group
            stack.extend(reversed(group.groups))

    def every_task(self) -> Iterator[Task]:
        """All tasks, those of groups too."""
        yield from self.tasks
        for group in self.every_group():
            yield from group.tasks
