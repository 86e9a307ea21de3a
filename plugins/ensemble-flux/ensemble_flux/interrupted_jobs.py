"""Recognises and records jobs that ended because the instance's allocation ended.

At that end, a queue sends signals to one process after another. So jobs and brokers may end before
this process gets a signal. Ends of jobs that may be such an end are therefore reported late. An
instance that shuts down in order first cancels its running jobs; its broker reports the shutdown.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ensemble_core import JobEvent
from ensemble_flux.reactor import Reactor

#: Seconds that the end of a job waits for the end of the run or of the instance. The executor
#: ``local`` waits as long.
_PATIENCE = 5.0
#: Signals that a queue sends to all processes of an allocation, and that end a process.
_SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
)
#: Wait statuses of a job after such a signal, and of a shell whose command got it.
_STATUSES = frozenset({*_SIGNALS, *((128 + number) << 8 for number in _SIGNALS)})
_NODE_CAUSES = ("node-failure", "lost")
#: Context of the exception of a job that has ended with its allocation.
INTERRUPTED: Mapping[str, object] = {
    "type": "interrupted",
    "severity": 0,
    "note": "ended with its allocation",
}


class InterruptedJobs:
    """Passes events on, and delays those that may belong to the end of the allocation.

    The callback ``tell`` receives them later.
    """

    def __init__(self, reactor: Reactor, tell: Callable[[Sequence[JobEvent]], None]) -> None:
        self._reactor = reactor
        self._tell = tell
        #: Whether the instance ends with its allocation.
        self.temporary = False
        self._held: dict[str, list[JobEvent]] = {}
        #: Held jobs that others have cancelled, until the broker says whether the instance ends.
        self._doubtful: set[str] = set()
        self._asking = False
        #: Unfinished jobs that the run has cancelled, and those that have failed.
        self._cancelled: set[str] = set()
        self._failed: set[str] = set()
        #: In a drain: the jobs that run, and the events of those that must not start any more.
        self._running: set[str] = set()
        self._waiting: dict[str, list[JobEvent]] = {}
        self._draining = False

    def pass_on(self, events: Sequence[JobEvent]) -> Sequence[JobEvent]:
        """Return the events to report now."""
        if self._draining:
            return [told for event in events for told in self._in_drain(event)]
        passed: list[JobEvent] = []
        for event in events:
            job = event.job
            if job in self._held:
                self._held[job].append(event)
            elif _is_cancel(event) and job not in self._failed and job not in self._cancelled:
                self._held[job] = [event]
                self._doubtful.add(job)
                self._ask()
            elif self.temporary and job not in self._failed and _may_be_its_end(event):
                self._held[job] = [event]
                self._reactor.after(_PATIENCE, partial(self._release, job))
            else:
                passed.append(event)
                self._note_failure(event)
            if job in self._held and job in self._cancelled and job not in self._doubtful:
                passed += self._interrupted(job)
            if event.name == "clean":
                self._cancelled.discard(job)
        return passed

    def cancel(self, jobs: Collection[str]) -> None:
        """The run cancels these jobs. If their end is held, it was that of the allocation."""
        self._cancelled.update(jobs)
        for job in (self._held.keys() & set(jobs)) - self._doubtful:
            self._tell(self._interrupted(job))

    def drain(self, running: Collection[str], waiting: Collection[str]) -> list[JobEvent]:
        """The allocation ends now. Return the events of all held jobs.

        From now on, running jobs that do not succeed are interrupted. Waiting jobs have no event,
        unless they start nevertheless.
        """
        self._draining = True
        self._running, self._waiting = set(running), {job: [] for job in waiting}
        events = [event for job in list(self._held) for event in self._interrupted(job)]
        self._running.difference_update(event.job for event in events if event.name == "clean")
        return events

    @property
    def drained(self) -> bool:
        """True if no job runs or can start."""
        return not self._running and not self._waiting

    def _in_drain(self, event: JobEvent) -> list[JobEvent]:
        job = event.job
        if not event.ours:
            return [event]
        if job not in self._running:
            waiting = self._waiting.setdefault(job, [])
            waiting.append(event)
            if event.name == "clean":
                del self._waiting[job]
            if event.name != "start":
                return []
            self._running.add(job)
            return [told for each in self._waiting.pop(job) for told in self._in_drain(each)]
        fatal = event.name == "exception" and event.context.get("severity", 0) == 0
        if event.name == "clean":
            self._running.discard(job)
        elif job not in self._failed and (
            fatal or (event.name == "finish" and event.context.get("status") != 0)
        ):
            self._held[job] = [event]
            return self._interrupted(job)
        return [event]

    def lost(self, now: float) -> list[JobEvent]:
        """Return the last events of all held jobs, because the instance has ended.

        In a drain, return those of all running jobs.
        """
        for job in self._running - self._failed:
            self._held[job] = [JobEvent(now, job, "exception", INTERRUPTED)]
        events: list[JobEvent] = []
        for job in list(self._held):
            events += self._interrupted(job)
            if events[-1].name != "clean":
                events.append(JobEvent(events[-1].timestamp, job, "clean"))
        over = {event.job for event in events}
        events += [JobEvent(now, job, "clean") for job in self._running - over]
        self._running.clear()
        self._waiting.clear()
        return events

    def _ask(self) -> None:
        """Ask whether the instance ends."""
        if self._asking:
            return
        self._asking, jobs = True, set(self._doubtful)

        def answered(text: str | None) -> None:
            self._asking = False
            self._doubtful -= jobs
            runs = json.loads(text or "{}").get("state", "run") == "run"
            for job in jobs:
                if runs:
                    self._release(job)
                elif job in self._held and job in self._cancelled:
                    self._tell(self._interrupted(job))
            if self._doubtful:
                self._ask()

        def refused(_error: OSError) -> None:
            self._asking = False
            self._doubtful -= jobs
            for job in jobs:
                self._reactor.after(_PATIENCE, partial(self._release, job))

        self._reactor.ask("state-machine.get", {}, answered, refused, nodeid=0)

    def _release(self, job: str) -> None:
        if job in self._held:
            events = self._held.pop(job)
            for event in events:
                self._note_failure(event)
            self._tell(events)

    def _note_failure(self, event: JobEvent) -> None:
        if event.name == "exception" and event.context.get("severity", 0) == 0:
            self._failed.add(event.job)
        elif event.name == "clean":
            self._failed.discard(event.job)

    def _interrupted(self, job: str) -> list[JobEvent]:
        held = self._held.pop(job)
        rest = [event for event in held if event.name != "exception"]
        self._failed.add(job)
        return [JobEvent(held[0].timestamp, job, "exception", INTERRUPTED), *rest]


def _is_cancel(event: JobEvent) -> bool:
    context = event.context
    cancel = event.name == "exception" and context.get("type") == "cancel"
    return cancel and event.ours and context.get("severity", 0) == 0


def _may_be_its_end(event: JobEvent) -> bool:
    if not event.ours:
        return False
    if event.name == "exception":
        return event.context.get("cause") in _NODE_CAUSES
    return event.name == "finish" and event.context.get("status") in _STATUSES


class DrainRecord:
    """Record of the last events of jobs in an instance that ends, for the next controller.

    Flux's own record ends with the instance, and the events may not have arrived by then. This one
    is a file in the run's folder ``state``; without a folder, nothing is recorded.
    """

    def __init__(self, state: Path | None) -> None:
        self._file = None if state is None else state / "flux-drained.jsonl"

    def begin(self, jobs: Collection[str], now: float) -> None:
        """Record that the instance ends, and that these jobs have not ended yet."""
        self._write([[now, job, "", {}] for job in sorted(jobs)])

    def add(self, events: Sequence[JobEvent]) -> None:
        """Record events of these jobs."""
        self._write([[e.timestamp, e.job, e.name, dict(e.context)] for e in events if e.ours])

    def _write(self, lines: Sequence[object]) -> None:
        if self._file is None or not lines:
            return
        with suppress(OSError):  # usually, the events arrive
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in lines))

    def events(self, jobs: Mapping[str, float]) -> dict[str, list[JobEvent]]:
        """Return the last events of those of ``jobs`` that have ended with an instance.

        Only events after the time of a job in ``jobs`` are returned. A job without a recorded end
        was interrupted.
        """
        found: dict[str, list[JobEvent]] = {}
        begun: dict[str, float] = {}
        for timestamp, job, name, context in self._read():
            if not name:  # a job that was interrupted earlier may have the same id
                found[job], begun[job] = [], timestamp
            elif job in found:
                found[job].append(JobEvent(timestamp, job, name, context))
        for job, events in found.items():
            names = [event.name for event in events]
            newest = max([begun[job], *(event.timestamp for event in events)])
            if "finish" not in names and "exception" not in names and "clean" not in names:
                events.append(JobEvent(newest, job, "exception", INTERRUPTED))
            if "clean" not in names:
                events.append(JobEvent(newest, job, "clean"))
        return {
            job: [event for event in found[job] if event.timestamp > since]
            for job, since in jobs.items()
            if job in found and found[job][-1].timestamp > since
        }

    def _read(self) -> list[tuple[float, str, str, Mapping[str, object]]]:
        lines: list[str] = []
        if self._file is not None:
            with suppress(OSError):
                lines = self._file.read_text(encoding="utf-8").splitlines()
        entries = []
        for line in lines:
            with suppress(ValueError):  # a partial line, from a kill while writing
                timestamp, job, name, context = json.loads(line)
                entries.append((timestamp, job, name, context))
        return entries
