"""Executor of simulations in which jobs run inside pilots, which wait in a virtual queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core import (
    Emit,
    ExecutorPlugin,
    Job,
    Problem,
    ResizeOutcome,
    Resources,
    Run,
    VirtualPilots,
    WhenBusy,
)
from ensemble_simulate.executor import Machine, Running, Simulator
from ensemble_simulate.models import Life, Model
from ensemble_simulate.virtual_cluster import Demand

#: Seconds between two events about the hours of pilots, as in a run.
_HOURS = 5.0


class PilotSimulator(Simulator):
    """Jobs of one run inside pilots. ``wait`` of the machine is how long each pilot waits."""

    def __init__(
        self,
        machine: Machine,
        model: Model,
        record: ExecutorPlugin,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(machine, model)
        self._record, self._options = record, options
        self._pilots: VirtualPilots
        self._gauged: Mapping[str, float] = {}
        self._gauged_at = 0.0

    def open(self, run: Run, emit: Emit) -> None:
        assert self._record.virtual is not None
        self._pilots = self._record.virtual(self._options, self._wait_of_pilot, run.resizes)
        super().open(run, emit)

    def _wait_of_pilot(self, number: int) -> float:
        wait = self._machine.wait
        chance = self._model.chance(f"pilot.{number}", "wait")
        return 0.0 if wait is None else max(0.0, wait.number({}, chance))

    def _queue_delay(self, name: str) -> float:
        return 0.0

    def _shape(self, job: Job) -> tuple[object, ...]:
        return (*super()._shape(job), job.memory_per_task, job.duration, job.executor)

    def _refusal(self, job: Job, demand: Demand) -> str:
        return self._pilots.never(job) or ""

    def _wait_for_nodes(self, job: Running) -> None:
        self._pilots.add(job.job)

    def _drop(self, job: Running) -> None:
        self._pilots.remove(job.job.id)

    def _free(self, now: float, job: Running) -> None:
        self._pilots.ended(job.job.id, now)

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        known = self._answers.get(request)
        if known is not None:
            self._emit([known])
        else:
            self._pilots.resize(request, delta, when_busy)

    def due(self) -> float | None:
        times = [super().due(), self._pilots.due(self._clock())]
        return min((when for when in times if when is not None), default=None)

    def advance(self, now: float) -> None:
        self._look = False  # pilots decide what begins
        if now >= self._gauged_at + _HOURS:  # rules on what happens now may read the hours
            self._emit_gauges(now)
        super().advance(now)
        self._look = False
        turn = self._pilots.advance(now)
        if turn.said:
            self._emit([Problem(now, text, "info") for text in turn.said])
        for name in turn.lost:
            self._end(now, self._jobs[name], Life(0.0, "preempted"))
        for name, pilot in turn.started:
            job = self._jobs.get(name)
            if job is not None:
                job.nodes = (pilot,)
                self._start(now, job)
        for request, outcome, size, reason in turn.answers:
            answer = ResizeOutcome(now, request, outcome, size, reason)  # type: ignore[arg-type]
            self._answers[request] = answer
            self._emit([answer])
        self._emit_gauges(now)

    def _gauges(self) -> dict[str, float]:
        return dict(self._pilots.gauges(self._clock()))

    def _emit_gauges(self, now: float) -> None:
        new = self._gauges()
        changed = {name: value for name, value in new.items() if self._gauged.get(name) != value}
        # Hours grow all the time, which is no news within seconds.
        is_late = now >= self._gauged_at + _HOURS
        if changed and (is_late or not all(name.endswith("_hours") for name in changed)):
            self._gauged, self._gauged_at = new, now
            self._emit((Resources(now, changed),))

    def _account(self, now: float) -> None:
        if now > self._since:
            gauges = self._pilots.gauges(self._since)
            seconds = now - self._since
            self.offered += seconds * gauges["cores.up"]
            self.used += seconds * (gauges["cores.up"] - gauges["cores.free"])
            self._since = now


def simulator_for(
    machine: Machine, model: Model, pilots: tuple[ExecutorPlugin, Mapping[str, Any]] | None
) -> Simulator:
    """Return the executor of a simulation: with these pilots, or on a whole cluster."""
    return Simulator(machine, model) if pilots is None else PilotSimulator(machine, model, *pilots)
