"""Follows the output files of jobs with observers, and keeps a job's rows and events in order.

When a job ends, the rest of its output is read before the engine receives the event. Rules that
this event triggers thus see the last values.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.errors import EnsembleError, call_plugin, raised_at
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.events import Event, JobEvent, Problem
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import ObserverPlugin
from ensemble_core.plugin.observer import Observer
from ensemble_core.runtime.tail import Follower

#: How many bytes of a job's other stream are read to find rows there.
_MOST_TRIED = 1 << 20
#: Field of a start with the places of a member's files that are not shared.
_AT_MEMBER = "at_member"


class OutputTracker:
    """Passes the events of jobs, and the rows of their observers, to the inbox.

    Reading pauses while the inbox contains many events.
    """

    def __init__(
        self,
        put: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
        observers: Mapping[str, ObserverPlugin],
        backlog: Callable[[], int],
    ) -> None:
        self._put = put
        self._clock = clock
        self._observers = observers
        self._backlog = backlog
        self._lock = threading.Lock()
        self._observed: dict[str, Job] = {}
        #: Submission times by job. A file that was last written before that time belongs to another
        #: job.
        self._since: dict[str, float] = {}
        #: Jobs that continue an earlier attempt.
        self._continuing: set[str] = set()
        #: The last events of jobs whose files are still being read to their ends.
        self._held: dict[str, list[Event]] = {}
        self._follower: Follower | None = None
        self._said: set[tuple[str, str]] = set()

    def expect(self, jobs: Sequence[Job], records: Mapping[str, JobRecord] = NOTHING) -> None:
        """Note that these jobs, which have these records, are about to be submitted."""
        if jobs and jobs[0].observe:
            now = self._clock()
            kept = {job.id: records[job.id].index_record for job in jobs if job.id in records}
            with self._lock:
                self._continuing.update(
                    name for name, index in kept.items() if index is not None and index.continues
                )
                self._observed.update((job.id, job) for job in jobs)
                self._since.update((job.id, now) for job in jobs)

    def resume(
        self, job: Job, since: float, start: Mapping[str, Any] | None, rows: Mapping[str, int]
    ) -> None:
        """Continue with a job that an earlier controller submitted at the time ``since``.

        ``start`` is the context of the job's ``start`` event, if known. ``rows`` has, for each
        observer, the number of rows that have been handled.
        """
        if not job.observe:
            return
        with self._lock:
            self._observed[job.id] = job
            self._since[job.id] = since
        if start is not None:
            self._watch(job, start, rows)

    def emit(self, events: Sequence[Event]) -> None:
        """Receive events, in order."""
        if not self._observed:
            self._put(events)
            return
        passed: list[Event] = []
        for event in events:
            if not isinstance(event, JobEvent) or event.job not in self._observed:
                passed.append(event)
                continue
            with self._lock:
                held = self._held.get(event.job)
                if held is not None:
                    held.append(event)
                    continue
            if event.name == "start" and event.job in self._since:
                # The start must be in the inbox before the job's first row.
                self._put([*passed, event])
                passed = []
                self._watch(self._observed[event.job], event.context, {})
                continue
            if event.name in ("finish", "clean") and self._follower is not None:
                if passed:
                    self._put(passed)
                    passed = []
                self._hold(event)
                continue
            if event.name == "clean":
                self._forget(event.job)
            passed.append(event)
        if passed:
            self._put(passed)

    def close(self) -> None:
        """Stop following files."""
        if self._follower is not None:
            self._follower.close()

    def _hold(self, event: JobEvent) -> None:
        assert self._follower is not None
        with self._lock:
            self._held[event.job] = [event]
        self._follower.finish(
            event.job,
            lambda: self._release(event.job),
            expected=event.name == "finish" and event.context.get("status") == 0,
        )

    def _release(self, job: str) -> None:
        with self._lock:
            events = self._held.pop(job, [])
            self._forget(job)
            if events:
                self._put(events)

    def _forget(self, job: str) -> None:
        self._observed.pop(job, None)
        self._since.pop(job, None)
        self._continuing.discard(job)

    def _watch(self, job: Job, start: Mapping[str, Any], rows: Mapping[str, int]) -> None:
        if self._follower is None:
            self._follower = Follower(
                self._put,
                self._clock,
                warn=self._warn,
                fail=self._fail,
                miss=self._miss,
                backlog=self._backlog,
            )
        # Remove the job, so that a repeated start does not read the files twice.
        since = self._since.pop(job.id, None)
        workdir = Path(start.get("workdir") or job.workdir or ".")
        for name, options in job.observe.items():
            try:
                build = self._observers[name].build
                observer = call_plugin(build, job, options, returns=Observer)
                path, stream = observer.path, observer.stream
            except Exception as error:  # an error in a plugin: continue without this observer
                known = isinstance(error, EnsembleError)
                why = str(error) if known else f"{error!r} ({raised_at(error)})"
                self._fail(f"cannot build the observer {name!r} of job {job.id}: {why}")
                continue
            begun, place = since, _place(job, start, path, stream)
            if path is None and getattr(job, stream) is None:
                # Only this job writes the file, so its time does not matter.
                begun = None
            if place is None:
                why = _explain_unreadable(job, start, path, stream)
                self._warn_once((job.group, name), f"observer {name!r}: {why}")
                continue
            if path is None and stream == "stderr" and place == start.get("stdout"):
                self._warn_once(
                    (job.group, name),
                    f"the observer {name!r} reads standard output, too: the queue stores both "
                    f"streams of {job.id}, and of jobs like it, in one file",
                )
            self._follower.watch(
                job.id,
                name,
                observer,
                workdir / place,
                since=begun,
                taken=rows.get(name, 0),
                continues=job.id in self._continuing,
                elsewhere=partial(self._rows_elsewhere, job, name, start, workdir),
            )

    def _rows_elsewhere(self, job: Job, name: str, start: Mapping[str, Any], workdir: Path) -> str:
        """Return the end of a complaint that says which stream of a job has rows, or an empty
        text.
        """
        options, plugin = dict(job.observe[name]), self._observers[name]
        if "stream" not in plugin.options.get("properties", {}):
            return ""
        read = None if "path" in options else options.get("stream", "stdout")
        options.pop("path", None)
        for stream, what in (("stdout", "standard output"), ("stderr", "standard error")):
            path = start.get(stream) or getattr(job, stream)
            if stream == read or path is None:
                continue
            count = _count_rows(plugin, job, {**options, "stream": stream}, workdir / path)
            if count:
                changes = ["remove 'path'"] if read is None else []
                if stream != options.get("stream", "stdout"):
                    other = stream == "stderr"
                    changes.append("add 'stream: stderr'" if other else "remove 'stream'")
                change = " and ".join(changes)
                rows = "1 row" if count == 1 else f"{count} rows"
                return f"; {what} has {rows}: {change}"
        return ""

    def _warn(self, message: str) -> None:
        self._put((Problem(self._clock(), message),))

    def _warn_once(self, whose: tuple[str, str], message: str) -> None:
        """Warn once for a group and an observer."""
        if whose not in self._said:
            self._said.add(whose)
            self._warn(message)

    def _miss(self, message: str, job: str) -> None:
        self._put((Problem(self._clock(), message, jobs=(job,), lasts=True),))

    def _fail(self, message: str) -> None:
        self._put((Problem(self._clock(), message, "error"),))


def _count_rows(plugin: ObserverPlugin, job: Job, options: Mapping[str, Any], path: Path) -> int:
    """Return how many rows an observer finds at the beginning of a file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with open(fd, "rb") as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                return 0
            data = file.read(_MOST_TRIED)
        observer = plugin.build(job, options)
        return sum(1 for row in (*observer.feed(data), *observer.finish()) if row.values)
    except Exception:  # a hint is not worth a further problem
        return 0


def _place(job: Job, start: Mapping[str, Any], path: str | None, stream: str) -> str | None:
    """Return the file that an observer of a job reads, or ``None`` if it is only at a member."""
    if path is None:
        place: str | None = start.get(stream) or getattr(job, stream)
        return place
    there = _AT_MEMBER in start and not start.get("workdir") and job.workdir is None
    return None if there and not os.path.isabs(path) else path


def _explain_unreadable(job: Job, start: Mapping[str, Any], path: str | None, stream: str) -> str:
    """Explain why the output of a job is not read, and what to do."""
    what = (
        {"stdout": "standard output", "stderr": "standard error"}[stream] if path is None else path
    )
    places = start.get(_AT_MEMBER)
    if not isinstance(places, Mapping):
        return f"the {what} of {job.id} is not read, because its path is unknown"
    where = str(places.get(stream, ""))
    if path is not None:
        where = os.path.join(str(places.get("workdir", "")), path)
    return (
        f"the {what} of {job.id} is not read: its member writes it to {where[:500]!r}, which is "
        f"not in a shared folder\n  hint: set the group's {stream if path is None else 'workdir'!r}"
        ", or name the folder that both machines see with --option shared=FOLDER"
    )
