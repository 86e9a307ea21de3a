"""Inspection of a stored run: the data for web pages, reports and notebooks.

All data is plain (``dict``, ``list``, text, numbers, ``None``), for JSON. Times are in seconds
since the epoch.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.session.charts import (
    Capacity,
    Curves,
    Firings,
    running_and_waiting,
    running_and_waiting_by_events,
    thinned,
)
from ensemble_core.session.failure_kinds import LOOKED, count_ends, failure_kinds
from ensemble_core.session.log_tail import log_tail

if TYPE_CHECKING:
    from pathlib import Path

    from ensemble_core.engine.engine import Engine
    from ensemble_core.engine.job_record import JobRecord
    from ensemble_core.engine.report import Report
    from ensemble_core.journal.job_history import StoredJobs
    from ensemble_core.journal.replay import Replay
    from ensemble_core.session.jobs_in_memory import JobColumns
    from ensemble_core.session.kept_run import KeptRun

#: For a run with more jobs than this, no nodes are returned, because charts of larger runs do not
#: have a bar for each job.
_PLACED = 2000
#: Runs with more jobs have a timeline of the last attempts only.
_TIMED = 20_000
#: Maximum size of the part of a log that is returned, and maximum length of a line, in bytes.
_LOG, _LINE = 65_536, 500
#: Fields of a job's events that say where its output is.
_PLACES = ("workdir", "stdout", "stderr", "host", "nodes")
#: Size of the cache of these fields, in jobs.
_REMEMBERED = 1000
#: If a run has fewer events than this for each job to be searched, all its events are scanned.
_ONE_BY_ONE = 5000
#: The time of the last event is searched among this many events at the end.
_LAST = 20
#: Parts of the engine's report that an overview contains.
_REPORTED = ("groups", "rules", "progress", "warnings")


class Inspection:
    """A stored run, open for reading its data. Use it in a ``with`` statement.

    The journal is read once; :meth:`refresh` reads new events. If the run is damaged, the readable
    part is shown, and ``problem`` describes the damage.
    """

    def __init__(self, kept: KeptRun) -> None:
        self._kept = kept
        self._replay: Replay | None = None
        self._columns: JobColumns | None = None
        self._stale = False
        #: For each kind of events, the number of the last event that was read.
        self._read: dict[str, int] = {}
        self._firings = Firings()
        self._curves = Curves()
        self._nodes: dict[str, str] = {}
        self._capacity = Capacity()
        #: For each attempt, the number of the last event that was checked, and the context of its
        #: start event.
        self._started: dict[str, tuple[int, dict[str, Any]]] = {}
        self._began: float | None = None
        self._newest: float | None = None
        #: The number of the last event that was read.
        self.seq = -1
        self.problem = ""
        self.refresh()

    def __enter__(self) -> Inspection:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.journal.close()

    def refresh(self) -> bool:
        """Read new events. Return True if there were any."""
        journal = self._kept.journal
        try:
            last = journal.last()
        except EnsembleError as error:
            self._note(error)
            last = max(self.seq, 0)
        if last == self.seq:
            return False
        self.seq = last
        self._stale = True
        try:
            if self._replay is None:
                self._replay = self._kept.recover(compare=False)
            else:
                for _ in self._replay.steps():
                    pass
        except EnsembleError as error:
            self._note(error)
            self._replay = self._replay or self._replay_before_damage()
        try:
            if self._began is None:
                self._began = next((row.time for row in journal.rows(until=1)), None)
            # Events of several jobs that arrived together are not ordered by time.
            times = [row.time for row in journal.rows(max(last - _LAST, 0))]
            self._newest = max(times, default=self._newest)
        except EnsembleError as error:
            self._note(error)
        return True

    def _note(self, error: EnsembleError) -> None:
        cause = f": {error.cause}" if error.cause else ""
        self.problem = self.problem or f"{error.what}{cause}"

    def _replay_before_damage(self) -> Replay | None:
        try:
            replay = self.replay()
        except EnsembleError as error:
            self._note(error)
            return None
        try:
            for _ in replay.steps():
                pass
        except EnsembleError as error:
            self._note(error)
        return replay

    def replay(self) -> Replay:
        """Return a new replay of the run, before its first event."""
        from ensemble_core.journal.replay import Replay

        return Replay(self._kept.journal, self._kept.loading, compare=False)

    @property
    def _engine(self) -> Engine | None:
        return None if self._replay is None else self._replay.engine

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._kept.folder

    @property
    def state(self) -> str:
        """The state of the run: ``running``, ``stopped``, ``interrupted``, ``ended`` …"""
        return self._kept.state

    # -- state -------------------------------------------------------------------------------------

    def report(self) -> Report | None:
        """Return the engine's report, or ``None`` if the journal cannot be read at all."""
        return None if self._engine is None else self._engine.report()

    def overview(self) -> dict[str, Any]:
        """Return the run's state, controller, groups, rules and progress."""
        from ensemble_core.journal.run_state import read_info

        info = read_info(self._kept.folder)
        engine = self._engine
        controller = info.controller or {}
        found: dict[str, Any] = {
            "tag": self._kept.tag,
            "name": info.name,
            "state": info.state,
            "reason": info.reason,
            "exit_code": info.exit_code,
            "executor": info.executor,
            "began": self._began if self._began is not None else info.began,
            "ended": info.ended,
            "newest": self._newest,
            "until": self._known_until(),
            "events": self.seq,
            "controller": {key: controller.get(key) for key in ("host", "pid")},
            "problem": self.problem or info.problem,
            "groups": [],
            "rules": [],
            "progress": None,
            "warnings": [],
        }
        if engine is None:
            return found
        plain = engine.report().to_dict()
        counts, table = engine.state.metrics.counts, engine.state.table
        records = (index.record for index in table.lost.values())
        lost = Counter(each.job.group for each in records if each.outcome == "failed")
        for group in plain["groups"]:
            name = group["name"]
            held, repeated = len(table.groups[name].held), counts[name]["repeated"]
            group |= {"repeated": repeated, "lost": lost[name], "held": held}
        return found | {key: plain.get(key, found[key]) for key in _REPORTED}

    def _known_until(self) -> float | None:
        """Return the time up to which the run is known: now if it is live, or else that of its last
        event.
        """
        from ensemble_core.journal.run_state import read_info

        return time.time() if read_info(self._kept.folder).state == "running" else self._newest

    # -- jobs --------------------------------------------------------------------------------------

    def _jobs(self) -> JobColumns:
        """Return the table of jobs. After the first call, only changes are read."""
        if self._columns is None or self._stale:
            from ensemble_core.session.jobs_in_memory import JobColumns

            engine = self._engine
            over = [] if engine is None else engine.state.table.over or []
            try:
                stored = self._stored_jobs(over, check=self._columns is None)
                with closing(stored or self._kept.jobs()) as jobs, _without_gc():
                    if not (stored and self._columns and self._columns.update(stored)):
                        self._columns = JobColumns(jobs)
            except EnsembleError as error:
                self._note(error)
                self._columns = JobColumns(None)
            if engine is not None:
                engine.state.table.over = []
            self._stale = False
        return self._columns

    def _stored_jobs(
        self, over: Iterable[JobRecord] = (), *, check: bool = True
    ) -> StoredJobs | None:
        """Return the jobs from job rows, or ``None`` if the journal is damaged.

        The rows of active jobs and of jobs in ``over`` come from the engine.
        """
        from ensemble_core.journal.job_history import StoredJobs
        from ensemble_core.journal.job_rows import row_of

        engine = self._engine
        if engine is None or self.problem:
            return None
        known = map(row_of, chain(over, engine.state.table.records.values()))
        groups = engine.state.ensemble.groups
        return StoredJobs(self._kept.journal, groups, [*known], check=check)

    def _row(self, group: str, index: int) -> tuple[dict[str, Any], int | None] | None:
        """Return the row of a job, and the number of the event that ended it, if known."""
        try:
            stored = self._stored_jobs(check=False)
            if stored is not None:
                return stored.find(group, index)
        except EnsembleError as error:
            self._note(error)
        row = self._jobs().find(group, index)
        return None if row is None else (row, None)

    def _events_of_job(self, name: str, until: int | None) -> list[Any]:
        """Return the events of a job from its first submit to the event ``until``.

        This includes events that led to a decision about the job. The last events are read first.
        """
        found: list[Any] = []
        journal = self._kept.journal
        try:
            for row in journal.rows_backwards(until or self.seq, f'"{name}'):
                decisions: Any = row.decisions or ()
                if row.decisions or _is_attempt_of(row.job, name):
                    found.append(row)
                if any(
                    each["type"] in ("submit", "look-up")
                    and any(job["id"] == name for job in each["jobs"])
                    for each in decisions
                ):
                    break
        except EnsembleError as error:
            self._note(error)
        return found[::-1]

    def jobs(
        self,
        where: Mapping[str, object] | None = None,
        *,
        text: str = "",
        sort: str | None = None,
        descending: bool = False,
        offset: int = 0,
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Return a page of the table of jobs.

        The page has the ``names`` of columns, ``rows`` (lists of values) and ``total``, the number
        of matching jobs. ``where`` maps columns to values. ``text`` is searched in the job's name
        and in all values except times and costs. Jobs without a value in the column ``sort`` come
        last. Raises :class:`UsageError` for unknown columns.
        """
        if self._columns is None and limit is not None and not (where or text or sort):
            first = self._first_jobs(offset, limit)
            if first is not None:
                return first
        jobs = self._jobs()
        for name in [*(where or {}), *([sort] if sort else [])]:
            if len(jobs) and name not in jobs.names:
                raise UsageError(
                    f"jobs have no column {name!r}",
                    hint=f"the columns are {', '.join(jobs.names)}",
                    code="no-such-column",
                )
        end = None if limit is None else offset + limit
        found: Sequence[int] = ()
        total = 0
        if len(jobs):
            found, total = jobs.select(where or {}, text, sort, descending, end)
        page = [jobs.row(at) for at in found[offset:end]]
        return {"names": list(jobs.names), "rows": page, "total": total, "offset": offset}

    def _first_jobs(self, offset: int, limit: int) -> dict[str, Any] | None:
        """Return a page of the table of jobs in its default order, without reading the whole table.

        Return ``None`` if the journal does not have a row for each job, or is damaged.
        """
        try:
            stored = self._stored_jobs(check=False)
            if stored is None or self._engine is None:
                return None
            rows = chain.from_iterable(zip(*batch, strict=True) for batch in stored.batches())
            page = [
                [None if value != value else value for value in row]
                for row in islice(rows, offset, offset + limit)
            ]
        except EnsembleError as error:
            self._note(error)
            return None
        counts = self._engine.state.metrics.counts.values()
        total = sum(each["submitted"] - each["repeated"] for each in counts)
        return {"names": list(stored.names), "rows": page, "total": total, "offset": offset}

    def job(self, group: str, index: int) -> dict[str, Any]:
        """Return one job: its row, attempts, events and reported values, and the rules that
        affected it.

        Raises :class:`UsageError` if the job does not exist.
        """
        found = self._row(group, index)
        if found is None and self.problem:
            raise UsageError(
                f"job {group}.{index} cannot be shown", cause=self.problem, code="corrupt"
            )
        if found is None:
            raise UsageError(f"the run has no job {group}.{index}", code="no-such-job")
        row, end = found
        name = f"{group}.{index}"
        attempts: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        values: list[list[Any]] = []
        rules: list[dict[str, Any]] = []
        # Later attempts have the ids GROUP.INDEX-NUMBER.
        for each in self._events_of_job(name, end):
            own = _is_attempt_of(each.job, name)
            if own and each.type == "observed":
                values.append([each.time, dict((each.data or {}).get("values", {}))])
            elif own:
                events.append(
                    {
                        "seq": each.seq,
                        "time": each.time,
                        "job": each.job,
                        "type": each.type,
                        "name": each.name,
                        "context": dict(each.data or {}),
                    }
                )
            for decision in each.decisions or ():
                kind, rule = decision["type"], decision.get("rule")
                if kind == "submit":
                    made = [job for job in decision["jobs"] if _is_attempt_of(job["id"], name)]
                    attempts += [_shown_job(job) for job in made]
                    touched = bool(made)
                elif kind in ("cancel", "signal"):
                    touched = any(_is_attempt_of(job, name) for job in decision["jobs"])
                else:
                    job = decision.get("job")
                    touched = isinstance(job, str) and _is_attempt_of(job, name)
                if touched and rule:
                    rules.append(
                        {"rule": rule, "decision": kind, "seq": each.seq, "time": each.time}
                    )
        return {
            "id": name,
            "row": row,
            "attempts": attempts,
            "events": events,
            "values": thinned(values),
            "rules": rules,
        }

    def log(self, job: str, stream: str = "stdout", most: int = _LOG) -> dict[str, Any]:
        """Return the last ``most`` bytes of a job's log as ``text``, and the ``size`` of the file.

        If the log cannot be read, ``problem`` says why. ``job`` is ``sim.3``, or ``sim.3-1`` for a
        later attempt. Raises :class:`UsageError` for a stream other than ``stdout`` and ``stderr``.
        """
        if stream not in ("stdout", "stderr"):
            raise UsageError(
                f"unknown stream {stream!r}: expected stdout or stderr", code="no-such-stream"
            )
        start = self._starts({job}).get(job, {})
        return log_tail(start, stream, min(most, _LOG), self._kept.files)

    def _events(self, holding: Sequence[str], after: int = 0, **options: Any) -> Iterator[Any]:
        try:
            yield from self._kept.journal.rows(after, self.seq, holding=holding, **options)
        except EnsembleError as error:
            self._note(error)

    # -- failures ----------------------------------------------------------------------------------

    def failures(self) -> list[dict[str, Any]]:
        """Return failed and cancelled jobs by group, cause and exit code, the most frequent kind
        first.

        In each kind, ``parameters`` lists values with significantly more failures than others:
        ``failed`` of ``total`` jobs of the group. ``examples`` lists jobs; the first ``looked`` of
        them are a sample of the whole run and have their node and last line of output. ``lines``
        and ``nodes`` count the lines and nodes in this sample; lines that differ only in numbers
        count as one.
        """
        found = failure_kinds(self._jobs(), self._parameters)
        read = {one["attempt"]: one for kind in found for one in kind["examples"][:LOOKED]}
        starts = self._starts(read)
        for job, example in read.items():
            example |= self._end_of_job(starts.get(job, {}))
        for kind in found:
            count_ends(kind)
        return found

    def _parameters(self, group: str) -> Sequence[str]:
        engine = self._engine
        if engine is None or group not in engine.state.ensemble.groups:
            return ()
        names = self._jobs().names
        return [n for n in engine.state.ensemble.groups[group].names if n in names]

    def _end_of_job(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """Return the node of an attempt, and the last line that the attempt has written."""
        node = _node(start)
        for stream in ("stderr", "stdout"):
            lines = log_tail(start, stream, 4096, self._kept.files)["text"].strip().splitlines()
            if lines:
                return {"node": node, "line": lines[-1][:_LINE], "stream": stream}
        return {"node": node, "line": "", "stream": ""}

    def _starts(self, jobs: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the contexts of the start events of these attempts, with the paths of their
        output.

        The events of a job are read once; later calls read only new events.
        """
        known = {job: self._started[job] for job in jobs if job in self._started}
        new = set(jobs) - known.keys()
        found = {job: start for job, (_, start) in known.items()}
        if self.seq < _ONE_BY_ONE * len(new):
            rows: Iterable[Any] = self._events([json.dumps(job) for job in new])
        else:
            rows = chain.from_iterable(map(self._events_of_attempt, new))
        if known:
            after = min(until for until, _ in known.values())
            rows = chain(rows, self._events([json.dumps(job) for job in known], after))
        for row in rows:
            if row.job in jobs and row.type == "job":
                kept = found.setdefault(row.job, {})
                kept |= {k: v for k, v in (row.data or {}).items() if k in _PLACES}
                kept["started"] = kept.get("started") or row.name == "start"
        if len(self._started) > _REMEMBERED:
            self._started.clear()
        self._started |= {job: (self.seq, found.get(job, {})) for job in jobs}
        return found

    def _events_of_attempt(self, job: str) -> list[Any]:
        """Return the events of the attempt's job, or an empty list for an unknown id."""
        group, _, number = job.rpartition(".")
        index = number.partition("-")[0]
        row = self._row(group, int(index)) if index.isascii() and index.isdigit() else None
        return [] if row is None else self._events_of_job(f"{group}.{index}", row[1])

    # -- costs -------------------------------------------------------------------------------------

    def costs(self) -> list[dict[str, Any]]:
        """Return the costs of each group.

        These are the core-hours by outcome, the ``median`` and ``longest`` duration and waiting
        time (in seconds), and the time limit.
        """
        engine = self._engine
        limits = {} if engine is None else engine.state.ensemble.groups
        jobs = self._jobs()
        found = []
        for name in jobs.ranges:
            hours: dict[str, float] = {}
            for outcome, spent in zip(
                jobs.column("outcome", name), jobs.column("core_hours", name), strict=True
            ):
                hours[outcome] = hours.get(outcome, 0.0) + (spent or 0.0)
            times = zip(jobs.column("submitted", name), jobs.column("started", name), strict=True)
            took = jobs.column("duration", name)
            found.append(
                {
                    "group": name,
                    "core_hours": hours,
                    "duration": _spread([each for each in took if each is not None]),
                    "waiting": _spread(
                        [b - a for a, b in times if a is not None and b is not None]
                    ),
                    "time_limit": limits[name].duration or None if name in limits else None,
                }
            )
        return found

    def capacity(self) -> dict[str, dict[str, float]]:
        """Return for how many hours the queue's ``cores``, ``nodes`` and ``gpus`` were ``up`` and
        ``free``.

        Only resources that the queue has reported are included. Time without a controller does not
        count.
        """
        sessions = self._kept.journal.sessions()
        breaks = {later.seq: earlier.ended for earlier, later in pairwise(sessions)}
        ahead = sorted(seq for seq in breaks if seq >= self._read.get("resources", 0))
        for row in self._rows_of_kind("resources"):
            while ahead and row.seq > ahead[0]:
                self._capacity.pause(breaks[ahead.pop(0)])
            data = row.data or {}
            values = data.get("values" if row.type == "resources" else "resources")
            if row.type in ("start", "resources") and values:
                self._capacity.report(row.time, values)
        return self._capacity.until(self._known_until() or 0.0)

    # -- results -----------------------------------------------------------------------------------

    def tables(self) -> list[dict[str, Any]]:
        """Return all tables of results, and the points of all generators.

        Each table has a ``name``, the ``names`` of its columns, ``rows`` (lists), and ``plot`` as
        in the ensemble file. A table of results also has ``notes``: texts about its rows, such as
        statistics that do not cover all jobs of a row. The table of a generator also has
        ``objectives``, each ``minimize`` or ``maximize``, and ``feasible``: the numbers of the done
        points that violate no constraint.
        """
        engine = self._engine
        if engine is None:
            return []
        found = []
        computed = engine.tables()
        for name, table in engine.state.ensemble.tables.items():
            names = computed.columns(name)
            rows = [[row.get(n) for n in names] for row in computed[name]]
            plot = table.drawn(computed.pivot_values(name))
            one: dict[str, Any] = {"name": name, "names": list(names), "rows": rows, "plot": plot}
            notes = computed.warnings(name)
            found.append({**one, "kind": "table", "of": table.of, "notes": notes})
        for name, state in engine.state.generators.items():
            vocs = engine.state.ensemble.generators[name].vocs
            names, points = state.table(vocs)
            rows = [[row.get(n) for n in names] for row in points]
            one = {"name": name, "names": list(names), "rows": rows, "plot": {}}
            goals = dict(vocs.objectives)
            done = (point for point in state.points if point.state == "done")
            feasible = [point.number for point in done if vocs.feasible(point.values)]
            one |= {"kind": "generator", "of": name}
            found.append({**one, "objectives": goals, "feasible": feasible})
        return found

    def curves(self) -> list[dict[str, Any]]:
        """Return the values that jobs reported while they ran, by group and variable.

        Times are in seconds since the job's first value. The number of jobs is limited, and long
        curves are thinned out.
        """
        for row in self._rows_of_kind("observed"):
            self._curves.add(row)
        return self._curves.shown()

    # -- rules -------------------------------------------------------------------------------------

    def firings(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the firings of rules after the event ``after``.

        Each firing has the ``rule``, the ``seq`` and ``time`` of the event, the event in words, the
        ``value`` in the condition, and the ``decisions``. If there are more than 10,000 firings,
        those of the most frequent rules are thinned out.
        """
        for row in self._rows_of_kind("fired"):
            self._firings.add(row)
        return self._firings.after(after)

    def _rows_of_kind(self, kind: str) -> Iterator[Any]:
        """Yield the events of a kind that it has not yielded before."""
        try:
            yield from self._kept.journal.rows_of_kind(kind, self._read.get(kind, 0), self.seq)
        except EnsembleError as error:
            self._note(error)
        self._read[kind] = self.seq

    def timeline(self, bins: int = 300) -> dict[str, Any]:
        """Return how many jobs of each group were waiting and running, in ``bins`` equal parts of
        the run.

        ``began`` and the ``width`` of a part are in seconds. For each group, ``running`` and
        ``waiting`` list the mean number of jobs in each part. All attempts count, and not the time
        in which they were suspended. In a run with more than 20,000 jobs, only the last attempt of
        each job counts, from its start to its end.
        """
        began = self._began if self._began is not None else 0.0
        jobs, end = self._jobs(), self._known_until() or began
        if len(jobs) > _TIMED or not self._is_interrupted(jobs):
            return running_and_waiting(jobs, began, end, bins)
        try:
            rows = self._kept.journal.rows(0, self.seq)
            events = (
                (row.job, row.name or "", row.time)
                for row in rows
                if row.type == "job" and row.job and row.job.rpartition(".")[0] in jobs.ranges
            )
            return running_and_waiting_by_events(events, began, end, bins)
        except EnsembleError as error:
            self._note(error)
            return running_and_waiting(jobs, began, end, bins)

    def _is_interrupted(self, jobs: JobColumns) -> bool:
        """Return whether a job had several attempts, or was suspended or requeued."""
        return any(
            any((attempts or 0) > 1 for attempts in jobs.column("attempts", group))
            or ("interrupted" in jobs.names and any(jobs.column("interrupted", group)))
            for group in jobs.ranges
        )

    def queue(self) -> dict[str, Any]:
        """Return what the executor says of its queue, such as its pilots, as plain data.

        The result is empty if the executor has no such status.
        """
        from ensemble_core.session.queue_status import queue_status

        data = queue_status(self._kept)[1]
        return dict(data) if isinstance(data, Mapping) else {}

    def nodes(self) -> dict[str, str]:
        """Return the node of each job's last attempt, by the job's name (``sim.3``).

        Jobs for which the queue has reported no node are left out. The result is empty for a run
        with more than 2,000 jobs.
        """
        if len(self._jobs()) > _PLACED:
            return {}
        for kind in ("placed", "hosted"):
            for row in self._rows_of_kind(kind):
                node = _node(row.data or {}) if row.type == "job" else ""
                if node and row.job is not None:
                    group, _, number = row.job.rpartition(".")
                    self._nodes[f"{group}.{number.partition('-')[0]}"] = node
        return dict(self._nodes)


def _node(reported: Mapping[str, Any]) -> str:
    """Return the node or nodes that the queue has reported for a job, or an empty text."""
    nodes = reported.get("host") or reported.get("nodes") or ""
    return ",".join(map(str, nodes)) if isinstance(nodes, list) else str(nodes)


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable garbage collection while many lists are created, which saves a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _is_attempt_of(job: str | None, name: str) -> bool:
    return job is not None and (job == name or job.startswith(f"{name}-"))


def _shown_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a submitted job without its environment, which may contain secrets."""
    names = ("id", "command", "nodes", "tasks", "cores_per_task", "gpus_per_task", "duration")
    return {name: job.get(name) for name in (*names, "workdir", "stdout", "stderr", "parameters")}


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    values.sort()
    return {"median": values[len(values) // 2], "longest": values[-1], "sum": sum(values)}
