"""Demand for pilots of one kind: how many to request, and when to give which of them back.

Like the fleet, this does no input or output and reads no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ensemble_core import Job
from ensemble_core.cli.toolkit import count_of
from ensemble_pilot.pilot import LIVE, Kind, Pilot, share

if TYPE_CHECKING:
    from ensemble_pilot.fleet import Fleet

#: After this many pilots in a row that ended before they were ready, wait before the next request:
#: so many seconds at first, then twice as long each time, up to the maximum.
FAILURES, _PAUSE, _LONGEST_PAUSE = 3, 15.0, 900.0
#: The usual wait in the outer queue is the mean of so many last pilots.
_WAITS = 5
#: Seconds after which requests are decided again while jobs wait, because pilots have less time
#: left then.
_LOOK = 30.0

#: Urgency (negative) of a job, its cores, GPUs and memory on each node, the kind of pilot that it
#: names, and how many nodes it needs.
Shape = tuple[int, int, int, int, str, int]
#: Waiting jobs that count as equal: their size, group and time limit.
Load = tuple[Shape, str, float]


class Demand:
    """The demand for pilots of a kind. It looks at the fleet, and changes only itself."""

    def __init__(self, kind: Kind, fleet: Fleet) -> None:
        self.kind = kind
        self._fleet = fleet
        self.failures = 0
        #: No pilot is requested until then: after failures, and after one was given back.
        self._not_before = self._resting = 0.0
        #: How many pilots rules have asked for, and how many stay until a request is answered.
        self.target = self.kept = 0
        #: Why :meth:`requests` has returned 0; empty if it has not.
        self.why = ""
        #: How long the last pilots have waited in the outer queue, in seconds.
        self._waits: deque[float] = deque(maxlen=_WAITS)
        #: The most memory that a node has had, in bytes; ``None``: not known yet.
        self.memory: int | None = None
        #: How many pilots have been ready, and the most time for jobs that one had left then.
        self.readies, self._longest = 0, 0.0

    @property
    def name(self) -> str:
        return self.kind.name

    # Pilots.

    @property
    def pilots(self) -> list[Pilot]:
        """All pilots of this kind that are not over."""
        return [pilot for pilot in self._fleet.pilots.values() if pilot.kind is self.kind]

    @property
    def live(self) -> int:
        """Number of pilots that get jobs, or will."""
        return sum(pilot.live for pilot in self.pilots)

    @property
    def ready(self) -> int:
        """Number of pilots that get jobs now."""
        return sum(pilot.live and pilot.state == "ready" for pilot in self.pilots)

    @property
    def floor(self) -> int:
        """The number of pilots that rules cannot go below."""
        return max(self.kind.least, 1 if self._fleet.steered and self.is_awaited else 0)

    @property
    def is_awaited(self) -> bool:
        """True if jobs wait for which this kind is the first one that can hold them."""
        return any(self._fleet.first_kind(load) is self for load in self._fleet.loads)

    @property
    def is_useful(self) -> bool:
        """True if jobs wait that a pilot of this kind can hold."""
        return any(self.can_hold(load) for load in self._fleet.loads)

    def can_hold(self, load: Load) -> bool:
        """Return True if a pilot of this kind can ever run these jobs."""
        (_, cores, gpus, memory, name, nodes), _, limit = load
        kind = self.kind
        return (
            name in ("", kind.name)
            and nodes <= (kind.nodes if kind.flux else 1)
            and cores <= kind.cores
            and gpus <= kind.gpus
            and memory <= (kind.memory or math.inf)
            and (not kind.duration or limit <= kind.duration - kind.margin)
        )

    def never(self, job: Job) -> tuple[str, str, str] | None:
        """Return why no pilot can run a job, as :meth:`Kind.never` does.

        What earlier pilots have shown counts, too: their memory, and the time that they had left.
        """
        memory = share(job)[2]
        if self.memory is not None and memory > self.memory:
            why = (
                f"the job needs {memory / 2**30:.3g}G of memory, but a node of a pilot has "
                f"{self.memory / 2**30:.3g}G"
            )
            return "memory_per_task", why, "request less memory_per_task, or larger nodes"
        found = self.kind.never(job)
        if found is None and self.readies >= FAILURES and job.duration > self._longest:
            why = (
                f"the job's time limit is {job.duration:g} s, but {FAILURES} pilots had at most "
                f"{self._longest:.0f} s left when they were ready"
            )
            hint = (
                "shorten the job's duration, or lengthen 'margin' and 'duration' of the pilots by "
                "the time that they need to start"
            )
            return "duration", why, hint
        return found

    # What happens to pilots.

    def waited(self, seconds: float) -> None:
        """Record how long a pilot has waited in the outer queue."""
        self._waits.append(max(0.0, seconds))

    @property
    def usual_wait(self) -> float:
        """How long a pilot waits in the outer queue: the mean of the last ones, or a guess."""
        return sum(self._waits) / len(self._waits) if self._waits else self.kind.patience

    def became_ready(self, left: float) -> None:
        """Record that a pilot is ready, with so many seconds left for jobs."""
        self.failures = 0
        self.readies += 1
        self._longest = max(self._longest, left)

    def rest(self, now: float) -> None:
        """Request no pilot for ``idle`` seconds, because one is given back, unless it is needed."""
        self._resting = max(self._resting, now + self.kind.idle)

    def failed(self, now: float) -> bool:
        """Record that a pilot never became ready. Return whether that is worth a message."""
        self.failures += 1
        more = self.failures - FAILURES
        if more >= 0:
            # The requests of rules time out: a rule may repeat them.
            self.target = min(self.target, self.live)
            self._not_before = now + min(_LONGEST_PAUSE, _PAUSE * 2**more)
        return more == 0

    # Decisions.

    def requests(self, loads: Mapping[Load, float], now: float) -> tuple[int, float]:
        """Return how many pilots to request now, and the part of the jobs that is too much.

        ``loads`` are waiting jobs that this kind can hold, and their numbers. There are at most
        ``most`` pilots, of which ``backlog`` wait in the outer queue. If rules decide on the number
        of pilots, there are as many as they have asked for. If not, only waiting jobs count that
        would still wait after the usual wait of a pilot. If no pilot is left, the first one is
        requested at once, also after another was given back.
        """
        kind, pilots = self.kind, self.pilots
        waiting = sum(pilot.state == "requested" for pilot in pilots)
        alive = [pilot for pilot in pilots if pilot.live]
        ready = [pilot for pilot in alive if pilot.state == "ready"]
        live, coming = len(alive), len(alive) - len(ready)
        need = max(self.target, self.floor) - live
        lasting, beyond = 0, 0.0
        if not self._fleet.steered:
            every, needed = self._nodes_needed(loads, ready, now)
            lasting = math.ceil(needed / kind.nodes) - coming
            possible = kind.nodes * max(0, kind.most - len(ready))
            beyond = max(0.0, needed - possible) / every if every else 0.0
        if not (now < self._resting and live > 0):
            need = max(need, lasting)
        number = 0
        if need <= 0:
            self.why = self._why_none(bool(loads), lasting, coming)
        elif now < self._not_before and (live or self.failures >= FAILURES):
            self.why = f"{count_of(self.failures, 'pilot')} in a row ended before they were ready"
            beyond = beyond if live else 1.0
        elif len(pilots) >= kind.most:
            self.why = f"there are {len(pilots)}, and 'most' allows no more"
        elif waiting >= kind.backlog:
            self.why = f"{waiting} wait in the queue, and 'backlog' allows no more"
        else:
            self.why = ""
            number = min(need, kind.most - len(pilots), kind.backlog - waiting)
        return number, beyond

    def _why_none(self, waiting: bool, lasting: int, coming: int) -> str:
        if not waiting:
            return "no job waits" if not self._fleet.loads else "no job waits for this kind"
        if self._fleet.steered:
            return f"rules decide how many there are: {max(self.target, self.floor)} now"
        if lasting > 0:
            return "one was given back less than 'idle' ago"
        if coming:
            return "those that are coming have room for the waiting jobs"
        return "the waiting jobs are done before another one would start"

    def _nodes_needed(
        self, loads: Mapping[Load, float], ready: Sequence[Pilot], now: float
    ) -> tuple[float, float]:
        """Return how many empty nodes the jobs would fill, and those that wait longer than a new
        pilot.

        A job is expected to take as long as those of its group have taken, or else its time limit;
        without both, its end is unknown, and all jobs count.
        """
        kind, wait = self.kind, self.usual_wait
        # A node that is not connected now may be away for long.
        left: list[float] = []
        for pilot in ready:
            here = max(0.0, pilot.left(now))
            left += [here for node in pilot.nodes if node.connected]
        longest = max(left, default=0.0)
        needed = served = work = 0.0
        for ((_, cores, gpus, memory, _, each), group, limit), count in loads.items():
            fit = kind.cores // cores
            if gpus:
                fit = min(fit, kind.gpus // gpus)
            if memory and (room := kind.memory or self.memory):
                fit = min(fit, room // memory)
            nodes = count * each / max(1, fit)
            if longest <= 0 or limit > longest:  # no pilot will ever have room for it
                needed += nodes
                continue
            usual = self._fleet.usual_duration(group) or limit
            work += nodes * (usual or math.inf)
            served += nodes
        every = needed + served
        done = sum(min(wait, each) for each in left)
        if work > 0:
            served *= max(0.0, 1.0 - done / work)
        return every, needed + (served if work > done else 0.0)

    def wake_time(self, now: float) -> float | None:
        """Return the next time at which a decision may change although nothing happens."""
        later = [when for when in (self._not_before, self._resting) if when > now]
        if self.is_useful:
            ready = any(pilot.state == "ready" and pilot.live for pilot in self.pilots)
            return min([*later, now + _LOOK] if ready else later, default=None)
        live = [pilot for pilot in self.pilots if pilot.live]
        if len(live) <= max(self.kind.least, self.kept):
            return min(later, default=None)
        times = [pilot.idle_since + self.kind.idle for pilot in live if not pilot.busy]
        return min(times, default=None)

    def surplus(self, now: float) -> list[Pilot]:
        """Return the pilots to give back: those that leave, and those without work for ``idle``
        seconds.
        """
        pilots = self.pilots
        gone = [pilot for pilot in pilots if pilot.leaving and pilot.state in LIVE]
        gone = [pilot for pilot in gone if pilot.forced or not pilot.busy]
        if self.is_useful:
            return gone
        live = [pilot for pilot in pilots if pilot.live]
        rested = [p for p in live if not p.busy and now - p.idle_since >= self.kind.idle]
        rested.sort(key=lambda pilot: (pilot.state == "ready", -pilot.number))
        rested = rested[: max(0, len(live) - max(self.kind.least, self.kept))]
        if rested:
            self.target = min(self.target, len(live) - len(rested))
        return gone + rested
