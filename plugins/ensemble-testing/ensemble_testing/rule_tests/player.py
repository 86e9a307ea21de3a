"""Runs a rule test on a virtual clock, and compares the result with its expectations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ensemble_simulate.virtual_runtime import VirtualRuntime

from ensemble_core.cli.toolkit import RuleSpan as Span
from ensemble_core.cli.toolkit import (
    RuleStory,
    Watcher,
    conclude,
    describe_rule,
    describe_span,
)
from ensemble_core.engine.engine import Engine
from ensemble_core.engine.rule_trace import RuleTracer, event_words
from ensemble_core.model.decisions import Call, Decision, Fired
from ensemble_core.model.events import Event
from ensemble_testing.rule_tests.expectations import Expectation, Failure, HandledEvent
from ensemble_testing.rule_tests.scripted_queue import ImpossibleStep, ScriptedQueue, called
from ensemble_testing.rule_tests.test_file import RuleTest, Step, TestFile

#: Start time of each test.
BEGAN = 1000.0
#: Seconds after a metric's time until the metric is read: all events of that time are then handled.
_AFTER = 1e-6
#: Maximum number of verdicts reported for a rule.
_SPANS = 4


@dataclass(slots=True)
class PlayedTest:
    """Result of one test."""

    test: RuleTest
    happened: list[HandledEvent] = field(default_factory=list)
    #: Lines that describe the differences.
    failures: list[str] = field(default_factory=list)
    #: Number of steps after the end of the run.
    skipped_steps: int = 0

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def fired(self) -> set[str]:
        """Return the rules that fired."""
        return {
            each.rule or ""
            for one in self.happened
            for each in one.decisions
            if type(each) is Fired
        }


def _has_answer(call: Call, test: RuleTest) -> bool:
    return test.answered is None or not test.answered.isdisjoint(called(call))


def play(tests: TestFile, test: RuleTest) -> PlayedTest:
    """Run one test and compare the result with its expectations.

    Raises :class:`EnsembleError` if the file's functions fail to load or are not allowed to run.
    """
    told = _Playback(tests, test)
    failures = told.run()
    for expectation in test.expect:
        failures += expectation.failures(told.happened)
    played = PlayedTest(test, told.happened, skipped_steps=told.skipped_steps)
    explained: set[str] = set()
    for failure in failures:
        lines = [f"{failure.where or tests.file}: {test.name}", f"  expected: {failure.expected}"]
        lines += [f"  decided:  {line}" for line in failure.decided or ("nothing",)]
        for rule in failure.rules[:3]:
            if rule not in explained:
                explained.add(rule)
                lines += [f"  why:      {line}" for line in why(tests, test, rule)]
        played.failures.append("\n".join(lines))
    return played


class _Playback(Watcher):
    """A test run: records events, and reads metrics at their times."""

    def __init__(self, tests: TestFile, test: RuleTest) -> None:
        reused = {name for step in test.steps for name in step.reuses}
        ensemble = tests.ensemble.begun("test", "/test", ("earlier",) if reused else ())
        self._test = test
        self.happened: list[HandledEvent] = []
        self.engine = Engine(ensemble, all_statistics=True)
        self._queue = queue = ScriptedQueue(BEGAN, self.engine.state, test.gauges)
        queue.to_reuse = reused
        self._step: Step | None = None
        self._untold = [step for step in test.steps if step.tell is not None]
        for step in test.steps:
            queue.at(step.at, partial(self._run_step, step))
        for each in test.expect:
            if each.metrics:
                queue.at(
                    (test.length if each.at is None else each.at) + _AFTER,
                    partial(self._read_metrics, each),
                )
        self._runtime = VirtualRuntime(
            ensemble,
            queue,
            actions=tests.registry.actions,
            watchers=[self],
            folder=Path("/test"),
            tag="test",
            engine=self.engine,
            began=BEGAN,
            until=BEGAN + test.length + 2 * _AFTER,
            takes=lambda call: None if _has_answer(call, test) else 0.0,
            purpose=tests.purpose,
            look_up=queue.look_up if reused else None,
        )

    @property
    def skipped_steps(self) -> int:
        """Return the number of steps after the end of the run."""
        return len(self._untold)

    def _run_step(self, step: Step, queue: ScriptedQueue) -> None:
        self._step = step
        if step.tell is not None:
            self._untold.remove(step)
            step.tell(queue)
        self._step = None

    def _read_metrics(self, expectation: Expectation, queue: ScriptedQueue) -> None:
        for path in expectation.metrics:
            expectation.values[path] = self.engine.state.metric(path)

    def event(self, event: Event) -> None:
        self.happened.append(HandledEvent(event.timestamp - BEGAN, event, []))

    def decision(self, decision: Decision) -> None:
        self.happened[-1].decisions.append(decision)
        if isinstance(decision, Call):
            self._queue.calls.append(decision)

    def run(self) -> list[Failure]:
        """Run the test. Return the steps that were impossible."""
        for each in self._test.expect:
            each.values.clear()
        try:
            outcome = self._runtime.run()
        except ImpossibleStep as error:
            step = self._step
            assert step is not None
            said = f"{step.word} is possible"
            return [Failure(step.where, said, (f"it cannot: {error}",))]
        for each in self._test.expect:
            if each.metrics and not each.values:  # the run has already ended
                self._read_metrics(each, self._queue)
        if self._untold:
            step = self._untold[0]
            said = f"{step.word} is given at {step.at:g} s"
            ended = f"the run ended at {outcome.seconds:g} s: {outcome.reason}"
            return [Failure(step.where, said, (ended,))]
        return []


class _Traced(_Playback):
    """A test run with a tracer on one rule."""

    def __init__(self, tests: TestFile, test: RuleTest, rule: str) -> None:
        super().__init__(tests, test)
        self.story = RuleStory(RuleTracer(self.engine, rule))
        self.spans: list[Span] = []
        self._last: Event | None = None

    def event(self, event: Event) -> None:
        self.take()
        super().event(event)
        self._last = event

    def take(self) -> None:
        """Keep the tracer's verdicts about the last event."""
        if self._last is None:
            return
        place = len(self.happened)
        for verdict in self.story.tracer.verdicts:
            self.story.take(verdict, place, self._last.timestamp)
            last = self.spans[-1] if self.spans else None
            if last is not None and last.verdict.kind == verdict.kind != "fired":
                last.take(verdict, place)
            else:
                words = event_words(self._last)
                self.spans.append(Span(verdict, place, self._last.timestamp, words))
        ended = self.engine.state.ended
        if ended is not None and self.story.ended is None:
            self.story.ended = (place, ended.reason)


def why(tests: TestFile, test: RuleTest, rule: str) -> Sequence[str]:
    """Return the lines of ``ensemble why`` about a rule in this test."""
    # The test runs again, because a tracer follows a single rule.
    traced = _Traced(tests, test, rule)
    traced.run()
    traced.take()
    state = traced.engine.state.rules.states.get(rule)
    if state is None:
        return [f"{rule}: no such rule, and none was added"]
    bound = state.rule
    lines = [f"{rule}: {describe_rule(bound)}"]
    for span in traced.spans[-_SPANS:]:
        said = describe_span(span, bound, BEGAN)
        lines.append(f"[{span.time - BEGAN:9.3f}] {span.event}: {said}")
    return [*lines, conclude(bound, traced.story)]
