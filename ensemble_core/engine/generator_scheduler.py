"""Decides when each generator is called, and with which arguments.

A generator suggests parameters for new jobs. Its answer arrives as an event and is stored
in the journal, so a replay does not call generators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ensemble_core.engine.firing_records import Match, Steps
from ensemble_core.engine.generator_jobs import PointJobs
from ensemble_core.engine.generator_state import GeneratorState, SuggestCall
from ensemble_core.engine.name_values import named_fields
from ensemble_core.engine.rule_evaluation import RuleEvaluation
from ensemble_core.model.decisions import Call, Log
from ensemble_core.model.events import CallReturned, Event
from ensemble_core.model.generators import Exchange, GeneratorSpec, Point

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
