"""Checks the trigger of a rule and its key ``each``, and determines which names the rule's
condition can use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ensemble_core.config.action_entries import MatchContext, OptionCheck
from ensemble_core.config.context import Context, nearest
from ensemble_core.config.document import Path
from ensemble_core.config.statistic_names import Over
from ensemble_core.errors import author_hint
from ensemble_core.metrics.store import MetricPath
from ensemble_core.model.expressions import EVENT_FIELDS
from ensemble_core.model.rules import Trigger
from ensemble_core.plugin.hookspecs import TriggerPlugin
from ensemble_core.plugin.record_validation import probable_event

_RULE_KEYS = frozenset(
    {
        "id",
        "trigger",
        "name",
        "when",
        "crosses",
        "at_first",
        "action",
        "repetitions",
        "backoff",
        "each",
        "for",
        "scope",
        "enabled",
    }
)
#: Fields about the end of a job. A job that has not ended has none of these fields.
_OF_THE_END = frozenset({"exit_code", "status", "duration", "cause", "cancelled_by"})
#: Built-in triggers without an event. A plugin's trigger can use the argument of ``Trigger`` given
#: here instead.
_WITHOUT_EVENT = {"metric": "metric=PATH", "interval": "every=SECONDS"}

#: Value of the key ``each``: the rule has an instance for each job index (``job``), or for each
#: combination of these parameters.
Each = Literal["job"] | tuple[str, ...] | None


class BoundTrigger(NamedTuple):
    """The checked trigger of a rule, and what its events provide."""

    record: TriggerPlugin
    trigger: Trigger
    name: str | list[str] | None
    path: MetricPath | None
    matched: MatchContext
    #: Subject of the events (see :class:`~ensemble_core.plugin.records.TriggerPlugin`).
    about: frozenset[str]
    #: If set, the rule has an instance for each job, or for each combination of these parameters.
    each: Each

    @property
    def whole_group(self) -> str | None:
        """The group that ``STAT.NAME`` covers, or ``None`` if such names cover an instance or a
        job.
        """
        over = self.matched.over
        single = self.each is not None or (self.matched.job and self.path is None)
        return None if single or not over else over[0]

    @property
    def label(self) -> str:
        """The trigger as messages show it."""
        if self.path is not None and self.record.name_means == "metric":
            return self.path.text
        if self.trigger.every is not None:
            return f"{self.record.name} {self.trigger.every:g}s"
        group = self.trigger.group
        groups = self.trigger.groups or (() if group is None else (group,))
        return f"{self.record.name} ({', '.join(groups)})" if groups else self.record.name


def bind_trigger(context: Context, path: Path, spec: Mapping[str, Any]) -> BoundTrigger | None:
    """Return the rule's trigger, or ``None`` after reporting errors."""
    kind = spec.get("trigger")
    if not isinstance(kind, str) or kind not in context.registry.triggers:
        return None
    record = context.registry.triggers[kind]
    name = spec.get("name") if context.is_valid((*path, "name")) else None
    metric: MetricPath | None = None
    named_well = True
    if record.name_means == "metric":
        if not isinstance(name, str):
            return None
        metric = context.metric(name, (*path, "name"))
        named_well = metric is not None
    elif record.name_means == "generator" and name is not None:
        named_well = context.generator(name, (*path, "name"))
    elif record.name_means is not None and name is not None:
        place = (*path, "name")
        named = [((*place, i), one) for i, one in enumerate(name)] if isinstance(name, list) else []
        found = [context.group(one, at) for at, one in named or [(place, name)]]
        named_well = all(found)
    given = {key: value for key, value in spec.items() if key not in _RULE_KEYS}
    options = OptionCheck(context, record.options, MatchContext()).options(path, given)
    shown = context.named(record, kind)
    required = record.options.get("required", ())
    if any(options.get(key) is None or not context.is_valid((*path, key)) for key in required):
        return None
    if not named_well:
        return None
    before = len(context.errors)
    trigger = context.build((*path, "trigger"), shown, lambda: record.build(name, options))
    if not isinstance(trigger, Trigger):
        if len(context.errors) == before:
            context.report(
                (*path, "trigger"),
                f"{shown} built a {type(trigger).__name__}, expected a Trigger",
                hint=author_hint(record.build),
                code="bad-trigger",
            )
        return None
    if not _can_wake(context, (*path, "trigger"), shown, record, trigger):
        return None
    _check_observed(context, path, kind, record, trigger, options)
    if metric is None and trigger.metric is not None and len(context.errors) == before:
        # A plugin's trigger can have a metric that the file does not name.
        metric = context.metric(trigger.metric, (*path, "trigger"))
        if metric is None:
            return None
    about = _event_subjects(context, trigger)
    has_job = trigger.every is None and about != {"run"} if metric is None else False
    each = _read_each(context, path, spec, trigger, has_job)
    if "each" in spec and each is None:
        return None
    matched = _match_context(context, kind, record, trigger, metric, about, each)
    return BoundTrigger(record, trigger, name, metric, matched, about, each)


