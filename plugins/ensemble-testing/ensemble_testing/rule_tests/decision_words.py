"""Decisions in the short form of rule tests, such as ``cancel: sim.0``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ensemble_core.cli.toolkit import Context, shown
from ensemble_core.cli.toolkit import DocumentPath as Path
from ensemble_core.model.decisions import (
    AddRule,
    Avoid,
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Fail,
    Fired,
    Log,
    LookUp,
    Notify,
    Resize,
    Retry,
    SetGenerator,
    SetGroup,
    SetLimits,
    Signal,
    Submit,
    Switch,
    Terminate,
)
from ensemble_core.model.jobs import SIGNALS

#: Maximum number of jobs to list; more jobs are only counted.
_NAMED = 4


def _one_or_all(names: Sequence[str]) -> Any:
    return names[0] if len(names) == 1 else list(names)


def _jobs(names: Sequence[str]) -> Any:
    if len(names) <= _NAMED:
        return _one_or_all(names)
    numbers: dict[str, int] = {}
    for name in names:
        numbers[group_of(name)] = numbers.get(group_of(name), 0) + 1
    return numbers


def group_of(job: str) -> str:
    """Return the group of a job id: ``sim`` for ``sim.0``."""
    return job.rpartition(".")[0]


def _retry_words(decision: Retry) -> Any:
    more: dict[str, Any] = {}
    if decision.fields:
        more["with"] = dict(decision.fields)
    if decision.wait:
        more["wait"] = decision.wait
    return {"job": decision.job, **more} if more else decision.job


#: The keyword of each type of decision, and a function that describes its argument.
_SPOKEN: Mapping[type[Decision], Callable[[Any], tuple[str, Any]]] = {
    Submit: lambda d: ("submit", _jobs([job.id for job in d.jobs])),
    LookUp: lambda d: ("look-up", _jobs([job.id for job in d.jobs])),
    Retry: lambda d: ("retry", _retry_words(d)),
    Fail: lambda d: ("fail", d.job),
    Cancel: lambda d: ("cancel", _jobs(d.jobs)),
    Signal: lambda d: ("signal", {d.signal: _jobs(d.jobs)}),
    Resize: lambda d: ("grow" if d.delta > 0 else "shrink", abs(d.delta)),
    AddRule: lambda d: ("add-rule", d.id),
    EnableRule: lambda d: ("enable", _one_or_all(d.rules)),
    DisableRule: lambda d: ("disable", _one_or_all(d.rules)),
    SetLimits: lambda d: ("set", {"limits": dict(d.limits)}),
    Avoid: lambda d: ("avoid", _one_or_all(d.nodes)),
    SetGroup: lambda d: ("set", {d.group: dict(d.fields)}),
    SetGenerator: lambda d: ("pause" if d.pause else "suggest", d.generator),
    Switch: lambda d: ("switch", _one_or_all(d.on)),
    Call: lambda d: ("call", d.name),
    Log: lambda d: ("log", d.message),
    Notify: lambda d: ("notify", d.message),
    Terminate: lambda d: ("terminate", d.exit_code),
}
#: The keywords of decisions.
WORDS = (
    *("submit", "look-up", "fail", "retry", "cancel", "signal", "avoid", "grow", "shrink"),
    *(
        "add-rule",
        "enable",
        "disable",
        "set",
        "pause",
        "suggest",
        "switch",
        "call",
        "log",
        "notify",
    ),
    "terminate",
)


def counts(decision: Decision) -> bool:
    """Return whether rule tests compare this decision.

    Three kinds are excluded: the start of a firing, the automatic end of the run, and messages
    without a rule.
    """
    if isinstance(decision, (Fired, Terminate)):
        return isinstance(decision, Terminate) and not decision.natural
    return decision.rule is not None or not isinstance(decision, Log)


def to_words(decision: Decision) -> dict[str, Any]:
    """Return a decision in the form of rule tests."""
    word, what = _SPOKEN[type(decision)](decision)
    return {word: what}


def one_line(decisions: Sequence[Mapping[str, Any]]) -> str:
    """Return decisions on one line, as YAML."""
    return "[" + ", ".join(_flow(each) for each in decisions) + "]"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value)


def matches(expected: Mapping[str, Any], decision: Decision) -> bool:
    """Return whether this is the expected decision."""
    ((word, what),) = expected.items()
    said, is_so = _SPOKEN[type(decision)](decision)
    if said != word:
        return False
    if isinstance(decision, (Submit, LookUp)):
        return _fits_jobs(what, [job.id for job in decision.jobs])
    if isinstance(decision, Cancel):
        return _fits_jobs(what, list(decision.jobs))
    if isinstance(decision, Signal):
        jobs = what.get(decision.signal) if isinstance(what, Mapping) else None
        return jobs is not None and _fits_jobs(jobs, list(decision.jobs))
    if isinstance(decision, Retry):
        whole = what if isinstance(what, Mapping) else {"job": what}
        has = {"job": decision.job, "with": dict(decision.fields), "wait": decision.wait}
        return all(has[key] == value for key, value in whole.items())
    if isinstance(decision, (Log, Notify)):
        return what is None or str(what) in decision.message
    if isinstance(decision, SetGroup):
        fields = what.get(decision.group)
        return isinstance(fields, Mapping) and fields.items() <= decision.fields.items()
    if isinstance(decision, (EnableRule, DisableRule)):
        return _as_list(what) == list(decision.rules)
    if isinstance(decision, Avoid):
        return _as_list(what) == list(decision.nodes)
    if isinstance(decision, Switch):
        return _as_list(what) == list(decision.on)
    return bool(what == is_so)


def _fits_jobs(what: Any, jobs: Sequence[str]) -> bool:
    if isinstance(what, Mapping):
        have: dict[str, int] = {}
        for job in jobs:
            have[group_of(job)] = have.get(group_of(job), 0) + 1
        return dict(what) == have
    if isinstance(what, str) and {group_of(job) for job in jobs} == {what}:
        return True  # any number of jobs of this group
    return _as_list(what) == list(jobs)


def _as_list(what: Any) -> list[Any]:
    return list(what) if isinstance(what, (list, tuple)) else [what]


def check(context: Context, path: Path, data: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the decisions that a test expects; report mistakes."""
    found = []
    entries = data if isinstance(data, list) else [data]
    for place, entry in enumerate(entries):
        here = (*path, place) if isinstance(data, list) else path
        if not isinstance(entry, Mapping) or len(entry) != 1:
            what = f"{shown(entry)} is not a decision"
            hint = "write a word with its argument: {cancel: sim.0}"
            context.report(here, what, hint=hint, code="wrong-type")
            continue
        ((word, what),) = entry.items()
        if word not in WORDS:
            where = context.document.at_key((*here, word))
            context.unknown((*here, word), "decision", str(word), WORDS, where=where)
        elif _sound(context, (*here, word), word, what):
            found.append(entry)
    return tuple(found)


