"""The keywords of ``expect`` in a rule test: firings, decisions, metrics, end of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ensemble_core.cli.toolkit import Context, format_duration, format_times, shown
from ensemble_core.cli.toolkit import DocumentPath as Path
from ensemble_core.errors import EnsembleError, Location
from ensemble_core.model.conditions import Condition, parse
from ensemble_core.model.decisions import Decision, Fired, Log, Notify, Terminate
from ensemble_core.model.events import Event
from ensemble_testing.rule_tests.decision_words import check, counts, matches, one_line, to_words

#: The keywords of ``expect``.
KEYS = ("at", "fired", "decisions", "never", "metric", "ended")
#: Tolerance of times, in seconds.
SAME_TIME = 1e-5


class HandledEvent(NamedTuple):
    """An event of a test run, with its decisions."""

    at: float  # seconds after the start
    event: Event
    decisions: list[Decision]

    def is_at(self, when: float | None) -> bool:
        """Return whether the event happened at time ``when``; ``None`` is any time."""
        return when is None or abs(self.at - when) <= SAME_TIME


@dataclass(frozen=True, slots=True)
class Failure:
    """A difference between expectation and result."""

    where: Location | None
    expected: str
    #: The actual decisions, one per line.
    decided: tuple[str, ...] = ()
    #: Rules that the report explains.
    rules: tuple[str, ...] = ()


@dataclass(slots=True)
class Expectation:
    """An entry of ``expect``."""

    where: Location | None
    #: Seconds after the start. ``None``: the whole test or, for a metric, the test's end.
    at: float | None = None
    #: Number of firings by rule; ``None``: at least one. An empty mapping: no rule may fire.
    fired: Mapping[str, int | None] | None = None
    decisions: tuple[Mapping[str, Any], ...] | None = None
    never: tuple[str, ...] = ()
    #: Condition of each metric; ``None``: the metric has no value.
    metrics: Mapping[str, Condition | None] = field(default_factory=dict)
    #: Exit code and part of the reason. ``False``: the run continues.
    ended: tuple[int | None, str] | bool | None = None
    #: Values of the metrics at the entry's time, set by the player.
    values: dict[str, float | None] = field(default_factory=dict)

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the rules that the entry mentions."""
        return (*(self.fired or ()), *self.never)

    def failures(self, happened: Sequence[HandledEvent]) -> list[Failure]:
        """Return all differences."""
        here = [each for each in happened if each.is_at(self.at)]
        return [
            *self._firings(here, happened),
            *self._check_decisions(here),
            *self._check_never(here),
            *self._metrics(),
            *self._end(here, happened),
        ]

    @property
    def _time_text(self) -> str:
        return "" if self.at is None else f" at {_clock(self.at)}"

    def _fail(self, expected: str, decided: Sequence[str], rules: Sequence[str] = ()) -> Failure:
        return Failure(self.where, expected, tuple(decided), tuple(rules))

    def _firings(
        self, here: Sequence[HandledEvent], happened: Sequence[HandledEvent]
    ) -> list[Failure]:
        if self.fired is None:
            return []
        times = Counter(each.rule for one in here for each in one.decisions if type(each) is Fired)
        if not self.fired and times:
            rules = [str(rule) for rule in times]
            return [self._fail(f"no rule fires{self._time_text}", _firing_lines(here, None), rules)]
        found = []
        for rule, wanted in self.fired.items():
            have = times[rule]
            if have == wanted or (wanted is None and have):
                continue
            often = "" if wanted is None else f" {format_times(wanted)}"
            instead = _firing_lines(happened, rule) or [f"{rule} did not fire"]
            others = [] if self.at is None else _firing_lines(here, None, but=rule)
            found.append(
                self._fail(f"{rule} fires{often}{self._time_text}", [*instead, *others], [rule])
            )
        return found

    def _check_decisions(self, here: Sequence[HandledEvent]) -> list[Failure]:
        if self.decisions is None:
            return []
        all_here = decided_by(here, self.fired)
        if _are_same(self.decisions, all_here):
            return []
        for word, kind in (("log", Log), ("notify", Notify)):
            if not any(word in wanted for wanted in self.decisions):
                all_here = [each for each in all_here if not isinstance(each, kind)]
        rules = list(dict.fromkeys(each.rule for each in all_here if each.rule))
        whose = f" by {', '.join(self.fired)}" if self.fired else ""
        return [
            self._fail(
                f"decisions{whose}{self._time_text}: {one_line(self.decisions)}",
                [one_line([to_words(each) for each in all_here])],
                rules or list(self.fired or ()),
            )
        ]

    def _check_never(self, here: Sequence[HandledEvent]) -> list[Failure]:
        return [
            self._fail(f"{rule} never fires{self._time_text}", lines, [rule])
            for rule in self.never
            if (lines := _firing_lines(here, rule))
        ]

    def _metrics(self) -> list[Failure]:
        found = []
        for path, wanted in self.metrics.items():
            value = self.values.get(path)
            if wanted is None:
                if value is not None:
                    said = f"{path} has no value{self._time_text}"
                    found.append(self._fail(said, [f"{path} is {value:g}"]))
            elif value is None:
                said = f"{path} {_condition_text(wanted)}{self._time_text}"
                found.append(self._fail(said, [f"{path} has no value"]))
            elif not _meets(wanted, value):
                said = f"{path} {_condition_text(wanted)}{self._time_text}"
                found.append(self._fail(said, [f"{path} is {value:.10g}"]))
        return found

    def _end(self, here: Sequence[HandledEvent], happened: Sequence[HandledEvent]) -> list[Failure]:
        if self.ended is None:
            return []
        ends = [
            (one.at, each)
            for one in (happened if self.ended is False else here)
            for each in one.decisions
            if isinstance(each, Terminate)
        ]
        if self.at is not None and self.ended is False:
            ends = [end for end in ends if end[0] <= self.at + SAME_TIME]
        lines = [
            f"at {_clock(when)} the run ended with exit code {end.exit_code}: {end.reason}"
            for when, end in ends
        ]
        if self.ended is False:
            return [self._fail(f"the run continues{self._time_text}", lines)] if ends else []
        code, reason = self.ended if isinstance(self.ended, tuple) else (None, "")
        if ends and code in (None, ends[-1][1].exit_code) and reason in ends[-1][1].reason:
            return []
        said = "the run ends" + ("" if code is None else f" with exit code {code}")
        said += f" ({reason})" if reason else ""
        return [self._fail(f"{said}{self._time_text}", lines or ["the run continues"])]


