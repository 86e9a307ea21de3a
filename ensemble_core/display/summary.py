"""Summary of a run: the table of groups, the rules, costs, and how to resume the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ensemble_core.display.text_style import (
    TextStyle,
    count_of,
    format_clock,
    format_duration,
    format_table,
    format_times,
    in_one_line,
    printable,
    shorten,
)
from ensemble_core.display.why_not_fired import why_not_fired
from ensemble_core.engine.report import (
    GroupReport,
    InstanceReport,
    Progress,
    Report,
    RuleReport,
)
from ensemble_core.metrics.store import RESOURCES
from ensemble_core.model.ensemble import amount

if TYPE_CHECKING:
    from ensemble_core.engine.engine import Engine

#: Columns: the heading, the short heading, and a number that says when the column is dropped on a
#: narrow terminal (highest number first; 0: never).
_COLUMNS = (
    ("group", "group", 0),
    ("submitted", "subm", 4),
    ("waiting", "wait", 0),
    ("running", "run", 0),
    ("suspended", "susp", 1),
    ("succeeded", "ok", 0),
    ("failed", "fail", 0),
    ("cancelled", "canc", 3),
    ("reused", "reus", 2),
    ("mean time", "t-run", 5),
    ("mean wait", "t-wait", 6),
)
#: The counters of a group, in the columns between its name and its times.
_COUNTS = (
    *("submitted", "waiting", "running", "suspended"),
    *("success", "failed", "cancelled", "reused"),
)
#: Columns that are shown only if a group has such jobs.
_RARE = ("suspended", "reused")
_NARROWEST_NAME = 6
_NARROWEST = 30
_RULES_SHOWN = 50
#: If a run has no limit on core-hours, they are shown only from this amount on.
_LEAST_SHOWN = 0.005
_INDENT = " " * 8  # indent of reasons on separate lines


def group_table(
    groups: Sequence[GroupReport],
    look: TextStyle,
    width: int | None = None,
    total: Sequence[GroupReport] | None = None,
) -> list[str]:
    """Return a table of groups, at most ``width`` characters wide (``None``: unlimited).

    If groups are given as ``total``, the last row has the sums over these groups.
    """
    rows = []
    for group in groups:
        counts = (str(getattr(group, field)) for field in _COUNTS)
        times = (format_duration(group.mean_duration), format_duration(group.mean_pending))
        rows.append((group.name, *counts, *times))
    if total is not None:
        sums = (sum(getattr(group, field) for group in total) for field in _COUNTS)
        rows.append(("all", *map(str, sums), "", ""))
    kept = list(range(len(_COLUMNS)))
    for field in _RARE:
        if not any(getattr(group, field) for group in groups):
            kept.remove(1 + _COUNTS.index(field))
    short = over = False
    while True:
        heads = [_COLUMNS[column][1] if short else _COLUMNS[column][0] for column in kept]
        shown: list[list[str]] = [heads, *([row[column] for column in kept] for row in rows)]
        lines = format_table(shown, right=[False, *[True] * (len(kept) - 1)], indent=" ")
        widest = max(len(line) for line in lines)
        if width is None or widest <= width:
            break
        if over:
            lines = [line[:width] for line in lines]
            break
        if not short:
            short = True
            continue
        name = max(len(row[0]) for row in shown)
        spare = name - (widest - width)
        goes = max(kept, key=lambda column: _COLUMNS[column][2])
        # Shorten long names before dropping a column, but keep groups distinguishable.
        limit = 12 if _COLUMNS[goes][2] else _NARROWEST_NAME
        if name > limit and spare >= limit:
            rows = [(shorten(row[0], spare, look), *row[1:]) for row in rows]
        elif _COLUMNS[goes][2]:
            kept.remove(goes)
        else:
            rows = [(shorten(row[0], max(1, spare), look), *row[1:]) for row in rows]
            over = True
    lines[0] = look.paint(lines[0], "bold")
    return lines


def rule_lines(rules: Sequence[RuleReport], look: TextStyle, width: int | None = None) -> list[str]:
    """Return a line for each rule: how often it fired, or why it never fired.

    If a line would exceed ``width``, the reason is on separate lines.
    """
    fired = [rule for rule in rules if rule.fired][:_RULES_SHOWN]
    never = [rule for rule in rules if not rule.fired][:_RULES_SHOWN]
    rows = [
        (
            f"fired {rule.fired}" if rule.fired else "never",
            rule.id,
            printable(rule.label),
            _state_now(rule) if rule.fired else why_not_fired(rule),
        )
        for rule in (*fired, *never)
    ]
    shown = format_table(rows, indent=" ")
    if width is not None and any(len(line) > width for line in shown):
        heads = format_table([row[:3] for row in rows], indent=" ")
        import textwrap

        wrap = textwrap.TextWrapper(
            max(20, width), initial_indent=_INDENT, subsequent_indent=_INDENT
        ).wrap
        shown = ["\n".join([head, *wrap(row[3])]) for head, row in zip(heads, rows, strict=True)]
    lines = [
        look.paint(line, "warning") if row[0] == "never" else line
        for row, line in zip(rows, shown, strict=True)
    ]
    left = len(rules) - len(rows)
    if left:
        lines.append(f" {look.ellipsis} and {left} more rules; --json has them all")
    return lines


def instance_cells(instance: InstanceReport) -> tuple[str, ...]:
    """Return the cells for an instance under ``use:``: whether it is on, and how often its rules
    fired.
    """
    times = len(instance.switched)
    switched = f"switched {format_times(times)}" if times else ""
    return (
        "on" if instance.on else "off",
        printable(instance.name),
        printable(instance.algorithm or "rules of the file"),
        f"{count_of(instance.rules, 'rule')}, fired {format_times(instance.fired)}",
        switched,
    )


def _state_now(rule: RuleReport) -> str:
    if rule.cut:
        return f"then switched off: {printable(rule.cut)}"
    if rule.passed_over and rule.enabled:
        each, often = rule.spec.get("each", "job"), format_times(rule.repetitions)
        of = each if isinstance(each, str) else f"[{', '.join(each)}]"
        return f"matched {format_times(rule.passed_over)} more after firing {often} (each: {of})"
    if not rule.enabled:
        return "then disabled"
    # The rule has fired for other jobs. Explain why the next job did not trigger it.
    if str(rule.spec.get("trigger")).startswith("job-") and rule.fired == rule.repetitions:
        return f"reached its limit (repetitions: {rule.repetitions})"
    return ""


def progress_text(progress: Progress) -> str:
    """Describe the progress of a run: ``jobs 12 of 40, 3m 20s to go``, or ``jobs 12 of 40 so
    far``.
    """
    if not progress.planned:
        return "no jobs yet"
    told = f"jobs {progress.done} of {progress.planned}"
    if progress.open:
        return f"{told} so far"
    if progress.to_go is not None and progress.done < progress.planned:
        return f"{told}, about {format_duration(progress.to_go)} to go"
    return told


def cost_text(progress: Progress) -> str:
    """Describe the costs of a run: core-hours, and other limited resources with their limits."""
    parts = []
    for name in RESOURCES:
        used, most = progress.used.get(name, 0.0), progress.limits.get(name)
        if most is None and (name != "core_hours" or used < _LEAST_SHOWN):
            continue
        unit = name.replace("_", "-").replace("gpu", "GPU")
        told = f"{unit} {amount(used)}"
        if most is not None:
            committed = progress.committed.get(name, 0.0)
            told += f" + {amount(committed)}" if committed else ""
            told += f" of {amount(most)}"
        parts.append(told)
    if progress.held:
        parts.append(f"{progress.held} held")
    return ", ".join(parts)


def _failure_lines(groups: Sequence[GroupReport]) -> list[str]:
    """Return by group the causes of failures, unless all jobs just exited with an error, and who
    has cancelled jobs of the run.
    """
    lines = []
    for group in groups:
        if group.causes.keys() - {"exit"}:
            most = sorted(group.causes.items(), key=lambda item: (-item[1], item[0]))
            told = ", ".join(f"{number} by {cause}" for cause, number in most)
            lines.append(f" failed of {group.name}: {told}")
        if group.cancelled_by:
            most = sorted(group.cancelled_by.items(), key=lambda item: (-item[1], item[0]))
            told = ", ".join(f"{number} by {who}" for who, number in most)
            lines.append(f" cancelled of {group.name}, not by this run: {told}")
    return lines


def report_lines(report: Report, look: TextStyle, width: int | None = None) -> list[str]:
    """Return the table of groups, the lines about rules, and the warnings."""
    lines: list[str] = []
    if report.groups:
        total = report.groups if len(report.groups) > 1 else None
        lines += group_table(report.groups, look, width, total)
        lines += [look.paint(line, "bad") for line in _failure_lines(report.groups)]
        cost = cost_text(report.progress)
        lines += [f" {cost}"] if cost else []
    if report.rules:
        lines += [look.paint(" rules", "bold"), *rule_lines(report.rules, look, width)]
    if report.instances:
        lines.append(look.paint(" instances", "bold"))
        rows = [instance_cells(each) for each in report.instances]
        lines += format_table(rows, indent=" ")
    if report.warnings:
        lines.append(look.paint(" warnings", "bold"))
        lines += [look.paint(f" {printable(text)}", "warning") for text in report.warnings]
    return lines


def resume_command(tag: str, engine: Engine, *, limited: bool) -> str:
    """Return the command that resumes a run.

    If limits ended the run, the command raises these limits.
    """
    command = f"ensemble resume {in_one_line(tag)}"
    budget = engine.state.table.budget
    if limited and budget is not None:
        raised = budget.raised(engine.state.table.held_jobs(), engine.state.now)
        command += "".join(f" --set limits.{name}={amount(most)}" for name, most in raised.items())
    return command


def kept_secrets(engine: Engine) -> list[str]:
    """Return a line about inherited variables that jobs in the queue have not got yet."""
    groups = [record.source for _, record in engine.in_queue() if record.started is None]
    names = {name for group in groups if group is not None for name in group.environment_from}
    if not names:
        return []
    kept = ", ".join(sorted(names))
    return [f"  until waiting jobs start, their queue keeps {kept} for them (environment_from)"]


def summary(
    report: Report,
    *,
    name: str,
    reason: str,
    exit_code: int,
    seconds: float,
    look: TextStyle,
    width: int | None = None,
    kept: str | None = None,
    at: float | None = None,
    how: str = "ended",
) -> list[str]:
    """Return the last lines about a run.

    - ``how``: how the run ended.
    - ``at``: the time of the end.
    - ``kept``: the folder with the output of the jobs.
    """
    if width is not None:
        width = max(width, _NARROWEST)
    clock = "" if at is None else f", at {format_clock(at, at - seconds)}"
    lines = [
        "",
        look.paint(f"{printable(name)}: {how} after {format_duration(seconds)}{clock}", "bold"),
    ]
    lines += report_lines(report, look, width)
    if kept is not None:
        lines.append(f" output of jobs: {printable(kept)}")
    said = f" exit code {exit_code}" + (f": {printable(reason)}" if reason else "")
    lines.append(look.paint(said, "bad" if exit_code else "good"))
    return lines
