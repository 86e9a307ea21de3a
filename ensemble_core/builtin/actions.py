"""The built-in actions, registered through the same hook that a plugin uses.

Each plan is pure: it looks at the firing and the checked options and returns decisions. The
annotations in the option schemas (``x-ensemble``) are what the file's checker goes by; they are
open to every plugin:

``group``, ``rule``, ``function``, ``metric``
    The value must name one (or several, where it is a list).
``fields``
    Fields of a job group, checked for the group that the action's ``group`` property names.
``message``
    Text with placeholders for the event's fields.
``action``
    An action or a list of actions, checked like a rule's own. ``x-ensemble-fields: [NAME, …]``
    beside it names fields that it may speak of beside the event's own.
``expression``
    Each text in it that begins with ``=`` is arithmetic over the event's fields and metrics.
``duration``
    Seconds or ``"1h30m"``; the action gets seconds.

``x-ensemble-job-unless: PROPERTY`` at the top of a schema says that the action acts on the event's
job unless the property is given, so that it cannot stand under a trigger that has no job. Empty, it
does so in any case. ``x-ensemble-retries: true`` there says that it submits the event's job again
(``firing.retry``), ``x-ensemble-varies: true`` that it asks for combinations which a group has not
had (``firing.vary``); the name of a property instead of ``true``: where that is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.model.placeholders import FIELD_PLACEHOLDER, fill
from ensemble_core.model.rules import Firing
from ensemble_core.plugin.hookspecs import ActionPlugin, hookimpl

if TYPE_CHECKING:  # not needed to check a file, which is to be quick
    from ensemble_core.model.decisions import Decision

__all__ = ["ensemble_actions"]


def _submit(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    label = options.get("label")
    groups = firing.groups if label is None else (label,)
    return [firing.submit(group, options.get("with")) for group in groups]


def _cancel(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    label = options.get("label")
    if label is not None:
        jobs = firing.active(label)
    elif firing.job is not None:
        jobs = [firing.job]
    else:
        return [firing.log("nothing to cancel: the event has no job of ours", "warning")]
    return [firing.cancel(jobs)] if jobs else []


def _rules(options: Mapping[str, Any]) -> list[str]:
    rules = options["rules"]
    return [rules] if isinstance(rules, str) else list(rules)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _log(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    message = fill(options["message"], firing.fields, FIELD_PLACEHOLDER, _shown)
    return [firing.log(message, options.get("level", "info"))]


_GROUP = {"description": "The job group.", "type": "string", "x-ensemble": "group"}


def _fields(description: str) -> dict[str, Any]:
    return {"description": description, "type": "object", "x-ensemble": "fields"}


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
            "description": f"How many nodes {what}.",
            "type": ["integer", "string"],
            "minimum": 1,
            "maximum": 1_000_000,
            "pattern": "^0*[1-9][0-9]{0,5}$",
            "default": 1,
        },
        **more,
    )


_RULES = _options(
    ["rules"],
    rules={
        "description": "The rule's id, or a list of ids.",
        "type": ["string", "array"],
        "minItems": 1,
        "items": {"description": "A rule's id.", "type": "string"},
        "x-ensemble": "rule",
    },
)


@hookimpl
def ensemble_actions() -> Iterable[ActionPlugin]:
    """What a rule can do without any further plugin."""
    yield ActionPlugin(
        name="submit",
        summary="submit a job group",
        plan=_submit,
        options={
            **_options(
                label={**_GROUP, "description": "The job group. Absent: every group."},
                **{"with": _fields("Fields of the group that are different for these jobs.")},
            ),
            "dependentRequired": {"with": ["label"]},
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
                "description": "Cancel what is still active, so that no job is left behind.",
                "type": "boolean",
                "default": True,
            },
        ),
    )
    yield ActionPlugin(
        name="custom",
        summary="call a function of the file's custom part",
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
        summary="ask for more nodes",
        plan=lambda firing, options: [firing.resize(int(options.get("value", 1)))],
        options=_nodes("to ask for"),
        needs=frozenset({"resize"}),
    )
    yield ActionPlugin(
        name="shrink",
        summary="give nodes back",
        plan=lambda firing, options: [
            firing.resize(-int(options.get("value", 1)), when_busy=options.get("when_busy", "wait"))
        ],
        options=_nodes(
            "to give back",
            when_busy={
                "description": "What becomes of nodes that jobs run on: they go when they are idle "
                "(wait), stay (skip), or go at once, so that their jobs fail (force, where the "
                "queue can do that).",
                "enum": ["wait", "skip", "force"],
                "default": "wait",
            },
        ),
        needs=frozenset({"resize"}),
    )
    yield ActionPlugin(
        name="set",
        summary="change a job group for its later submits",
        plan=lambda firing, options: [firing.set_group(options["label"], options["with"])],
        options=_options(
            ["label", "with"],
            label=_GROUP,
            **{"with": _fields("The group's fields that change, with their new values.")},
        ),
    )
    yield ActionPlugin(
        name="enable",
        summary="let rules fire again",
        plan=lambda firing, options: [firing.enable(_rules(options))],
        options=_RULES,
    )
    yield ActionPlugin(
        name="disable",
        summary="keep rules from firing",
        plan=lambda firing, options: [firing.disable(_rules(options))],
        options=_RULES,
    )
    yield ActionPlugin(
        name="log",
        summary="tell the user something",
        plan=_log,
        options=_options(
            ["message"],
            message={
                "description": "The text; {NAME} stands for a field of the event, or value.",
                "type": "string",
                "minLength": 1,
                "x-ensemble": "message",
            },
            level={
                "description": "How urgent it is.",
                "enum": ["info", "warning", "error"],
                "default": "info",
            },
        ),
    )
