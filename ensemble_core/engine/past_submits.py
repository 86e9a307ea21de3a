"""Remembers the submits of a group, so that they can be completed if its sweep gets new values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from ensemble_core.model.codec import dumps
from ensemble_core.model.job_group import JobGroup
from ensemble_core.quick_dataclass import dataclass, replace

#: How many different submits of a group are remembered. A rule that submits the group for each job
#: of another group sets other values each time.
_MOST = 1000
#: A combination of parameters: the values in the order of the parameters' names.
_Key = tuple[object, ...]


@dataclass(slots=True, eq=False)
class PastSubmit:
    """Submits of a group by one rule that changed the same fields of it (``with``).

    ``rule`` is ``None`` for requests of users. ``firing`` is the newest one.
    """

    rule: str | None
    fields: Mapping[str, Any]
    firing: int = 0
    times: int = 0


@dataclass(slots=True, eq=False)
class PastSubmits:
    """The submits of one group."""

    known: dict[str, PastSubmit] = field(default_factory=dict)
    #: By combination, the jobs that are not in the file: users requested them before the sweep
    #: changed, or the file lost their values. They do not run again if the file gets the values.
    outside: dict[_Key, int] = field(default_factory=dict)
    #: Number of submits that cannot be completed: functions or other actions chose their values, a
    #: rule had changed the group, or their rule is no longer in the file.
    unclear: int = 0
    #: The group as it was before a change of the file, until a resume completes the submits.
    before: JobGroup | None = None
    #: Fields that were set during the run, and that a changed file has replaced.
    replaced: dict[str, None] = field(default_factory=dict)
    #: True from a change of the group's ``retry`` until a resume has looked at its lost jobs.
    retries: bool = False

    def note(self, rule: str | None, firing: int, fields: Mapping[str, Any]) -> None:
        """Remember a submit."""
        key = dumps([rule, fields])
        past = self.known.get(key)
        if past is None:
            if len(self.known) >= _MOST:
                self.unclear += 1
                return
            past = self.known[key] = PastSubmit(rule, fields)
        past.firing = firing
        past.times += 1

    def reconfigure(self, before: JobGroup, after: JobGroup, rules: Mapping[str, str]) -> None:
        """Continue with a changed group. ``rules`` has the new ids of rules that stay."""
        known, self.known = self.known, {}
        for past in known.values():
            if past.rule is not None and past.rule not in rules:
                self.unclear += past.times
                continue
            rule = None if past.rule is None else rules[past.rule]
            self.known[dumps([rule, past.fields])] = replace(past, rule=rule)
        if self.before is None and not same_sweep(before, after):
            self.before = before
        policies = [[entry.retry for entry in _entries(group)] for group in (before, after)]
        self.retries = self.retries or policies[0] != policies[1]


def same_sweep(one: JobGroup, other: JobGroup) -> bool:
    """Return True if both groups have the same values, in the same order."""
    return one is other or [*map(_sweep, _entries(one))] == [*map(_sweep, _entries(other))]


def _sweep(entry: JobGroup) -> tuple[object, ...]:
    return [*entry.parameters.items()], [*entry.points.items()], entry.count, entry.replicated


def _entries(group: JobGroup) -> tuple[JobGroup, ...]:
    return (group, *group.more)


def pairs(
    before: JobGroup, after: JobGroup
) -> list[tuple[JobGroup | None, JobGroup | None]] | None:
    """Return each entry of the changed group with the earlier entry that it continues.

    New entries come without an earlier one, and removed ones without a new one. Return ``None`` if
    that is unclear, because parameters were renamed, added or removed.
    """
    left, found = [*_entries(before)], dict[int, JobGroup]()
    entries = _entries(after)
    for strict in (True, False):  # first those in which nothing else has changed
        for position, entry in enumerate(entries):
            if position in found:
                continue
            alike = (each for each in left if _names(each) == _names(entry))
            match = next(
                (each for each in alike if not strict or _rest(each) == _rest(entry)), None
            )
            if match is not None:
                found[position] = match
                left.remove(match)
    if left and len(found) < len(entries):
        return None
    return [
        *((found.get(position), entry) for position, entry in enumerate(entries)),
        *((entry, None) for entry in left),
    ]


def _names(entry: JobGroup) -> set[str]:
    return {*entry.points, *entry.parameters}


def _rest(entry: JobGroup) -> JobGroup:
    return replace(entry, parameters={}, points={}, count=1, more=(), text="")


def of_entries(group: JobGroup) -> list[_Key]:
    """Return the combination of each job of a submit, in the order of the jobs."""
    return [key for one in _entries(group) for key in keys(one) for _ in range(one.count)]


def keys(entry: JobGroup) -> Iterator[_Key]:
    """Yield the combinations of an entry in the order of its jobs.

    As for replicas, 1 and 1.0 are the same value, but not "1" or true.
    """
    rows: list[tuple[object, ...]] = [()]
    if entry.points:
        rows = [*zip(*(map(_plain, column) for column in entry.points.values()), strict=True)]
    columns = [[*map(_plain, values)] for values in entry.parameters.values()]
    names = [*entry.points, *entry.parameters]
    order = sorted(range(len(names)), key=names.__getitem__)
    sort = order != [*range(len(names))]
    for row in rows:
        for values in itertools.product(*columns):
            key = (*row, *values)
            yield tuple(key[position] for position in order) if sort else key


def _plain(value: object) -> object:
    if type(value) in (int, str):
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    return repr(value), type(value).__name__
