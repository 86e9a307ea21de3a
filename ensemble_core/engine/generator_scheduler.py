"""Calls of generators and the jobs that they request: when, with which arguments, and their ends.

A generator suggests *points*: sets of parameters for new jobs. Its answer arrives as an event and
is stored in the journal, so a replay does not call generators. A *pruned* point is one that the
generator gave up: its jobs are cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ensemble_core.engine.decision_effects import Effects
from ensemble_core.engine.firing_records import Match, Origin, Steps
from ensemble_core.engine.generator_state import GeneratorState, SuggestCall
from ensemble_core.engine.job_record import JobRecord, Link
from ensemble_core.engine.name_values import named_fields
from ensemble_core.engine.rule_evaluation import RuleEvaluation
from ensemble_core.engine.submission import replicas_of
from ensemble_core.engine.vary_action import combinations
from ensemble_core.errors import EnsembleError
from ensemble_core.model.codec import NOTHING, dumps
from ensemble_core.model.decisions import Call, Cancel, Log, Submit
from ensemble_core.model.events import CallReturned, Event, Observed
from ensemble_core.model.generators import Exchange, GeneratorSpec, Point, Reading
from ensemble_core.model.jobs import Job

#: If no point has ever been done, the generator fails after this many lost points.
_MOST_LOST = 20
#: With ``repeat: false``, a generator has no more points after this many repeated ones in a row.
_MOST_REPEATS = 100


class GeneratorScheduler:
    """Schedules the calls of all generators of a run."""

    def __init__(self, rules: RuleEvaluation) -> None:
        self.state = rules.state
        self.jobs = PointJobs(rules.effects)
        self._rules = rules

    def _spec(self, name: str) -> GeneratorSpec | None:
        return self.state.ensemble.generators.get(name)

    # -- events --------------------------------------------------------------------------------

    def answered(self, generator: GeneratorState, event: CallReturned) -> Steps:
        """Handle the answer of a generator."""
        state, spec = self.state, self._spec(generator.name)
        call, generator.open_call = generator.open_call, None
        state.end_check_due = state.idle_check_due = state.generators_due = True
        if call is None or spec is None or state.ended is not None:
            generator.take_back(call)
            return None
        suggested = [
            self.jobs.begin(generator, spec, each["point"], event)
            for each in event.result
            if "point" in each
        ]
        pruned = [int(each["prune"]) for each in event.result if "prune" in each]
        generator.exchanges.append(Exchange(call.ingested, call.readings, tuple(suggested)))
        generator.ingested += sum(
            point.origin is None and point.repeats is None for point in call.ingested
        )
        self.jobs.prune(generator, spec, pruned, event)
        generator.short = len(suggested) < call.count
        repeats = self._only_repeats(generator, spec, suggested)
        generator.short = generator.short or repeats
        if (
            generator.short
            and not generator.pending
            and (repeats or not generator.has_unreported_results)
        ):
            generator.exhausted = True
            self._report_exhausted(generator, spec, event)
        return [(self._update_metrics, generator)]

    @staticmethod
    def _only_repeats(
        generator: GeneratorState, spec: GeneratorSpec, suggested: Sequence[Point]
    ) -> bool:
        """Return True if the generator has no new point to suggest before the next result."""
        if spec.repeat or not suggested:
            return False
        new = any(each.repeats is None for each in suggested)
        generator.consecutive_repeats = 0 if new else generator.consecutive_repeats + len(suggested)
        size, known = spec.vocs.size, generator.known.values()
        all_known = (
            size is not None
            and len(known) >= size
            # The file may have other values since some of them were suggested.
            and sum(spec.vocs.refused(generator.points[n].parameters) is None for n in known)
            >= size
        )
        if generator.consecutive_repeats < _MOST_REPEATS and not all_known:
            return False
        generator.consecutive_repeats = 0
        return True

    def resumed(self) -> None:
        """After a resume, repeat pending calls and let failed generators be built again."""
        state = self.state
        for generator in state.generators.values():
            if generator.open_call is not None:
                generator.open_call = generator.open_call.retry()
                state.out.append(generator.open_call.call)
            if generator.fault is not None:
                generator.fault = None
                generator.consecutive_losses = 0
                state.errors -= 1
        state.end_check_due = state.generators_due = True

    # -- steps ---------------------------------------------------------------------------------

    def schedule(self, event: Event) -> Steps:
        """Pass finished points to the generators, and request new points where ``at_once`` allows
        it.
        """
        self.state.generators_due = False
        return [(self._schedule, *each) for each in self.jobs.generators()]

    def _schedule(self, generator: GeneratorState, spec: GeneratorSpec, event: Event) -> Steps:
        if self.state.ended is not None:
            return None
        if not generator.ended:
            self._call_generator(generator, spec, event)
            return None
        improves = self.jobs.end(generator, spec, point := generator.ended.pop(0))
        generator.short = False
        self._update_metrics(generator, event)
        if improves:
            fields = {"generator": spec.name, "point": point.number, **point.values}
            self._rules.react(
                ("generator-best",), None, event, None, {**fields, **point.parameters}
            )
        return [(self._stop_if_lost, generator), (self._schedule, generator, spec)]

    def _stop_if_lost(self, generator: GeneratorState, event: Event) -> None:
        lost = generator.consecutive_losses
        if lost >= _MOST_LOST and not generator.successes and generator.fault is None:
            self.stop_failed(generator, f"lost its first {lost} points: check the failed jobs")

    def _call_generator(self, generator: GeneratorState, spec: GeneratorSpec, event: Event) -> None:
        """Call the generator if it has not seen all finished points, or if more points may be
        open.
        """
        state = self.state
        if generator.open_call is not None or generator.fault is not None:
            return
        if not generator.met and spec.until is not None and self._is_until_met(spec, event):
            generator.met = True
        count = 0
        if not (generator.met or generator.exhausted or generator.paused):
            count = max(0, spec.at_once - generator.pending)
        count += generator.extra
        if generator.short and not generator.has_unreported_results:
            count = 0  # the generator has no more suggestions until it gets results
        if not (count or generator.has_unreported_results or generator.readings):
            return
        generator.extra = 0
        ingested, generator.over = tuple(generator.over), []
        readings, generator.readings = tuple(generator.readings), []
        options: dict[str, Any] = {"suggest": count, "ingest": [_plain(each) for each in ingested]}
        if readings:
            options["readings"] = [list(each) for each in readings]
        call = Call(
            call=state.new_id("call"), kind="generator", name=generator.name, options=options
        )
        generator.open_call = SuggestCall(call, count, ingested, readings)
        state.out.append(call)

    def _is_until_met(self, spec: GeneratorSpec, event: Event) -> bool:
        state, until = self.state, spec.until
        assert until is not None
        match = Match(event)
        known = (
            named_fields(until.sorted_names, state.ensemble, *match) if until.sorted_names else {}
        )
        for name in spec.reads:
            value = state.metric(name)  # a gauge, or STAT.NAME over the generator's group
            if value is None:
                value = state.read_scoped(name, spec.group, match)
            if value is not None:
                known[name] = value
        return bool(until.verdict(None, known, state.metric))

    def caller(self, call: str) -> GeneratorState | None:
        """Return the generator for which this call is pending, or ``None``."""
        for generator in self.state.generators.values():
            if generator.open_call is not None and generator.open_call.call.call == call:
                return generator
        return None

    def stop_failed(self, generator: GeneratorState, error: str) -> None:
        """Stop calling a generator that failed. Its jobs continue; a resume builds it again."""
        state = self.state
        generator.take_back(generator.open_call)
        generator.open_call = None
        generator.fault = error
        state.end_check_due = state.idle_check_due = state.generators_due = True
        if state.ended is None:
            state.error(
                f"generator {generator.name!r} {error}\n  it suggests no further points; its jobs "
                "continue\n  hint: fix the generator, then use 'ensemble resume'"
            )

    def _report_exhausted(
        self, generator: GeneratorState, spec: GeneratorSpec, event: Event
    ) -> None:
        count = generator.suggested
        if count == generator.exhausted_after:
            return  # a changed file has not added a point
        generator.exhausted_after = count
        lost = sum(each.state == "lost" and not each.values for each in generator.points)
        message = f"generator {spec.name} has no more points after {count}"
        if lost:
            values = ", ".join(f"{name}: VALUE" for name in spec.vocs.outputs)
            message += (
                f"; {lost} of them {'was' if lost == 1 else 'were'} lost\n  hint: if it waits for "
                f"the results of lost points, 'failed: {{{values}}}' gives it values"
            )
        self.state.out.append(Log(message=message, level="info"))
        fields = {"generator": spec.name, "points": count}
        self._rules.react(("generator-exhausted",), None, event, None, fields)

    def _update_metrics(self, generator: GeneratorState, event: Event) -> None:
        if self.state.rules.index.gauges:  # without such rules, gauges are computed when read
            self.state.set_gauges(dict(generator.gauges()))


def _plain(point: Point) -> dict[str, Any]:
    """Return a point as plain data, for the generator's call and for the journal."""
    data: dict[str, Any] = {"point": point.number, "state": point.state}
    if point.origin is not None:
        data["of"], data["point"] = point.origin
    if point.values:
        data["values"] = dict(point.values)
    if point.errors:
        data["errors"] = dict(point.errors)
    return data


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


class _GeneratorOrigin(Origin):
    """Origin of a decision that was made for a generator, not by a rule."""

    @property
    def rule(self) -> str:
        return str(self.fields["generator"])

    @property
    def decision_fields(self) -> dict[str, Any]:
        return {}


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