def _sound(context: Context, path: Path, word: str, what: Any) -> bool:
    """Return whether a decision refers to existing things."""
    if word in ("submit", "cancel", "retry"):
        if word == "retry" and isinstance(what, Mapping):
            for key in set(what) - {"job", "with", "wait"}:
                context.unknown((*path, key), "key", key, ("job", "with", "wait"))
                return False
            if "wait" in what and not isinstance(what["wait"], (int, float)):
                seconds = context.duration((*path, "wait"), what["wait"])
                if seconds is None:
                    return False
                what["wait"] = seconds  # type: ignore[index]  # it is a dict of the document's
            what, path = what.get("job"), (*path, "job")
        names = list(what) if isinstance(what, Mapping) else _as_list(what)
        return all(_is_job_or_group(context, path, name) for name in names)
    if word == "signal":
        if not isinstance(what, Mapping) or not {*what} <= {*SIGNALS} or len(what) != 1:
            context.report(
                path,
                f"{shown(what)} does not say which signal jobs get",
                hint="write 'signal: {USR1: JOBS}'; the signals are " + ", ".join(SIGNALS),
                code="wrong-type",
            )
            return False
        ((name, jobs),) = what.items()
        names = list(jobs) if isinstance(jobs, Mapping) else _as_list(jobs)
        return all(_is_job_or_group(context, (*path, name), job) for job in names)
    if word == "set":
        if not isinstance(what, Mapping):
            context.report(
                path,
                f"{shown(what)} is not a mapping",
                hint="write 'set: {GROUP: {FIELD: VALUE}}'",
                code="wrong-type",
            )
            return False
        return all(context.group(name, (*path, name)) for name in what)
    if word in ("enable", "disable"):
        return all(_is_rule(context, path, name) for name in _as_list(what))
    if word == "call":
        known = context.known.functions
        others = {*context.registry.actions, *context.known.generators}
        if known is not None and what not in known and what not in others:
            context.unknown(path, "function", str(what), known)
            return False
    if word in ("pause", "suggest", "switch"):
        if word != "switch":
            return context.generator(what, path)
        instances = context.known.instances
        wrong = [each for each in _as_list(what) if each not in instances]
        for each in wrong:
            context.unknown(path, "instance", str(each), instances)
        return not wrong
    if word in ("grow", "shrink", "terminate") and (
        not isinstance(what, int) or isinstance(what, bool)
    ):
        context.report(
            path, f"{shown(what)} is not a number", hint=f"write '{word}: 1'", code="wrong-type"
        )
        return False
    return True


def _is_rule(context: Context, path: Path, name: Any) -> bool:
    known = context.known.rules
    if known is not None and name not in known:
        context.unknown(path, "rule", str(name), known)
        return False
    return True


def _is_job_or_group(context: Context, path: Path, name: Any) -> bool:
    """Return whether the name is that of a job group, or could be that of a job."""
    groups = context.known.groups
    if isinstance(name, str) and name in groups:
        return True
    group, dot, number = str(name).rpartition(".")
    if dot and group in groups and number.replace("-", "").isdigit():
        return True
    context.unknown(path, "job or job group", str(name), [*groups, *(f"{g}.0" for g in groups)])
    return False
