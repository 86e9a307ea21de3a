"""Records a rule test from an earlier run: its events and decisions."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product, zip_longest
from typing import Any

from ensemble_core.cli.toolkit import KeptRun, Replay, printable
from ensemble_core.engine.firing_records import Match
from ensemble_core.engine.rule_evaluation import VerdictKind
from ensemble_core.engine.rule_index import RuleState, Watch
from ensemble_core.model.decisions import Call, Cancel, Decision, Fired, Terminate
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    ExecutorLost,
    JobEvent,
    Observed,
    PluginEvent,
    Problem,
    Requested,
    ResizeOutcome,
    Resources,
    Resumed,
    Started,
    StopRequested,
)
from ensemble_core.plugin.registry import Registry
from ensemble_testing.rule_tests.decision_words import one_line, to_words
from ensemble_testing.rule_tests.expectations import SAME_TIME, HandledEvent, decided_by
from ensemble_testing.rule_tests.player import PlayedTest, play
from ensemble_testing.rule_tests.step_reader import GIVEN_GAUGES
from ensemble_testing.rule_tests.test_file import read_tests

#: Number of digits of times: few for readability, or all if the decisions depend on them.
_DIGITS = (3, 7)
#: A time in seconds after the start, the number of firings of each rule, and their decisions.
_Firing = tuple[float, dict[str, int], list[dict[str, Any]]]


class _TriggerRecorder:
    """Records whether the current event triggered a rule."""

    def __init__(self) -> None:
        self.triggered = False

    def occurred(self, names: Sequence[str], group: str | None, *, foreign: bool) -> None:
        pass

    def updated(self, watch: Watch, only: Container[RuleState] | None) -> None:
        self.triggered = True

    def considered(
        self,
        state: RuleState,
        match: Match,
        verdict: VerdictKind,
        known: Mapping[str, Any] | None,
    ) -> None:
        self.triggered = True

    def handled(self, event: Event) -> None:
        pass

    def reconfigured(self) -> None:
        pass


class _Recording:
    """Steps of a run's events.

    Each step has its time, and a flag that says whether it is a row that triggered no rule.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[float, dict[str, Any], bool]] = []
        self.happened: list[HandledEvent] = []
        self._now = 0.0
        self._ended = False
        self._calls: dict[str, Call] = {}
        #: Jobs cancelled by the run. The test's queue repeats these cancels on its own.
        self._cancelled: set[str] = set()
        #: Jobs with an exception. Their later events are kept unchanged.
        self._excepted: set[str] = set()
        #: Jobs that were taken from an earlier run, each with its step, to which rows are added.
        self._reused: dict[str, dict[str, Any]] = {}

    def take(self, at: float, event: Event, decisions: list[Decision], triggered: bool) -> None:
        self.happened.append(HandledEvent(at, event, decisions))
        if self._ended:
            return  # no rule depends on the rest of the jobs
        self._now = max(self._now, at)
        for word, what in self._event_step(event):
            step = {word: what}
            self.steps.append((self._now, step, word == "row" and not triggered))
        for decision in decisions:
            if isinstance(decision, Call):
                self._calls[decision.call] = decision
            elif isinstance(decision, Cancel):
                self._cancelled.update(decision.jobs)
            elif isinstance(decision, Terminate):
                self._cancelled.update(decision.cancel)
                self._ended = True

    def _event_step(self, event: Event) -> Iterable[tuple[str, Any]]:
        """Return the keyword and value of an event, if it has one."""
        if isinstance(event, JobEvent):
            yield from self._job_steps(event)
        elif isinstance(event, Observed):
            if event.job in self._cancelled:
                return
            row = {"job": event.job, **event.values}
            if event.clock is not None and "clock" not in event.values:
                row["clock"] = event.clock
            if event.job in self._reused:
                del row["job"]
                self._reused[event.job].setdefault("rows", []).append(row)
                return
            yield "row", row
        elif isinstance(event, (Started, Resources, Resumed)):
            values = event.values if isinstance(event, Resources) else event.resources
            gauges = {name: each for name, each in values.items() if name in GIVEN_GAUGES}
            if gauges or isinstance(event, Resumed):
                kinds = {Started: "start", Resources: "gauges", Resumed: "resumed"}
                yield kinds[type(event)], gauges
        elif isinstance(event, ResizeOutcome):
            size = {} if event.size is None else {"size": event.size}
            reason = {"reason": event.reason} if event.reason else {}
            yield "resized", {"outcome": event.outcome, **size, **reason}
        elif isinstance(event, (CallReturned, CallFailed)):
            call = self._calls.get(event.call)
            if call is not None:
                yield _answer(call, event)
        else:
            yield from _run_steps(event)

    def _job_steps(self, event: JobEvent) -> Iterable[tuple[str, Any]]:
        job, name, context = event.job, event.name, event.context
        if not event.ours:
            yield _job_event_step(event)
        elif job in self._cancelled:
            return
        elif name == "submit" and "reused" in context:
            self._reused[job] = {"job": job}
            yield "reused", self._reused[job]
        elif job in self._reused:
            if name == "finish":
                seconds = float(context.get("duration") or 0.0)
                self._reused[job]["duration"] = _time(seconds, _DIGITS[-1])
        elif name == "start":
            yield "started", job
        elif name == "exception" and context.get("severity") == 0:
            if context.get("type") == "cancel":
                self._cancelled.add(job)
                by = context.get("by")
                yield "cancelled", {"job": job, "by": by} if isinstance(by, str) else job
            else:
                self._excepted.add(job)
                yield _job_event_step(event)
        elif job in self._excepted:
            yield _job_event_step(event)
        elif name == "finish":
            status = int(context.get("status", 0))
            if status & 0x7F:
                yield "finished", {"job": job, "signal": status & 0x7F}
            else:
                yield "finished", {"job": job, "exit_code": status >> 8} if status else job


