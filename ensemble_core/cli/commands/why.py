"""``ensemble why RUN [RULE]``: explains why a rule fired or did not fire."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import click

from ensemble_core.cli.error_format import print_error
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.name_completion import rules
from ensemble_core.cli.options import KeptRun, complete_names, kept_run_options
from ensemble_core.cli.why_text import Span, Story, conclude, describe_rule, describe_span
from ensemble_core.display.summary import rule_lines
from ensemble_core.display.text_style import (
    TextStyle,
    print_line,
    printable,
    shorten,
    style_of,
    terminal_width,
)
from ensemble_core.engine.report import InstanceReport
from ensemble_core.engine.rule_trace import INACTIVE, RuleTracer, Verdict, event_words
from ensemble_core.errors import UsageError, did_you_mean
from ensemble_core.journal.replay import Difference, Replay
from ensemble_core.model.events import Event
from ensemble_core.model.rules import BoundRule
from ensemble_core.session.queue_status import queue_status

#: How many spans are shown from the start and from the end, and how many are kept in memory.
_SHOWN, _REMEMBERED = 12, 1000


@click.command()
@kept_run_options()
@click.argument(
    "rule",
    metavar="[RULE]",
    required=False,
    shell_complete=complete_names(rules),
)
@click.option("--all", "everything", is_flag=True, help="Show all results, including equal ones.")
@click.option("--job", metavar="JOB", help="Only what concerns this job, such as sim.3.")
@click.option(
    "--each",
    metavar="NAME=VALUE",
    multiple=True,
    help="Only jobs with this parameter value, such as T=2.3. May be repeated.",
)
@click.option(
    "--reuse",
    is_flag=True,
    help="Explain for each job, or the job given instead of RULE, which earlier job it reuses, "
    "or why none.",
)
def why(
    kept: KeptRun,
    rule: str | None,
    everything: bool,
    job: str | None,
    each: tuple[str, ...],
    reuse: bool,
    as_json: bool,
) -> int:
    """Explain why a rule fired or did not fire.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. RULE is the id of a rule, or
    the name of an entry under 'use:'.

    The command shows whether the rule fired, and why, for each event that could trigger it.
    Consecutive equal results share a line. For an entry under 'use:', it lists the entry's rules,
    and when they were active. Without RULE, it lists how often each rule fired, or why it never
    fired. If the run has pilots, it lists these too, and why no other one is requested.
    """
    if reuse:
        return _print_reuse(kept, rule or job, as_json)
    about = _VerdictFilter.read(job, each)
    if rule is not None and not about:
        instance = _instance_name(kept, rule)
        if instance is not None:
            return _print_instance(kept, instance, as_json)
    if rule is not None:
        return _Answer(kept, rule, everything, about).tell(as_json)
    if about:
        raise UsageError(
            "--job and --each need a RULE",
            hint=f"add the rule's id; 'ensemble why {kept.tag}' lists all rules",
            code="bad-option",
        )
    return _list_rules(kept, as_json)


def _print_reuse(kept: KeptRun, job: str | None, as_json: bool) -> int:
    """Print which jobs are reused, and why the others are not."""
    from ensemble_core.session.reuse_explanations import explain

    for name, reused, reason in explain(kept.journal, job):
        if as_json:
            told = {"part": None, "text": None, "job": None} if reason is None else reason._asdict()
            print_line(to_json({"run": kept.tag, "job": name, "reused": reused, "not": told}))
        elif reason is None:
            print_line(printable(f"{name}: reused: {reused}"))
        else:
            nearest = "" if reason.job is None else f" ({reason.job})"
            print_line(printable(f"{name}: not reused: {reason.text}{nearest}"))
    return 0


def _list_rules(kept: KeptRun, as_json: bool) -> int:
    rules = kept.recover(compare=False).engine.report().rules
    lines, queue = queue_status(kept)
    if as_json:
        told = {"run": kept.tag, "rules": [asdict(rule) for rule in rules]}
        print_line(to_json(told if queue is None else {**told, "queue": queue}))
        return 0
    for line in rule_lines(rules, style_of(sys.stdout), terminal_width(sys.stdout)):
        print_line(line)
    for line in lines:
        print_line(printable(line))
    return 0


def _instance_name(kept: KeptRun, name: str) -> str | None:
    """Return the name if it is that of an instance under ``use:``, or else ``None``."""
    texts = kept.journal.texts()
    return name if texts and name in kept.loading(texts[-1]).instances else None


def _print_instance(kept: KeptRun, name: str, as_json: bool) -> int:
    """Print the rules of an instance, and when the instance was active."""
    engine = kept.recover(compare=False).engine
    report = engine.report()
    (instance,) = [each for each in report.instances if each.name == name]
    rules = [rule for rule in report.rules if rule.instance == name]
    began = next((row.event().timestamp for row in kept.journal.rows()), 0.0)
    if as_json:
        about = {"instance": instance.to_dict(), "rules": [asdict(rule) for rule in rules]}
        print_line(to_json({"run": kept.tag, **about}))
        return 0
    look, width = style_of(sys.stdout), terminal_width(sys.stdout)
    made = instance.algorithm or "rules of the file"
    version = f" ({instance.version})" if instance.version else ""
    print_line(look.paint(printable(f"{name}: {made}{version}"), "bold"))
    print_line(printable(f" {_active_times(instance, began, look)}"))
    for line in rule_lines(rules, look, width):
        print_line(line)
    return 0


def _active_times(instance: InstanceReport, began: float, look: TextStyle) -> str:
    """Return the times at which an instance was switched on or off, as text."""
    told = ["on from the start"] if instance.first else ["off at the start"]
    told += [
        f"{'on' if on else 'off'} at {max(0.0, time - began):.3f} s"
        for time, on in instance.switched
    ]
    if len(told) > 13:
        told = [*told[:6], look.ellipsis, *told[-6:]]
    return ", ".join(told)


class _VerdictFilter(NamedTuple):
    """Selection of verdicts by job, by index (with all its attempts), or by values of
    parameters.
    """

    job: str | None = None
    parameters: Mapping[str, str] = {}

    @classmethod
    def read(cls, job: str | None, each: Sequence[str]) -> _VerdictFilter | None:
        """Parse the selection on the command line. Return ``None`` if everything is selected."""
        parameters = {}
        for text in each:
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise UsageError(
                    f"--each {text} is not NAME=VALUE",
                    hint="give a parameter and its value: --each T=2.3",
                    code="bad-option",
                )
            parameters[name.strip()] = value.strip()
        return cls(job, parameters) if job or parameters else None

    def concerns(self, verdict: Verdict) -> bool:
        """Return True if this verdict is selected."""
        group, dot, number = verdict.job.rpartition(".")
        index = group + dot + number.partition("-")[0]
        return (self.job is None or self.job in (verdict.job, index)) and all(
            name in verdict.parameters and _equals(verdict.parameters[name], value)
            for name, value in self.parameters.items()
        )

    def __str__(self) -> str:
        parts = [self.job] if self.job else []
        return " and ".join([*parts, *(f"{k}={v}" for k, v in self.parameters.items())])


def _equals(value: object, written: str) -> bool:
    try:
        return str(value) == written or (
            isinstance(value, (int, float)) and float(value) == float(written)
        )
    except ValueError:
        return False


class _Answer:
    """The explanation for one rule."""

    def __init__(
        self, kept: KeptRun, rule: str, everything: bool, about: _VerdictFilter | None = None
    ) -> None:
        self._kept = kept
        self._about = about
        self._everything = everything
        self._spans: list[Span] = []
        self._omitted = 0
        self._began = 0.0
        #: The error that stopped the replay before the end of the journal.
        self._difference: Difference | None = None
        self.rule = self._find(rule)
        replay = Replay(kept.journal, kept.loading)
        self._story = Story(RuleTracer(replay.engine, self.rule))
        bound = self._replay(replay)
        if bound is None:
            raise self._no_such(rule, list(replay.engine.state.rules.states))
        self._bound = bound

    def _find(self, name: str) -> str:
        """Return the id of the rule. ``name`` is the id, or the label of only one rule."""
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
        return name  # the rule may have been added during the run

    def _no_such(self, name: str, ids: list[str]) -> UsageError:
        shown = ", ".join(ids[:12]) + (" …" if len(ids) > 12 else "")
        listed = f"its rules: {shown or 'none'}"
        return UsageError(
            f"run {self._kept.tag} has no rule {name!r}",
            hint=did_you_mean(name, ids, listed, form="did you mean {}?"),
            code="no-such-rule",
        )

    def _replay(self, replay: Replay) -> BoundRule | None:
        """Replay the events. Return the last form of the rule, or ``None`` if it never existed."""
        story = self._story
        try:
            for row, event, decisions in replay.steps(self._kept.journal.last()):
                if row.seq == 1:
                    self._began = event.timestamp
                for verdict in story.tracer.verdicts:
                    if self._about is not None and not self._about.concerns(verdict):
                        continue
                    self._add_verdict(verdict, row.seq, event)
                story.follow(row.seq, event, decisions)
        except Difference as error:
            self._difference = error
            story.find_rule()
        return story.rule

    def _add_verdict(self, verdict: Verdict, seq: int, event: Event) -> None:
        self._story.take(verdict, seq, event.timestamp)
        last = self._spans[-1] if self._spans and not self._everything else None
        if last is not None and last.verdict.kind == verdict.kind != "fired":
            last.take(verdict, seq)
            return
        self._spans.append(Span(verdict, seq, event.timestamp, event_words(event)))
        if not self._everything and len(self._spans) > 2 * _REMEMBERED:
            del self._spans[_REMEMBERED]
            self._omitted += 1

    # -- telling ---------------------------------------------------------------------------------

    def tell(self, as_json: bool) -> int:
        lines = [to_json(self._data())] if as_json else self._lines(style_of(sys.stdout))
        for line in lines:
            print_line(line)
        if self._difference is not None:
            sys.stdout.flush()
            print_error(self._difference)
            return 1
        return 0

    def _data(self) -> dict[str, Any]:
        rule = self._bound
        counts = {kind: span.count for kind, span in self._story.totals.items()}
        return {
            "run": self._kept.tag,
            "rule": self.rule,
            "label": rule.label or self.rule,
            "when": rule.condition.text if rule.condition else "",
            "repetitions": rule.repetitions,
            "spec": dict(rule.spec),
            "considered": sum(count for kind, count in counts.items() if kind not in INACTIVE),
            "fired": counts.get("fired", 0),
            "verdicts": counts,
            "spans": [span.to_dict(self._began) for span in self._spans],
            "omitted": self._omitted,
            "conclusion": self.conclusion(),
            "difference": self._difference.to_dict() if self._difference is not None else None,
        }

    def _lines(self, look: TextStyle) -> list[str]:
        rule = self._bound
        width = terminal_width(sys.stdout)
        lines = [
            look.paint(line, "bold") for line in _wrap(f"{rule.id}: {describe_rule(rule)}", width)
        ]
        spans, left_out = self._spans, 0
        if not self._everything and len(spans) > 2 * _SHOWN + 1:
            left_out = self._omitted + len(spans) - 2 * _SHOWN
            spans = spans[:_SHOWN] + spans[-_SHOWN:]
        cells = [self._cells(span, look) for span in spans]
        numbers = max((len(cell[0]) for cell in cells), default=0)
        events = min(32, max((len(cell[2]) for cell in cells), default=0))
        for place, (numbered, elapsed, event, said, style) in enumerate(cells):
            if left_out and place == _SHOWN:
                lines.append(look.paint(f"   {look.ellipsis} {left_out} more; --all", "dim"))
            before = f"{numbered:>{numbers}}  {elapsed}  {shorten(event, events, look):<{events}}  "
            if width is None or len(before) + len(said) <= width:
                lines.append(look.paint(before, "dim") + look.paint(said, style))
                continue
            # The format of the summary for a rule that never fired.
            parts = textwrap.wrap(said, max(24, width - 8))
            lines.append(look.paint(before.rstrip(), "dim"))
            lines += [" " * 8 + look.paint(part, style) for part in parts]
        return [*lines, *_wrap(self.conclusion(), width)]

    def _cells(self, span: Span, look: TextStyle) -> tuple[str, str, str, str, str]:
        dash = "–" if look.unicode else "-"
        number = f"{span.first}" if span.count == 1 else f"{span.first}{dash}{span.last}"
        elapsed = f"[{span.time - self._began:9.3f}]"
        style = {"fired": "good", "cut": "bad", "ended": "dim"}.get(span.verdict.kind, "warning")
        event = span.event if span.first == span.last else span.event.partition(" of ")[0]
        said = printable(describe_span(span, self._bound, self._began)).replace("\n", " ")
        return number, elapsed, printable(event), said, style

    def conclusion(self) -> str:
        """Return one sentence that explains why the rule has fired or has not."""
        said = conclude(self._bound, self._story)
        if self._about is not None:
            never = f"It was not considered for {self._about}."
            said = f"For {self._about}: {said[0].lower()}{said[1:]}" if self._spans else never
        if self._difference is None:
            return said
        until = self._difference.row.seq - 1
        return f"Events after {until} are unknown. Until then: {said}"


def _wrap(text: str, width: int | None) -> list[str]:
    text = printable(text).replace("\n", " ")
    return [text] if width is None else textwrap.wrap(text, max(width, 40))
