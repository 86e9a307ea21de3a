"""The algorithms ``select-fastest-runtime``, ``select-longest-runtime`` and ``cheapest-member``.

They choose the next job's group by the run time or the cost of earlier jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ensemble_core.errors import UsageError, did_you_mean
from ensemble_core.late_pattern import late_pattern
from ensemble_core.plugin.hookspecs import AlgorithmPlugin, AlgorithmView, Fragment
from ensemble_core.quick_dataclass import replace

GROUPS = {
    "description": "The job groups whose jobs are submitted.",
    "type": "array",
    "minItems": 1,
    "items": {"description": "A job group.", "type": "string"},
    "x-ensemble": "group",
}
AT_ONCE = {"description": "Number of concurrent jobs.", "type": "integer", "minimum": 1}

_QUANTILE = late_pattern(r"p[0-9]{1,2}")
_SAMPLES = {
    "description": "Number of jobs of each group that must end before groups are compared.",
    "type": "integer",
    "minimum": 1,
    "default": 2,
}


def after_each(groups: Sequence[str], action: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rules that perform ``action`` whenever a job of one of the ``groups`` ends."""
    return [
        {
            "id": f"next-{group}",
            "trigger": "job-clean",
            "name": group,
            "repetitions": "unlimited",
            "action": action,
        }
        for group in groups
    ]


def _repeat(groups: Sequence[str], action: Mapping[str, Any]) -> Fragment:
    """Return rules that perform this action at the start of the run and after the end of each
    job.
    """
    begin = {"id": "begin", "trigger": "start", "repetitions": "unlimited", "action": action}
    return Fragment(rules=[begin, *after_each(groups, action)])


def _order_by_runtime(order: str, options: Mapping[str, Any], view: AlgorithmView) -> Fragment:
    groups, statistic = options["groups"], options["statistic"]
    if view.statistics and statistic not in view.statistics and not _QUANTILE.fullmatch(statistic):
        raise UsageError(
            f"there is no statistic {statistic!r}",
            hint=did_you_mean(statistic, view.statistics, "mean, median, max …"),
            code="no-such-statistic",
        )
    action = {
        "name": "submit-best",
        "groups": groups,
        "by": [f'= metric("{statistic}.{group}-duration.success")' for group in groups],
        "order": order,
        "at_once": options["at_once"],
        "samples": options["samples"],
        "grow": view.capabilities is not None and "resize" in view.capabilities,
    }
    return _repeat(groups, action)


def _cheapest(options: Mapping[str, Any], view: AlgorithmView) -> Fragment:
    members = options["members"]
    groups = [member["group"] for member in members]
    nodes = [view.groups.get(group, {}).get("nodes", 1) for group in groups]
    action = {
        "name": "submit-best",
        "groups": groups,
        "by": [
            f"= {member['price']} * {count if isinstance(count, int) else 1} * "
            f'metric("mean.{member["group"]}-duration.success")'
            for member, count in zip(members, nodes, strict=True)
        ],
        "at_once": options["at_once"],
        "waits": [
            f'= metric("count.{group}.submitted") - metric("count.rule.begun-{group}")'
            for group in groups
        ],
        "samples": options["samples"],
    }
    if "total" in options:
        action["total"] = options["total"]
    begun = [
        {
            "id": f"begun-{group}",
            "trigger": "job-start",
            "name": group,
            "repetitions": "unlimited",
            "action": action,
        }
        for group in groups
    ]
    presence = [  # when a member disconnects or reconnects
        {
            "id": f"away-{group}",
            "trigger": "metric",
            "name": f"away.{group}",
            "repetitions": "unlimited",
            "action": action,
        }
        for group in groups
    ]
    repeat = _repeat(groups, action)
    return replace(repeat, rules=[*repeat.rules, *begun, *presence])


def _runtime_options() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["groups", "at_once"],
        "properties": {
            "groups": {
                **GROUPS,
                "description": "The job groups. Jobs of one group should run equally long.",
            },
            "at_once": AT_ONCE,
            "samples": _SAMPLES,
            "statistic": {
                "description": "Statistic of the durations to compare: mean, median, max, p90 …",
                "type": "string",
                "default": "mean",
            },
        },
    }


def _example(name: str) -> str:
    return f"""\
jobs:
  - {{name: slow, command: sleep 0.3, count: 4}}
  - {{name: quick, command: sleep 0.05, count: 4}}
use:
  - {{algorithm: {name}, with: {{groups: [slow, quick], at_once: 1, samples: 1}}}}
"""


_CHEAPEST_EXAMPLE = """\
# With members: ensemble run --executor remote …, and executor: MEMBER in each group.
jobs:
  - {name: site-a, command: sleep 0.05, count: 6}
  - {name: site-b, command: sleep 0.05, count: 6}
use:
  - algorithm: cheapest-member
    with:
      members: [{group: site-a, price: 3.0}, {group: site-b, price: 0.5}]
      samples: 1
      total: 6
"""

LEARNING = (
    AlgorithmPlugin(
        name="select-fastest-runtime",
        summary="learn how long jobs of each group run, then submit the shortest first",
        objective="the most finished jobs at any time",
        build=partial(_order_by_runtime, "least"),
        options=_runtime_options(),
        example=_example("select-fastest-runtime"),
    ),
    AlgorithmPlugin(
        name="select-longest-runtime",
        summary="learn how long jobs of each group run, then submit the longest first",
        objective="the shortest time until all jobs are done",
        build=partial(_order_by_runtime, "greatest"),
        options=_runtime_options(),
        example=_example("select-longest-runtime"),
    ),
    AlgorithmPlugin(
        name="cheapest-member",
        summary="try each member, then submit to the one where a job costs least",
        objective="the lowest cost per job: price × nodes × mean duration",
        build=_cheapest,
        options={
            "type": "object",
            "required": ["members"],
            "properties": {
                "members": {
                    "description": "One job group for each member (the group's 'executor').",
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "description": "A member.",
                        "type": "object",
                        "required": ["group", "price"],
                        "additionalProperties": False,
                        "properties": {
                            "group": {
                                "description": "The job group.",
                                "type": "string",
                                "x-ensemble": "group",
                            },
                            "price": {
                                "description": "Price of a node for an hour; 0 is free.",
                                "type": "number",
                                "minimum": 0,
                            },
                        },
                    },
                },
                "at_once": {
                    "description": "Number of concurrent jobs on all members. Members with waiting "
                    "jobs are skipped while another member has none; jobs of a disconnected member "
                    "do not count.",
                    "type": "integer",
                    "minimum": 1,
                    "default": 1,
                },
                "samples": _SAMPLES,
                "total": {
                    "description": "Total number of jobs. Default: all jobs of the groups.",
                    "type": "integer",
                    "minimum": 1,
                },
            },
        },
        example=_CHEAPEST_EXAMPLE,
    ),
)
