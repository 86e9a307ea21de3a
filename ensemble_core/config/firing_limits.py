"""Reads the keys that limit firings of a rule: ``repetitions``, ``backoff``, ``for`` and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ensemble_core.config.context import Context, nearest
from ensemble_core.config.document import Path
from ensemble_core.errors import EnsembleError
from ensemble_core.model.durations import seconds
from ensemble_core.model.rules import UNLIMITED, Trigger

#: Value of the key ``each``: the rule has an instance for each job index (``job``), or for each
#: combination of these parameters.
Each = Literal["job"] | tuple[str, ...] | None


class FiringLimits(NamedTuple):
    """Limits of a rule: how often it may fire, and how long it waits after firing."""

    repetitions: int
    #: After firing, the rule skips ``backoff`` matches, or all matches for ``backoff_seconds``. One
    #: of them is 0.
    backoff: int
    backoff_seconds: float
    #: Number of consecutive checks at which the condition must be true (key ``for``).
    checks: int
    #: For how many seconds it must be true (key ``for`` with a unit). 0: ``checks`` counts.
    lasts: float
    #: Whether the rule only fires when its condition becomes true (key ``crosses``), and whether
    #: that may be at the first check (``at_first``).
    crosses: bool
    at_first: bool


def read_each(
    context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger, has_job: bool
) -> Each:
    """Return the checked value of ``each``.

    Return ``None`` if the rule has no ``each``, and after reporting an error.
    """
    place = (*path, "each")
    if "each" not in spec or not context.is_valid(place):
        return None
    given, kind = spec["each"], spec["trigger"]
    idle = "idle" in trigger.events
    if given == "job":
        if has_job:
            return "job"
        if idle:
            hint = "use the trigger job-done or job-lost: it concerns one finished job"
        else:
            hint = "use a trigger that concerns a job, such as observed or job-done"
        what = f"'each: job' needs the event's job, but the trigger {kind!r} has no job"
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
            hint = "use the trigger observed or job-done, with the statistic in when: mean.NAME > 5"
        else:
            hint = "use a trigger that concerns a job, or idle"
        what = f"'each' needs a trigger that concerns a job, or idle; got {kind!r}"
        context.report(place, what, hint=hint, code="bad-each")
        return None
    if not groups:
        known = context.known.groups
        fitting = [name for name, one in known.items() if one and {*given} <= {*one.names}]
        example = fitting[0] if fitting else "GROUP"
        what = f"'each: [{', '.join(given)}]' needs a job group"
        context.report(place, what, hint=f"add 'name: {example}'", code="bad-each")
        return None
    before = len(context.errors)
    for number, name in enumerate(given):
        _check_parameter(context, (*place, number), name, groups)
    return None if len(context.errors) > before else tuple(given)


def _check_parameter(context: Context, path: Path, name: str, groups: Sequence[str]) -> None:
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
    """Return the firing limits, which are keys of the rule or of its only action."""
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
            what, hint = f"{key!r} is set on both the rule and its action", "keep one of them"
            if key not in spec:
                what = f"{key!r} is set on one of several actions, which always run together"
                hint = "write it on the rule, next to 'trigger'"
            where = context.document.at_key(place)
            context.report(place, what, hint=hint, code="bad-pace", where=where)
    found = {key: value for key, (value, place) in values.items() if context.is_valid(place)}
    backoff = found.get("backoff", 0)
    # A run that was resumed can end more than once.
    ends = trigger is not None and "end" in trigger.events
    given = found.get("repetitions", "unlimited" if ends else 1)
    repetitions = UNLIMITED if given == "unlimited" else int(given)
    required = _required_checks(context, (*path, "for"), spec, trigger)
    crossing = _crossing(context, path, spec, trigger)
    if isinstance(backoff, str):
        wait = (
            _seconds(context, values["backoff"][1], backoff, "backoff {}", "skip {} matches") or 0.0
        )
        return FiringLimits(repetitions, 0, wait, *required, *crossing)
    return FiringLimits(repetitions, int(backoff), 0.0, *required, *crossing)


def _crossing(
    context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger | None
) -> tuple[bool, bool]:
    """Return the values of ``crosses`` and ``at_first`` as truth values."""
    crosses, at_first = "crosses" in spec, spec.get("at_first") is True
    what = hint = ""
    place = (*path, "crosses")
    if crosses and "when" in spec:
        what, hint = "a rule has 'when' or 'crosses', not both", "join the conditions with 'and'"
    elif crosses and trigger is not None and {"start", "end"} & {*trigger.events}:
        what = f"'crosses' needs several checks, but {spec['trigger']!r} occurs once"
        hint = "write 'when' instead"
    elif "at_first" in spec and not crosses:
        place = (*path, "at_first")
        what, hint = "'at_first' needs 'crosses'", "write 'crosses' instead of 'when', or remove it"
    if what:
        where = context.document.at_key(place)
        context.report(place, what, hint=hint, code="bad-pace", where=where)
    return crosses, at_first


def _required_checks(
    context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger | None
) -> tuple[int, float]:
    """Return for how many checks, and for how many seconds, the condition must be true."""
    if "for" not in spec or not context.is_valid(path):
        return 1, 0.0
    given, where = spec["for"], context.document.at_key(path)
    regular = trigger is None or trigger.metric or trigger.every or "heartbeat" in trigger.events
    rows = trigger is not None and trigger.events == ("observed",)
    if not regular and not (rows and "each" in spec):
        hint = "use the trigger 'metric', 'heartbeat' or 'interval', or remove 'for'"
        if rows:
            hint = "add 'each: job', so that the rows of each job are checked apart"
        context.report(
            path,
            f"'for' needs consecutive checks, but rules with the trigger {spec['trigger']!r} "
            + ("check rows of several jobs" if rows else "are not checked regularly"),
            hint=hint,
            code="bad-pace",
            where=where,
        )
    if not isinstance(given, str):
        return int(given), 0.0
    found = _seconds(context, path, given, "value {} of 'for'", "count {} checks")
    if found is None:
        return 1, 0.0
    wall = context.document.data.get("limits")
    wall = wall.get("wall") if isinstance(wall, dict) else None
    if not found:
        hint = "write how long the condition must be true, such as 5m, or remove 'for'"
        context.report(path, "the time in 'for' is 0", hint=hint, code="out-of-range")
    elif found and not {"when", "crosses"} & spec.keys():
        context.report(
            path,
            "the rule has 'for', but no condition ('when') that could be true for some time",
            hint="add 'when', or use the trigger 'interval' with 'seconds'",
            code="bad-pace",
            where=where,
        )
    elif found and wall is not None and (most := _quiet_seconds(wall)) and found >= most:
        context.report(
            path,
            f"the condition would have to be true for {given}, but the run lasts at most {wall} "
            "(limits.wall), so the rule could never fire",
            hint="shorten 'for', or raise limits.wall",
            code="out-of-range",
        )
    return 1, found


def _quiet_seconds(given: object) -> float:
    """Return a duration in seconds, or 0 if it is invalid."""
    try:
        return seconds(given)
    except EnsembleError:
        return 0.0


def listed_actions(path: Path, spec: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    """Return the actions of a rule, each with its path."""
    given = spec.get("action")
    if isinstance(given, list):
        return [((*path, "action", i), one) for i, one in enumerate(given)]
    return [((*path, "action"), given)]


def _seconds(context: Context, path: Path, text: str, what: str, count: str) -> float | None:
    """Return a duration with a unit, or ``None`` after reporting an error.

    For the error: ``what`` names the value, and ``count`` says what the same number without quotes
    would do.
    """
    found = context.duration(path, text)
    if found is None and "seconds (90)" in (context.errors[-1].hint or ""):
        # Here, 90 would not mean seconds.
        unit = count.split()[-1]
        context.errors[-1].hint = f'write "90s", "10m" or "1h30m"; 90 is a number of {unit}'
    if found is not None and not text.strip()[-1:].isalpha():
        number = text.strip()
        plain = f"to {count.format(number)}, write {number} without quotes; " * number.isdecimal()
        context.report(
            path,
            f"the {what.format(repr(text))} is neither a number of {count.split()[-1]} nor a "
            "duration",
            hint=f'{plain}to wait {number} seconds, write "{number}s"',
            code="bad-duration",
        )
        return None
    return found
