"""Computes the results of jobs that were done before a change of the file, from the journal.

A changed file may have the first table of a group, or other results of it. Its tables then cover
the earlier jobs as if the file had been so from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ensemble_core.engine.done_jobs import DoneJob, DoneJobs
from ensemble_core.engine.past_submits import pairs
from ensemble_core.engine.state import State
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.job_group import JobGroup
from ensemble_core.quick_dataclass import replace


def stale_groups(state: State, after: Ensemble) -> list[str]:
    """Return the groups whose earlier done jobs a changed file needs, and the state lacks."""
    needed = dict.fromkeys(table.of for table in after.tables.values())
    needed.update(dict.fromkeys(name for name, group in after.groups.items() if group.asked))
    before = state.ensemble.groups
    return [
        name
        for name in needed
        if name in before
        and state.table.groups[name].counts["done"]
        and (
            name not in state.table.done
            or results_of(before[name]) != results_of(after.groups[name])
        )
    ]


def _entries(group: JobGroup) -> tuple[JobGroup, ...]:
    return (group, *group.more)


def results_of(group: JobGroup) -> list[Mapping[str, object]]:
    """Return the results of each entry of a group."""
    return [entry.result for entry in _entries(group)]


def with_results(
    loading: Callable[..., Ensemble], after: Ensemble, names: Iterable[str], prefix: str
) -> Callable[..., Ensemble]:
    """Return a function that loads a version of the file in which these groups also have the
    results of ``after``, with this prefix.

    No rule uses a name with the prefix, so the run is the same.
    """
    wanted = [*names]

    def load(text: object) -> Ensemble:
        found = loading(text)
        groups = dict(found.groups)
        for name in wanted:
            if name in groups:
                groups[name] = _with_results(groups[name], after.groups[name], prefix)
        return replace(found, groups=groups)

    return load


def _with_results(group: JobGroup, after: JobGroup, prefix: str) -> JobGroup:
    later = {id(one): other for one, other in pairs(group, after) or () if one is not None}
    entries = []
    for place, entry in enumerate(_entries(group)):
        other = later.get(id(entry)) or _entries(after)[min(place, len(after.more))]
        added = {f"{prefix}{name}": formula for name, formula in other.result.items()}
        entries.append(replace(entry, result={**entry.result, **added}, more=()))
    first, *more = entries
    return replace(first, reads=group.reads | after.reads, more=tuple(more))


def renamed_results(done: DoneJobs, before: JobGroup, prefix: str) -> DoneJobs:
    """Return the done jobs with the results that have the prefix instead of their own."""
    own = {name for each in results_of(before) for name in each} - {*before.names}
    found = DoneJobs()
    numbers: dict[tuple[str, ...], int] = {}
    for job in done.jobs.values():
        index, layout, duration, attempt, *values = job
        known = dict(zip(done.layouts[layout], values, strict=True))
        kept = {name: value for name, value in known.items() if name not in own}
        new = {
            name.removeprefix(prefix): value
            for name, value in kept.items()
            if name.startswith(prefix)
        }
        fixed = {name: value for name, value in kept.items() if not name.startswith(prefix)}
        merged = {**new, **fixed}  # a parameter takes precedence
        names = tuple(merged)
        number = numbers.setdefault(names, len(numbers))
        if number == len(found.layouts):
            found.layouts.append(names)
        renamed: DoneJob = (index, number, duration, attempt, *merged.values())
        found.jobs[index] = renamed
    return found
