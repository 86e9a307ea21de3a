"""Reader of the form ``nextgen``: jobspecs 0.1.x, which have tasks and groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ensemble_jobspec.flux_reader import attributes, command, vertex
from ensemble_jobspec.jobspec_errors import Faults, Path, nearest
from ensemble_jobspec.workload import (
    Attributes,
    Group,
    Name,
    Request,
    Script,
    Step,
    Task,
    Vertex,
    Workload,
)

_OR = re.compile(r"\s*\|\s*")
_REFERENCE = re.compile(r"[|&]")


def read_nextgen(faults: Faults, name: str) -> Workload:
    """Return the workload of a jobspec with tasks and groups."""
    return _Reader(faults).read(faults.document.data.get("name", name))


class _Inherited(NamedTuple):
    """Attributes and time limit that a task or group inherits."""

    base: Attributes  # of the jobspec and of the enclosing groups' resources
    groups: Attributes  # of the enclosing groups; they override those of a task's resources
    limit: float | None  # time limit of the innermost group


class _Reader:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        data = faults.document.data
        self._resources: dict[str, tuple[Vertex, Attributes]] = {}
        for key, given in data.get("resources", {}).items():
            path: Path = ("resources", key)
            own = Attributes()
            if "attributes" in given:
                own = attributes(faults, (*path, "attributes"))
            self._resources[key] = vertex(faults, path), own
        self._requires = data.get("requires", {})
        self._groups: set[str] = set()

    def read(self, name: str) -> Workload:
        faults, data = self._faults, self._faults.document.data
        if not data.get("tasks") and not data.get("groups"):
            what = "the jobspec has neither 'tasks' nor 'groups'"
            faults.report(
                (), what, hint="add a task, such as {command: echo hello}", code="nothing-to-run"
            )
        outer = _Inherited(attributes(faults, ("attributes",)), Attributes(), None)
        self._note_groups(data.get("groups", []))
        groups = self._all_groups(("groups",), data.get("groups", []), outer)
        tasks = self._tasks(("tasks",), data.get("tasks", []), outer)
        self._check_scope((), tasks, groups)
        self._check_references(groups)
        requires = {key: tuple(given) for key, given in self._requires.items()}
        return Workload("nextgen", name, tasks, groups, requires, tuple(faults.warnings))

    def _check_references(self, groups: tuple[Group, ...]) -> None:
        """Check that no group contains itself through tasks that run groups."""
        inside: dict[str, list[Name]] = {}
        every = list(groups)
        for group in every:
            every.extend(group.groups)
            names = [task.group for task in group.tasks if task.group is not None]
            inside[group.name] = names + [Name(each.name, each.where) for each in group.groups]
        for start in inside:
            seen: set[str] = set()
            ahead = list(inside[start])
            while ahead:
                name = ahead.pop()
                if name.text == start:
                    what = f"the group {start!r} contains itself"
                    hint = "remove this reference"
                    self._error(name.where, what, hint, "dependency-cycle")
                    return
                if name.text not in seen:
                    seen.add(name.text)
                    ahead += inside.get(name.text, [])

    def _note_groups(self, given: list[Mapping[str, Any]]) -> None:
        for each in given:
            self._groups.add(each["name"])
            self._note_groups(each.get("groups", []))

    def _all_groups(
        self, path: Path, given: list[Mapping[str, Any]], outer: _Inherited
    ) -> tuple[Group, ...]:
        return tuple(self._group((*path, number), each, outer) for number, each in enumerate(given))

    def _group(self, path: Path, given: Mapping[str, Any], outer: _Inherited) -> Group:
        faults = self._faults
        if not given.get("tasks") and not given.get("groups"):
            what = f"the group {given['name']!r} has no tasks"
            faults.report(path, what, hint="add 'tasks'", code="nothing-to-run")
        request, of_resources = self._request(path, given)
        said, own = self._attributes(path, given, of_resources, outer)
        inner = _Inherited(of_resources.within(outer.base), said, own.duration or outer.limit)
        groups = self._all_groups((*path, "groups"), given.get("groups", []), inner)
        tasks = self._tasks((*path, "tasks"), given.get("tasks", []), inner)
        self._check_scope(path, tasks, groups)
        return Group(
            given["name"], tasks, groups, request, own, self._names(path, given),
            self._requirement(path, given), faults.at(path),
        )  # fmt: skip

    def _tasks(
        self, path: Path, given: list[Mapping[str, Any]], outer: _Inherited
    ) -> tuple[Task, ...]:
        taken = {*self._groups, *(str(each["name"]) for each in given if "name" in each)}
        tasks = []
        for number, each in enumerate(given):
            name = each.get("name")
            if name is None:
                name = f"task-{number + 1}"
                while name in taken:
                    name += "-"
                taken.add(name)
            tasks.append(self._task((*path, number), each, name, outer))
        return tuple(tasks)

    def _task(self, path: Path, given: Mapping[str, Any], name: str, outer: _Inherited) -> Task:
        faults = self._faults
        group = given.get("group")
        kinds = [key for key in ("command", "group") if key in given]
        if len(kinds) > 1:
            what = f"the task {name!r} has both a command and a group; only one is allowed"
            faults.report((*path, "group"), what, code="bad-value", key=True)
        if not kinds and "steps" not in given:
            what = f"the task {name!r} needs a command, steps or a group"
            faults.report(
                path, what, hint="add a command, such as 'echo hello'", code="nothing-to-run"
            )
        if group is not None and group not in self._groups:
            what = f"unknown group {group!r}"
            hint = nearest(group, sorted(self._groups)) or "the jobspec has no groups"
            faults.report((*path, "group"), what, hint=hint, code="no-such-group")
        if given.get("local") and group is not None:
            what = "a group cannot be 'local'"
            hint = "put 'local' on its tasks"
            faults.report((*path, "local"), what, hint=hint, code="bad-value", key=True)
        request, of_resources = self._request(path, given)
        words: tuple[str, ...] = ()
        script: Script | None = None
        if "command" in given:
            words, script = command(faults, (*path, "command"), name)
        steps = tuple(
            Step("stage", {"filename": step["path"]}, faults.at((*path, "steps", number)))
            for number, step in enumerate(given.get("steps", ()))
        )
        return Task(
            name,
            words,
            script,
            request,
            given.get("replicas", 1),
            self._attributes(path, given, of_resources, outer)[1],
            self._names(path, given),
            self._requirement(path, given),
            bool(given.get("local", False)),
            steps,
            group=None if group is None else Name(group, faults.at((*path, "group"))),
            where=faults.at(path),
        )

    def _attributes(
        self, path: Path, given: Mapping[str, Any], of_resources: Attributes, outer: _Inherited
    ) -> tuple[Attributes, Attributes]:
        """Return the attributes that members inherit, and those of the task or group itself.

        Members inherit the attributes that the task or group and its enclosing groups define. The
        attributes of the task or group itself also include those of its resources and of the whole
        jobspec.
        """
        said = outer.groups
        if "attributes" in given:
            said = attributes(self._faults, (*path, "attributes")).within(said)
        own = said.within(of_resources.within(outer.base))
        if outer.limit and own.duration and own.duration > outer.limit:
            place = (*path, "attributes", "duration")
            what = f"{own.duration:g} s is longer than its group's {outer.limit:g} s"
            hint = "increase the group's duration, or reduce the task's"
            self._faults.report(place, what, hint=hint, code="out-of-range")
        return said, own

    def _request(self, path: Path, given: Mapping[str, Any]) -> tuple[Request | None, Attributes]:
        wanted = given.get("resources")
        if wanted is None:
            return None, Attributes()
        faults, place = self._faults, (*path, "resources")
        where = faults.at(place)
        if not isinstance(wanted, str):
            own = Attributes()
            if "attributes" in wanted:
                own = attributes(faults, (*place, "attributes"))
            return Request((vertex(faults, place),), (), where=where), own
        names = _OR.split(wanted.strip())
        missing = [name for name in names if name not in self._resources]
        for name in missing:
            hint = nearest(name, self._resources) or "the jobspec has no named resources"
            faults.report(place, f"unknown resources {name!r}", hint=hint, code="no-such-resources")
        if missing:
            return None, Attributes()
        found = [self._resources[name] for name in names]
        own = found[0][1] if len(found) == 1 else Attributes()
        return Request(tuple(each for each, _ in found), tuple(names), where=where), own

    def _names(self, path: Path, given: Mapping[str, Any]) -> tuple[Name, ...]:
        wanted = given.get("depends_on", ())
        place = (*path, "depends_on")
        if isinstance(wanted, str):
            return (Name(wanted, self._faults.at(place)),)
        seen: dict[str, Name] = {}
        for number, name in enumerate(wanted):
            seen.setdefault(name, Name(name, self._faults.at((*place, number))))
        return tuple(seen.values())

    def _requirement(self, path: Path, given: Mapping[str, Any]) -> str | None:
        wanted: str | None = given.get("requires")
        if wanted is None:
            return None
        for name in map(str.strip, _REFERENCE.split(wanted)):
            if name not in self._requires:
                hint = nearest(name, self._requires) or "add it under 'requires' at the top"
                what = f"unknown requirement {name!r}"
                self._faults.report(
                    (*path, "requires"), what, hint=hint, code="no-such-requirement"
                )
        return wanted

    def _check_scope(self, path: Path, tasks: tuple[Task, ...], groups: tuple[Group, ...]) -> None:
        """Check for duplicate names, and for dependencies on unknown tasks or on themselves."""
        known: dict[str, Task | Group] = {}
        scope: tuple[Task | Group, ...] = (*tasks, *groups)
        for each in scope:
            if each.name in known:
                kind = "task" if isinstance(each, Task) else "group"
                what = f"duplicate {kind} {each.name!r}, first at {known[each.name].where}"
                self._error(each.where, what, f"rename one {kind}", "duplicate-name")
            known.setdefault(each.name, each)
        for each in known.values():
            for name in each.depends_on:
                if name.text not in known:
                    where = "" if not path else " in this group"
                    what = f"{each.name!r} depends on the unknown task {name.text!r}{where}"
                    self._error(name.where, what, nearest(name.text, known), "no-such-task")
        self._check_cycles(known)

    def _check_cycles(self, known: Mapping[str, Task | Group]) -> None:
        before = {name: self._dependencies(each, known) for name, each in known.items()}
        left = {name: len(names) for name, names in before.items()}
        after: dict[str, list[str]] = {name: [] for name in known}
        for name, names in before.items():
            for earlier in names:
                after[earlier].append(name)
        ready = [name for name, count in left.items() if not count]
        while ready:
            name = ready.pop()
            del left[name]
            for later in after[name]:
                left[later] -= 1
                if not left[later]:
                    ready.append(later)
        if not left:
            return
        name = next(iter(left))
        seen: list[str] = []
        while name not in seen:
            seen.append(name)
            name = next(each for each in before[name] if each in left)
        circle = [*seen[seen.index(name) :], name]
        what = f"dependency cycle: {' needs '.join(circle)}"
        hint = "remove one dependency of the cycle"
        self._error(known[name].where, what, hint, "dependency-cycle")

    def _dependencies(self, each: Task | Group, known: Mapping[str, Task | Group]) -> list[str]:
        """Return the names of the dependencies of a task or group, and of the group that a task
        runs.
        """
        names = list(each.depends_on)
        group = known.get(each.group.text) if isinstance(each, Task) and each.group else None
        if isinstance(group, Group):
            names += group.depends_on
        return [name.text for name in names if name.text in known]

    def _error(self, where: Any, what: str, hint: str | None, code: str) -> None:
        from ensemble_core import UsageError

        self._faults.errors.append(UsageError(what, where=where, hint=hint, code=code))