def _answer(call: Call, event: CallReturned | CallFailed) -> tuple[str, dict[str, Any]]:
    """Return the step that describes how a call of a function, an action or a generator ended."""
    name = (
        next(iter(call.options["functions"].values())) if call.kind == "parameters" else call.name
    )
    of = {"generator" if call.kind == "generator" else "function": name}
    if isinstance(event, CallFailed):
        return "raised", {**of, "error": event.error}
    if call.kind == "parameters":
        return "returned", {**of, "parameters": event.result[0]["parameters"]}
    if call.kind != "generator":
        return "returned", {**of, "result": list(event.result)} if event.result else of
    one_line = {
        "points": [each["point"] for each in event.result if "point" in each],
        "prune": [each["prune"] for each in event.result if "prune" in each],
    }
    return "suggested", {**of, **{key: each for key, each in one_line.items() if each}}


def _job_event_step(event: JobEvent) -> tuple[str, Any]:
    context = {"context": dict(event.context)} if event.context else {}
    ours = {} if event.ours else {"ours": False}
    return "job-event", {"job": event.job, "name": event.name, **context, **ours}


def _run_steps(event: Event) -> Iterable[tuple[str, Any]]:
    if isinstance(event, StopRequested):
        yield "stopped", {"reason": event.reason, "exit_code": event.exit_code, "then": event.then}
    elif isinstance(event, Requested):
        yield "requested", dict(event.action)
    elif isinstance(event, ExecutorLost):
        yield "queue-lost", event.reason
    elif isinstance(event, Problem):
        yield "problem", {"message": event.message, "level": event.level}
    elif isinstance(event, PluginEvent):
        about = {} if event.job is None else {"job": event.job}
        yield "event", {"name": event.name, "data": dict(event.data), **about}


