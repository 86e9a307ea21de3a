"""Immutable model of a jobspec, the same for all forms of jobspecs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from ensemble_core import Location

#: Forms of jobspecs: ``flux`` is Flux's own (RFC 14 and 25), ``transform`` is jobspec 0.0.x, and
#: ``nextgen`` is jobspec 0.1.x.
Form = Literal["flux", "transform", "nextgen"]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NOWHERE = Location("")


@dataclass(frozen=True, slots=True)
class Name:
    """Reference to a task or group by its name, with the place of the reference in the file."""

    text: str
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Vertex:
    """A resource, such as a node, with the resources within it."""

    type: str
    count: int = 1
    within: tuple[Vertex, ...] = ()
    anywhere: bool = False  #: the units may be on any nodes (key ``replicas``)
    label: str | None = None
    exclusive: bool = False
    requires: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Request:
    """The resources that a task or group requests, possibly with alternatives."""

    alternatives: tuple[Vertex, ...]
    names: tuple[str, ...] = ()  #: of the alternatives
    per_slot: int = 1  #: tasks (Flux's ``count``), as is ``total``
    total: int | None = None
    where: Location = _NOWHERE


@dataclass(frozen=True, slots=True)
class Script:
    """A script, which ``sh`` runs unless its first line names another interpreter."""

    text: str
    name: str = "script"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a task, group or resource, or of the whole jobspec. ``None`` means unset."""

    duration: float | None = None  #: seconds
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    watch: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)  #: for Flux only
    where: Location = _NOWHERE

    def within(self, outer: Attributes) -> Attributes:
        """Return these attributes, with those of ``outer`` as defaults. Environments are merged."""
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
    """A task: a command, a script, steps, or a reference to a group."""

    name: str
    command: tuple[str, ...] = ()
    script: Script | None = None
    request: Request | None = None
    replicas: int = 1
    #: Includes the attributes of the task's group, its resources and the whole jobspec.
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
    """Tasks and groups that share an allocation."""

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
    """The tasks and groups of one jobspec."""

    form: Form
    name: str
    tasks: tuple[Task, ...]
    groups: tuple[Group, ...] = ()
    #: Requirements for subsystems, by name.
    requires: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=lambda: _NOTHING)
    warnings: tuple[str, ...] = ()  #: what is ignored
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
