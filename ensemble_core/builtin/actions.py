"""The built-in actions of rules, such as ``submit`` and ``cancel``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.builtin.notify import NOTIFY
from ensemble_core.builtin.submit_next_and_best import SUBMIT_BEST, SUBMIT_NEXT
from ensemble_core.errors import EnsembleError
from ensemble_core.model.durations import seconds
from ensemble_core.model.evaluated_options import changed_fields, evaluate_options
from ensemble_core.model.jobs import SIGNALS
from ensemble_core.model.placeholders import fill_message
from ensemble_core.model.rules import Firing
from ensemble_core.plugin.hookspecs import ActionPlugin, hookimpl

if TYPE_CHECKING:  # not needed to check a file, which must be fast
    from ensemble_core.model.decisions import Decision

# Annotations in the JSON Schema of an action's options. Plugins can use them too.
#
# Values of ``x-ensemble``:
# - ``group``, ``rule``, ``instance``, ``function``, ``metric``: the name of an existing job group,
#   rule, entry under ``use:`` (an instance of an algorithm) …, or a list of such names.
# - ``fields``: fields of a job group, which the property with the annotation ``group`` names.
# - ``message``: text with placeholders for fields of the event. The action receives the filled-in
#   text. With ``x-ensemble-fills: true``, it receives the unchanged text and fills it in itself.
# - ``rows``: a table under ``results:`` (``TABLE``, ``TABLE(CONDITION)`` or ``all.TABLE``), or
#   ``job`` for the rows that the event's job has printed.
# - ``action``: an action or a list of actions, which are checked like those of a rule.
#   ``x-ensemble-fields: [NAME, …]`` lists additional fields that these actions may use.
# - ``parameters``: new values for parameters of the group in the property ``group``, or of the
#   event's job.
# - ``expression``: each string that begins with ``=`` is an expression over the event's fields and
#   metrics.
# - ``duration``: seconds, or text such as ``"1h30m"``. The action receives seconds.
# - ``variable``: the name of an environment variable that contains a URL.
# - ``mail``: a mail address.
# - ``generator``: the name of an existing generator.
# - ``phase``: an instance (entry under ``use:``) or a generator, or a list of them.
# - ``class``: only for generators; see ``docs/plugin-tutorial-rules.md``.
#
# With ``x-ensemble-expression: true``, an expression may replace a number or duration. Actions
# receive expressions unevaluated, also those in ``fields`` and ``parameters``. They call
# ``changed_fields`` or ``evaluate_options`` of ``model.evaluated_options``.
#
# At the top of a schema:
# - ``x-ensemble-job-unless: PROPERTY``: the action acts on the event's job, unless this property is
#   given. If ``PROPERTY`` is empty, it always acts on that job. Rules whose trigger has no job
#   cannot have this action.
# - ``x-ensemble-retries: true``: the action submits the event's job again (``firing.retry``).
# - ``x-ensemble-varies: true``: the action submits new combinations of a group's parameters
#   (``firing.vary``). Instead of ``true``, this annotation and ``x-ensemble-retries`` may have the
#   name of a property as value, and then apply only if the action has this property.
# - ``x-ensemble-at-end: true``: a rule with the trigger ``end`` may have this action.


def _submit(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    label = options.get("label")
    if label is not None and "rows" in options:
        again = bool(options.get("again", False))
        return firing.submit_rows(label, options["rows"], options.get("with"), again=again)
    groups = firing.groups if label is None else (label,)
    fields = _changes(firing, options) if "with" in options else None
    return [firing.submit(group, fields) for group in groups] if _any_jobs(fields) else []


def _changes(firing: Firing, options: Mapping[str, Any]) -> dict[str, Any]:
    return changed_fields(options.get("with") or {}, firing.fields, firing.metric)


def _any_jobs(fields: Mapping[str, Any] | None) -> bool:
    """Return False if the action submits no job, because ``count`` or ``replicas`` is not
    positive.
    """
    return all((fields or {}).get(name, 1) > 0 for name in ("count", "replicas"))


def _retry(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    wait = seconds(evaluate_options(options.get("wait", 0), firing.fields, firing.metric))
    resume = bool(options.get("continue", False))
    return [firing.retry(_changes(firing, options), wait=wait, resume=resume)]


def _vary(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    fields = _changes(firing, options)
    given = evaluate_options(options.get("parameters") or {}, firing.fields, firing.metric)
    parameters = {**(fields.pop("parameters", None) or {}), **given}
    if not _any_jobs(fields):
        return []
    again = bool(options.get("again", False))
    return firing.vary(parameters, label=options.get("label"), fields=fields, again=again)


def _nodes_of(firing: Firing, options: Mapping[str, Any]) -> int:
    """Return the number of nodes to request, or 0 if the computed value is negative."""
    given = options.get("value", 1)
    found = given
    if isinstance(given, str) and given.startswith("="):
        found = evaluate_options(given, firing.fields, firing.metric)
    number = float(found)
    if not number.is_integer():
        raise EnsembleError(
            f"expected a whole number of nodes, but {given!r} is {found}", code="bad-value"
        )
    return max(0, int(number))


def _grow(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    nodes = _nodes_of(firing, options)
    return [firing.resize(nodes)] if nodes else []


def _shrink(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    nodes = _nodes_of(firing, options)
    when_busy = options.get("when_busy", "wait")
    return [firing.resize(-nodes, when_busy=when_busy)] if nodes else []


def _suggest(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    given = options.get("count")
    if given is None:
        return [firing.steer(options["generator"], pause=False)]
    count = int(evaluate_options(given, firing.fields, firing.metric))
    return [firing.steer(options["generator"], count=count)] if count > 0 else []


def _set(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    return [firing.set_group(options["label"], _changes(firing, options))]


def _cancel(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    label = options.get("label")
    if label is not None:
        jobs = firing.active(label)
    elif firing.job is not None:
        jobs = [firing.job]
    else:
        return [firing.log("nothing to cancel: the event has no job of this run", "warning")]
    return [firing.cancel(jobs)] if jobs else []


def _signal(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    label, job = options.get("label"), firing.job
    jobs = firing.active(label) if label is not None else [] if job is None else [job]
    return firing.signal(jobs, options["signal"])


def _avoid(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    node, lacks = fill_message(options["node"], firing.fields)
    if lacks or not node:
        return [firing.log(f"no node to avoid: {node}", "warning")]
    most, resubmit = options.get("most", 0), options.get("waiting") != "keep"
    return firing.avoid([name.strip() for name in node.split(",")], most=most, resubmit=resubmit)


def _rules(options: Mapping[str, Any]) -> list[str]:
    rules = options["rules"]
    return [rules] if isinstance(rules, str) else list(rules)


def _switch(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    def listed(key: str) -> list[str] | None:
        given = options.get(key)
        return [given] if isinstance(given, str) else given

    return firing.switch(
        listed("to") or (),
        listed("from"),
        keep=bool(options.get("keep", False)),
        reset=bool(options.get("reset", False)),
        cancel=bool(options.get("cancel", False)),
    )


def _log(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    message, lacks = fill_message(options["message"], firing.fields)
    level = options.get("level", "info")
    return [firing.log(message, "warning" if lacks and level == "info" else level)]


_GROUP = {"description": "The job group.", "type": "string", "x-ensemble": "group"}
#: Option of the action ``avoid`` and of the algorithm ``avoid-bad-nodes``.
MOST_NODES = {
    "description": "Avoid at most so many nodes in the whole run: if jobs fail everywhere, the "
    "nodes are not the reason. Default: no limit.",
    "type": "integer",
    "minimum": 1,
}
_GENERATOR = {
    "description": "The generator.",
    "type": "string",
    "x-ensemble": "generator",
}
_AGAIN = {
    "description": "Also submit combinations that the group has already had, as further replicas.",
    "type": "boolean",
}


def _fields(description: str) -> dict[str, Any]:
    return {"description": description, "type": "object", "x-ensemble": "fields"}


#: The option ``with`` of actions that submit jobs of a group.
_CHANGED = {"with": _fields("Fields of the group to change for these jobs.")}


def _options(required: Iterable[str] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }


def _nodes(what: str, **more: Any) -> dict[str, Any]:
    return _options(
        value={
            "description": f"Number of nodes {what}.",
            "type": ["integer", "string"],
            "minimum": 1,
            "maximum": 1_000_000,
            "pattern": "^(0*[1-9][0-9]{0,5}$|=)",
            "default": 1,
            "x-ensemble": "expression",
        },
        **more,
    )


def _phases(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "type": ["string", "array"],
        "minItems": 1,
        "items": {"description": "The name of an instance or a generator.", "type": "string"},
        "x-ensemble": "phase",
    }


_RULES = _options(
    ["rules"],
    rules={
        "description": "A rule's id, the name of an instance, or a list of them.",
        "type": ["string", "array"],
        "minItems": 1,
        "items": {"description": "A rule's id.", "type": "string"},
        "x-ensemble": "rule",
    },
)


@hookimpl
def ensemble_actions() -> Iterable[ActionPlugin]:
    """Return the built-in actions."""
    yield ActionPlugin(
        name="submit",
        summary="submit a job group",
        plan=_submit,
        options={
            **_options(
                label={**_GROUP, "description": "The job group. Default: every group."},
                **_CHANGED,
                rows={
                    "description": "Submit the group once for each row of a table: TABLE of "
                    "'results:', TABLE(CONDITION) for some of its rows, all.TABLE for the whole "
                    "table in a slice, or job for the rows that the event's job printed. Columns "
                    "set the parameters of the same name.",
                    "type": "string",
                    "minLength": 1,
                    "x-ensemble": "rows",
                },
                again=_AGAIN,
            ),
            "dependentRequired": {"with": ["label"], "rows": ["label"], "again": ["rows"]},
            "x-ensemble-varies": "rows",
        },
        needs=frozenset({"submit"}),
    )
    yield ActionPlugin(
        name="retry",
        summary="submit the event's job again, as a further attempt",
        plan=_retry,
        options={
            **_options(
                **{
                    "with": _fields(
                        "Fields to change from this attempt on; parameters are merged with the "
                        "job's."
                    ),
                    "wait": {
                        "description": "Time to wait before the retry: seconds, a duration, or an "
                        'expression such as "= 30 * 2 ** attempt".',
                        "type": ["number", "string"],
                        "minimum": 0,
                        "default": 0,
                        "x-ensemble": "duration",
                        "x-ensemble-expression": True,
                    },
                    "continue": {
                        "description": "The job continues from its checkpoint, so the statistics "
                        "of its output continue too.",
                        "type": "boolean",
                        "default": False,
                    },
                }
            ),
            "x-ensemble-job-unless": "",
            "x-ensemble-retries": True,
        },
        needs=frozenset({"submit"}),
    )
    yield ActionPlugin(
        name="vary",
        summary="submit jobs like the event's job, or like the slice, with other parameters",
        plan=_vary,
        options={
            **_options(
                label={**_GROUP, "description": "The job group. Default: the job's group."},
                parameters={
                    "description": "Parameters to change, with new values; lists are combined as "
                    "in a sweep.",
                    "type": "object",
                    "x-ensemble": "parameters",
                },
                **_CHANGED,
                again={**_AGAIN, "default": False},
            ),
            "x-ensemble-job-unless": "",
            "x-ensemble-varies": True,
        },
        needs=frozenset({"submit"}),
    )
    yield ActionPlugin(
        name="cancel",
        summary="cancel a group's jobs, or the event's job",
        plan=_cancel,
        options={**_options(label=_GROUP), "x-ensemble-job-unless": "label"},
        needs=frozenset({"cancel"}),
    )
    yield ActionPlugin(
        name="signal",
        summary="send a signal to a group's running jobs, or to the event's job",
        plan=_signal,
        options={
            **_options(
                ["signal"],
                label=_GROUP,
                signal={
                    "description": "The signal, without SIG.",
                    "enum": list(SIGNALS),
                },
            ),
            "x-ensemble-job-unless": "label",
        },
        needs=frozenset({"signal"}),
    )
    yield ActionPlugin(
        name="avoid",
        summary="keep further jobs of the run away from a node",
        plan=_avoid,
        options=_options(
            ["node"],
            node={
                "description": "The node, or several, separated by commas. {host} is replaced by "
                "the event's node.",
                "type": "string",
                "minLength": 1,
                "x-ensemble": "message",
                "x-ensemble-fills": True,
            },
            most=MOST_NODES,
            waiting={
                "description": "Withdraw jobs that wait in the queue and submit them again, or "
                "keep them there, where they can still start on the node.",
                "enum": ["resubmit", "keep"],
                "default": "resubmit",
            },
        ),
        needs=frozenset({"avoid", "cancel"}),
    )
    yield ActionPlugin(
        name="terminate",
        summary="end the run",
        plan=lambda firing, options: [
            firing.terminate(
                int(options.get("exit_code", 0)), cancel=bool(options.get("cancel", True))
            )
        ],
        options=_options(
            exit_code={
                "description": "The run's exit code.",
                "type": "integer",
                "minimum": 0,
                "maximum": 255,
                "default": 0,
            },
            cancel={
                "description": "Cancel the jobs that are still active.",
                "type": "boolean",
                "default": True,
            },
        ),
    )
    yield ActionPlugin(
        name="custom",
        summary="call a function of the file's 'custom' part",
        plan=lambda firing, options: [firing.call(options["label"])],
        options=_options(
            ["label"],
            label={
                "description": "The function's name.",
                "type": "string",
                "x-ensemble": "function",
            },
        ),
    )
    yield ActionPlugin(
        name="grow",
        summary="request more nodes",
        plan=_grow,
        options=_nodes("to request"),
        needs=frozenset({"resize"}),
    )
    yield ActionPlugin(
        name="shrink",
        summary="release nodes",
        plan=_shrink,
        options=_nodes(
            "to release",
            when_busy={
                "description": "What to do with nodes on which jobs run: release them once they "
                "are idle (wait), keep them (skip), or release them at once, so that their jobs "
                "fail (force, if the queue can do that).",
                "enum": ["wait", "skip", "force"],
                "default": "wait",
            },
        ),
        needs=frozenset({"resize"}),
    )
    yield ActionPlugin(
        name="set",
        summary="change fields of a job group for later submissions",
        plan=_set,
        options=_options(
            ["label", "with"],
            label=_GROUP,
            **{
                "with": {
                    **_fields("The group's fields to change, with their new values."),
                    "x-ensemble-whole-group": True,
                    "minProperties": 1,
                }
            },
        ),
    )
    yield ActionPlugin(
        name="enable",
        summary="enable rules",
        plan=lambda firing, options: [firing.enable(_rules(options))],
        options=_RULES,
    )
    yield ActionPlugin(
        name="disable",
        summary="disable rules",
        plan=lambda firing, options: [firing.disable(_rules(options))],
        options=_RULES,
    )
    yield ActionPlugin(
        name="switch",
        summary="switch from some instances of algorithms, or generators, to others",
        plan=_switch,
        options=_options(
            ["to"],
            to={
                **_phases("The instance or generator to enable, or a list of them."),
                "x-ensemble-learns-from": "from",
            },
            **{"from": _phases("What to disable. Default: all others of the same kind.")},
            keep={
                "description": "Still use results of function calls that the old instances made.",
                "type": "boolean",
                "default": False,
            },
            reset={
                "description": "Reset the firing counts of the new instances' rules.",
                "type": "boolean",
                "default": False,
            },
            cancel={
                "description": "Cancel waiting jobs that rules of the old instances submitted.",
                "type": "boolean",
                "default": False,
            },
        ),
    )
    yield ActionPlugin(
        name="log",
        summary="print a message",
        plan=_log,
        options={
            **_options(
                ["message"],
                message={
                    "description": "The text. {NAME} is replaced by the event's field of that "
                    "name, {value} by the metric's value.",
                    "type": "string",
                    "minLength": 1,
                    "x-ensemble": "message",
                    "x-ensemble-fills": True,
                },
                level={
                    "description": "The severity.",
                    "enum": ["info", "warning", "error"],
                    "default": "info",
                },
            ),
            "x-ensemble-at-end": True,
        },
    )
    yield NOTIFY
    yield ActionPlugin(
        name="suggest",
        summary="request further points from a generator, or resume a paused one",
        plan=_suggest,
        options=_options(
            ["generator"],
            generator=_GENERATOR,
            count={
                "description": "How many points, in addition to those that 'at_once' allows. "
                "Default: resume the paused generator.",
                "type": ["integer", "string"],
                "minimum": 1,
                "pattern": "^=",
                "x-ensemble": "expression",
            },
        ),
        needs=frozenset({"submit"}),
    )
    yield ActionPlugin(
        name="pause",
        summary="request no more points from a generator until 'suggest'",
        plan=lambda firing, options: [firing.steer(options["generator"], pause=True)],
        options=_options(["generator"], generator=_GENERATOR),
    )
    yield SUBMIT_NEXT
    yield SUBMIT_BEST
