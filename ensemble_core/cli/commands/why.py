"""``ensemble why RUN RULE``: each time a rule was considered, and why it did or did not fire."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click

from ensemble_core.cli.error_format import print_error
from ensemble_core.cli.json_lines import to_json
from ensemble_core.cli.kept_run import KeptRun
from ensemble_core.cli.options import kept_run_options
from ensemble_core.cli.text_style import (
    TextStyle,
    print_line,
    printable,
    shorten,
    style_of,
    terminal_width,
)
from ensemble_core.cli.why_text import conclude, describe_condition, describe_rule, format_times
from ensemble_core.engine.rule_trace import ASLEEP, RuleTracer, Verdict, event_words
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.replay import Difference, Replay
from ensemble_core.model.decisions import DisableRule, EnableRule
from ensemble_core.model.rules import BoundRule

__all__ = ["why"]

#: Spans of equal verdicts that are shown of the first and of the last, and that are remembered.
_SHOWN, _REMEMBERED = 12, 1000


@click.command()
@kept_run_options()
@click.argument("rule", metavar="RULE")
@click.option("--all", "everything", is_flag=True, help="Show each time by itself, all of them.")
def why(kept: KeptRun, rule: str, everything: bool, as_json: bool) -> int:
    """Say why a rule fired, or did not.

    RUN is the run's tag, a beginning or an end of it that fits no other, or 'last'; RULE is the
    rule's id. All events of the run are worked in anew, and of each time that the rule was
    considered it is said what came of it. Times at which the same came of it are one line.
    """
    return _Answer(kept, rule, everything).tell(as_json)


@dataclass(slots=True)
class _Span:
    """Equal verdicts one after the other."""

    verdict: Verdict
    first: int
    last: int
    time: float
    event: str
    count: int = 1
    lowest: float | None = None
    highest: float | None = None

    def take(self, verdict: Verdict, seq: int) -> None:
        self.verdict, self.last, self.count = verdict, seq, self.count + 1
        if verdict.value is not None:
            low, high = self.lowest, self.highest
            self.lowest = verdict.value if low is None else min(low, verdict.value)
            self.highest = verdict.value if high is None else max(high, verdict.value)

    def to_dict(self, began: float) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "first": self.first,
            "last": self.last,
            "count": self.count,
            "timestamp": self.time,
            "elapsed": self.time - began,
            "event": self.event,
            "verdict": verdict.kind,
            "value": verdict.value,
            "lowest": self.lowest,
            "highest": self.highest,
            "saw": verdict.saw,
            "note": verdict.note,
            "until": verdict.until,
            "skips": verdict.skips if verdict.kind == "backoff" else None,
            "fired": verdict.fired,
        }


class _Answer:
    """One rule's story."""

    def __init__(self, kept: KeptRun, rule: str, everything: bool) -> None:
        self._kept = kept
        self._everything = everything
        self._spans: list[_Span] = []
        self._omitted = 0
        self._kinds: Counter[str] = Counter()
        self._began: float | None = None
        self._fired_at: list[int] = []  # the first and the last
        #: The smallest and the largest value with which its condition did not hold.
        self._values: tuple[float, float] | None = None
        self._last: Verdict | None = None
        self._switched: tuple[int, str, str] | None = None
        self._ended: tuple[int, str] | None = None
        #: What made the engine stop before the journal's end, and the last event before that.
        self._difference: EnsembleError | None = None
        self._until = 0
        self._bound: BoundRule | None = None
        self._tracer: RuleTracer
        self.rule = self._find(rule)
        self._replay()
        if self._bound is None:
            raise self._no_such(rule, list(self._tracer.state.rules.states))

    def _find(self, name: str) -> str:
        """The rule's id: as given, or that of the only rule with this label."""
        ids: dict[str, None] = {}
        labels: dict[str, set[str]] = {}
        may_join = False
        for text in self._kept.journal.texts():
            ensemble = self._kept.loading(text)
            may_join = may_join or bool(ensemble.functions)
            for rule in ensemble.rules:
                ids[rule.id] = None
                labels.setdefault(rule.label, set()).add(rule.id)
                may_join = may_join or any(
                    each.plan is None for action in rule.actions for each in action.flat()
                )
        if name in ids:
            return name
        if len(labels.get(name, ())) == 1:
            return next(iter(labels[name]))
        if not may_join:
            raise self._no_such(name, list(ids))
        return name  # it may have joined while the run was under way

    def _no_such(self, name: str, ids: list[str]) -> EnsembleError:
        near = get_close_matches(name, ids, 1)
        shown = ", ".join(ids[:12]) + (" …" if len(ids) > 12 else "")
        return UsageError(
            f"run {self._kept.tag} has no rule {name!r}",
            hint=f"did you mean {near[0]}?" if near else f"its rules are {shown or 'none'}",
            code="no-such-rule",
        )

    def _replay(self) -> None:
        journal = self._kept.journal
        replay = Replay(journal, self._kept.loading)
        self._tracer = tracer = RuleTracer(replay.engine, self.rule)
        state = tracer.state
        self._know()
        try:
            for row, event, decisions in replay.steps(journal.last()):
                if self._began is None:
                    self._began = event.timestamp
                for verdict in tracer.verdicts:
                    self._take(verdict, row.seq, event.timestamp, event_words(event))
                if decisions:
                    for decision in decisions:
                        if (
                            isinstance(decision, (DisableRule, EnableRule))
                            and self.rule in decision.rules
                        ):
                            self._switched = (row.seq, decision.type, decision.rule or "")
                    self._know()
                if state.ended is None:
                    self._ended = None  # also where a resume took the end back
                elif self._ended is None:
                    self._ended = (row.seq, state.ended.reason)
        except Difference as error:
            self._difference, self._until = error, error.row.seq - 1
        self._know()

    def _know(self) -> None:
        state = self._tracer.state.rules.states.get(self.rule)
        if state is not None:
            self._bound = state.rule

    def _take(self, verdict: Verdict, seq: int, time: float, event: str) -> None:
        self._kinds[verdict.kind] += 1
        self._last = verdict
        if verdict.kind == "fired":
            self._fired_at = [*self._fired_at[:1], seq]
        elif verdict.kind == "condition" and verdict.value is not None:
            low, high = self._values or (verdict.value, verdict.value)
            self._values = min(low, verdict.value), max(high, verdict.value)
        if self._spans and not self._everything:
            last = self._spans[-1]
            if last.verdict.kind == verdict.kind != "fired":
                last.take(verdict, seq)
                return
        span = _Span(verdict, seq, seq, time, event, 1, verdict.value, verdict.value)
        self._spans.append(span)
        if not self._everything and len(self._spans) > 2 * _REMEMBERED:
            del self._spans[_REMEMBERED]
            self._omitted += 1

    # -- telling ---------------------------------------------------------------------------------

    def tell(self, as_json: bool) -> int:
        if as_json:
            print_line(to_json(self._data()))
        else:
            for line in self._lines(style_of(sys.stdout)):
                print_line(line)
        if self._difference is not None:
            sys.stdout.flush()
            print_error(self._difference)
            return 1
        return 0

    @property
    def considered(self) -> int:
        """How often the engine looked at the rule."""
        return sum(count for kind, count in self._kinds.items() if kind not in ASLEEP)

    def _data(self) -> dict[str, Any]:
        assert self._bound is not None
        return {
            "run": self._kept.tag,
            "rule": self.rule,
            "label": self._bound.label or self.rule,
            "when": self._bound.condition.text if self._bound.condition else "",
            "repetitions": self._bound.repetitions,
            "spec": dict(self._bound.spec),
            "considered": self.considered,
            "fired": self._kinds["fired"],
            "verdicts": dict(self._kinds),
            "spans": [span.to_dict(self._began or 0.0) for span in self._spans],
            "omitted": self._omitted,
            "conclusion": self.conclusion(),
            "difference": self._difference.to_dict() if self._difference is not None else None,
        }

    def _lines(self, look: TextStyle) -> list[str]:
        rule = self._bound
        assert rule is not None
        width = terminal_width(sys.stdout)
        lines = [
            look.paint(line, "bold") for line in _wrap(f"{rule.id}: {describe_rule(rule)}", width)
        ]
        spans, left_out = self._spans, self._omitted
        head = spans
        tail: list[_Span] = []
        if not self._everything and len(spans) > 2 * _SHOWN + 1:
            left_out += len(spans) - 2 * _SHOWN
            head, tail = spans[:_SHOWN], spans[-_SHOWN:]
        cells = [self._cells(span, look) for span in (*head, *tail)]
        numbers = max((len(cell[0]) for cell in cells), default=0)
        events = min(32, max((len(cell[2]) for cell in cells), default=0))
        for place, (numbered, elapsed, event, said, style) in enumerate(cells):
            if tail and place == len(head):
                lines.append(look.paint(f"   {look.ellipsis} {left_out} more; --all", "dim"))
            before = f"{numbered:>{numbers}}  {elapsed}  {shorten(event, events, look):<{events}}  "
            room = None if width is None else width - len(before)
            if room is None or len(said) <= room:
                lines.append(look.paint(before, "dim") + look.paint(said, style))
                continue
            if room < 24:  # too narrow for columns
                lines.append(look.paint(before.rstrip(), "dim"))
                before, room = " " * 4, max(24, (width or 80) - 4)
                parts = textwrap.wrap(said, room)
            else:
                first, *parts = textwrap.wrap(said, room)
                lines.append(look.paint(before, "dim") + look.paint(first, style))
            lines += [" " * len(before) + look.paint(part, style) for part in parts]
        return [*lines, *_wrap(self.conclusion(), width)]

    def _cells(self, span: _Span, look: TextStyle) -> tuple[str, str, str, str, str]:
        dash = "–" if look.unicode else "-"
        number = f"{span.first}" if span.count == 1 else f"{span.first}{dash}{span.last}"
        elapsed = f"[{span.time - (self._began or 0.0):9.3f}]"
        style = {"fired": "good", "cut": "bad", "ended": "dim"}.get(span.verdict.kind, "warning")
        event = span.event if span.first == span.last else span.event.partition(" of ")[0]
        return (
            number,
            elapsed,
            printable(event),
            printable(self._said(span)).replace("\n", " "),
            style,
        )

    def _said(self, span: _Span) -> str:
        verdict, rule = span.verdict, self._bound
        assert rule is not None
        times = f"{span.count} times: " if span.count > 1 else ""
        value = "" if verdict.value is None else f"value {verdict.value:g}"
        if span.lowest is not None and span.lowest != span.highest:
            value = f"value {span.lowest:g} to {span.highest:g}, at last {verdict.value:g}"
        seen = ", ".join(part for part in (value, verdict.saw) if part)
        if span.count > 1 and verdict.saw:
            seen = f"at last {seen}"
        if verdict.kind == "fired":
            of = f" of {rule.repetitions}" if rule.repetitions > 1 else ""
            said = f"fired ({verdict.fired}{of})" if of else "fired"
            return f"{said}: {seen}" if seen else said
        if verdict.kind == "condition":
            short = rule.condition is not None and rule.condition.comparison is not None
            wanted = describe_condition(rule) if short else "its condition"
            return f"{times}{wanted} was false" + (f": {seen}" if seen else "")
        if verdict.kind == "no value":
            return f"{times}{seen or f'{rule.trigger.metric} had no value'}: not decided"
        if verdict.kind == "trigger":
            return f"{times}its trigger did not match the event" + (f": {seen}" if seen else "")
        if verdict.kind == "backoff":
            if verdict.until is None and span.count > 1:
                return f"{times}held back by its backoff"
            if verdict.until is None:
                more = f"{verdict.skips} more to skip" if verdict.skips else "the last to skip"
                return f"{times}held back by its backoff, {more}"
            until = verdict.until - (self._began or 0.0)
            return f"{times}held back by its backoff until [{until:.3f}]"
        if verdict.kind == "cut":
            return f"{times}switched off{': ' + verdict.note if verdict.note else ''}"
        if verdict.kind == "ended":
            return f"{times}not looked at: the run had ended"
        if verdict.kind == "disabled":
            return f"{times}not looked at: it was disabled" + (f" ({value})" if value else "")
        return f"{times}not looked at: it had fired {format_times(verdict.fired)}, all it may" + (
            f" ({value})" if value else ""
        )

    def conclusion(self) -> str:
        """One sentence: why the rule has fired, or not."""
        assert self._bound is not None
        known = ""
        if self._difference is not None:
            known = f"What came after event {self._until} is not known here. Up to then: "
        return known + conclude(
            self._bound,
            self._tracer,
            kinds=self._kinds,
            fired_at=self._fired_at,
            switched=self._switched,
            ended=self._ended,
            values=self._values,
            last=self._last,
        )


def _wrap(text: str, width: int | None) -> list[str]:
    text = printable(text).replace("\n", " ")
    return [text] if width is None else textwrap.wrap(text, max(width, 40))
