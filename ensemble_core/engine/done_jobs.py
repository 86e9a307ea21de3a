"""Stores done jobs with their results, for tables and for functions that compute parameters.

To save memory, only the done jobs of groups that such a table or function reads are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import islice
from typing import Any

from ensemble_core.engine.group_state import GroupState
from ensemble_core.metrics.store import MetricStore
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import BoundRule
from ensemble_core.model.tables import Table
from ensemble_core.quick_dataclass import dataclass

#: A row of a table: values by name.
TableRow = dict[str, Any]


#: A done job: its index, the number of its layout, its duration and attempt, then the values of its
#: parameters and result. It is a flat tuple, because there may be millions of them.
DoneJob = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class DoneJobs:
    """The done jobs of one group, by their index in the group."""

    jobs: dict[int, DoneJob] = field(default_factory=dict)
    #: The layouts: each is the list of names of a job's values. There is nearly always only one.
    layouts: list[tuple[str, ...]] = field(default_factory=list)
    #: Indices of the jobs in each slice, for rules with ``each``: by the parameters under ``each``,
    #: and then by the values of these parameters.
    slices: dict[tuple[str, ...], dict[tuple[Any, ...], list[int]]] = field(default_factory=dict)

    def add(
        self,
        job: Job,
        result: Mapping[str, Any],
        duration: float | None,
        reused: str | None = None,
    ) -> None:
        """Add a done job. ``reused`` is the earlier job that replaces it, if any."""
        # A parameter takes precedence over a result with the same name.
        known = {"replica": job.replica, **result, **job.parameters}
        if reused is not None:
            known = {"reused": reused, **known}
        names = tuple(known)
        try:
            layout = self.layouts.index(names)
        except ValueError:
            layout = len(self.layouts)
            self.layouts.append(names)
        done: DoneJob = (job.index, layout, duration, job.attempt, *known.values())
        self.jobs[job.index] = done
        for by, found in self.slices.items():
            self._index_by(done, by, found)

    @property
    def any_reused(self) -> bool:
        """True if at least one of the jobs is reused from an earlier run."""
        return any("reused" in names for names in self.layouts)

    def keep_by(self, by: tuple[str, ...]) -> None:
        """Maintain an index of the jobs by the values of these parameters, from now on."""
        if by not in self.slices:
            found = self.slices[by] = {}
            for job in self.jobs.values():
                self._index_by(job, by, found)

    def _index_by(
        self, job: DoneJob, by: tuple[str, ...], found: dict[tuple[Any, ...], list[int]]
    ) -> None:
        known = self.known(job)
        if all(name in known for name in by):
            found.setdefault(tuple(known[name] for name in by), []).append(job[0])

    def known(self, job: DoneJob) -> TableRow:
        """Return the values of a job by name."""
        index, layout, duration, attempt, *values = job
        known: TableRow = {"index": index, "duration": duration, "attempt": attempt}
        known.update(zip(self.layouts[layout], values, strict=True))
        return known

    def in_order(self, parameters: Mapping[str, object]) -> Iterator[DoneJob]:
        """Yield the jobs with these parameter values, in the order of their indices."""
        by = tuple(parameters)
        if by and by in self.slices:
            for index in sorted(self.slices[by].get(tuple(parameters.values()), ())):
                yield self.jobs[index]
            return
        for index in sorted(self.jobs):
            job = self.jobs[index]
            if not by or parameters.items() <= self.known(job).items():
                yield job

    def since(self, parameters: Mapping[str, object], seen: int) -> tuple[list[DoneJob], int]:
        """Return the jobs with these parameter values that are new since the last call, and a
        position.

        ``seen`` is the position that the last call returned, or 0 to get all jobs.
        """
        by = tuple(parameters)
        if by and by in self.slices:
            indices = self.slices[by].get(tuple(parameters.values()), [])
            return [self.jobs[index] for index in indices[seen:]], len(indices)
        count = len(self.jobs)
        new = [*islice(reversed(self.jobs.values()), count - seen)][::-1]
        if by:
            new = [job for job in new if parameters.items() <= self.known(job).items()]
        return new, count

    def size(self, parameters: Mapping[str, object]) -> int:
        """Return the number of done jobs with these parameter values, or an upper bound.

        The upper bound grows whenever the number grows.
        """
        if parameters and (by := tuple(parameters)) in self.slices:
            return len(self.slices[by].get(tuple(parameters.values()), ()))
        return len(self.jobs)

    def copy(self) -> DoneJobs:
        """Return a copy for another thread."""
        return DoneJobs(dict(self.jobs), list(self.layouts))


def keep_done(
    done: dict[str, DoneJobs],
    groups: Mapping[str, GroupState],
    metrics: MetricStore,
    tables: Iterable[Table],
    rules: Iterable[BoundRule],
) -> None:
    """From now on, store in ``done`` the done jobs that tables and functions need, by group."""
    for table in tables:
        if table.of not in done:
            done[table.of] = DoneJobs()
            if number := groups[table.of].counts["done"]:
                metrics.warn(
                    f"the new table {table.name!r} does not include the {_jobs(number)} of "
                    f"{table.of!r} that finished before the change"
                )
    for group in groups.values():
        if group.group.asked:
            keep_for_functions(done, group, metrics)
    for rule in rules:
        if isinstance(rule.each, tuple) and rule.asks_tables:
            for each in done.values():
                each.keep_by(rule.each)


def keep_for_functions(done: dict[str, DoneJobs], group: GroupState, metrics: MetricStore) -> None:
    """From now on, store a group's done jobs, for functions that compute the group's parameters."""
    name = group.group.name
    if name in done:
        return
    done[name] = DoneJobs()
    if number := group.counts["done"]:
        metrics.warn(
            f"a function now gives parameters of {name!r}: the function does not receive the "
            f"{_jobs(number)} that finished before"
        )


def _jobs(number: int) -> str:
    return "job" if number == 1 else f"{number} jobs"


def warn_of_missing_results(
    earlier: Mapping[str, DoneJobs], groups: Mapping[str, GroupState], metrics: MetricStore
) -> None:
    """Warn about results of a changed file that earlier jobs cannot have, because nothing has read
    the values.
    """
    for name, done in earlier.items():
        for result in sorted(groups[name].results):
            lacking = sum(result not in done.known(job) for job in done.jobs.values())
            if lacking:
                metrics.warn(
                    f"the result {result!r} of {name!r} has no value for {lacking} of "
                    f"{len(done.jobs)} earlier jobs"
                )
