"""Report of simulations, as text for people and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ensemble_core.cli.toolkit import format_duration, format_table
from ensemble_simulate.forecast import Figures, Study, difference, quantiles
from ensemble_simulate.models import Model


def once_lines(used: float, offered: float, model: Model, stubbed: Collection[str]) -> list[str]:
    """Return what follows the summary of a single run: core-hours, skipped actions, model."""
    share = f" ({used / offered:.0%} of {offered / 3600:.3g})" if offered else ""
    return [f"  core-hours used: {used / 3600:.3g}{share}", *_stubbed_lines(stubbed), *basis(model)]


def _stubbed_lines(names: Collection[str]) -> list[str]:
    told = f"  actions not carried out: {', '.join(sorted(names))}"
    return [told] if names else []


def basis(model: Model) -> list[str]:
    """Return the lines that describe the model of each job group."""
    lines = ["  the behaviour of jobs comes from a model, not from a measurement of this study:"]
    for name, group in model.groups.items():
        text = "as recorded" if group.duration is None else group.duration.text
        lines.append(f"    {name}: {text} ({group.source})")
    return lines


#: Number of a run's last firings from which a rule counts as part of an endless loop.
_ROUND = 20

#: Limits that only slow a run down or disable rules.
_NEVER_USED_UP = ("submits_per_second", "chain")
#: Figures that are shown only if they are not 0 in some run.
_WHERE_ANY = ("GPU-hours", "cost")


def _rows(found: Sequence[Figures]) -> dict[str, list[float]]:
    return {
        "length": [each.seconds for each in found],
        "core-hours": [each.used / 3600 for each in found],
        "node-hours": [each.node_hours for each in found],
        "GPU-hours": [each.gpu_hours for each in found],
        "idle core-hours": [(each.offered - each.used) / 3600 for each in found],
        "jobs": [float(each.jobs) for each in found],
        "failed": [float(each.failed) for each in found],
        "cancelled": [float(each.cancelled) for each in found],
        "cost": [each.cost for each in found if each.cost is not None],
    }


def _shown_rows(found: Sequence[Figures]) -> list[tuple[str, list[float]]]:
    rows = _rows(found).items()
    return [(what, values) for what, values in rows if what not in _WHERE_ANY or any(values)]


def never_fired(found: Sequence[Figures]) -> list[str]:
    """Return the rules that fired in none of these runs."""
    return [rule for rule in found[0].fired if all(not each.fired[rule].times for each in found)]


def loops(found: Sequence[Figures]) -> list[str]:
    """Return the rules in endless loops, most frequent first.

    A rule is in a loop if it fired repeatedly among the last firings of a run that did not end in
    time or was ended by a limit.
    """
    last: Counter[str] = Counter()
    for each in found:
        if not each.over or each.limited:
            last.update({rule: times for rule, times in each.last.items() if times >= _ROUND})
    return [rule for rule, _ in last.most_common(5)]


def figures_of(study: Study, found: Sequence[Figures]) -> dict[str, Any]:
    """Return the report of many runs as plain data."""
    return {
        "runs": len(found),
        "seeds": [found[0].seed, found[-1].seed],
        "quantiles": {what: quantiles(values) for what, values in _shown_rows(found)},
        "exit_codes": {str(code): n for code, n in Counter(e.exit_code for e in found).items()},
        "not_ended": sum(not each.over for each in found),
        "rules": {rule: _rule(found, rule) for rule in found[0].fired},
        "limited": sum(each.limited for each in found),
        "limits": reached(study, found),
        "used_up": used_up(study, found),
        "never_fired": never_fired(found),
        "loops": loops(found),
        "stubbed": sorted(_all_stubbed(found)),
    }


def _all_stubbed(found: Sequence[Figures]) -> frozenset[str]:
    return frozenset().union(*(each.stubbed for each in found))


def reached(study: Study, found: Sequence[Figures]) -> dict[str, float]:
    """Return the share of runs in which each limit of the file took effect, by name."""
    return {name: sum(name in each.reached for each in found) / len(found) for name in study.limits}


def used_up(study: Study, found: Sequence[Figures]) -> dict[str, float]:
    """Return the share of runs in which each limit of the file was used up, by name.

    The limits ``submits_per_second`` and ``chain`` are omitted, because they cannot be used up.
    """
    names = [name for name in study.limits if name not in _NEVER_USED_UP]
    return {name: sum(name in each.used_up for each in found) / len(found) for name in names}


def _rule(found: Sequence[Figures], rule: str) -> dict[str, Any]:
    fired = [each.fired[rule] for each in found if each.fired[rule].times]
    return {
        "share": len(fired) / len(found),
        "times": quantiles([float(each.times) for each in fired]) if fired else None,
        "first": quantiles([each.first for each in fired]) if fired else None,
        "cancelled": sum(each.fired[rule].cancelled for each in found) / len(found),
        "cancelled_good": sum(each.fired[rule].good for each in found) / len(found),
    }


def compare_studies(found: Sequence[Sequence[Figures]]) -> dict[str, tuple[float, float]]:
    """Return how much each figure of the second study differs from the first, on average.

    Each mean difference comes with half the width of its 95 % confidence interval.
    """
    if len(found) < 2:
        return {}
    before, after = map(_rows, found)
    return {
        what: difference(before[what], after[what])
        for what in before
        if what not in _WHERE_ANY or any(before[what]) or any(after[what])
    }


def shown(what: str, value: float) -> str:
    """Return a figure as readable text."""
    return format_duration(value) if what == "length" else f"{value:.3g}"


def forecast_lines(name: str, study: Study, found: Sequence[Figures]) -> list[str]:
    """Return the report of many runs of one file."""
    lines = [f"{name}: {len(found)} runs, seeds {found[0].seed} to {found[-1].seed}"]
    table = [["", "5 %", "median", "95 %"]]
    for what, values in _shown_rows(found):
        table.append([what, *(shown(what, each) for each in quantiles(values))])
    lines += _indent_table(table)
    codes = Counter(each.exit_code for each in found)
    told = ", ".join(f"{code} in {n / len(found):.1%}" for code, n in sorted(codes.items()))
    lines.append(f"  exit code {told}")
    lines += _unfinished_lines(study, found)
    table = [["rule", "fired in", "times", "first after"]]
    for rule in found[0].fired:
        about: Mapping[str, Any] = _rule(found, rule)
        table.append(
            [
                rule,
                f"{about['share']:.1%} of runs",
                _span(about["times"], "{:.3g}".format),
                _span(about["first"], format_duration),
            ]
        )
    lines += _indent_table(table)
    lines += _cancel_lines(found)
    never = never_fired(found)
    if never:
        lines.append(f"  never fired: {', '.join(never)}")
    lines += _stubbed_lines(_all_stubbed(found))
    return [*lines, *basis(study.model)]


def _cancel_lines(found: Sequence[Figures]) -> list[str]:
    """Return the rules that cancel jobs, and how many of these would have succeeded."""
    lines = []
    for rule in found[0].fired:
        about = _rule(found, rule)
        if about["cancelled"]:
            share = about["cancelled_good"] / about["cancelled"]
            of = sum(each.fired[rule].of for each in found) / len(found)
            lines.append(
                f"  {rule} cancels {about['cancelled']:.3g} jobs a run, "
                f"{about['cancelled'] / of:.0%} of those of the group; "
                f"{share:.0%} of them would have succeeded"
            )
    return lines


def _unfinished_lines(study: Study, found: Sequence[Figures]) -> list[str]:
    lines = []
    running = [each for each in found if not each.over]
    if running:
        after = format_duration(study.until)
        lines.append(f"  {len(running)} of {len(found)} runs did not end within {after}")
        lines += [f"    {each.reason}" for each in running[:1] if each.seconds < study.until]
    all_of_it = used_up(study, found)
    for name, share in reached(study, found).items():
        most = study.limits[name]
        told = format_duration(most) if name == "wall" else f"{most:g}"
        said = [f"was used up in {all_of_it[name]:.1%} of runs"] if name in all_of_it else []
        if name == "chain":
            said = [f"disabled rules in {share:.1%} of runs"] if share else []
        elif name != "wall":
            held = share - all_of_it.get(name, 0.0)
            said.append(f"held jobs temporarily in {held:.1%}" + " of runs" * (not said))
        if said:
            lines.append(f"  limits.{name} ({told}) {' and '.join(said)}")
    limited = [each for each in found if each.limited]
    if limited:
        lines.append(f"  a limit ended {len(limited)} of {len(found)} runs, the first because of:")
        lines.append(f"    {limited[0].reason}")
    around = loops(found)
    if around:
        lines.append(f"  rules in an endless loop: {', '.join(around)}")
    return lines


def _span(values: Sequence[float] | None, told: Callable[[float], str]) -> str:
    """Return the median, with quantiles if they differ."""
    if values is None:
        return "-"
    low, middle, high = map(told, values)
    return middle if low == high else f"{middle} ({low} to {high})"


def _indent_table(table: Sequence[Sequence[str]]) -> list[str]:
    return format_table(table, indent="  ")
