"""Budget of a run: compares its number of jobs and its core-, node- and GPU-hours with its limits.

*Used* hours are those that jobs have taken so far. *Committed* hours are those that submitted jobs
can still take.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import TYPE_CHECKING

from ensemble_core.metrics.store import RESOURCES, MetricStore
from ensemble_core.model.ensemble import Limits, amount
from ensemble_core.model.jobs import Job

if TYPE_CHECKING:
    from ensemble_core.engine.job_record import JobRecord

#: Name of the limit on the number of submitted attempts. Other limits are named like ``RESOURCES``.
JOBS = "jobs"
_HOUR = 3600.0
#: Relative tolerance for comparing sums with limits, because sums of fractions are not exact.
_SLACK = 1e-9


def _weights(job: Job) -> tuple[int, int, int]:
    """Return the numbers of cores, nodes and GPUs that a job uses."""
    return job.cores, job.nodes, job.gpus


class Usage:
    """Hours that the attempts of a run's jobs have used."""

    __slots__ = ("_records", "_running", "active", "ended", "latest", "since")

    def __init__(self, records: Mapping[str, JobRecord]) -> None:
        #: The first start. Other times are relative to it.
        self.since: float | None = None
        #: Time of the last start or end.
        self.latest = 0.0
        #: Total seconds of ended attempts by size: nodes, tasks, cores per task, GPUs per task.
        self.ended: dict[tuple[int, int, int, int], float] = {}
        #: True if sums over running attempts are maintained, so that a read takes constant time.
        self.active = False
        self._records = records
        #: For each size, the number of running attempts and the sum of their start times.
        self._running: dict[tuple[int, int, int, int], list[float]] = {}

    def keep(self) -> None:
        """Maintain sums over the running attempts from now on."""
        if not self.active:
            self.active, self._running = True, self._found()

    def _runs(self) -> dict[tuple[int, int, int, int], list[float]]:
        return self._running if self.active else self._found()

    def _found(self) -> dict[tuple[int, int, int, int], list[float]]:
        found: dict[tuple[int, int, int, int], list[float]] = {}
        for record in self._records.values():
            if record.runs_since is not None:
                known = found.setdefault(_size(record.job), [0, 0.0])
                known[0] += 1
                known[1] += record.runs_since - (self.since or 0.0)
        return found

    def begin(self, job: Job, now: float) -> None:
        """Record that an attempt started, or runs again after it was suspended."""
        self.latest = max(self.latest, now)
        known = self._running.setdefault(_size(job), [0, 0.0])
        known[0] += 1
        known[1] += now - (self.since or 0.0)

    def end(self, job: Job, started: float, now: float) -> None:
        """Record that an attempt that ran since ``started`` no longer runs."""
        size = (job.nodes, job.tasks, job.cores_per_task, job.gpus_per_task)
        if now > started:
            self.ended[size] = self.ended.get(size, 0.0) + (now - started)
        if not self.active:
            return
        self.latest = max(self.latest, now)
        known = self._running[size]
        known[0] -= 1
        known[1] = known[1] - (started - (self.since or 0.0)) if known[0] else 0.0

    @property
    def running(self) -> int:
        """Number of running attempts."""
        return int(sum(number for number, _ in self._runs().values()))

    def running_for(self, now: float) -> float:
        """Return the total time that the running attempts have run, in seconds."""
        now -= self.since or 0.0
        return sum(max(0.0, number * now - starts) for number, starts in self._runs().values())

    def hours(self, now: float) -> tuple[float, ...]:
        """Return the used hours of each resource in ``RESOURCES``."""
        seconds = dict(self.ended)
        now -= self.since or 0.0
        for size, (number, starts) in self._runs().items():
            seconds[size] = seconds.get(size, 0.0) + max(0.0, number * now - starts)
        cores = nodes = gpus = 0.0
        for (width, tasks, cores_each, gpus_each), taken in seconds.items():
            cores += tasks * cores_each * taken
            nodes += width * taken
            gpus += tasks * gpus_each * taken
        return cores / _HOUR, nodes / _HOUR, gpus / _HOUR


def _size(job: Job) -> tuple[int, int, int, int]:
    return job.nodes, job.tasks, job.cores_per_task, job.gpus_per_task


class Claim:
    """Time that an attempt in the queue can still use."""

    __slots__ = ("group", "seconds", "until", "weights")

    def __init__(self, job: Job) -> None:
        self.group = job.group
        self.weights = _weights(job)
        #: The time limit. Without a limit: ``None`` until the attempt starts, then the mean
        #: duration of the group.
        self.seconds = job.duration or None
        #: Time at which ``seconds`` will have passed since the start of a running attempt.
        self.until: float | None = None


