"""Generators at work: which points are asked for when, the jobs of each, and what they left.

A call of a generator goes out as a decision ``Call`` of kind ``generator``, and its answer comes
back as the event that a function's does, so that a replay calls nobody. One call of each is under
way at a time, and holds all that it is to be told. Had by ``rule_evaluation``; ``endings`` tells
of indices that are over and lets it ask, before rules on ``idle`` are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.engine.generator_state import Asking, GeneratorState
from ensemble_core.engine.job_record import JobRecord, Link
from ensemble_core.engine.known_names import named_fields
from ensemble_core.engine.occasion import Occasion, Origin
from ensemble_core.engine.variation import combinations
from ensemble_core.errors import EnsembleError
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Call, Cancel, Log, SetGenerator, Submit
from ensemble_core.model.events import Event, Observed
from ensemble_core.model.generators import Exchange, GeneratorSpec, Point, Reading
from ensemble_core.model.jobs import Job, JobGroup

if TYPE_CHECKING:
    from ensemble_core.engine.rule_evaluation import RuleEvaluation

__all__ = ["Generating"]

#: After so many lost points in a row, and none done ever, a generator is given up.
_MOST_LOST = 20


class _Asked(Origin):
    """Origin of a generator's decisions: no rule, and no firing."""

    @property
    def rule(self) -> str:
        return str(self.fields["generator"])

    @property
    def mark(self) -> dict[str, Any]:
        return {}


