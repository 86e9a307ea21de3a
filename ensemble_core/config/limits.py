"""Checks the section ``limits:`` and creates the :class:`Limits` of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.errors import EnsembleError, did_you_mean
from ensemble_core.metrics.store import RESOURCES
from ensemble_core.model.byte_sizes import memory_bytes
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.ensemble import Limits, amount
from ensemble_core.model.job_group import JobGroup

#: The name under ``limits.at_once`` of the limit on all jobs of the run.
WHOLE_RUN = "jobs"


def bind_limits(
    context: Context, given: object, groups: Iterable[JobGroup], *, live: bool = False
) -> Limits:
    """Return the checked limits. Invalid values are reported and replaced by their defaults.

    In a ``live`` run, a group may use a new shared limit later.
    """
    if not isinstance(given, Mapping) or not context.is_valid(("limits",)):
        return Limits()
    jobs, pace = given.get("jobs"), given.get("submits_per_second")
    hours = {name: float(given[name]) for name in RESOURCES if given.get(name) is not None}
    groups = tuple(groups)
    for group in groups:
        _check_one_job(context, group, hours)
    return Limits(
        jobs=None if jobs is None else int(jobs),
        **hours,
        submits_per_second=None if pace is None else float(pace),
        chain=int(given.get("chain", Limits().chain)),
        wall=_duration(
            context, given, "wall", "the run would stop at once", 'the run may last: "3h50m"'
        ),
        stop=_duration(
            context, given, "stop", "a stop would not wait for any job", 'a stop may wait: "10m"'
        )
        or Limits().stop,
        output=_output(context, given.get("output")),
        strict=bool(given.get("strict", False)),
        at_once=_shared(context, given.get("at_once"), groups, live=live),
    )


def live_limits(
    context: Context, given: Mapping[str, Any], groups: Iterable[JobGroup]
) -> dict[str, Any]:
    """Return limits that change in a live run, as arguments of :class:`Limits`."""
    if context.errors:
        return {}  # values of a wrong type, which were reported
    limits = {name: value for name, value in given.items() if value is not None}
    found = bind_limits(context, limits, groups, live=True)
    return {} if context.errors else {name: getattr(found, name) for name in given}


def _shared(
    context: Context, given: object, groups: Iterable[JobGroup], *, live: bool
) -> Mapping[str, int]:
    """Return the limits on jobs at once that groups share."""
    if not isinstance(given, Mapping):
        return NOTHING if given is None else {"": int(given)}  # type: ignore[call-overload]
    used = {name for group in groups for name in group.uses}
    entries = context.document.data.get("jobs")
    for entry in entries if isinstance(entries, list) else ():  # also of groups with errors
        uses = _uses(entry)
        used.update([uses] if isinstance(uses, str) else map(str, uses))
    for name in given:
        if name not in used and not live and name != WHOLE_RUN:
            path = ("limits", "at_once", name)
            context.report(
                path,
                f"no job group uses the limit {name!r}",
                hint=f"write 'uses: {name}' in the job groups that share it",
                code="no-such-limit",
                where=context.document.at_key(path),
            )
    return {"" if name == WHOLE_RUN else str(name): int(most) for name, most in given.items()}


def _uses(entry: object) -> str | list[Any]:
    """Return the limits that an entry of the file uses."""
    uses = entry.get("uses") if isinstance(entry, Mapping) else None
    return uses if isinstance(uses, (str, list)) else []


def check_uses_of_limits(context: Context, entries: object, limits: object) -> None:
    """Report job groups that use limits that do not exist. ``limits``: this section of the file."""
    given = limits.get("at_once") if isinstance(limits, Mapping) else limits
    if not isinstance(given, (int, Mapping, NoneType)):
        return  # an error was reported there
    shared = given if isinstance(given, Mapping) else ()
    known = [str(name) for name in shared if name != WHOLE_RUN]
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        uses = _uses(entry)
        for place, name in enumerate([uses] if isinstance(uses, str) else uses):
            if not isinstance(name, str) or name in known:
                continue
            path = ("jobs", number, "uses", *((place,) if isinstance(uses, list) else ()))
            hint = f"write 'limits: {{at_once: {{{name}: 4}}}}'"
            if known:
                hint = did_you_mean(name, known, f"known: {', '.join(known)}", cutoff=0.5)
            what = f"there is no limit {name!r} under limits.at_once"
            if name == WHOLE_RUN:
                what = f"{name!r} under limits.at_once is the limit of all jobs of the run"
                hint = "it holds without 'uses'; give the limit that groups share another name"
            context.report(path, what, hint=hint, code="no-such-limit")


def _duration(
    context: Context, given: Mapping[str, Any], name: str, of_zero: str, hint: str
) -> float | None:
    """Return a limit in seconds, or ``None`` if the file does not set it. Report the value 0."""
    path = ("limits", name)
    found = context.duration(path, given[name]) if given.get(name) is not None else None
    if found == 0:
        hint = f"write how long {hint}, or remove the key"
        context.report(path, of_zero, hint=hint, code="out-of-range")
    return found


def _output(context: Context, given: object) -> int | None:
    """Return the limit on the output of a job in bytes. Report a value that is no size."""
    try:
        return None if given is None else memory_bytes(given, of="output")
    except EnsembleError as error:
        context.attach(error, ("limits", "output"))
        return None


def _check_one_job(context: Context, group: JobGroup, hours: Mapping[str, float]) -> None:
    """Report a limit that is too low for a single job of the group with its time limit."""
    for entry in (group, *group.more):
        tasks = entry.nodes if entry.tasks is None else entry.tasks
        units: Mapping[str, tuple[int, str]] = {
            "core_hours": (tasks * entry.cores_per_task, "core"),
            "node_hours": (entry.nodes, "node"),
            "gpu_hours": (tasks * entry.gpus_per_task, "GPU"),
        }
        for name, most in hours.items():
            number, unit = units[name]
            needed = number * entry.duration / 3600
            if needed > most * (1 + 1e-9):
                plural = "" if number == 1 else "s"
                context.report(
                    ("limits", name),
                    f"{name!r} is {amount(most)}, so no job of {group.name!r} could ever run: "
                    f"{number} {unit}{plural} for {amount(entry.duration)} s are "
                    f"{amount(needed)} {unit}-hours",
                    hint=f"raise {name!r}, or lower the duration of {group.name!r}",
                    code="out-of-range",
                )


def hours_hint(path: tuple[str | int, ...], text: str) -> str | None:
    """Return a hint for a limit in core-, node- or GPU-hours that is a text, not a number.

    Return ``None`` if ``path`` is not the path of such a limit.
    """
    if len(path) != 2 or path[0] != "limits" or path[1] not in RESOURCES:
        return None
    number = text.strip()
    while number and not (number[-1].isdigit() or number[-1] == "."):
        number = number[:-1]
    unit = str(path[1]).replace("_", "-")
    if number.replace(".", "", 1).isdigit():
        return f"write the number of {unit} alone: {path[1]}: {number}"
    return f"write a number of {unit}, such as {path[1]}: 200"