def decided_by(happened: Sequence[HandledEvent], rules: Collection[str] | None) -> list[Decision]:
    """Return the compared decisions of these rules, or of all rules if ``None``."""
    found = [each for one in happened for each in one.decisions if counts(each)]
    return [each for each in found if each.rule in rules] if rules else found


def _are_same(expected: Sequence[Mapping[str, Any]], decided: Sequence[Decision]) -> bool:
    """Return whether exactly these decisions were made, in this order.

    Messages that the test does not mention are ignored, because a limit also logs a warning.
    """
    left = list(expected)
    for decision in decided:
        if left and matches(left[0], decision):
            del left[0]
        elif not isinstance(decision, (Log, Notify)):
            return False
    return not left


def _clock(seconds: float) -> str:
    return f"{round(seconds, 3):g} s" if seconds < 60 else format_duration(seconds)


def _condition_text(wanted: Condition) -> str:
    if wanted.comparison is not None and wanted.comparison[0] == "==":
        return f"is {wanted.comparison[1]:g}"
    return f"meets {wanted.text!r}"


def _meets(wanted: Condition, value: float) -> bool:
    if wanted.comparison is not None and wanted.comparison[0] == "==":
        return math.isclose(value, wanted.comparison[1], rel_tol=1e-6, abs_tol=1e-6)
    return wanted.holds(value, {}, lambda path: None)


