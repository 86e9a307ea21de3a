"""Dependencies between a workload's units, which are planned in the order of the file.

Most units are tasks. Some are steps of a task, or groups that run as one job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from ensemble_core import UsageError
from ensemble_jobspec.jobspec_errors import nearest
from ensemble_jobspec.workload import Group, Step, Task, Workload

Mode = Literal["nested", "flat"]
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
#: Maximum length of a name, which leaves room for suffixes.
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Unit:
    """Part of a workload that is started as a whole.

    A unit is of one ``kind``:

    - ``job``: a job in the queue
    - ``local``: a command on the controller's machine
    - ``files``: an action that writes files into a folder
    - ``batch``: a job that runs a group as a nested ensemble
    - ``end``: does nothing, and is done when all its dependencies are done
    """

    name: str
    kind: Literal["job", "local", "files", "batch", "end"]
    task: Task | None = None
    group: Group | None = None
    after: tuple[str, ...] = ()  # dependencies
    steps: tuple[Step, ...] = ()
    staged: tuple[str, ...] = ()
    stage: str | None = None  # staging folder
    shared: bool | None = None  # whether all nodes see the staging folder
    path: tuple[str, ...] = ()  # names of the groups around a batch
    count: int = 1

    @property
    def once(self) -> bool:
        """True for a step ``batch``, whose script runs once for all tasks."""
        return self.kind == "job" and any(step.name == "batch" for step in self.steps)


def find_group(workload: Workload, path: Sequence[str]) -> Group:
    """Return the group at a path of names. Raises :class:`UsageError` if it does not exist."""
    groups: Sequence[Group] = workload.groups
    found: Group | None = None
    for name in path:
        found = next((group for group in groups if group.name == name), None)
        if found is None:
            known = [group.name for group in groups]
            raise UsageError(
                f"unknown group {'/'.join(path)!r}",
                hint=nearest(name, known),
                code="no-such-group",
            )
        groups = found.groups
    if found is None:
        raise UsageError("the jobspec has no named groups", code="no-such-group")
    return found


def plan(
    workload: Workload,
    mode: Mode = "flat",
    *,
    only: Sequence[str] = (),
    prefix: str = "",
    skip: Iterable[str] = (),
) -> list[Unit]:
    """Return the units of a workload, or of its group ``only``.

    Their names start with ``prefix``. Steps listed in ``skip`` are omitted.
    """
    planner = _Planner(workload, mode, frozenset(skip))
    tasks, groups, path = workload.tasks, workload.groups, tuple(only)
    if only:
        group = find_group(workload, only)
        tasks, groups = group.tasks, group.groups
    planner.scope(tasks, groups, prefix, (), path)
    return planner.units


def _topological_order(
    waits: Mapping[str, Sequence[str]], named: Mapping[str, Task | Group]
) -> list[str]:
    """Return the names in topological order."""
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        circle = error.args[1]
        raise UsageError(
            f"dependency cycle: {' needs '.join(reversed(circle))}",
            where=named[circle[0]].where,
            hint="remove one dependency of the cycle",
            code="dependency-cycle",
        ) from None


def _foreign_group_error(each: Task | Group, group: str) -> UsageError:
    where = next((name.where for name in each.depends_on if name.text == group), each.where)
    return UsageError(
        f"{each.name!r} cannot depend on the group {group!r}, which a task in another group runs",
        where=where,
        hint=f"depend on the group whose task runs {group!r}, or add a task with "
        f"'group: {group}' on the same level as {each.name!r}",
        code="no-such-task",
    )


class _Planner:
    def __init__(self, workload: Workload, mode: Mode, skip: frozenset[str]) -> None:
        self.units: list[Unit] = []
        self._mode = mode
        self._skip = skip
        self._names: set[str] = set()
        self._groups: dict[str, tuple[Group, tuple[str, ...]]] = {}
        self._note(workload.groups, ())
        #: Tasks that only stage files for others.
        self._only_files = {
            task.name: task
            for task in workload.every_task()
            if task.steps and not task.command and task.script is None
        }
        self._stands_for = {
            task.group.text for task in workload.every_task() if task.group is not None
        }

    def _note(self, groups: Iterable[Group], path: tuple[str, ...]) -> None:
        for group in groups:
            self._groups.setdefault(group.name, (group, (*path, group.name)))
            self._note(group.groups, (*path, group.name))

    def scope(
        self,
        tasks: Sequence[Task],
        groups: Sequence[Group],
        prefix: str,
        before: tuple[str, ...],
        path: tuple[str, ...],
    ) -> tuple[str, ...]:
        """Plan the tasks and groups of a scope. Return the units on which no other unit depends."""
        own = [group for group in groups if group.name not in self._stands_for]
        members: list[Task | Group] = [*tasks, *own]
        standing: dict[str, list[str]] = {}
        for task in tasks:
            if task.group is not None:
                standing.setdefault(task.group.text, []).append(task.name)
        waits: dict[str, list[str]] = {}
        for each in members:
            wanted = [name.text for name in each.depends_on]
            if isinstance(each, Task) and each.group is not None:
                known = self._groups[each.group.text][0]
                if known in groups:
                    wanted += [name.text for name in known.depends_on]
            waits[each.name] = [found for name in wanted for found in standing.get(name, [name])]
        named = {each.name: each for each in members}
        ends: dict[str, tuple[str, ...]] = {}
        made: dict[str, list[Unit]] = {}
        for each in members:
            for wait in waits[each.name]:
                if wait not in named:
                    raise _foreign_group_error(each, wait)
        for name in _topological_order(waits, named):
            after = tuple(dict.fromkeys(end for wait in waits[name] for end in ends.get(wait, ())))
            begun = len(self.units)
            ends[name] = self._member(named[name], prefix, after or before, path)
            made[name] = self.units[begun:]
            del self.units[begun:]
        for each in members:  # in the order of the file
            self.units += made[each.name]
        earlier = {wait for each in waits.values() for wait in each}
        return tuple(
            dict.fromkeys(
                end for each in members if each.name not in earlier for end in ends[each.name]
            )
        )

    def _member(
        self, member: Task | Group, prefix: str, after: tuple[str, ...], path: tuple[str, ...]
    ) -> tuple[str, ...]:
        if isinstance(member, Group):
            return self._batch(member, (*path, member.name), member.name, prefix, after, 1)
        if member.group is not None:
            group, at = self._groups[member.group.text]
            return self._batch(group, at, member.name, prefix, after, member.replicas)
        if any(step.name in ("submit", "batch") for step in member.steps):
            return self._steps(member, prefix, after)
        staged = self._staged_files(member)
        if not member.command and member.script is None:
            return after  # the task only stages files for its dependents
        staged += tuple(
            file
            for wait in member.depends_on
            for file in self._staged_files(self._only_files.get(wait.text))
        )
        kind: Literal["local", "job"] = "local" if member.local else "job"
        name = self._name(prefix, member.name)
        return self._add(
            Unit(name, kind, member, after=after, staged=staged, count=member.replicas)
        )

    def _staged_files(self, task: Task | None) -> tuple[str, ...]:
        """Return the files that a task stages."""
        steps = task.steps if task is not None else ()
        return tuple(
            step.options["filename"]
            for step in steps
            if step.name == "stage" and step.name not in self._skip
        )

    def _batch(
        self,
        group: Group,
        path: tuple[str, ...],
        name: str,
        prefix: str,
        after: tuple[str, ...],
        count: int,
    ) -> tuple[str, ...]:
        if self._mode == "nested" and group.request is not None:
            name = self._name(prefix, name)
            return self._add(Unit(name, "batch", None, group, after=after, path=path, count=count))
        ends: list[str] = []
        for number in range(count):
            own = f"{name}-{number}" if count > 1 else name
            ends += self.scope(group.tasks, group.groups, f"{prefix}{own}-", after, path)
        if len(ends) == 1:
            return tuple(ends)
        return self._add(Unit(self._name(prefix, f"{name}-end"), "end", after=tuple(ends)))

    def _steps(self, task: Task, prefix: str, after: tuple[str, ...]) -> tuple[str, ...]:
        """Plan the steps of a transform: files and sign-ons in order, and jobs. Return the last
        units.
        """
        stage: str | None = None
        shared: bool | None = None
        staged: list[str] = []
        files: list[Step] = []
        open_: list[str] = []
        submits = [step for step in task.steps if step.name in ("submit", "batch")]

        def put() -> tuple[str, ...]:
            if not files:
                return after
            name = self._name(prefix, f"{task.name}-files")
            steps = tuple(files)
            files.clear()
            return self._add(Unit(name, "files", task, after=after, steps=steps, stage=stage))

        for step in task.steps:
            options = step.options
            if step.name in self._skip:
                continue
            if step.name in ("set", "unset"):
                value = options.get("value")
                if options["key"] == "stage":
                    after = put()
                    stage = None if value is None else str(value)
                else:
                    shared = value if isinstance(value, bool) else None
            elif step.name in ("write", "copy"):
                files.append(step)
            elif step.name == "stage":
                staged.append(options["filename"])
            elif step.name == "auth":
                after = put()
                name = self._name(prefix, f"{task.name}-auth")
                after = self._add(
                    Unit(name, "local", task, after=after, steps=(step,), stage=stage)
                )
            else:
                after = put()
                file = str(options.get("filename", ""))
                own = task.name if len(submits) == 1 else f"{task.name}-{file or 'command'}"
                (name,) = self._add(
                    Unit(
                        self._name(prefix, own),
                        "job",
                        task,
                        after=after,
                        steps=(step,),
                        staged=tuple(staged),
                        stage=stage,
                        shared=shared,
                    )
                )
                if options.get("wait") or options.get("watch"):
                    after = (name,)
                else:
                    open_.append(name)
        return tuple(dict.fromkeys([*open_, *(put() or ())]))

    def _add(self, unit: Unit) -> tuple[str, ...]:
        self.units.append(unit)
        return (unit.name,)

    def _name(self, prefix: str, text: str) -> str:
        """Return a unique and valid name for a job group."""
        base = _OTHER.sub("-", prefix + text).lstrip("-")[:_LONGEST] or "task"
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}-{number}"
        self._names.add(name)
        return name