class Budget:
    """The limits of a run, and the time that its submitted attempts can still use."""

    __slots__ = (
        "_claims", "_ends", "_line", "_metrics", "_running", "_under_way", "_usage", "_waiting",
        "_waiting_by_mean", "handed", "limits",
    )  # fmt: skip

    def __init__(self, limits: Limits, usage: Usage, metrics: MetricStore, handed: int) -> None:
        self.limits: dict[str, float] = {}
        #: Number of attempts that were handed over to the executor.
        self.handed = handed
        self._usage = usage
        self._metrics = metrics
        self._claims: dict[str, Claim] = {}
        #: Number of claims of each group.
        self._under_way: dict[str, int] = {}
        #: Sums over the claims of waiting attempts. For attempts with a time limit: the sum for
        #: each resource. For those without: by group, the sum of the weights for each resource, and
        #: the number of attempts.
        self._waiting = [0.0, 0.0, 0.0]
        self._waiting_by_mean: dict[str, list[int]] = {}
        #: Sums over the claims of running attempts: for each resource, the sum of the weights and
        #: of the end times. Also a heap of the end times, which may contain ended attempts.
        self._running = [0.0, 0.0, 0.0]
        self._ends = [0.0, 0.0, 0.0]
        self._line: list[tuple[float, str]] = []
        self.limit(limits)

    def limit(self, limits: Limits) -> None:
        """Use these limits from now on."""
        given = {JOBS: limits.jobs, **limits.hours}
        self.limits = {name: float(most) for name, most in given.items() if most is not None}

    # -- updates -------------------------------------------------------------------------------

    def claim(self, job: Job) -> None:
        """Record that an attempt was handed over to the executor."""
        self.handed += 1
        claim = self._claims[job.id] = Claim(job)
        self._under_way[job.group] = self._under_way.get(job.group, 0) + 1
        self._wait(claim, 1)

    def start(self, job: str, now: float) -> None:
        """Record that an attempt runs."""
        claim = self._claims.get(job)
        if claim is None or claim.until is not None:
            return
        self._wait(claim, -1)
        if claim.seconds is None:
            claim.seconds = self._metrics.mean(claim.group, "duration") or 0.0
        claim.until = now - (self._usage.since or 0.0) + claim.seconds
        heapq.heappush(self._line, (claim.until, job))
        self._run(claim, claim.until, 1)

    def pause(self, job: str, now: float) -> None:
        """Record that a running attempt was suspended: it can still use the rest of its time."""
        claim = self._claims.get(job)
        if claim is None or claim.until is None:
            return
        self._run(claim, claim.until, -1)
        claim.seconds = max(0.0, claim.until - (now - (self._usage.since or 0.0)))
        claim.until = None
        self._wait(claim, 1)

    def restart(self, job: Job, now: float) -> None:
        """Record that an attempt waits again, and can use its whole time again."""
        self.pause(job.id, now)
        claim = self._claims.get(job.id)
        if claim is not None:
            self._wait(claim, -1)
            claim.seconds = job.duration or None
            self._wait(claim, 1)

    def end(self, job: str) -> None:
        """Remove the claim of an attempt."""
        claim = self._claims.pop(job, None)
        if claim is None:
            return
        self._under_way[claim.group] -= 1
        if claim.until is None:
            self._wait(claim, -1)
        else:
            self._run(claim, claim.until, -1)
            self._tidy()
        if not self._claims:  # also removes rounding errors in the sums
            self._waiting, self._running, self._ends = ([0.0, 0.0, 0.0] for _ in range(3))
            self._line.clear()

    def _tidy(self) -> None:
        """Remove ended attempts from the heap if there are many."""
        if len(self._line) > 2 * len(self._claims) + 16:
            claims = self._claims.items()
            self._line = [(one.until, job) for job, one in claims if one.until is not None]
            heapq.heapify(self._line)

    def _wait(self, claim: Claim, by: int) -> None:
        if claim.seconds is not None:
            for at, weight in enumerate(claim.weights):
                self._waiting[at] += by * weight * claim.seconds
            return
        waiting = self._waiting_by_mean.setdefault(claim.group, [0, 0, 0, 0])
        for at, weight in enumerate((*claim.weights, 1)):
            waiting[at] += by * weight
        if not waiting[-1]:
            del self._waiting_by_mean[claim.group]

    def _run(self, claim: Claim, until: float, by: int) -> None:
        for at, weight in enumerate(claim.weights):
            self._running[at] += by * weight
            self._ends[at] += by * weight * until

    # -- queries -------------------------------------------------------------------------------

    @property
    def claims(self) -> Collection[str]:
        """The ids of the attempts that have a claim."""
        return self._claims.keys()

    def committed(self, now: float) -> tuple[float, ...]:
        """Return the committed hours of each resource in ``RESOURCES``.

        This query must not change any later result, not even its rounding.
        """
        time = now - (self._usage.since or 0.0)
        running, ends = [*self._running], [*self._ends]
        for claim, until in self._overdue_claims(time):
            for at, weight in enumerate(claim.weights):
                running[at] -= weight
                ends[at] -= weight * until
        sums = [
            waiting + max(0.0, end - time * number)
            for waiting, end, number in zip(self._waiting, ends, running, strict=True)
        ]
        # Waiting attempts without a time limit count with the mean duration of their group.
        for group, weights in self._waiting_by_mean.items():
            mean = self._metrics.mean(group, "duration") or 0.0
            for at in range(len(sums)):
                sums[at] += weights[at] * mean
        return tuple(seconds / _HOUR for seconds in sums)

    def _overdue_claims(self, time: float) -> Iterator[tuple[Claim, float]]:
        """Yield each claim of a running attempt that is used up before ``time``, with the time when
        it was.
        """
        line, positions = self._line, [0]
        while positions:
            at = positions.pop()
            if at < len(line) and line[at][0] <= time:
                until, job = line[at]
                claim = self._claims.get(job)
                if claim is not None and claim.until == until:
                    yield claim, until
                positions += (2 * at + 1, 2 * at + 2)

    def use(self, name: str, now: float) -> tuple[float, float]:
        """Return how much of a limit is used, and how much is committed (in hours; jobs for
        ``jobs``).
        """
        if name == JOBS:
            return self.handed, 0.0
        at = RESOURCES.index(name)
        return self._usage.hours(now)[at], self.committed(now)[at]

    def described(self, name: str, now: float) -> str:
        """Describe a limit and its use, for messages."""
        used, committed = map(amount, self.use(name, now))
        return f"limits.{name} ({amount(self.limits[name])}; {used} used, {committed} committed)"

    def has_room(self, jobs: Sequence[Job], now: float) -> bool:
        """Return True if these jobs of one group may be handed over now."""
        limits = self.limits
        if not limits or not jobs:
            return True
        if self.handed + len(jobs) > limits.get(JOBS, math.inf):
            return False
        if len(limits) == (JOBS in limits):
            return True
        mean = self._metrics.mean(jobs[0].group, "duration")
        if mean is None and not all(job.duration for job in jobs):
            return len(jobs) == 1 and self.obstacle(jobs[0], now) is None
        taken = map(add, self._usage.hours(now), self.committed(now))
        for at, (name, total) in enumerate(zip(RESOURCES, taken, strict=True)):
            if name in limits:
                more = sum(_weights(job)[at] * (job.duration or mean or 0.0) for job in jobs)
                if more and total + more / _HOUR > limits[name] * (1 + _SLACK):
                    return False
        return True

    def obstacle(self, job: Job, now: float) -> str | None:
        """Return the name of the limit that this job could exceed now, or ``None``."""
        limits = self.limits
        if JOBS in limits and self.handed >= limits[JOBS]:
            return JOBS
        if len(limits) == (JOBS in limits):
            return None
        seconds = job.duration or self._metrics.mean(job.group, "duration")
        used, committed = self._usage.hours(now), self.committed(now)
        for at, (name, weight) in enumerate(zip(RESOURCES, _weights(job), strict=True)):
            if name not in limits or not weight:
                continue
            taken, most = used[at] + committed[at], limits[name]
            if seconds is None:  # unknown duration: let a single job run to measure it
                free = taken < most and not self._under_way.get(job.group)
            else:
                free = taken + weight * seconds / _HOUR <= most * (1 + _SLACK)
            if not free:
                return name
        return None

    def needed(self, held: Iterable[Job], now: float) -> dict[str, tuple[float, bool]]:
        """Return, for each limit, the lowest value that lets these jobs start, and whether it is
        exact.

        If a group has neither a time limit nor a mean duration, the value is too low, so it is not
        exact.
        """
        jobs = list(held)
        wanted: dict[str, tuple[float, bool]] = {}
        for name in self.limits:
            used, committed = self.use(name, now)
            total, known = used + committed, True
            for job in jobs:
                if name == JOBS:
                    total += 1
                    continue
                weight = _weights(job)[RESOURCES.index(name)]
                seconds = job.duration or self._metrics.mean(job.group, "duration")
                known = known and (seconds is not None or not weight)
                total += weight * (seconds or 0.0) / _HOUR
            wanted[name] = total, known
        return wanted

    def raised(self, held: Iterable[Job], now: float) -> dict[str, float]:
        """Return the limits that hold these jobs, each with a value that suffices, rounded up to
        hundredths.

        If the duration of a job is unknown, the value is just above the current use.
        """
        return {
            name: math.ceil(least * 100) / 100 if known else (math.floor(least * 100) + 1) / 100
            for name, (least, known) in self.needed(held, now).items()
            if least > self.limits[name] or not known
        }