def _firing_lines(
    happened: Sequence[HandledEvent], rule: str | None, but: str | None = None
) -> list[str]:
    """Return a line with the decisions of each firing of this rule, or of all rules."""
    lines = []
    for one in happened:
        for head in one.decisions:
            if type(head) is not Fired or head.rule == but or rule not in (None, head.rule):
                continue
            made = [
                to_words(each)
                for each in one.decisions
                if each.firing == head.firing and each.rule == head.rule and counts(each)
            ]
            lines.append(f"at {_clock(one.at)} {head.rule} fired: {one_line(made)}")
    return lines


# -- reading -----------------------------------------------------------------------------------


def read_expectation(
    context: Context, data: Mapping[str, Any], path: Path, at: float | None
) -> Expectation:
    """Return an entry of ``expect``, and report mistakes in it."""
    found = Expectation(context.document.at(path), at)
    if "fired" in data:
        found.fired = _read_fired(context, data["fired"], (*path, "fired"))
    if "decisions" in data:
        found.decisions = check(context, (*path, "decisions"), data["decisions"])
    if "never" in data:
        names = data["never"] if isinstance(data["never"], list) else [data["never"]]
        found.never = tuple(name for name in names if _rule(context, name, (*path, "never")))
    if "metric" in data:
        found.metrics = _read_metrics(context, data["metric"], (*path, "metric"))
    if "ended" in data:
        found.ended = _read_end(context, data["ended"], (*path, "ended"))
    return found


def _rule(context: Context, name: Any, path: Path) -> bool:
    known = context.known.rules
    if known is None or name in known:
        return True
    context.unknown(path, "rule", str(name), known)
    return False


def _read_fired(context: Context, data: Any, path: Path) -> Mapping[str, int | None]:
    if data in (None, []):
        return {}
    if isinstance(data, Mapping):
        for rule, times in data.items():
            if not isinstance(times, int) or isinstance(times, bool) or times < 0:
                what = f"{shown(times)} is not a number of times"
                hint = f"write how often the rule fires, for example {rule}: 2"
                context.report((*path, rule), what, hint=hint, code="wrong-type")
        return {rule: times for rule, times in data.items() if _rule(context, rule, (*path, rule))}
    names = data if isinstance(data, list) else [data]
    return dict.fromkeys(name for name in names if _rule(context, name, path))


def _read_metrics(context: Context, data: Any, path: Path) -> Mapping[str, Condition | None]:
    if not isinstance(data, Mapping):
        hint = 'write {count.sim.failed: 1} or {mean.sim-duration: "> 5"}'
        context.report(path, f"{shown(data)} is not a mapping", hint=hint, code="wrong-type")
        return {}
    found: dict[str, Condition | None] = {}
    for name, wanted in data.items():
        here = (*path, name)
        if context.metric(name, here) is None:
            continue
        try:
            condition = None if wanted is None else parse(wanted)
            if condition is not None and set(condition.names) - {"value"}:
                odd = sorted(set(condition.names) - {"value"})[0]
                what = f"{wanted!r} uses {odd!r}, but a metric has only 'value'"
                context.report(here, what, hint='write for example "> 5"', code="bad-condition")
                continue
        except EnsembleError as error:
            context.attach(error, here)
            continue
        found[name] = condition
    return found


def _read_end(context: Context, data: Any, path: Path) -> tuple[int | None, str] | bool | None:
    if isinstance(data, bool):
        return (None, "") if data else False
    if isinstance(data, int):
        return (data, "")
    if isinstance(data, Mapping):
        for key in data:
            if key not in ("exit_code", "reason"):
                context.unknown((*path, key), "key", str(key), ("exit_code", "reason"))
        code = data.get("exit_code")
        if code is None or (isinstance(code, int) and not isinstance(code, bool)):
            return (code, str(data.get("reason", "")))
    hint = "write an exit code, {exit_code: 0, reason: …}, or false if the run must continue"
    what = f"{shown(data)} does not describe how a run ends"
    context.report(path, what, hint=hint, code="wrong-type")
    return None
