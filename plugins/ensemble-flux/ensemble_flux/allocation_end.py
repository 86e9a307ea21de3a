"""Holds back ends of jobs that may be the end of the allocation around the instance.

At that end, a queue sends signals to one process after another. So jobs and brokers may end before
this run is told.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence
from functools import partial

from ensemble_core import JobEvent
from ensemble_flux.reactor import Reactor

__all__ = ["AllocationEnd"]

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


class AllocationEnd:
    """Passes events on. In a ``temporary`` instance, which ends with its allocation, some wait.

    The callback ``tell`` receives them later.
    """

    def __init__(self, reactor: Reactor, tell: Callable[[Sequence[JobEvent]], None]) -> None:
        self._reactor = reactor
        self._tell = tell
        self.temporary = False
        self._held: dict[str, list[JobEvent]] = {}
        #: Unfinished jobs that the run has cancelled, and those that have failed.
        self._cancelled: set[str] = set()
        self._failed: set[str] = set()

    def pass_on(self, events: Sequence[JobEvent]) -> Sequence[JobEvent]:
        """Return the events to report now."""
        if not self.temporary:
            return events
        passed: list[JobEvent] = []
        for event in events:
            job = event.job
            if job in self._held:
                self._held[job].append(event)
            elif event.ours and job not in self._failed and _may_be_its_end(event):
                self._held[job] = [event]
                self._reactor.after(_PATIENCE, partial(self._release, job))
            else:
                passed.append(event)
                if event.name == "exception" and event.context.get("severity", 0) == 0:
                    self._failed.add(job)
            if event.name == "clean":
                self._failed.discard(job)
            if job in self._held and job in self._cancelled:
                passed += self._interrupted(job)
            if event.name == "clean":
                self._cancelled.discard(job)
        return passed

    def cancel(self, jobs: Collection[str]) -> None:
        """The run cancels these jobs. If their end is held, it was that of the allocation."""
        if self.temporary:
            self._cancelled.update(jobs)
            for job in self._held.keys() & set(jobs):
                self._tell(self._interrupted(job))

    def lost(self) -> list[JobEvent]:
        """Return the ends of all held jobs, because the instance has ended."""
        events: list[JobEvent] = []
        for job in list(self._held):
            events += self._interrupted(job)
            if events[-1].name != "clean":
                events.append(JobEvent(events[-1].timestamp, job, "clean"))
        return events

    def _release(self, job: str) -> None:
        if job in self._held:
            self._tell(self._held.pop(job))

    def _interrupted(self, job: str) -> list[JobEvent]:
        held = self._held.pop(job)
        context = {"type": "interrupted", "severity": 0, "note": "ended with its allocation"}
        rest = [event for event in held if event.name != "exception"]
        self._failed.add(job)
        return [JobEvent(held[0].timestamp, job, "exception", context), *rest]


def _may_be_its_end(event: JobEvent) -> bool:
    if event.name == "exception":
        return event.context.get("cause") in _NODE_CAUSES
    return event.name == "finish" and event.context.get("status") in _STATUSES
