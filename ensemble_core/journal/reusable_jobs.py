"""Finds jobs of earlier runs that a new run can reuse (``--reuse``).

Jobs with the same identity (see ``model.identity``) compute the same result.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.model.identity import parts_of
from ensemble_core.model.jobs import Job, RunningTime
from ensemble_core.quick_dataclass import dataclass

#: How many jobs are written to the database at a time.
_BATCH = 1000


class EarlierJob(NamedTuple):
    """A successful job of an earlier run."""

    name: str  # ``RUN/JOB``
    duration: float  # seconds
    start: Mapping[str, Any]  # context of the job's start event
    #: For each row: the observer, the values, the time or step, and whether the output began again.
    rows: list[tuple[str, Mapping[str, float], float | None, bool]]


@dataclass(slots=True)
class _OpenJob:
    """A job that is not over, or whose inputs have not been checked yet."""

    ran: RunningTime = field(default_factory=RunningTime)
    #: False after a fatal exception.
    good: bool = True
    start: Mapping[str, Any] = field(default_factory=dict)
    rows: list[list[Any]] = field(default_factory=list)
    duration: float | None = None


class EarlierJobs:
    """Jobs of earlier runs by identity. Each job is reused at most once.

    ``reused`` lists jobs that were reused before. If ``files`` is true, a job is reused only if its
    folder and output still exist.
    """

    def __init__(self, reused: Iterable[str] = (), *, files: bool = False) -> None:
        self._reused = set(reused)
        self._files = files
        # "" means a temporary file, which is removed with the connection.
        #: On disk, so that memory does not grow with the number of jobs.
        self._store = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in ("cache_size=-16000", "journal_mode=OFF", "synchronous=OFF"):
            self._store.execute(f"PRAGMA {setting}")
        self._store.execute(
            "CREATE TABLE jobs (number INTEGER PRIMARY KEY, identity TEXT, name TEXT,"
            " duration REAL, start TEXT, rows TEXT)"
        )
        self._store.execute("CREATE INDEX by_identity ON jobs (identity)")
        self._store.execute("BEGIN")  # never committed
        self._waiting: list[tuple[str, str, float, str, str]] = []

    def close(self) -> None:
        """Remove the temporary database."""
        self._store.close()

    def read(self, folder: Path) -> int:
        """Add the jobs of the run in this folder. Return how many of them have an identity.

        Raises :class:`JournalError` if the journal is missing or damaged.
        """
        with Journal(folder / NAME) as journal:
            missing = journal.missing_tail()
            if missing is not None:
                raise missing
            return self._read(journal, folder.name)

    def take(
        self, identity: str, accept: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> EarlierJob | None:
        """Take the first job with this identity, or return ``None``.

        ``accept`` is called with the paths of a job, and returns whether the job may be taken.
        """
        for number, name, duration, start, rows in self._store.execute(
            "SELECT number, name, duration, start, rows FROM jobs WHERE identity = ?"
            " ORDER BY number",
            (identity,),
        ):
            context = json.loads(start)
            if self._files and not _output_exists(context):
                continue
            if accept is not None and not accept(context):
                continue
            self._store.execute("DELETE FROM jobs WHERE number = ?", (number,))
            return EarlierJob(name, duration, context, [tuple(row) for row in json.loads(rows)])
        return None

    def _read(self, journal: Journal, run: str) -> int:
        known: dict[str, list[str]] = {}
        active: dict[str, _OpenJob] = {}
        #: Successful jobs whose inputs have not been checked yet.
        unchecked: dict[str, _OpenJob] = {}
        chained: set[str] = set()
        found = 0
        for row in journal.rows():
            kind, job, data = row.type, row.job or "", row.data or {}
            if kind == "job":
                self._apply_event(active, job, row.name or "", row.time, data)
                if row.name == "clean":
                    done, entry = active.pop(job, None), known.get(job)
                    if done is None or done.duration is None or entry is None or job in chained:
                        known.pop(job, None)
                    elif len(entry) > 2:
                        unchecked[job] = done
                    else:
                        self._insert(run, job, known.pop(job)[0], done)
            elif kind == "observed":
                if job in active:
                    active[job].rows.append(
                        [data["observer"], data.get("values", {}), data.get("clock"),
                         data.get("restarted", False), tuple(data.get("unreadable", ()))]
                    )  # fmt: skip
            elif kind == "identified":
                found += len(data.get("jobs", ()))
                known.update(data.get("jobs", {}))
                for name in data.get("unchanged", ()):
                    if name in unchecked:
                        self._insert(run, name, known.pop(name)[0], unchecked.pop(name))
                    elif name in known:
                        del known[name][2:]  # the job was itself reused; its events follow
            if row.decisions is not None and '"type":"fail"' in row.decisions:
                for decision in json.loads(row.decisions):
                    if decision["type"] != "fail":
                        continue
                    if decision["job"] in active:
                        active[decision["job"]] = _OpenJob(good=False)
                    else:  # a resume decides about jobs that ended during the stop
                        known.pop(decision["job"], None)
                        unchecked.pop(decision["job"], None)
                        self._remove(run, decision["job"])
            if row.decisions is not None and '"resume":true' in row.decisions:
                chained.update(_continued_attempts(json.loads(row.decisions)))
        self._flush()
        return found

    @staticmethod
    def _apply_event(
        active: dict[str, _OpenJob], job: str, name: str, time: float, context: Mapping[str, Any]
    ) -> None:
        if name == "submit" or job not in active:
            active[job] = _OpenJob()
        active[job].ran.take(name, time)
        if name == "start":
            active[job].start = _places(context)
        elif name == "finish" and context.get("status") == 0 and active[job].ran.first is not None:
            active[job].duration = context.get("duration", active[job].ran.seconds)
        elif name == "exception" and context.get("severity", 0) == 0:
            active[job] = _OpenJob(good=False)

    def _remove(self, run: str, job: str) -> None:
        self._flush()
        self._store.execute("DELETE FROM jobs WHERE name = ?", (f"{run}/{job}",))

    def _insert(self, run: str, job: str, identity: str, done: _OpenJob) -> None:
        name = f"{run}/{job}"
        if name in self._reused or done.duration is None or not done.good:
            return
        self._waiting.append(
            (identity, name, done.duration, json.dumps(done.start), json.dumps(done.rows))
        )
        if len(self._waiting) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._store.executemany("INSERT INTO jobs VALUES (NULL, ?, ?, ?, ?, ?)", self._waiting)
        self._waiting.clear()


def _places(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths of a job's folder and output from the context of its start event."""
    return {name: context[name] for name in ("workdir", "stdout", "stderr") if name in context}


