"""Pilots in a simulation: the decisions of a real fleet, on a virtual clock.

The pilots of a simulation do what the model of their queue says: each waits for some time, is ready
at once when it starts, and never fails.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any

from ensemble_core import Job, VirtualAnswer, VirtualTurn, WhenBusy
from ensemble_core.cli.toolkit import count_of, format_duration
from ensemble_pilot.fleet import Fleet
from ensemble_pilot.grow_and_shrink import Answer, Resizes
from ensemble_pilot.options import read_options
from ensemble_pilot.pilot import AT_END, Pilot

#: Seconds that a simulation waits at least for the next decision, so that its time goes on although
#: large times are not precise.
_STEP = 1e-3


class Virtual:
    """Pilots of a simulated run. ``wait`` returns how long the pilot with a number waits.

    Raises :class:`UsageError` if the options are invalid.
    """

    def __init__(
        self, options: Mapping[str, Any], wait: Callable[[int], float], steered: bool
    ) -> None:
        self._fleet = Fleet(*(each.kind for each in read_options(options).kinds.values()))
        self._fleet.steered = steered
        self._resizes = Resizes(self._fleet)
        self._wait = wait
        self._numbers = self._pilots = 0
        #: Starts and ends of pilots, a heap by time.
        self._agenda: list[tuple[float, int, bool]] = []
        self._denied: list[Answer] = []
        self._said: list[str] = []
        #: Whether something has happened since the last turn.
        self._changed = True

    def never(self, job: Job) -> str | None:
        """Return why no pilot can run a job, or ``None``."""
        return self._fleet.never(job)

    def add(self, job: Job) -> None:
        """Add a waiting job."""
        self._numbers += 1
        self._fleet.add(job, self._numbers)
        self._changed = True

    def remove(self, job: str) -> None:
        """Remove a waiting job."""
        self._fleet.remove(job)
        self._changed = True

    def ended(self, job: str, now: float) -> None:
        """Record the end of a job that had started."""
        if job in self._fleet.placed:
            self._fleet.release(job, now)
            self._changed = True

    def resize(self, request: str, delta: int, when_busy: WhenBusy) -> None:
        """Request more or fewer nodes."""
        self._changed = True
        found = self._resizes.plan(delta, when_busy)
        if isinstance(found, str):
            self._denied.append(Answer(request, "denied", self._fleet.size, found))
        else:
            self._resizes.begin(request, found)

    def due(self, now: float) -> float | None:
        """Return the next time at which something changes by itself."""
        if self._changed:
            return now
        while self._agenda and self._agenda[0][1] not in self._fleet.pilots:
            heapq.heappop(self._agenda)
        times = [self._agenda[0][0]] if self._agenda else []
        wake = self._fleet.wake_time(now)
        times += [] if wake is None else [max(wake, now) + _STEP]
        return min(times, default=None)

    def advance(self, now: float) -> VirtualTurn:
        """Let pilots come and go, and place jobs."""
        self._changed = False
        fleet, lost = self._fleet, list[str]()
        while self._agenda and self._agenda[0][0] <= now:
            _, number, begins = heapq.heappop(self._agenda)
            pilot = fleet.pilots.get(number)
            if pilot is not None and begins:
                self._begin(pilot, now)
            elif pilot is not None:
                lost += self._end(pilot, now, wanted=False)
        started = [(job.id, node.pilot.number) for job, node in fleet.place(now)]
        for name, _ in started:
            fleet.started(name, now)
        for kind in fleet.requests(now):
            self._pilots += 1
            pilot = fleet.add_pilot(self._pilots, kind, now)
            size = f"{count_of(kind.nodes, 'node')} of {count_of(kind.cores, 'core')}"
            self._said.append(f"{pilot.title} requested ({size})")
            self._later(now + self._wait(self._pilots), self._pilots, begins=True)
        for pilot in fleet.surplus(now):
            lost += self._end(pilot, now, wanted=True)
        answers = [*self._denied, *self._resizes.answers()]
        said, self._said = self._said, []
        self._denied.clear()
        told = [VirtualAnswer(a.request, a.outcome, a.size, a.reason) for a in answers]
        here = [each for each in started if each[0] in fleet.placed]
        return VirtualTurn(lost, here, told, said)

    def _later(self, when: float, number: int, *, begins: bool) -> None:
        heapq.heappush(self._agenda, (when, number, begins))

    def _begin(self, pilot: Pilot, now: float) -> None:
        kind = pilot.kind
        self._fleet.begin(pilot, now)
        if kind.duration:
            pilot.ends = now + kind.duration
            self._later(pilot.ends - AT_END * kind.margin, pilot.number, begins=False)
        waited = format_duration(now - pilot.requested)
        cores = count_of(kind.nodes * kind.cores, "core")
        self._said.append(f"{pilot.title} ready after {waited}: {cores}")
        for node in pilot.nodes:
            self._fleet.connect(node, kind.cores, kind.gpus, kind.memory or None, now)

    def _end(self, pilot: Pilot, now: float, *, wanted: bool) -> list[str]:
        """End a pilot, and return the jobs that run in it."""
        began = "before it began"
        if pilot.began is not None:
            began = f"after {format_duration(now - pilot.began)}"
        why = "given back" if wanted else "its time limit"
        self._said.append(f"{pilot.title} ended {began}: {why}")
        names = list(dict.fromkeys(name for node in pilot.nodes for name in node.jobs))
        self._fleet.drain(pilot, "ended")
        pilot.to("fenced")
        for name in names:
            self._fleet.release(name, now)
        self._fleet.end(pilot, now, wanted=wanted)
        self._changed = True  # another one may be needed
        return names

    def gauges(self, now: float) -> Mapping[str, float]:
        """Return the gauges of the nodes that are ready, and of the pilots."""
        return self._fleet.gauges(now)
