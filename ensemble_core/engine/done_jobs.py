"""Jobs that are done: what is kept of them for tables, and for functions that give parameters.

Only of groups that a table names anything is kept. Filled by the job table, read by ``table_rows``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ensemble_core.model.jobs import Job

__all__ = ["DoneJob", "DoneJobs", "TableRow"]

#: One row of a table, by name.
TableRow = dict[str, Any]


#: A job that is done: its index, which layout says what its values are, its duration, its attempt,
#: and the values of its parameters and result. One flat tuple, for there may be millions.
DoneJob = tuple[Any, ...]


@dataclass(slots=True, eq=False, repr=False)
class DoneJobs:
    """The jobs of one group that are done, by index. ``slices`` has, for each set of parameters
    that a rule with ``each`` asks by, the indices by their values."""

    jobs: dict[int, DoneJob] = field(default_factory=dict)
    #: The names that jobs have values of; nearly always one.
    layouts: list[tuple[str, ...]] = field(default_factory=list)
    slices: dict[tuple[str, ...], dict[tuple[Any, ...], list[int]]] = field(default_factory=dict)

    def add(
        self,
        job: Job,
        result: Mapping[str, Any],
        duration: float | None,
        reused: str | None = None,
    ) -> None:
        """One more job is done; ``reused`` is the earlier one that it was taken from."""
        # A parameter comes before a result of its name.
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
            self._place(done, by, found)

    @property
    def any_reused(self) -> bool:
        """True if a job was taken from an earlier run."""
        return any("reused" in names for names in self.layouts)

    def serve(self, by: tuple[str, ...]) -> None:
        """Be ready to be asked by the values of these parameters."""
        if by not in self.slices:
            found = self.slices[by] = {}
            for job in self.jobs.values():
                self._place(job, by, found)

    def _place(
        self, job: DoneJob, by: tuple[str, ...], found: dict[tuple[Any, ...], list[int]]
    ) -> None:
        known = self.known(job)
        if all(name in known for name in by):
            found.setdefault(tuple(known[name] for name in by), []).append(job[0])

    def known(self, job: DoneJob) -> TableRow:
        """Values that are known of a job, by name."""
        index, layout, duration, attempt, *values = job
        known: TableRow = {"index": index, "duration": duration, "attempt": attempt}
        known.update(zip(self.layouts[layout], values, strict=True))
        return known

    def in_order(self, parameters: Mapping[str, object]) -> Iterator[DoneJob]:
        """The jobs with these values of parameters, in the order of their indices."""
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
        """The jobs with these values of parameters that have come since ``seen``, in the order in
        which they ended; and what to ask with the next time. It is 0 at first."""
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
        """How many jobs with these values of parameters are done, or a number that grows with
        it."""
        by = tuple(parameters)
        if by and by in self.slices:
            return len(self.slices[by].get(tuple(parameters.values()), ()))
        return len(self.jobs)

    def copy(self) -> DoneJobs:
        """Copy as of now, for another thread."""
        return DoneJobs(dict(self.jobs), list(self.layouts))