def make_test(kept: KeptRun) -> tuple[str, str]:
    """Return the text of a file with one test, and a warning.

    Rows that triggered no rule are left out if the decisions stay the same. The warning is empty if
    the test passes and makes the same decisions as the run.
    """
    replay = Replay(kept.journal, kept.loading)
    recorder, recording, began = _TriggerRecorder(), _Recording(), 0.0
    replay.engine.observe(recorder)
    for row, event, decisions in replay.steps(kept.journal.last()):
        began = event.timestamp if row.seq == 1 else began
        recording.take(event.timestamp - began, event, decisions, recorder.triggered)
        recorder.triggered = False
    text = kept.journal.texts()[-1]
    ensemble = kept.loading(text)
    file = os.path.relpath(text.file or str(kept.journal.about.get("file", "")))
    head: dict[str, Any] = {"ensemble": file}
    if plugins := kept.journal.about.get("plugins"):
        head["plugins"] = [os.path.relpath(str(each)) for each in plugins]
    if text.overrides:
        head["set"] = list(text.overrides)
    begin = f"# Recorded from run {printable(kept.tag)}.\n"
    begin += "".join(f"{key}: {_flow(each)}\n" for key, each in head.items())
    wanted = _firings(recording.happened)
    metrics = {
        f"count.{group.name}.{what}": number
        for group in replay.engine.report().groups
        for what in ("success", "failed", "cancelled")
        if (number := getattr(group, what))
    }
    end: list[dict[str, Any]] = [{"metric": metrics}] if metrics else []
    ended = replay.engine.state.ended
    end += [{"ended": False if ended is None else ended.exit_code}]
    made = ""
    for rows, digits in product((False, True), _DIGITS):
        given = [
            {"at": _time(at, digits), **step} if at else step
            for at, step, asleep in recording.steps
            if rows or not asleep
        ]
        made = begin + _test(kept.tag, given, end)
        played = _play(made, ensemble, kept.registry)
        found = _firings(played.happened)
        if _in_order(played.happened) == _in_order(recording.happened):
            # A cancelled job took a while to end in the run; the test's queue ends it at once.
            given = given[: len(given) - played.skipped_steps]
            return begin + _test(kept.tag, given, [*_expectations(found), *end]), ""
    made = begin + _test(kept.tag, given, [*_expectations(wanted), *end])
    pairs = [pair for pair in zip_longest(wanted, found) if _differ(*pair)]
    run, test = pairs[0] if pairs else (None, None)
    in_test, in_run = _firing_text(test), _firing_text(run)
    return made, f"the test decides differently from the run: {in_test}; in the run: {in_run}"


def _in_order(happened: Sequence[HandledEvent]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the rules that fired and their decisions in order, without times."""
    fired: list[str] = []
    decided: list[dict[str, Any]] = []
    for one in happened:
        rules = [str(each.rule) for each in one.decisions if type(each) is Fired]
        fired += rules
        if not rules:
            continue
        decided += [_without_numbers(to_words(each)) for each in decided_by([one], Counter(rules))]
    return fired, decided


def _differ(run: _Firing | None, test: _Firing | None) -> bool:
    """Return whether two firings differ in their rules or decisions."""
    if run is None or test is None:
        return True
    decided = [[_without_numbers(each) for each in firing[2]] for firing in (run, test)]
    return run[1] != test[1] or decided[0] != decided[1]


def _without_numbers(decision: dict[str, Any]) -> dict[str, Any]:
    """Return a decision without measured values, such as a duration in a message."""
    ((word, what),) = decision.items()
    if word not in ("log", "notify"):
        return decision
    return {word: re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", what)}


def _firing_text(firing: _Firing | None) -> str:
    if firing is None:
        return "nothing more fires"
    at, fired, decisions = firing
    return f"{' and '.join(fired)} at {at:.3f} s: {one_line(decisions)}"


def _firings(happened: Sequence[HandledEvent]) -> list[_Firing]:
    """Return the times of firings, with their rules and decisions."""
    found: list[_Firing] = []
    groups: list[list[HandledEvent]] = []
    for one in happened:
        if groups and math.isclose(one.at, groups[-1][0].at, abs_tol=SAME_TIME):
            groups[-1].append(one)
        else:
            groups.append([one])
    for group in groups:
        heads = [each for one in group for each in one.decisions if type(each) is Fired]
        fired = Counter(str(head.rule) for head in heads)
        if fired:
            decisions = [to_words(each) for each in decided_by(group, fired)]
            found.append((group[0].at, dict(fired), decisions))
    return found


def _play(text: str, ensemble: Ensemble, registry: Registry) -> PlayedTest:
    """Run a recorded test on the run's ensemble. Calls are answered from the record."""
    tests = read_tests("recorded.ensemble-test.yaml", text=text, about=(ensemble, registry))
    return play(tests, replace(tests.tests[0], answered=None))


def _expectations(firings: Sequence[_Firing]) -> list[dict[str, Any]]:
    return [
        {"at": _time(at, 6), "fired": fired, "decisions": decisions}
        for at, fired, decisions in firings
    ]


def _time(seconds: float, digits: int) -> str:
    return f"{round(seconds, digits):.{digits}f}".rstrip("0").rstrip(".") + "s"


def _test(name: str, given: Sequence[Any], expect: Sequence[Any]) -> str:
    lines = ["tests:", f"  - name: {_flow(name)}", "    given:" + " []" * (not given)]
    lines += [f"      - {_flow(each)}" for each in given]
    lines += ["    expect:", *(f"      - {_flow(each)}" for each in expect)]
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """Return a value as one line of YAML."""
    import yaml

    text = yaml.safe_dump(
        _plain(value), default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text.strip().removesuffix("\n...").strip()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
