"""FiringLimits of a rule: how often it may fire, for what each, and how long it waits between.

A step of ``binding``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ensemble_core.config.context import Context, nearest
from ensemble_core.config.document import Path
from ensemble_core.model.rules import UNLIMITED, Trigger

__all__ = ["Each", "FiringLimits", "listed_actions", "read_each", "read_firing_limits"]

#: What the instances of a rule are of: an index, or the jobs with the same values of parameters.
Each = Literal["job"] | tuple[str, ...] | None


class FiringLimits(NamedTuple):
    """How often a rule may fire, how many matches and how many seconds it lets pass after each
    time, and at how many looks in a row its condition must hold."""

    repetitions: int
    backoff: int
    backoff_seconds: float
    looks: int


def read_each(
    context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger, has_job: bool
) -> Each:
    """Instances of the rule, by what they are of; ``None`` where it has none, or where ``each`` is
    wrong, which is reported."""
    place = (*path, "each")
    if "each" not in spec or not context.intact(place):
        return None
    given, kind = spec["each"], spec["trigger"]
    idle = "idle" in trigger.wakes
    if given == "job":
        if has_job:
            return "job"
        if idle:
            hint = "let job-done, or job-lost, wake the rule: that is one job that is over"
        else:
            hint = "use a trigger that concerns a job, such as observed or job-done"
        what = f"'each: job' means the event's job, and the trigger {kind!r} has none"
        context.report(place, what, hint=hint, code="bad-each")
        return None
    groups = trigger.groups or (() if trigger.group is None else (trigger.group,))
    if isinstance(given, str) and (has_job or idle):
        what = f"'each' is {given!r}, expected job or a list of parameters"
        names = sorted({name for group in groups for name in context.parameters(group)})
        hint = f"write each: [{given}]"
        if given not in names and nearest(given, ["job"]):
            listed = ", ".join(names) or "PARAMETER"
            hint = "did you mean 'job'?" if has_job else f"write each: [{listed}]"
        context.report(place, what, hint=hint, code="bad-each")
        return None
    if not has_job and not idle:
        if trigger.metric is not None:
            hint = "let observed or job-done wake it, with the statistic in when: mean.NAME > 5"
        else:
            hint = "let a trigger wake the rule that is about a job, or idle"
        what = f"'each' needs a job, or jobs that become idle; the trigger {kind!r} has neither"
        context.report(place, what, hint=hint, code="bad-each")
        return None
    if not groups:
        known = context.known.groups
        fitting = [name for name, one in known.items() if one and {*given} <= {*one.names}]
        example = fitting[0] if fitting else "GROUP"
        what = f"'each: [{', '.join(given)}]' does not say of which job group"
        context.report(place, what, hint=f"add name: {example}", code="bad-each")
        return None
    before = len(context.errors)
    for number, name in enumerate(given):
        _check_parameter(context, (*place, number), name, groups, spec)
    return None if len(context.errors) > before else tuple(given)


def _check_parameter(
    context: Context, path: Path, name: str, groups: Sequence[str], spec: Mapping[str, Any]
) -> None:
    for group in groups:
        known = context.known.groups.get(group)
        if known is None or name in known.names:
            continue
        what = f"the job group {group!r} has no parameter {name!r}"
        context.unknown(path, "parameter", name, known.names, what=what)
        return


def read_firing_limits(
    context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger | None
) -> FiringLimits:
    """How often the rule fires, by itself or by its one action."""
    actions = listed_actions(path, spec)
    values: dict[str, tuple[Any, Path]] = {}
    for key in ("repetitions", "backoff"):
        if key in spec:
            values[key] = (spec[key], (*path, key))
        for inner, action in actions:
            place = (*inner, key)
            if not isinstance(action, dict) or key not in action:
                continue
            if key not in spec and len(actions) == 1:
                values[key] = (action[key], place)
                continue
            what, hint = f"{key!r} stands on the rule and on its action", "keep one of them"
            if key not in spec:
                what = f"{key!r} on one of several actions, which are all done at each firing"
                hint = "write it on the rule, beside 'trigger'"
            where = context.document.at_key(place)
            context.report(place, what, hint=hint, code="bad-pace", where=where)
    found = {key: value for key, (value, place) in values.items() if context.intact(place)}
    backoff = found.get("backoff", 0)
    # A run that is resumed ends more than once.
    ends = trigger is not None and "end" in trigger.wakes
    given = found.get("repetitions", "unlimited" if ends else 1)
    repetitions = UNLIMITED if given == "unlimited" else int(given)
    looks = _looks(context, (*path, "for"), spec, trigger)
    if isinstance(backoff, str):
        return FiringLimits(repetitions, 0, _wait(context, values["backoff"][1], backoff), looks)
    return FiringLimits(repetitions, int(backoff), 0.0, looks)


def _looks(context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger | None) -> int:
    if "for" not in spec or not context.intact(path):
        return 1
    regular = trigger is None or trigger.metric or trigger.every or "heartbeat" in trigger.wakes
    if not regular:
        context.report(
            path,
            f"'for' counts looks in a row, and the trigger {spec['trigger']!r} has no regular ones",
            hint="let metric, heartbeat or interval wake the rule, or remove 'for'",
            code="bad-pace",
            where=context.document.at_key(path),
        )
    return int(spec["for"])


def listed_actions(path: Path, spec: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    """The rule's actions, each with its path."""
    given = spec.get("action")
    if isinstance(given, list):
        return [((*path, "action", i), one) for i, one in enumerate(given)]
    return [((*path, "action"), given)]


def _wait(context: Context, path: Path, text: str) -> float:
    found = context.duration(path, text)
    if found is not None and not text.strip()[-1:].isalpha():
        context.report(
            path,
            f"the backoff {text!r} says neither matches nor a time",
            hint=f'write {text.strip()} for matches to skip, or "{text.strip()}s" for seconds',
            code="bad-duration",
        )
    return found or 0.0