def _output_exists(start: Mapping[str, Any]) -> bool:
    """Return True if a job's folder exists and, if the path is known, also its output."""
    workdir = start.get("workdir")
    if not isinstance(workdir, str) or not os.path.isdir(workdir):
        return False
    output = start.get("stdout")
    return not isinstance(output, str) or os.path.exists(os.path.join(workdir, output))


def _continued_attempts(decisions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the attempts that continue an earlier attempt.

    Such an attempt cannot replace a whole job.
    """
    for decision in decisions:
        if decision.get("type") == "retry" and decision.get("resume"):
            label, _, attempt = str(decision["job"]).rpartition(".")[2].partition("-")
            group = str(decision["job"]).rpartition(".")[0]
            yield f"{group}.{label}-{int(attempt or 0) + 1}"


class Identity(NamedTuple):
    """The identity of a job, and its parts."""

    job: str
    identity: str
    parts: Mapping[str, Any]
    reused: str | None  # the earlier job that replaced it


def identities(journal: Journal) -> Iterator[Identity]:
    """Yield the identities of the jobs of a run, in the order of submission."""
    jobs: dict[str, Job] = {}
    entries: dict[str, list[str]] = {}
    sources: dict[str, Any] = {}
    inputs: dict[str, Any] = {}
    reused: dict[str, str] = {}
    for row in journal.rows():
        if row.decisions is not None and (
            '"type":"submit"' in row.decisions or '"type":"look-up"' in row.decisions
        ):
            for decision in json.loads(row.decisions):
                if decision["type"] in ("submit", "look-up"):
                    for data in decision["jobs"]:
                        job = Job.from_dict(data)
                        jobs[job.label] = job
        data = row.data or {}
        if row.type == "identified":
            entries.update(data.get("jobs", {}))
            sources.update(data.get("sources", {}))
            inputs.update(data.get("inputs", {}))
        elif row.type == "looked-up":
            reused.update(data.get("hits", {}))
    for name, job in jobs.items():
        entry = entries.get(name)
        if entry is None or entry[1] not in sources:
            continue
        files = inputs.get(entry[2], {}) if len(entry) > 2 else {}
        parts = parts_of(job, sources[entry[1]], files)
        yield Identity(name, entry[0], parts, reused.get(name))
