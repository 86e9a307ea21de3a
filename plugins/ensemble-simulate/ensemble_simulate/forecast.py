"""Forecast: one ensemble played many times, each with a seed of its own, in several processes.

The figures of a run depend on its seed alone, not on the number of workers. Used by ``command``.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ensemble_core import Decision
from ensemble_core.cli.toolkit import Ensemble, Fired, Registry, VirtualRuntime, Watcher
from ensemble_simulate.executor import Machine, Simulator
from ensemble_simulate.models import Model

__all__ = ["Figures", "Firings", "Study", "difference", "play", "played", "quantiles"]

#: The time at which simulated runs begin: the same for all.
BEGAN = 1e9
#: Seeds that a worker plays at once.
_CHUNK = 10


class Firings(NamedTuple):
    """How often a rule fired in one run, and when first, in seconds after its begin."""

    times: int
    first: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One simulated run: its length and the core-seconds that its jobs took and the cluster had.

    ``over`` is false where it had not ended when its time was up. ``late`` counts the firings of
    each rule in the last tenth of it: those that go round.
    """

    seed: int
    exit_code: int
    reason: str
    over: bool
    seconds: float
    jobs: int
    failed: int
    cancelled: int
    events: int
    used: float
    offered: float
    fired: Mapping[str, Firings] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    stubbed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Study:
    """What is played: ``until`` are seconds after which a run is given up."""

    ensemble: Ensemble
    registry: Registry
    model: Model
    machine: Machine
    until: float = math.inf


class _Heard(Watcher):
    """Notes when each rule fired first, and how often late in the run."""

    def __init__(self, clock: Callable[[], float], late: float) -> None:
        self._clock = clock
        self._late = late
        self.first: dict[str, float] = {}
        self.late: dict[str, int] = {}

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, Fired):
            rule, now = decision.rule or "", self._clock()
            self.first.setdefault(rule, now - BEGAN)
            if now >= self._late:
                self.late[rule] = self.late.get(rule, 0) + 1


def play(study: Study, seed: int) -> Figures:
    """One run of this seed. Raises :class:`EnsembleError` where the model makes no sense."""
    model = replace(study.model, seed=seed)
    simulator = Simulator(study.machine, model)
    watchers: list[Watcher] = []
    runtime = VirtualRuntime(
        study.ensemble,
        simulator,
        actions=study.registry.actions,
        watchers=watchers,
        began=BEGAN,
        until=BEGAN + study.until,
        takes=model.takes,
    )
    heard = _Heard(runtime.clock, BEGAN + 0.9 * study.until)
    runtime.watch(heard)
    outcome = runtime.run()
    groups = outcome.report.groups
    return Figures(
        seed=seed,
        exit_code=outcome.exit_code,
        reason=outcome.reason,
        over=outcome.over,
        seconds=outcome.seconds,
        jobs=sum(group.submitted for group in groups),
        failed=sum(group.failed for group in groups),
        cancelled=sum(group.cancelled for group in groups),
        events=outcome.report.events,
        used=simulator.used,
        offered=simulator.offered,
        fired={
            rule.id: Firings(rule.fired, heard.first.get(rule.id, math.nan))
            for rule in outcome.report.rules
        },
        late=heard.late,
        stubbed=frozenset(runtime.stubbed),
    )


#: What the workers play: they are forks, so that nothing of it need be sent to them.
_STUDIES: Sequence[Study] = ()


def _chunk(task: tuple[int, range]) -> list[Figures]:
    return [play(_STUDIES[task[0]], seed) for seed in task[1]]


def played(
    studies: Sequence[Study], seeds: range, workers: int
) -> Iterator[tuple[int, list[Figures]]]:
    """Each study played with each of these seeds, in order: its place, and some of its figures."""
    global _STUDIES
    tasks = [
        (place, seeds[at : at + _CHUNK])
        for at in range(0, len(seeds), _CHUNK)
        for place in range(len(studies))
    ]
    _STUDIES = studies
    if workers <= 1 or len(tasks) == 1:
        for task in tasks:
            yield task[0], _chunk(task)
        return
    fork = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), mp_context=fork)
    try:
        for task, figures in zip(tasks, pool.map(_chunk, tasks), strict=True):
            yield task[0], figures
    finally:
        with suppress(Exception):
            pool.shutdown(wait=False, cancel_futures=True)


def quantiles(values: Sequence[float], points: Sequence[float] = (0.05, 0.5, 0.95)) -> list[float]:
    """Quantiles by linear interpolation between the values.

    >>> quantiles([1.0, 2.0, 3.0, 4.0, 5.0])
    [1.2, 3.0, 4.8]
    """
    ordered = sorted(values)
    found = []
    for point in points:
        place = point * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        found.append(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
    return found


def difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The mean of the paired differences, and half the width of its 95 % interval.

    With common random numbers what both have in common drops out. The interval is that of the
    normal distribution, and infinite for fewer than two pairs.
    """
    each = [b - a for a, b in zip(before, after, strict=True)]
    mean = math.fsum(each) / len(each)
    if len(each) < 2:
        return mean, math.inf
    variance = math.fsum((value - mean) ** 2 for value in each) / (len(each) - 1)
    return mean, 1.96 * math.sqrt(variance / len(each))
