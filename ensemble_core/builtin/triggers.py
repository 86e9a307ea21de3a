"""The built-in triggers. A trigger says which events make a rule check its condition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ensemble_core.model.causes import CAUSES
from ensemble_core.model.durations import seconds
from ensemble_core.model.jobs import RFC21_EVENTS
from ensemble_core.model.rules import Trigger
from ensemble_core.plugin.hookspecs import TriggerPlugin, hookimpl

_STATES = {
    "sched": "a job waits for resources",
    "run": "a job has its resources and runs",
    "cleanup": "a job is over and its resources are being released",
    "inactive": "a job is over for good",
}
_INTERRUPTIONS = {
    "suspend": "the queue suspended a running job",
    "unsuspend": "a suspended job runs again",
    "requeue": "the queue took a job's resources; the job waits again, in the same attempt",
}
_OUTCOMES = {
    "success": "a job ended with exit code 0",
    "fail": "a job ended with another exit code, by a signal, or could not run",
    "cancel": "a job was cancelled",
}
_OVER = {
    "done": "a job has succeeded for good: no retry follows",
    "lost": "a job has failed for good: no retry follows",
}
_RESIZES = {
    "granted": "a request for more or fewer nodes was granted",
    "denied": "a request for more or fewer nodes was denied",
    "timeout": "nodes were granted but never arrived",
}
#: For each job event, the stage that the job has reached (see ``TriggerPlugin.about``).
_ABOUT: Mapping[str, Any] = {
    **dict.fromkeys(
        ("submit", "validate", "depend", "priority", "sched", "alloc", "start", "run"), "job-begun"
    ),
    **dict.fromkeys(_INTERRUPTIONS, "job-begun"),
    **dict.fromkeys(("finish", "release", "free", "clean", "inactive", "done"), "job-ended"),
    **dict.fromkeys(("fail", "cancel", "exception", "lost"), "job-failed"),
}
_LIMIT_FIELDS = frozenset({"what", "most", "used", "committed", "needed", "held", "left"})
_RESIZE_FIELDS = frozenset({"delta", "size", "reason"})

#: Fields in the context of each event. ``*`` means that RFC 21 does not define them.
_CONTEXTS: Mapping[str, frozenset[str]] = {
    "submit": frozenset({"userid", "urgency", "flags", "version"}),
    "jobspec-update": frozenset({"*"}),
    "resource-update": frozenset({"*"}),
    "set-flags": frozenset({"flags"}),
    "dependency-add": frozenset({"description"}),
    "dependency-remove": frozenset({"description"}),
    "priority": frozenset({"priority"}),
    "urgency": frozenset({"userid", "urgency"}),
    "alloc": frozenset({"annotations"}),
    "prolog-start": frozenset({"description"}),
    "prolog-finish": frozenset({"description"}),
    "epilog-start": frozenset({"description"}),
    "epilog-finish": frozenset({"description"}),
    "release": frozenset({"ranks", "final"}),
    "exception": frozenset({"userid"}),
    "memo": frozenset({"*"}),
    "annotations": frozenset({"*"}),
    "debug": frozenset({"*"}),
}


def _seconds(what: str) -> Mapping[str, Any]:
    return {
        "type": "object",
        "required": ["seconds"],
        "properties": {
            "seconds": {
                "description": f'{what}: seconds, or a duration such as "5m".',
                "type": ["number", "string"],
                "exclusiveMinimum": 0,
                "x-ensemble": "duration",
            }
        },
    }


#: Options of the trigger ``bad-node`` and of the algorithm ``avoid-bad-nodes``.
NODE_OPTIONS: Mapping[str, Any] = {
    "failures": {
        "description": "How many different jobs must fail on the node.",
        "type": "integer",
        "minimum": 1,
        "default": 3,
    },
    "within": {
        "description": 'The time within which they fail: seconds, or a duration such as "10m".',
        "type": ["number", "string"],
        "exclusiveMinimum": 0,
        "default": 600,
        "x-ensemble": "duration",
    },
    "causes": {
        "description": "Count only failures with these causes. Default: all failures.",
        "type": "array",
        "minItems": 1,
        "items": {"description": "A cause.", "enum": list(CAUSES)},
    },
}


def _bad_node(name: str | None, options: Mapping[str, Any]) -> Trigger:
    return Trigger(
        events=("bad-node",),
        group=name,
        failures=options.get("failures", 3),
        within=seconds(options.get("within", 600)),
        causes=tuple(options.get("causes") or ()),
    )


def _event_trigger(*events: str) -> Callable[[str | None, Mapping[str, Any]], Trigger]:
    def build(name: str | None, options: Mapping[str, Any]) -> Trigger:
        return Trigger(events=events, group=name)

    return build


def _generator_trigger(event: str) -> Callable[[str | None, Mapping[str, Any]], Trigger]:
    def build(name: str | None, options: Mapping[str, Any]) -> Trigger:
        if name is None:
            return Trigger(events=(event,))
        return Trigger(events=(event,), match=lambda _, known: known.get("generator") == name)

    return build


def _idle(name: Any, options: Mapping[str, Any]) -> Trigger:
    """Build the trigger ``idle`` for a group, or for a list of groups that count as one."""
    groups = tuple(dict.fromkeys(name)) if isinstance(name, list) else (name,)
    if len(groups) == 1:
        return Trigger(events=("idle",), group=groups[0])
    return Trigger(events=("idle",), groups=groups)


@hookimpl
def ensemble_triggers() -> Iterable[TriggerPlugin]:
    """Return the built-in triggers."""
    yield TriggerPlugin(
        name="start", summary="the run begins (once)", build=_event_trigger("start"), about="run"
    )
    yield TriggerPlugin(
        name="metric",
        summary="a metric was updated",
        build=lambda path, options: Trigger(metric=path),
        name_means="metric",
    )
    yield TriggerPlugin(
        name="interval",
        summary="a fixed interval has passed",
        build=lambda name, options: Trigger(every=float(options["seconds"])),
        options=_seconds("The interval"),
    )
    yield TriggerPlugin(
        name="heartbeat",
        summary="the run's heartbeat",
        build=_event_trigger("heartbeat"),
        about="run",
    )
    jobs = {event: f"a job's event {event!r} of Flux RFC 21" for event in RFC21_EVENTS}
    for what, summary in {**jobs, **_STATES, **_INTERRUPTIONS, **_OUTCOMES, **_OVER}.items():
        name = f"job-{what}"
        yield TriggerPlugin(
            name=name,
            summary=summary,
            build=_event_trigger(name),
            name_means="group",
            fields=_CONTEXTS.get(what, frozenset()),
            about=_ABOUT.get(what, "job"),
        )
    yield TriggerPlugin(
        name="idle",
        summary="no job of a group, of several groups, or of the run is open any more",
        build=_idle,
        name_means="groups",
        about="run",
    )
    yield TriggerPlugin(
        name="observed",
        summary="an observer read a row of values in a job's output",
        build=_event_trigger("observed"),
        name_means="group",
    )
    yield TriggerPlugin(
        name="silent",
        summary="a running job printed no row for some time (once per attempt)",
        build=lambda name, options: Trigger(
            events=("silent",), group=name, after=float(options["seconds"])
        ),
        name_means="group",
        about="job-begun",
        options=_seconds("Time since the last row, or since the job's start"),
    )
    yield TriggerPlugin(
        name="bad-node",
        summary="several different jobs have failed on the same node within some time",
        build=_bad_node,
        name_means="group",
        fields=frozenset({"host", "failures", "jobs"}),
        about="run",
        options={"type": "object", "properties": dict(NODE_OPTIONS)},
    )
    yield TriggerPlugin(
        name="limit",
        summary="a limit holds jobs; a second time when only held jobs are left",
        build=_event_trigger("limit"),
        fields=_LIMIT_FIELDS,
        about="run",
    )
    yield TriggerPlugin(
        name="generator-best",
        summary="a generator's point is the best so far; with several objectives, no other "
        "point dominates it",
        build=_generator_trigger("generator-best"),
        name_means="generator",
        fields=frozenset({"generator", "point"}),
        about="run",
    )
    yield TriggerPlugin(
        name="generator-exhausted",
        summary="a generator has no more points",
        build=_generator_trigger("generator-exhausted"),
        name_means="generator",
        fields=frozenset({"generator", "points"}),
        about="run",
    )
    yield TriggerPlugin(
        name="end",
        summary="the run ends or stops, or a limit stops it; only for the actions log and notify",
        build=_event_trigger("end"),
        fields=frozenset({"state", "exit_code", "reason"}),
        about="run",
    )
    for what, summary in _RESIZES.items():
        name = f"resize-{what}"
        yield TriggerPlugin(
            name=name,
            summary=summary,
            build=_event_trigger(name),
            fields=_RESIZE_FIELDS,
            about="run",
        )