def _can_wake(
    context: Context, path: Path, shown: str, record: TriggerPlugin, trigger: Trigger
) -> bool:
    """Return True if an event or a metric can trigger the rule; otherwise report an error.

    Warn about events that no installed plugin declares.
    """
    ways = [
        f"{way}={value!r}"
        for way in ("events", "metric", "every")
        if (value := getattr(trigger, way)) not in ((), None)
    ]
    if len(ways) != 1:
        named = f"names {' and '.join(ways)}" if ways else "names no event"
        context.report(
            path,
            f"{shown} {named}, expected one of 'events', 'metric' and 'every'",
            hint=author_hint(record.build),
            code="never-wakes",
        )
        return False
    triggers = context.registry.triggers
    of_generators = [
        name in triggers and triggers[name].name_means == "generator" for name in trigger.events
    ]
    if of_generators and all(of_generators) and not context.known.generators:
        context.report(
            path,
            f"{shown} waits for a generator, but the file has none",
            hint="add one under 'generators:', or remove the rule",
            code="never-wakes",
        )
        return False
    for name in trigger.events:
        is_trigger = name in triggers or name in triggers.clashes or name == record.name
        if is_trigger and name not in _WITHOUT_EVENT:
            continue
        meant = probable_event(name)
        if meant is None and name not in _WITHOUT_EVENT:
            context.warnings.append(
                f"{shown} waits for {name!r}, which no installed plugin is known to report; name a "
                "plugin's event after a trigger"
            )
            continue
        context.report(
            path,
            f"{shown} waits for {name!r}, but no event has this name",
            hint=(
                f"did you mean {meant!r}?"
                if meant
                else f"use Trigger({_WITHOUT_EVENT[name]}), not events=({name!r},)"
            )
            + f" ({author_hint(record.build)})",
            code="never-wakes",
        )
        return False
    return True


def _check_observed(
    context: Context,
    path: Path,
    kind: str,
    record: TriggerPlugin,
    trigger: Trigger,
    options: Mapping[str, Any],
) -> None:
    """Report a trigger that needs rows of output if no observer of the group yields such rows."""
    needs = record.needs_variables
    place = (*path, "name" if trigger.group is not None else "trigger")
    observer = record.needs_observer
    if observer is not None and not context.observed(trigger.group, observer):
        whose = "no job group has" if trigger.group is None else f"{trigger.group!r} does not have"
        context.report(
            place,
            f"{kind!r} waits for rows of the observer {observer!r}, which {whose}",
            hint=f"add 'observe: {{{observer}: {{}}}}' to the job group",
            code="not-observed",
        )
        return
    if needs is None:
        return
    wanted = context.names(needs, options, f"trigger {kind!r}: its 'needs_variables'")
    for name in sorted(wanted or ()):
        hint = context.why_not_observed(trigger.group, name)
        if hint is not None:
            whose = "any job group" if trigger.group is None else f"the job group {trigger.group!r}"
            context.report(
                place,
                f"{kind!r} needs {name!r}, but no observer of {whose} yields it",
                hint=hint or "add an observer that yields it ('observe:')",
                code="not-observed",
            )
            return


def _event_subjects(context: Context, trigger: Trigger) -> frozenset[str]:
    """Return what the events of the trigger are about.

    Events of plugins count as events of jobs.
    """
    triggers = context.registry.triggers
    return frozenset(triggers[name].about if name in triggers else "job" for name in trigger.events)


def _match_context(
    context: Context,
    kind: str,
    record: TriggerPlugin,
    trigger: Trigger,
    metric: MetricPath | None,
    about: frozenset[str],
    each: Each,
) -> MatchContext:
    group = metric.group or None if metric else trigger.group
    observed = "observed" in trigger.events
    if metric is not None:
        has_job = bool(metric.group)
    else:
        has_job = trigger.every is None and about != {"run"}
    known: frozenset[str] = frozenset({"timestamp", "run"})
    if has_job or metric is not None:
        known = EVENT_FIELDS | context.parameters(group)
        if about == {"job-begun"}:
            known -= _OF_THE_END - context.parameters(group)
        else:
            known |= context.results(group)
    elif isinstance(each, tuple):
        known |= {*each}
    if has_job and metric is None and not observed and about != {"job-begun"}:
        known |= context.results(group)
    known |= record.fields
    if record.name_means == "generator":
        for generator in context.known.generators.values():
            if generator is None:
                return MatchContext(kind, False, None, known)  # its errors have been reported
            known |= {*generator.vocs.names, *generator.vocs.outputs}
    if metric is not None:
        known |= {"value"}
    variables: frozenset[str] | None = frozenset()
    if observed:
        known |= {"clock", "observer"}
        variables = context.variables(group)
    names = None if "*" in record.fields or variables is None else known | variables
    over: Over
    if metric is not None:
        over = (metric.group,) if metric.group else ()
    elif has_job or group is not None:
        over = (group,)
    else:
        over = trigger.groups if each is not None else ()
    slices, ends = each if isinstance(each, tuple) else (), "end" in trigger.events
    of_job = has_job and metric is None and not slices
    return MatchContext(kind, has_job, names, known, observed, group, over, slices, of_job, ends)


def _read_each(
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
