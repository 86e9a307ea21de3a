"""Job history: a table with a row for each job of a stored run.

It is read from the job rows in the journal (a million jobs in seconds), or computed from the events
if it shall have a row for each attempt.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import repeat
from operator import itemgetter
from typing import Any

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.job_record import BY_OTHERS
from ensemble_core.engine.job_states import exit_code
from ensemble_core.journal.event_encoding import JournalRow
from ensemble_core.journal.job_rows import (
    FIELDS,
    FIRST_OWN,
    INTERRUPTED,
    KINDS,
    JobRow,
    Layout,
    layout_of,
    values_of,
    with_interruption,
)
from ensemble_core.journal.reader import Journal
from ensemble_core.journal.replay import Loading, Replay
from ensemble_core.model.causes import cause_of, reported_cause
from ensemble_core.model.jobs import RunningTime
from ensemble_core.quick_dataclass import dataclass

#: How many rows are written to the database at a time, and how many are read at a time.
_BATCH, _PORTION = 1000, 20_000

#: Decisions about jobs, as the journal has them.
_ABOUT_JOBS = tuple(
    f'"type":"{kind}"' for kind in ("submit", "look-up", "cancel", "terminate", "fail")
)

#: Values by column, in the order of the columns.
Batch = list[Sequence[Any]]


@dataclass(slots=True, eq=False)
class _Attempt:
    """The newest attempt of a job so far."""

    group: str
    index: int
    number: int
    parameters: Mapping[str, Any]
    cores: int
    submitted: float
    ran: RunningTime = field(default_factory=RunningTime)
    finished: float | None = None
    status: int | None = None
    exception: str | None = None
    cause: str | None = None
    core_hours: float = 0.0
    asked: bool = False  # the run asked for a cancel of the attempt
    columns: dict[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        if self.exception == "cancel":
            return "cancelled"
        if self.exception == "interrupted" and self.status != 0:
            return "active"  # it will run again
        if self.exception is None and self.status == 0:
            return "success"
        return "active" if self.exception is None and self.status is None else "failed"

    def row(self) -> list[Any]:
        outcome, status = self.outcome, self.status
        started, duration, columns = self.ran.first, None, self.columns
        if started is not None and self.finished is not None:
            duration = self.ran.seconds
            columns = with_interruption(columns, self.finished - started - duration)
        elif outcome == "active" and started is not None and self.ran.since is None:
            columns = {**columns, "state": "suspended" if self.ran.suspended else "requeued"}
        code = None if status is None else exit_code(status)
        cause = None
        if outcome == "success":
            cause = self.cause or "exit"
        elif outcome != "active":
            cause = self.cause or cause_of(self.exception, status)
        fields = [
            *(self.group, self.index, self.number + 1, outcome, code, cause),
            *(self.submitted, started, self.finished, duration, self.core_hours),
        ]
        return [fields, dict(self.parameters), dict(self.result), columns]


class Jobs:
    """The jobs of a run as a table.

    If a parameter, result or column has the name of an earlier column, it is renamed to
    ``parameter.NAME``, ``result.NAME`` or ``last.NAME``.
    """

    def __init__(self, groups: Iterable[str], parts: Sequence[Iterable[str]]) -> None:
        self.groups = tuple(groups)
        taken = set(FIELDS)
        #: The names of parameters, results and columns as they appear in the table.
        self.shown: list[dict[str, str]] = []
        for prefix, names in zip(("parameter", "result", "last"), parts, strict=True):
            shown = {name: f"{prefix}.{name}" if name in taken else name for name in names}
            taken |= set(shown.values())
            self.shown.append(shown)
        parameters, results, columns = (tuple(each.values()) for each in self.shown)
        #: For each column, the kinds of its values, if known.
        self.kinds: dict[str, set[str]] = {}
        self.names: tuple[str, ...] = (*FIELDS[:3], *parameters, *FIELDS[3:], *results, *columns)

    def close(self) -> None:
        """Release temporary files."""

    def batches(self) -> Iterator[Batch]:
        """Yield the jobs in portions, each as a list of values for each column.

        Jobs are sorted by group (in the file's order), then by index.
        """
        raise NotImplementedError

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each job as a mapping, without missing values."""
        names = self.names
        for batch in self.batches():
            for values in zip(*batch, strict=True):
                yield {n: v for n, v in zip(names, values, strict=True) if v is not None}


class Attempts(Jobs):
    """The attempts of a run's jobs, a row each, read from its events."""

    def __init__(self, journal: Journal, loading: Loading) -> None:
        # "" means a temporary file, which is removed with the connection.
        #: On disk, so that memory does not grow with the number of jobs.
        self._store = sqlite3.connect("", isolation_level=None)
        self._store.execute("PRAGMA cache_size=-8000")
        self._store.execute(
            "CREATE TABLE jobs (name TEXT, number INTEGER, attempt INTEGER, row TEXT,"
            " PRIMARY KEY (name, number, attempt)) WITHOUT ROWID"
        )
        self._waiting: list[tuple[str, int, int, str]] = []
        #: Attempts that are not over, by id.
        self._open: dict[str, _Attempt] = {}
        #: During a stop: the attempts that have ended since. The resume, or a final end, decides
        #: whether they fail, and computes their results.
        self._stopped: dict[str, _Attempt] | None = None
        #: The core-hours of attempts that ended during a stop, by id: they may run again.
        self._hours: dict[str, float] = {}
        self._parts: tuple[dict[str, None], ...] = ({}, {}, {})
        self._groups: dict[str, int] = {}
        loaded = [loading(text) for text in journal.texts()]
        for ensemble in loaded:
            for name in ensemble.groups:
                self._groups.setdefault(name, len(self._groups))
        results = any(group.result for each in loaded for group in each.groups.values())
        self._read(journal, Replay(journal, loading, compare=False) if results else None)
        super().__init__(sorted(self._groups, key=self._groups.__getitem__), self._parts)

    def close(self) -> None:
        self._store.close()

    def batches(self) -> Iterator[Batch]:
        for group in self.groups:
            found = self._store.execute(
                "SELECT row FROM jobs WHERE name = ? ORDER BY number, attempt", (group,)
            )
            while some := found.fetchmany(_PORTION):
                rows = [self._row(*json.loads(text)) for (text,) in some]
                yield [[row.get(name) for row in rows] for name in self.names]

    def _row(self, fields: list[Any], *parts: Mapping[str, Any]) -> dict[str, Any]:
        row = dict(zip(FIELDS, fields, strict=True))
        for names, part in zip(self.shown, parts, strict=True):
            for name, value in part.items():
                row[names[name]] = value
        return row

    def _read(self, journal: Journal, replay: Replay | None) -> None:
        if replay is None:
            for row in journal.rows():
                self._apply(row, None)
        else:
            for row, _, _ in replay.steps():
                table = replay.engine.state.table
                table.over = [] if table.over is None else table.over
                self._apply(row, replay.engine)
                table.over.clear()
        for attempt in list(self._open.values()):
            self._insert_row(attempt)
        self._flush()

    def _apply(self, row: JournalRow, engine: Engine | None) -> None:
        kind = row.type
        if kind == "job":
            self._event(row, engine)
        elif kind == "observed" and row.data is not None:
            attempt = self._open.get(row.job or "")
            if attempt is not None:
                attempt.columns.update(row.data.get("values", {}))
        if row.decisions is not None and any(each in row.decisions for each in _ABOUT_JOBS):
            for decision in json.loads(row.decisions):
                if decision["type"] in ("submit", "look-up"):
                    for job in decision["jobs"]:
                        self._submit(job, row.time)
                elif decision["type"] == "fail":
                    self._fail(decision["job"], decision.get("outcome") == "cancelled")
                elif decision.get("stopped") and self._stopped is None:
                    self._stopped = {}
                key = {"cancel": "jobs", "terminate": "cancel"}.get(decision["type"], "")
                for name in decision.get(key, ()):
                    if name in self._open:
                        self._open[name].asked = True
        over = [] if engine is None else engine.state.table.over
        if self._stopped and over:
            for record in over:
                if record.outcome == "success" and record.job.id in self._stopped:
                    attempt = self._stopped[record.job.id]
                    attempt.result = record.result
                    self._insert_row(attempt)
        if kind == "resume":
            self._stopped = None

    def _fail(self, job: str, cancelled: bool) -> None:
        """Let an attempt fail whose ``fail_if`` is true."""
        ended = None if self._stopped is None else self._stopped.get(job)
        attempt = ended or self._open.get(job)
        if attempt is not None:
            attempt.exception = "cancel" if cancelled else "result"
        if ended is not None:
            self._insert_row(ended)

    def _submit(self, job: Mapping[str, Any], time: float) -> None:
        group, index, number = job["group"], job["index"], job.get("attempt", 0)
        if job["id"] in self._open:
            return  # a resume has submitted the attempt again
        cores = job.get("tasks", 1) * job.get("cores_per_task", 1)
        parameters = job.get("parameters") or {}
        attempt = _Attempt(group, index, number, parameters, cores, time)
        attempt.core_hours = self._hours.pop(job["id"], 0.0)
        self._open[job["id"]] = attempt

    def _event(self, row: JournalRow, engine: Engine | None) -> None:
        attempt = self._open.get(row.job or "")
        if attempt is None:
            return
        name, context = row.name or "", row.data or {}
        before = attempt.ran.seconds
        attempt.ran.take(name, row.time)
        if "reused" not in attempt.columns:
            attempt.core_hours += attempt.cores * (attempt.ran.seconds - before) / 3600
        if name == "submit":
            attempt.submitted = row.time
            if "reused" in context:
                attempt.columns = {"reused": context["reused"], **attempt.columns}
        elif name == "exception":
            if context.get("severity", 0) == 0 and attempt.exception is None:
                attempt.exception = str(context.get("type", ""))
                if attempt.exception == "cancel" and not attempt.asked:
                    attempt.columns["cancelled_by"] = str(context.get("by") or BY_OTHERS)
                attempt.cause = reported_cause(context)
                status = context.get("status")
                if attempt.status is None and isinstance(status, int):
                    attempt.status = status
        elif name == "finish":
            status = context.get("status")
            attempt.status = status if isinstance(status, int) else None
            attempt.finished = row.time
            if attempt.exception is None:
                attempt.cause = reported_cause(context)
            if "reused" in attempt.columns and "duration" in context:
                attempt.ran = RunningTime(seconds=float(context["duration"]))
                attempt.ran.first = row.time - attempt.ran.seconds
            if engine is not None:
                record = engine.state.table.records.get(row.job or "")
                attempt.result = {} if record is None else record.result
        elif name == "clean":
            del self._open[row.job or ""]
            if self._stopped is not None:
                self._stopped[row.job or ""] = attempt
                self._hours[row.job or ""] = attempt.core_hours
            self._insert_row(attempt)

    def _insert_row(self, attempt: _Attempt) -> None:
        row = attempt.row()
        for names, part in zip(self._parts, row[1:], strict=True):
            if not part.keys() <= names.keys():
                names.update(dict.fromkeys(part))
        self._groups.setdefault(attempt.group, len(self._groups))
        self._waiting.append((attempt.group, attempt.index, attempt.number, json.dumps(row)))
        if len(self._waiting) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._store.execute("BEGIN")
        self._store.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)", self._waiting)
        self._store.execute("COMMIT")
        self._waiting.clear()


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
