"""An action for Ensemble that posts events to a URL.

Ensemble imports this module in every run, so it imports nothing slow.
"""

from __future__ import annotations

from ensemble_core import ActionPlugin, CallContext, hookimpl

OPTIONS = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "pattern": "^https?://", "description": "Where to post to."},
        "timeout": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 10,
            "description": "Seconds to wait for an answer.",
        },
    },
    "required": ["url"],
}


def ping(context: CallContext) -> None:
    """Post the rule and its event as JSON. Runs in a separate thread, so it may be slow."""
    import json
    import urllib.request

    data = json.dumps({"rule": context.rule.id, "event": dict(context.event)}, default=str)
    request = urllib.request.Request(
        context.options["url"],
        data=data.encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=context.options.get("timeout", 10)):
        pass


PING = ActionPlugin(name="ping", summary="Post the event to a URL", run=ping, options=OPTIONS)


@hookimpl
def ensemble_actions() -> list[ActionPlugin]:
    """Register the action."""
    return [PING]
