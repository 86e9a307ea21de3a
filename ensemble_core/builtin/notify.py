"""The built-in action ``notify``, which sends a message to the bell, desktop, mail or a webhook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.model.notification_addresses import addresses
from ensemble_core.model.rules import Firing
from ensemble_core.plugin.hookspecs import ActionPlugin

if TYPE_CHECKING:  # not needed to check a file, which must be fast
    from ensemble_core.model.decisions import Decision


def _notify(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    return [firing.notify(options["message"], addresses(options["to"]))]


_ADDRESS: dict[str, Any] = {
    "description": "bell, desktop, {mail: ADDRESS} or {webhook: VARIABLE}.",
    "type": ["string", "object"],
    "if": {"type": "string"},
    "then": {"enum": ["bell", "desktop"]},
    "additionalProperties": False,
    "minProperties": 1,
    "dependentRequired": {"format": ["webhook"]},
    "not": {
        "description": "write a list of two addresses: [{mail: …}, {webhook: …}]",
        "type": "object",
        "required": ["mail", "webhook"],
    },
    "properties": {
        "mail": {
            "description": "A mail address; the mail is sent with sendmail.",
            "type": "string",
            "minLength": 1,
            "x-ensemble": "mail",
            "maxLength": 254,
        },
        "webhook": {
            "description": "The environment variable with the URL: https, or http to localhost.",
            "type": "string",
            "minLength": 1,
            "x-ensemble": "variable",
        },
        "format": {
            "description": "Format of the request: JSON with text, run, rule and job; Discord's "
            "format; or only the text.",
            "enum": ["json", "discord", "text"],
            "default": "json",
        },
    },
}

NOTIFY = ActionPlugin(
    name="notify",
    summary="send a message to the bell, the desktop, a mailbox or a webhook",
    plan=_notify,
    options={
        "type": "object",
        "required": ["message", "to"],
        "additionalProperties": False,
        "properties": {
            "message": {
                "description": "The text. {NAME} is replaced by the event's field of that name, "
                "{value} by the metric's value.",
                "type": "string",
                "minLength": 1,
                "x-ensemble": "message",
            },
            "to": {
                **_ADDRESS,
                "type": ["string", "object", "array"],
                "items": _ADDRESS,
                "minItems": 1,
            },
        },
        "x-ensemble-at-end": True,
    },
)
