"""Queue of the local executor: chooses which waiting job starts next.

Jobs start by urgency, then first in, first out. If the first job does not fit yet, some later jobs
may overtake it:

- If every running job has a time limit, it is known when the first job will fit at the latest. A
  later job may start if it does not delay the first job (EASY backfill).
- Otherwise, only a limited number of jobs may overtake the first job (``BYPASS_FACTOR`` for each
  core, at least ``BYPASS_LEAST``).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from ensemble_core.local.slots import Slots
from ensemble_core.model.jobs import Job

BYPASS_FACTOR = 2
BYPASS_LEAST = 8
#: How many jobs in each line are checked for a short time limit.
BACKFILL_DEPTH = 100


class Waiting(Protocol):
    """A job in the queue. If ``over`` is true (it was cancelled), it is not started."""

    job: Job
    need: tuple[int, int, int]  # cores, GPUs and bytes of memory
    number: int
    over: bool
    bypassed: int


class Holder(Protocol):
    """A running job. ``ends`` is the monotonic time by which it must be over, or ``None``."""

    need: tuple[int, int, int]
    ends: float | None


_Shape = tuple[int, int, int, int]


class Queue:
    """The waiting jobs. Each call of :meth:`choose` returns a job that may start.

    Jobs with urgency 0 are held, as in Flux: they wait until they are cancelled.
    """

    def __init__(self) -> None:
        #: The cost of a choice depends on the number of shapes, and not of jobs.
        self._lines: dict[_Shape, deque[Waiting]] = {}

    def __bool__(self) -> bool:
        """Return True if a job waits that is not held."""
        return bool(self._lines)

    def add(self, entry: Waiting) -> None:
        job = entry.job
        if job.urgency == 0:
            return
        shape = (-job.urgency, *entry.need)
        line = self._lines.get(shape)
        if line is None:
            line = self._lines[shape] = deque()
        line.append(entry)

    def _heads(self, slots: Slots) -> list[tuple[int, int, _Shape]]:
        """Return the first job of each line, in order, without those that need more slots than
        exist.
        """
        heads: list[tuple[int, int, _Shape]] = []
        for shape, line in list(self._lines.items()):
            while line and line[0].over:
                line.popleft()
            if line and shape[1] <= slots.size:
                heads.append((shape[0], line[0].number, shape))
            elif not line:
                del self._lines[shape]
        heads.sort()
        return heads

    def head(self, slots: Slots) -> Job | None:
        """Return the next job, or ``None`` if no job waits."""
        heads = self._heads(slots)
        return self._lines[heads[0][2]][0].job if heads else None

    def choose(
        self, slots: Slots, running: Iterable[Holder], now: float, grace: Callable[[Job], float]
    ) -> Waiting | None:
        """Remove and return a job that may start now, or return ``None``.

        ``grace`` returns how long a job may exceed its time limit.
        """
        lines = self._lines
        if not lines or slots.used >= slots.size:
            return None
        heads = self._heads(slots)
        if not heads:
            return None
        head_shape = heads[0][2]
        head = lines[head_shape][0]
        if slots.fits(*head_shape[1:]):
            return lines[head_shape].popleft()
        if len(heads) == 1:
            return None
        plan = _reservation(head, slots, running)
        bounded = plan is None and head.bypassed >= max(BYPASS_LEAST, BYPASS_FACTOR * slots.size)
        for _, _, shape in heads[1:]:
            line = lines[shape]
            if not slots.fits(*shape[1:]):
                continue
            if plan is not None:
                moment, spare = plan
                if all(part <= left for part, left in zip(shape[1:], spare, strict=True)):
                    return line.popleft()
                entry = _take_short(line, moment - now, grace)
                if entry is not None:
                    return entry
            elif not bounded:
                head.bypassed += 1
                return line.popleft()
        return None


def _take_short(line: deque[Waiting], left: float, grace: Callable[[Job], float]) -> Waiting | None:
    """Remove and return the first job that is over within ``left`` seconds, or return ``None``.

    Only the first few jobs in the line are checked.
    """
    for place, entry in enumerate(itertools.islice(line, BACKFILL_DEPTH)):
        job = entry.job
        if not entry.over and job.duration > 0 and job.duration + grace(job) <= left:
            del line[place]
            return entry
    return None


def _reservation(
    head: Waiting, slots: Slots, running: Iterable[Holder]
) -> tuple[float, tuple[float, ...]] | None:
    """Return the latest time at which the head can start, and the cores, GPUs and bytes of memory
    that it leaves free then.

    Return ``None`` if a running job has no time limit.
    """
    ends: list[tuple[float, tuple[int, ...]]] = []
    for holder in running:
        if holder.ends is None:
            return None
        ends.append((holder.ends, holder.need))
    ends.sort()
    memory = math.inf if slots.memory is None else slots.memory - slots.used_memory
    free: tuple[float, ...] = slots.size - slots.used, len(slots.free_gpus), memory
    need = head.need
    for moment, more in ends:
        free = tuple(map(sum, zip(free, more, strict=True)))
        if all(part <= left for part, left in zip(need, free, strict=True)):
            return moment, tuple(left - part for part, left in zip(need, free, strict=True))
    return None
