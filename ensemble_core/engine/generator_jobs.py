"""Submits and tracks the jobs that generators request, and cancels jobs of pruned points.

A point is a set of parameters that a generator suggested. A pruned point is one that the generator
gave up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.engine.firing_records import Match, Origin
from ensemble_core.engine.generator_state import GeneratorState
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.rule_chain import Link
from ensemble_core.engine.submission import replicas_of
from ensemble_core.engine.vary_action import combinations
from ensemble_core.errors import EnsembleError
from ensemble_core.model.codec import NOTHING, dumps
from ensemble_core.model.decisions import Cancel, Log, Submit
from ensemble_core.model.events import Event, Observed
from ensemble_core.model.generators import GeneratorSpec, Point, Reading
from ensemble_core.model.jobs import Job

if TYPE_CHECKING:
    from ensemble_core.engine.decision_effects import Effects


class _GeneratorOrigin(Origin):
    """Origin of a decision that was made for a generator, not by a rule."""

    @property
    def rule(self) -> str:
        return str(self.fields["generator"])

    @property
    def decision_fields(self) -> dict[str, Any]:
        return {}


class PointJobs:
    """The jobs of all points of a run."""

    def __init__(self, effects: Effects) -> None:
        self.state = effects.state
        self._effects = effects

    def generators(self) -> Iterator[tuple[GeneratorState, GeneratorSpec]]:
        """Yield each generator with its entry in the file.

        After a change of the file, a generator without an entry is left out.
        """
        specs = self.state.ensemble.generators
        for generator in self.state.generators.values():
            spec = specs.get(generator.name)
            if spec is not None:
                yield generator, spec

    def begin(
        self,
        generator: GeneratorState,
        spec: GeneratorSpec,
        suggested: Mapping[str, Any],
        event: Event,
    ) -> Point:
        """Submit the jobs of a suggested point, and return the point.

        With ``repeat: false``, a point that was suggested before has its outcome, and no jobs.
        """
        state = self.state
        parameters = {name: suggested[name] for name in spec.vocs.names}
        if not spec.repeat:
            key = dumps([*parameters.values()])
            first = generator.known.setdefault(key, len(generator.points))
            if first < len(generator.points):
                earlier = generator.points[first]
                return generator.repeat(earlier, parameters, suggested.get("_id"))
        point = Point(number=len(generator.points), parameters=parameters, tag=suggested.get("_id"))
        generator.points.append(point)
        generator.pending += 1
        group_state = state.table.groups[spec.group]
        group = group_state.group
        replicas = group.count if spec.replicas is None else spec.replicas
        first = group_state.next_index
        jobs: list[Job] = []
        numbers = replicas_of(state, group)
        for chosen in combinations(group, NOTHING, parameters):
            free = range(replicas) if numbers is None else numbers.claim_free(chosen, replicas)
            for replica in free:
                jobs.append(group.job(first + len(jobs), chosen, replica))
        group_state.next_index += len(jobs)
        point.jobs = tuple(job.index for job in jobs)
        point.open = len(jobs)
        generator.jobs.update(dict.fromkeys(point.jobs, point))
        if jobs:
            state.sources[jobs[0].id] = [group] * len(jobs)
            submit = Submit(group=group.name, jobs=tuple(jobs))
            try:
                self._effects.submission.submit(self._origin(spec, event), submit)
            except EnsembleError as error:
                state.error(f"generator {spec.name}, point {point.number}: {error}")
                self._lose(generator, point)
        return point

    def _lose(self, generator: GeneratorState, point: Point) -> None:
        """End a point whose jobs cannot be submitted."""
        for index in point.jobs:
            generator.jobs.pop(index, None)
        point.jobs, point.open = (), 0
        generator.ended.append(point)
        self.state.end_check_due = self.state.generators_due = True

    def observed(self, record: JobRecord, event: Observed) -> None:
        """Pass a row of a job's output on to the pruner."""
        values = event.values
        for generator, spec in self.generators():
            if spec.prune is None or spec.group != record.job.group:
                continue
            point = generator.jobs.get(record.job.index)
            value, step = values.get(spec.prune.value), values.get(spec.prune.step)
            if step is None and spec.prune.step == "clock":
                step = event.clock
            if (
                point is None
                or point.state != "pending"
                or not _is_number(value)
                or not _is_number(step)
            ):
                continue
            generator.readings.append(Reading(point.number, float(step), float(value)))  # type: ignore[arg-type]
            self.state.end_check_due = self.state.generators_due = True

    def prune(
        self, generator: GeneratorState, spec: GeneratorSpec, numbers: list[int], event: Event
    ) -> None:
        """Cancel the jobs of pruned points."""
        state = self.state
        indices: set[int] = set()
        for number in numbers:
            point = generator.points[number] if 0 <= number < len(generator.points) else None
            if point is not None and point.state == "pending" and point.open:
                point.state = "pruned"
                indices.update(point.jobs)
        if not indices:
            return
        jobs = tuple(job for job in state.active(spec.group) if _index(job) in indices)
        named = f"point{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        state.out.append(Log(message=f"generator {spec.name}: {named} pruned", level="info"))
        self._effects.apply(self._origin(spec, event), Cancel(jobs=jobs))

    def index_over(self, record: JobRecord, done: bool) -> None:
        """Handle the end of an index that may belong to a point."""
        for generator, spec in self.generators():
            if spec.group != record.job.group:
                continue
            point = generator.jobs.pop(record.job.index, None)
            if point is None:
                continue
            if done:
                point.results = (*point.results, dict(record.result))
            elif spec.failed is not None:
                # Handled: the file says which values a lost point has.
                record.failure_rule_matched = True
            point.open -= 1
            if not point.open:
                generator.ended.append(point)
                self.state.end_check_due = self.state.generators_due = True

    def end(self, generator: GeneratorState, spec: GeneratorSpec, point: Point) -> bool:
        """Handle a point whose jobs are all over. Return True if it is the best point so far."""
        values, errors = _means(point.results, spec.vocs.outputs)
        point.results = ()
        generator.pending -= 1
        improves = False
        if values is not None and point.state != "pruned":
            point.state, point.values, point.errors = "done", values, errors
            generator.successes += 1
            generator.consecutive_losses = 0
            improves = generator.rank(point, spec.vocs)
        elif point.state == "pending":
            point.state = "lost"
            generator.consecutive_losses += 1
            if spec.failed is not None:
                point.values = {**spec.failed}
        generator.over.append(point)
        generator.end_duplicates(point)
        for other in self.state.generators.values():
            if generator.name in other.sources:
                other.over.append(point.copy_for(generator.name))
        return improves

    def _origin(self, spec: GeneratorSpec, event: Event) -> Origin:
        name = f"generator {spec.name}"
        link = Link(name, None, 1, self.state.table.finishes)
        return _GeneratorOrigin(None, 0, link, Match(event), {"generator": name})  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _index(job: str) -> int:
    return int(job.rpartition(".")[2].partition("-")[0])


def _means(
    results: Collection[Mapping[str, Any]], names: tuple[str, ...]
) -> tuple[dict[str, float] | None, dict[str, float]]:
    """Return the means and standard errors of the jobs' results.

    If a result has no value, the means are ``None``.
    """
    means: dict[str, float] = {}
    errors: dict[str, float] = {}
    for name in names:
        found = [float(each[name]) for each in results if _is_number(each.get(name))]
        if not found:
            return None, {}
        count = len(found)
        means[name] = mean = math.fsum(found) / count
        if count > 1:
            variance = math.fsum((value - mean) ** 2 for value in found) / (count - 1)
            errors[name] = math.sqrt(variance / count)
    return means, errors
