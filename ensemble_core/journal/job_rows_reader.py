"""Reads the jobs of a run from the job rows in its journal: a million jobs in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

from ensemble_core.journal.job_history import Batch, Jobs
from ensemble_core.journal.job_rows import (
    FIELDS,
    FIRST_OWN,
    INTERRUPTED,
    KINDS,
    JobRow,
    Layout,
    layout_of,
    values_of,
)
from ensemble_core.journal.reader import Journal

#: A job: its index, its layout and its values.
_Job = tuple[int, int, list[Any]]
_STARTED, _FINISHED = 5, 6


class StoredJobs(Jobs):
    """The jobs of a run, read from the job rows in its journal.

    Rows in ``active`` replace those in the journal, or are added to them. If ``check`` is true,
    missing rows raise :class:`JournalError`.
    """

    def __init__(
        self,
        journal: Journal,
        groups: Iterable[str],
        active: Sequence[JobRow],
        *,
        check: bool = True,
    ) -> None:
        if check:
            journal.check_job_rows()
        self._journal = journal
        self._layouts = journal.job_layouts()
        self._active: dict[str, dict[int, _Job]] = {}
        for row in active:
            number = self._layout_number(layout_of(row))
            job = (row.number, number, [*row[2:10], *values_of(row)])
            self._active.setdefault(row.group, {})[row.number] = job
        parts: list[dict[str, None]] = [{}, {}, {}]
        for layout in self._layouts.values():
            for known, names in zip(parts, layout, strict=False):
                known.update(dict.fromkeys(names))
        found = dict.fromkeys([*groups, *journal.job_groups(), *self._active])
        super().__init__(found, parts)
        self.kinds = {name: set() for shown in self.shown for name in shown.values()}
        self.kinds |= {name: set(kind) for name, kind in KINDS.items()}
        self._places: dict[int, list[str]] = {}
        for number, layout in self._layouts.items():
            places = self._places[number] = [
                shown[name]
                for shown, names in zip(self.shown, layout, strict=False)
                for name in names
            ]
            for name, kind in zip(places, layout.kinds, strict=True):
                self.kinds[name].add(kind)

    def _layout_number(self, layout: Layout) -> int:
        for number, known in self._layouts.items():
            if known == layout:
                return number
        number = len(self._layouts)
        self._layouts[number] = layout
        return number

    def batches(self) -> Iterator[Batch]:
        for group in self.groups:
            for jobs in self._merge_active(group):
                yield self._columns(group, jobs)

    def active(self) -> Iterator[Batch]:
        """Yield the jobs that were passed as ``active``, by group and index."""
        for group, jobs in self._active.items():
            yield self._columns(group, sorted(jobs.values(), key=itemgetter(0)))

    def find(self, group: str, index: int) -> tuple[dict[str, Any], int | None] | None:
        """Return the row of one job, and the number of the event that ended the job, if known.

        Return ``None`` if the job does not exist.
        """
        active = self._active.get(group, {}).get(index)
        found = self._journal.job_row(group, index) if active is None else active[1:]
        if found is None:
            return None
        layout, values = found
        batch = self._columns(group, [(index, layout, values)])
        row = {name: column[0] for name, column in zip(self.names, batch, strict=True)}
        own = FIRST_OWN + len(self._places[layout])
        return row, values[own] if len(values) > own else None

    def _merge_active(self, group: str) -> Iterator[list[_Job]]:
        """Yield the jobs of a group in portions. Active jobs replace their rows in the journal."""
        active = dict(sorted(self._active.get(group, {}).items()))
        for jobs in self._journal.job_rows(group):
            if any(layout not in self._places for _, layout, _ in jobs):
                # These jobs of a live run ended after the layouts were read. Show them next time.
                jobs = [job for job in jobs if job[1] in self._places]
                if not jobs:
                    continue
            if active:
                last = jobs[-1][0]
                ahead = {index: active.pop(index) for index in list(active) if index <= last}
                if ahead:
                    jobs = sorted({**{job[0]: job for job in jobs}, **ahead}.values())
            yield jobs
        if active:
            yield list(active.values())

    def _columns(self, group: str, jobs: list[_Job]) -> Batch:
        """Return the values of these jobs by column."""
        indices, layouts, rows = zip(*jobs, strict=True)
        used = set(layouts)
        known: dict[str, Sequence[Any]] = {}
        if len(used) == 1:
            places = self._places[layouts[0]]
            # Some rows also contain the number of the event that ended the job.
            columns = list(zip(*rows, strict=False))[: FIRST_OWN + len(places)]
            known = dict(zip(places, columns[FIRST_OWN:], strict=True))
            own = columns[:FIRST_OWN]
        else:
            own = list(zip(*[row[:FIRST_OWN] for row in rows], strict=True))
            known = {name: [None] * len(jobs) for name in self._layout_names(used)}
            for at, (layout, row) in enumerate(zip(layouts, rows, strict=True)):
                places = self._places[layout]
                # Some rows also contain the number of the event that ended the job.
                for name, value in zip(places, row[FIRST_OWN:], strict=False):
                    known[name][at] = value  # type: ignore[index]
        known.update(zip(_FIELDS, own, strict=True))
        known["group"] = list(repeat(group, len(jobs)))
        known["index"] = indices
        durations = known["duration"] = [
            None if end is None or begin is None else end - begin
            for begin, end in zip(own[_STARTED], own[_FINISHED], strict=True)
        ]
        for at, seconds in enumerate(known.get(self.shown[2].get(INTERRUPTED, ""), ())):
            if seconds is not None and (lasted := durations[at]) is not None:
                durations[at] = lasted - seconds
        nothing = [None] * len(jobs)
        return [known.get(name, nothing) for name in self.names]

    def _layout_names(self, layouts: Iterable[int]) -> dict[str, None]:
        return dict.fromkeys(name for layout in layouts for name in self._places[layout])


_FIELDS = tuple(name for name in FIELDS if name not in ("group", "index", "duration"))