class Generating:
    """The generators of one run at work."""

    def __init__(self, rules: RuleEvaluation) -> None:
        self.state = rules.state
        self._rules = rules

    def _spec(self, name: str) -> GeneratorSpec | None:
        return self.state.ensemble.generators.get(name)

    # -- what happens --------------------------------------------------------------------------

    def index_over(self, record: JobRecord, done: bool) -> None:
        """An index of a generator's group is over."""
        state = self.state
        for generator in state.generators.values():
            spec = self._spec(generator.name)
            if spec is None or spec.group != record.job.group:
                continue
            point = generator.jobs.pop(record.job.index, None)
            if point is None:
                continue
            if done:
                point.results = (*point.results, dict(record.result))
            point.open -= 1
            if not point.open:
                generator.ended.append(point)
                state.look_for_end = state.generators_due = True

    def observed(self, record: JobRecord, event: Observed) -> None:
        """A job printed a row: what a pruner is to be told of it."""
        values = event.values
        for generator in self.state.generators.values():
            spec = self._spec(generator.name)
            if spec is None or spec.prune is None or spec.group != record.job.group:
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
            self.state.look_for_end = self.state.generators_due = True

    def answered(self, call: str, result: tuple[Mapping[str, Any], ...], event: Event) -> bool:
        """A generator answered; false if the call was none of a generator."""
        generator = self._pending(call)
        if generator is None:
            return False
        state, spec = self.state, self._spec(generator.name)
        asking, generator.asking = generator.asking, None
        state.look_for_end = state.look_for_idle = state.generators_due = True
        if asking is None or spec is None or state.ended is not None:
            generator.take_back(asking)
            return True
        suggested = [
            self._begin(generator, spec, each["point"], event) for each in result if "point" in each
        ]
        generator.exchanges.append(Exchange(asking.told, asking.readings, tuple(suggested)))
        generator.ingested += len(asking.told)
        self._prune(generator, spec, [int(each["prune"]) for each in result if "prune" in each])
        generator.short = len(suggested) < asking.count
        if generator.short and not generator.pending and not generator.over:
            generator.exhausted = True
            self._tell_exhausted(generator, spec, event)
        self._tell_metrics(generator)
        self._rules.settle(event)
        return True

    def failed(self, call: str, error: str) -> bool:
        """A call of a generator failed; false if the call was none of a generator."""
        generator = self._pending(call)
        if generator is None:
            return False
        self._give_up(generator, error)
        return True

    def steer(self, decision: SetGenerator) -> None:
        """Do what a rule decided on a generator."""
        state = self.state
        generator = state.generators.get(decision.generator)
        if generator is None or self._spec(decision.generator) is None:
            raise EnsembleError(
                f"there is no generator {decision.generator!r}", code="no-such-generator"
            )
        if decision.pause is not None:
            generator.paused = decision.pause
        generator.extra += max(0, decision.count)
        state.look_for_end = state.generators_due = True
        state.out.append(decision)

    def resumed(self) -> None:
        """A later controller has the run: calls are made again, generators at fault built anew."""
        state = self.state
        for generator in state.generators.values():
            if generator.asking is not None:
                generator.asking = generator.asking.retry()
                state.out.append(generator.asking.call)
            if generator.fault is not None:
                generator.fault = None
                generator.lost_in_row = 0
                state.errors -= 1
        state.look_for_end = state.generators_due = True

    # -- what follows --------------------------------------------------------------------------

    def settle(self, event: Event) -> None:
        """Work in the points that are over, and ask for others where there is room."""
        state = self.state
        state.generators_due = False
        for generator in state.generators.values():
            spec = self._spec(generator.name)
            if spec is None:
                continue
            while generator.ended and state.ended is None:
                self._end(generator, spec, generator.ended.pop(0), event)
            if state.ended is None:
                self._ask(generator, spec, event)

    def _end(
        self, generator: GeneratorState, spec: GeneratorSpec, point: Point, event: Event
    ) -> None:
        """Every job of a point is over."""
        values, errors = _means(point.results, spec.vocs.outputs)
        point.results = ()
        generator.pending -= 1
        improves = False
        if values is not None and point.state != "pruned":
            point.state, point.values, point.errors = "done", values, errors
            generator.successes += 1
            generator.lost_in_row = 0
            improves = generator.rank(point, spec.vocs)
        elif point.state == "pending":
            point.state = "lost"
            generator.lost_in_row += 1
            if spec.failed is not None:
                point.values = {**spec.failed}
        generator.over.append(point)
        generator.short = False
        self._tell_metrics(generator)
        if improves:
            fields = {"generator": spec.name, "point": point.number, **point.values}
            self._rules.react(
                ("generator-best",), None, event, None, {**fields, **point.parameters}
            )
        self._rules.settle(event)
        if generator.lost_in_row >= _MOST_LOST and not generator.successes:
            self._give_up(generator, f"has lost its first {generator.lost_in_row} points: see why")

    def _ask(self, generator: GeneratorState, spec: GeneratorSpec, event: Event) -> None:
        """Call the generator where it is to be told something, or where there is room."""
        state = self.state
        if generator.asking is not None or generator.fault is not None:
            return
        if not generator.met and spec.until is not None and self._until(spec, event):
            generator.met = True
        count = 0
        if not (generator.met or generator.exhausted or generator.paused):
            count = max(0, spec.at_once - generator.pending)
        count += generator.extra
        if generator.short and not generator.over:
            count = 0  # it has no more before something is told
        if not (count or generator.over or generator.readings):
            return
        generator.extra = 0
        told, generator.over = tuple(generator.over), []
        readings, generator.readings = tuple(generator.readings), []
        options: dict[str, Any] = {"suggest": count, "ingest": [_plain(each) for each in told]}
        if readings:
            options["readings"] = [list(each) for each in readings]
        call = Call(
            call=state.new_id("call"), kind="generator", name=generator.name, options=options
        )
        generator.asking = Asking(call, count, told, readings)
        state.out.append(call)

    def _until(self, spec: GeneratorSpec, event: Event) -> bool:
        state, until = self.state, spec.until
        assert until is not None
        occasion = Occasion(event)
        known = named_fields(until.spoken, state.ensemble, occasion)
        for name in spec.reads:
            value = state.metric(name)  # a gauge, or STAT.NAME over the generator's group
            if value is None:
                value = state.read_scoped(name, spec.group, occasion)
            if value is not None:
                known[name] = value
        return bool(until.verdict(None, known, state.metric))

    def _begin(
        self,
        generator: GeneratorState,
        spec: GeneratorSpec,
        suggested: Mapping[str, Any],
        event: Event,
    ) -> Point:
        """Submit the jobs of a suggestion."""
        state = self.state
        parameters = {name: suggested[name] for name in spec.vocs.names}
        point = Point(number=len(generator.points), parameters=parameters, tag=suggested.get("_id"))
        generator.points.append(point)
        generator.pending += 1
        standing = state.table.groups[spec.group]
        group = standing.group
        replicas = group.count if spec.replicas is None else spec.replicas
        first = standing.next_index
        jobs: list[Job] = []
        for chosen in combinations(group, NOTHING, parameters):
            for replica in range(replicas):
                job = group.job(first + len(jobs), chosen, replica)
                jobs.append(job)
        standing.next_index += len(jobs)
        point.jobs = tuple(job.index for job in jobs)
        point.open = len(jobs)
        generator.jobs.update(dict.fromkeys(point.jobs, point))
        self._submit(spec, group, tuple(jobs), event)
        return point

    def _submit(
        self, spec: GeneratorSpec, group: JobGroup, jobs: tuple[Job, ...], event: Event
    ) -> None:
        if not jobs:
            return
        self.state.sources[jobs[0].id] = [group] * len(jobs)
        submission = self._rules.effects.submission
        submission.submit(self._origin(spec, event), Submit(group=group.name, jobs=jobs))

    def _origin(self, spec: GeneratorSpec, event: Event) -> Origin:
        name = f"generator {spec.name}"
        link = Link(name, None, 1, self.state.table.finishes)
        return _Asked(None, 0, link, Occasion(event), {"generator": name})  # type: ignore[arg-type]

    def _prune(self, generator: GeneratorState, spec: GeneratorSpec, numbers: list[int]) -> None:
        """Cancel the jobs of points that will not be good."""
        state = self.state
        indices: set[int] = set()
        for number in numbers:
            point = generator.points[number] if 0 <= number < len(generator.points) else None
            if point is not None and point.state == "pending" and point.open:
                point.state = "pruned"
                indices.update(point.jobs)
        if not indices:
            return
        names = state.active(spec.group)
        jobs = tuple(job for job in names if _index(job) in indices)
        state.out.append(
            Log(message=f"generator {spec.name}: {_spoken(numbers)} pruned", level="info")
        )
        link = Link(f"generator {spec.name}", None, 1, state.table.finishes)
        origin = _Asked(None, 0, link, Occasion(Event(state.now)), {"generator": spec.name})  # type: ignore[arg-type]
        self._rules.effects.apply(origin, Cancel(jobs=jobs))

    def _pending(self, call: str) -> GeneratorState | None:
        for generator in self.state.generators.values():
            if generator.asking is not None and generator.asking.call.call == call:
                return generator
        return None

    def _give_up(self, generator: GeneratorState, error: str) -> None:
        """A generator is at fault: what is under way ends, and a resume begins it anew."""
        state = self.state
        generator.take_back(generator.asking)
        generator.asking = None
        generator.fault = error
        state.look_for_end = state.look_for_idle = state.generators_due = True
        if state.ended is None:
            state.error(
                f"generator {generator.name!r} {error}\n"
                "  its jobs end, and it suggests no more\n"
                "  hint: mend it, and 'ensemble resume' goes on from what is on record"
            )

    def _tell_exhausted(self, generator: GeneratorState, spec: GeneratorSpec, event: Event) -> None:
        count = len(generator.points)
        self.state.out.append(
            Log(message=f"generator {spec.name} has no more points after {count}", level="info")
        )
        fields = {"generator": spec.name, "points": count}
        self._rules.react(("generator-exhausted",), None, event, None, fields)

    def _tell_metrics(self, generator: GeneratorState) -> None:
        if self.state.rules.index.gauges:  # else they are worked out when somebody asks
            self.state.set_gauges(dict(generator.gauges()))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _index(job: str) -> int:
    return int(job.rpartition(".")[2].partition("-")[0])


def _means(
    results: tuple[Mapping[str, Any], ...], names: tuple[str, ...]
) -> tuple[dict[str, float] | None, dict[str, float]]:
    """The means of these results over the jobs that have them, and their standard errors; ``None``
    where one has no value."""
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


def _plain(point: Point) -> dict[str, Any]:
    """A point as a generator is told of it and as the journal has it."""
    data: dict[str, Any] = {"point": point.number, "state": point.state}
    if point.values:
        data["values"] = dict(point.values)
    if point.errors:
        data["errors"] = dict(point.errors)
    return data


def _spoken(numbers: list[int]) -> str:
    return f"point{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
