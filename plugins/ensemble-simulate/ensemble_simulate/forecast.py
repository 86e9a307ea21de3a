"""Forecast: simulates one ensemble many times with different seeds, in several processes.

Results depend only on the seeds, not on the number of processes.
"""

from __future__ import annotations

import math
import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from ensemble_core import Decision, ExecutorPlugin, Expression, UsageError
from ensemble_core.cli.toolkit import (
    Cancel,
    Ensemble,
    Fired,
    Outcome,
    Purpose,
    Registry,
    Watcher,
)
from ensemble_simulate.executor import Machine, Simulator
from ensemble_simulate.models import Model
from ensemble_simulate.simulated_pilots import simulator_for
from ensemble_simulate.virtual_runtime import VirtualRuntime

#: Start time of all simulated runs.
BEGAN = 1e9
#: Number of seeds in one task of a worker process.
_CHUNK = 10
#: Number of the last firings of a run in which endless loops of rules are searched.
_LAST = 100
#: Exit code of a run whose remaining jobs are all held by a limit.
_LIMITED = 4
#: A limit counts as used up if at most this share of it is left.
_ROUNDING = 1e-9


class Firings(NamedTuple):
    """Statistics of one rule in one run."""

    times: int  # number of firings
    first: float  # time of the first firing, in seconds after the start
    cancelled: int = 0  # jobs that the rule cancelled
    good: int = 0  # cancelled jobs that would have succeeded
    of: int = 0  # all jobs in the groups of the cancelled jobs


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of one simulated run."""

    seed: int
    exit_code: int
    reason: str
    over: bool  # False if the run did not end in time
    seconds: float
    jobs: int
    failed: int
    cancelled: int
    events: int
    used: float  # core-seconds of the jobs
    offered: float  # core-seconds of the cluster
    #: Resources used, as ``limits`` counts them.
    node_hours: float = 0.0
    gpu_hours: float = 0.0
    #: The run's cost according to ``--cost``.
    cost: float | None = None
    #: Names of the file's limits that took effect, and of those that were used up.
    reached: frozenset[str] = frozenset()
    used_up: frozenset[str] = frozenset()
    fired: Mapping[str, Firings] = field(default_factory=dict)
    #: Firings of each rule among the last firings of the run, which show endless loops.
    last: Mapping[str, int] = field(default_factory=dict)
    stubbed: frozenset[str] = frozenset()

    @property
    def limited(self) -> bool:
        """True if a limit of the file ended the run."""
        return self.exit_code == _LIMITED


@dataclass(frozen=True, slots=True)
class Study:
    """An ensemble to simulate, with its model and cluster."""

    ensemble: Ensemble
    registry: Registry
    model: Model
    machine: Machine
    until: float = math.inf  # virtual seconds after which a run is aborted
    cost: Expression | None = None  # of a run, with the names ``COST_NAMES``
    purpose: Purpose = "check"  # says whether code that the file names may be loaded
    #: The executor whose pilots are simulated, and its options.
    pilots: tuple[ExecutorPlugin, Mapping[str, Any]] | None = None

    @property
    def limits(self) -> Mapping[str, float]:
        """The limits of the file by name, including the default limit on chains of rules.

        ``stop`` is omitted, because it limits how long a controller waits for a real queue, and
        ``strict`` and ``at_once``, because they are no numbers.
        """
        limits = self.ensemble.limits
        given = {each.name: getattr(limits, each.name) for each in fields(limits)}
        return {
            name: value
            for name, value in given.items()
            if value is not None and name not in ("stop", "strict", "at_once")
        }


class _FiringRecorder(Watcher):
    """Watcher of a run: records when each rule first fired, which rules fired last, and which jobs
    they cancelled.
    """

    def __init__(self, simulator: Simulator, clock: Callable[[], float]) -> None:
        self._simulator = simulator
        self._clock = clock
        self.first: dict[str, float] = {}
        self.last: deque[str] = deque(maxlen=_LAST)
        self.groups: dict[str, set[str]] = {}
        self.cancelled: Counter[str] = Counter()
        self.good: Counter[str] = Counter()

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, Fired):
            rule = decision.rule or ""
            self.first.setdefault(rule, self._clock() - BEGAN)
            self.last.append(rule)
        elif isinstance(decision, Cancel) and decision.rule is not None:
            good = sum(map(self._simulator.would_succeed, decision.jobs))
            self.cancelled[decision.rule] += len(decision.jobs)
            self.good[decision.rule] += good
            of = self.groups.setdefault(decision.rule, set())
            of.update(job.rpartition(".")[0] for job in decision.jobs)


def play(study: Study, seed: int) -> Figures:
    """Simulate one run with this seed. Raises :class:`EnsembleError` for an invalid model."""
    model = replace(study.model, seed=seed, until=study.until)
    simulator = simulator_for(study.machine, model, study.pilots)
    calls = model.calls()
    runtime = VirtualRuntime(
        study.ensemble,
        simulator,
        actions=study.registry.actions,
        began=BEGAN,
        until=BEGAN + study.until,
        takes=calls.takes,
        answers=calls.answer,
        purpose=study.purpose,
    )
    heard = _FiringRecorder(simulator, runtime.clock)
    runtime.watch(heard)
    outcome = runtime.run()
    groups, progress = outcome.report.groups, outcome.report.progress
    used, used_up = progress.used, _exhausted_limits(outcome)
    submitted = {group.name: group.submitted for group in groups}
    figures = Figures(
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
        node_hours=used.get("node_hours", 0.0),
        gpu_hours=used.get("gpu_hours", 0.0),
        reached=used_up.union(progress.reached),
        used_up=used_up,
        fired={
            rule.id: Firings(
                rule.fired,
                heard.first.get(rule.id, math.nan),
                heard.cancelled[rule.id],
                heard.good[rule.id],
                sum(submitted[name] for name in heard.groups.get(rule.id, ())),
            )
            for rule in outcome.report.rules
        },
        last=Counter(heard.last),
        stubbed=frozenset(runtime.stubbed),
    )
    return figures if study.cost is None else replace(figures, cost=_cost(figures, study.cost))


def _exhausted_limits(outcome: Outcome) -> frozenset[str]:
    """Return the limits that were used up and therefore held jobs of a run.

    A limit counts as used up if too little of it is left for the remaining jobs.
    """
    progress = outcome.report.progress
    found = {"wall"} if outcome.stopped else set[str]()
    for name in progress.reached:
        most = progress.limits.get(name, math.inf)
        ended = outcome.exit_code == _LIMITED and name in progress.holding
        if ended or progress.used.get(name, 0.0) >= most * (1 - _ROUNDING):
            found.add(name)
    return frozenset(found)


#: Names in the cost formula: the jobs' resource use, the run's length in hours, the number of jobs,
#: and the cluster's core-hours in that time.
COST_NAMES = ("core_hours", "node_hours", "gpu_hours", "hours", "jobs", "offered_core_hours")


def _cost(figures: Figures, cost: Expression) -> float:
    values = (
        figures.used / 3600, figures.node_hours, figures.gpu_hours, figures.seconds / 3600,
        figures.jobs, figures.offered / 3600,
    )  # fmt: skip
    names = dict(zip(COST_NAMES, values, strict=True))
    found = cost.evaluate(None, names, lambda path: None)
    value = float(found) if isinstance(found, (bool, int, float)) else math.nan
    if not math.isfinite(value):
        raise UsageError(
            f"--cost has no finite value for the run with seed {figures.seed}",
            cause=", ".join(f"{name} is {each:.6g}" for name, each in names.items()),
            code="bad-draw",
        )
    return value


#: Studies for the workers. Workers are forks, so nothing needs to be sent to them.
_STUDIES: Sequence[Study] = ()


def _chunk(task: tuple[int, range]) -> list[Figures]:
    return [play(_STUDIES[task[0]], seed) for seed in task[1]]


def simulate_all(
    studies: Sequence[Study], seeds: range, workers: int
) -> Iterator[tuple[int, list[Figures]]]:
    """Simulate each study with each seed. Yield the study's index and its figures, in order."""
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
    done = False
    try:
        for task, figures in zip(tasks, pool.map(_chunk, tasks), strict=True):
            yield task[0], figures
        done = True
    finally:
        with suppress(Exception):
            # A pool that is still closing when Python exits prints errors about closed pipes.
            pool.shutdown(wait=done, cancel_futures=True)


def quantiles(values: Sequence[float], points: Sequence[float] = (0.05, 0.5, 0.95)) -> list[float]:
    """Return quantiles, with linear interpolation between the values.

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
    """Return the mean of the paired differences, and half the width of its 95 % confidence
    interval.

    Assumes a normal distribution. The interval is infinite for fewer than two pairs.
    """
    each = [b - a for a, b in zip(before, after, strict=True)]
    mean = math.fsum(each) / len(each)
    if len(each) < 2:
        return mean, math.inf
    variance = math.fsum((value - mean) ** 2 for value in each) / (len(each) - 1)
    return mean, 1.96 * math.sqrt(variance / len(each))
