"""Limit on the output of a job (``limits.output``): measures the files of running jobs.

A job whose files exceed the limit gets a fatal exception, and the engine cancels the job.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from stat import S_ISREG
from typing import Any

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.model.byte_sizes import memory_text
from ensemble_core.model.causes import OUTPUT_LIMIT
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Decision, Submit
from ensemble_core.model.events import Event, JobEvent, Problem
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import ObserverPlugin
from ensemble_core.quick_dataclass import dataclass
from ensemble_core.runtime.tail.multi_file_output import is_pattern, matching
from ensemble_core.runtime.watcher import Watcher

#: Pauses between two measurements of a job, in seconds: at first and if the job may soon exceed
#: the limit, and the longest one.
_SHORTEST, _PAUSE = 0.05, 1.0
#: At most so many files are measured per ``_SLICE`` seconds.
_FILES, _SLICE = 50, 0.1


@dataclass(slots=True)
class _Measured:
    """The files of a running job, and when to measure them next."""

    #: The size of each file before the job.
    files: dict[str, int]
    #: When the job was first measured, by the run's clock, and last while none of the files was
    #: there.
    began: float
    missed: float = 0.0
    #: Whether any of the files was there.
    seen: bool = False
    #: What the job had written at which time, and the pause after that.
    total: int = 0
    time: float = 0.0
    pause: float = 0.0

    @property
    def due(self) -> float:
        """The time of the next measurement, as in ``time.monotonic``."""
        return self.time + self.pause

    def plan(self, total: int, most: int) -> None:
        """Choose the pause: the faster the job approaches the limit, the sooner."""
        now = time.monotonic()
        speed = (total - self.total) / (now - self.time) if self.time else 0.0
        longest = _PAUSE if speed <= 0 else (most - total) / speed / 2
        self.pause = min(_PAUSE, max(_SHORTEST, min(2 * self.pause, longest)))
        self.total, self.time = total, now


class OutputLimit(Watcher):
    """Watches a run's jobs, and reports those whose files exceed ``most`` bytes.

    - ``emit`` receives an exception for each such job, once, and a warning if files of jobs cannot
      be seen from this machine. It is called on the thread that measures.

    Without ``live``, the files of jobs without observers do not grow while the jobs run.

    If a file existed before the job was submitted, only what is added counts. For files that a
    group names, this is unknown after a resume: then, what is added since counts.
    """

    def __init__(
        self,
        most: int,
        emit: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
        observers: Mapping[str, ObserverPlugin],
        *,
        live: bool = True,
    ) -> None:
        self._most = most
        self._emit = emit
        self._clock = clock
        self._observers = observers
        self._live = live
        #: Submitted jobs without a start. ``_running``: started jobs, with the start's context.
        self._waiting: dict[str, Job] = {}
        self._running: dict[str, tuple[Job, Mapping[str, Any]]] = {}
        #: Jobs whose files must be measured before they start.
        self._new: deque[Job] = deque()
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        # Only the thread uses the attributes below.
        self._before: dict[str, dict[str, int]] = {}
        self._measured: dict[str, _Measured] = {}
        self._since_pause = 0
        self._told = False
        #: When measured jobs ended.
        self._ended: dict[str, float] = {}

    # -- the engine's thread -----------------------------------------------------------------------

    def resume(self, records: Iterable[JobRecord]) -> None:
        """Continue with jobs that an earlier controller submitted."""
        for record in records:
            if record.outcome is None:
                self._expect(record.job)
                if record.files is not None:
                    self._begin(record.job.id, record.files)

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, Submit):
            for job in decision.jobs:
                self._expect(job)

    def event(self, event: Event) -> None:
        if type(event) is not JobEvent or not event.ours:
            return
        if event.name == "start":
            self._begin(event.job, event.context)
        elif event.name in ("finish", "clean"):
            if event.job in self._measured:
                self._ended.setdefault(event.job, event.timestamp)
            self._waiting.pop(event.job, None)
            self._running.pop(event.job, None)

    def _expect(self, job: Job) -> None:
        self._waiting[job.id] = job
        if job.stdout is not None or job.stderr is not None or job.observe:
            self._new.append(job)
            self._wake()

    def _begin(self, name: str, start: Mapping[str, Any]) -> None:
        job = self._waiting.get(name)
        if job is not None:
            self._running[name] = job, start
            del self._waiting[name]
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ensemble-sizes", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop measuring."""
        self._closing.set()
        self._news.set()

    # -- the thread that measures ----------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._news.clear()
            # In this order, a job that starts now is in one of both, and was measured before.
            waiting = self._waiting.copy()
            running = self._running.copy()
            self._measure_new()
            for gone in self._measured.keys() - running.keys():
                self._check_visible(gone, self._measured.pop(gone), self._ended.pop(gone, 0.0))
            for gone in self._before.keys() - running.keys() - waiting.keys():
                del self._before[gone]
            due = math.inf
            for name, (job, start) in running.items():
                known = self._measured.get(name)
                if known is None or known.due <= time.monotonic():
                    known = self._measure(name, job, start)
                due = min(due, known.due)
                if self._closing.is_set():
                    return
            self._news.wait(None if due == math.inf else max(0.0, due - time.monotonic()))

    def _measure_new(self) -> None:
        """Note the sizes of files that exist before their jobs."""
        while self._new and not self._closing.is_set():
            job = self._new.popleft()
            found = {path: self._size(path) for path in self._named(job, NOTHING)}
            self._before[job.id] = {path: size for path, size in found.items() if size}

    def _measure(self, name: str, job: Job, start: Mapping[str, Any]) -> _Measured:
        known = self._measured.get(name)
        if known is None:
            streams = [start[each] for each in ("stdout", "stderr") if start.get(each)]
            paths = {*self._named(job, start), *(_absolute(job, start, each) for each in streams)}
            earlier = self._before.pop(name, {})
            sizes = {path: earlier.get(path, 0) for path in sorted(paths)}
            known = _Measured(sizes, self._clock())
            self._measured[name] = known
            if os.devnull in streams or not streams or not (self._live or job.observe):
                self._say(_invisible(name, _whose(start)))
        total = 0
        for path, before in known.files.items():
            size = self._size(path)
            known.seen = known.seen or size is not None
            size = size or 0
            if size < before:  # it was truncated
                known.files[path] = before = 0
            total += size - before
        if not known.seen:
            known.missed = self._clock()
        if total > self._most and self._running.pop(name, None) is not None:
            note = (
                f"it has written {memory_text(total)}; limits.output is {memory_text(self._most)}"
            )
            context = {"type": OUTPUT_LIMIT, "severity": 0, "note": note}
            self._emit((JobEvent(self._clock(), name, "exception", context),))
        known.plan(total, self._most)
        return known

    def _check_visible(self, name: str, known: _Measured, ended: float) -> None:
        """Warn if no file of a job was there while it ran, for longer than a pause.

        Queues remove the empty files of jobs that have ended.
        """
        missed = not known.seen and known.began + _PAUSE <= known.missed < ended
        if missed and known.files and not any(map(os.path.lexists, known.files)):
            path = next(iter(known.files))
            self._say(_invisible(name, f"{path} does not exist on this machine"))

    def _say(self, message: str) -> None:
        if not self._told:
            self._told = True
            self._emit((Problem(self._clock(), message),))

    def _size(self, path: str) -> int | None:
        """Return the size of a regular file or of all parts, or ``None`` if it does not exist."""
        self._since_pause += 1
        if self._since_pause >= _FILES:
            self._since_pause = 0
            self._closing.wait(_SLICE)
        try:
            if is_pattern(path):
                sizes = [os.stat(part).st_size for part in matching(path)]
                return sum(sizes) if sizes else None
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        return status.st_size if S_ISREG(status.st_mode) else 0

    def _named(self, job: Job, start: Mapping[str, Any]) -> Iterator[str]:
        """Yield the files that the group names: of its streams, and of its observers."""
        paths = [job.stdout, job.stderr]
        for name, options in job.observe.items():
            try:
                paths.append(self._observers[name].build(job, options).path)
            except Exception:  # reported where the observer is used
                continue
        for path in paths:
            if path is not None:
                yield _absolute(job, start, path)


def _absolute(job: Job, start: Mapping[str, Any], path: object) -> str:
    workdir = str(start.get("workdir") or job.workdir or ".")
    return os.path.abspath(os.path.join(workdir, str(path)))


def _whose(start: Mapping[str, Any]) -> str:
    if "at_member" in start:
        return "its member writes it to a folder that is not shared"
    return "its queue stores it"


def _invisible(job: str, why: str) -> str:
    return (
        f"limits.output has no effect on the standard output and error of {job}, and of jobs like "
        f"it, because this machine cannot see them: {why}\n  hint: set the group's 'stdout' and "
        "'stderr' to files in a folder that this machine sees"
    )
