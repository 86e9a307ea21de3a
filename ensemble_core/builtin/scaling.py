"""Rules that grow a cluster while jobs wait in its queue, and shrink it when nodes are free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core.model.durations import seconds
from ensemble_core.plugin.hookspecs import Fragment

SCALING_OPTIONS: Mapping[str, Any] = {
    "grow_by": {
        "description": "Grow to the size of a waiting job (the next, the smallest, the largest, or "
        "a random one), or by a fixed number of nodes.",
        "anyOf": [
            {"enum": ["next", "smallest", "largest", "random"]},
            {"type": "integer", "minimum": 1},
        ],
        "default": "next",
    },
    "checks": {
        "description": "Grow the cluster after this many consecutive checks in which jobs waited "
        "and "
        "their number did not fall. Shrink it after two more checks than that in which nodes were "
        "free and no job waited.",
        "type": "integer",
        "minimum": 1,
        "default": 5,
    },
    "every": {
        "description": "Time between checks: seconds or a duration.",
        "type": ["number", "string"],
        "exclusiveMinimum": 0,
        "default": 10,
        "x-ensemble": "duration",
    },
    "min": {
        "description": "Minimum number of nodes.",
        "type": "integer",
        "minimum": 1,
        "default": 1,
    },
    "max": {
        "description": "Maximum number of nodes. Default: no limit.",
        "type": "integer",
        "minimum": 1,
    },
}


def scaling(options: Mapping[str, Any]) -> Fragment:
    """Return rules that grow and shrink the cluster, one change of size at a time."""
    checks, grow_by, most = options["checks"], options["grow_by"], options.get("max")
    waits = "waiting.jobs > 0 and metric('fell.waiting.jobs') >= 0"
    by = str(grow_by)
    if isinstance(grow_by, str):
        by = f"waiting.{grow_by} - nodes.free"
        waits += f" and waiting.{grow_by} > nodes.free"
    if most is not None:
        by = f"min({by}, {most} - nodes.up)"
        waits += f" and nodes.up < {most}"
    quiet = {"name": "disable", "rules": ["grow", "shrink"]}
    give_back = f"= min(nodes.free, nodes.up - {options['min']})"
    rules: list[dict[str, Any]] = [
        {
            "id": "grow",
            "trigger": "heartbeat",
            "when": waits,
            "for": checks,
            "repetitions": "unlimited",
            "action": [{"name": "grow", "value": f"= {by}"}, quiet],
        },
        {
            "id": "shrink",
            "trigger": "heartbeat",
            "when": f"nodes.free > 0 and waiting.jobs == 0 and nodes.up > {options['min']}",
            "for": checks + 2,
            "repetitions": "unlimited",
            "action": [{"name": "shrink", "value": give_back, "when_busy": "skip"}, quiet],
        },
    ]
    rules += [
        {
            "id": answer,
            "trigger": f"resize-{answer}",
            "repetitions": "unlimited",
            "action": {"name": "enable", "rules": ["grow", "shrink"]},
        }
        for answer in ("granted", "denied", "timeout")
    ]
    return Fragment(
        rules=rules,
        statistics={"fell": {"statistic": "change", "window": checks}},
        heartbeat=seconds(options["every"]),
    )
