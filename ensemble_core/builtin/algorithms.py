"""The built-in algorithms: sets of rules that an ensemble file includes by name, under ``use:``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ensemble_core.builtin.actions import MOST_NODES
from ensemble_core.builtin.runtime_and_cost_algorithms import AT_ONCE, GROUPS, LEARNING, after_each
from ensemble_core.builtin.triggers import NODE_OPTIONS
from ensemble_core.errors import UsageError
from ensemble_core.model.durations import seconds
from ensemble_core.plugin.hookspecs import AlgorithmPlugin, AlgorithmView, Fragment, hookimpl

_SEED = {"description": "Seed of a random order.", "type": "integer", "default": 0}


def _sum(groups: Sequence[str], form: str) -> str:
    return " + ".join(f'metric("{form.format(group)}")' for group in groups)


# -- growing and shrinking a cluster ----------------------------------------------------------

_SCALING_OPTIONS: Mapping[str, Any] = {
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
        "and their number did not fall. Shrink it after this number of checks plus two, if nodes "
        "were free and no job waited in all of them.",
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


def _scaling(options: Mapping[str, Any]) -> Fragment:
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


# -- workload-demand ---------------------------------------------------------------------------


def _demand(options: Mapping[str, Any], view: AlgorithmView) -> Fragment:
    groups = options["groups"]
    backlog = _sum(groups, "backlog.{}")
    order = {"order": options["order"], "seed": options["seed"]}
    every = {"id": "begin", "trigger": "start", "repetitions": "unlimited"}
    submit = {"name": "submit-next", "groups": groups, "count": f"= {backlog}", **order}
    idle = {
        "id": "over",
        "trigger": "heartbeat",
        "when": f"queue.active == 0 and {backlog} == 0",
        "for": options["idle"],
        "action": {"name": "terminate"},
    }
    if options["keep"]:
        least = options["min"]
        give_back = {"name": "shrink", "value": f"= nodes.up - {least}", "when_busy": "skip"}
        idle |= {"when": f"{idle['when']} and nodes.up > {least}", "action": give_back}
        idle |= {"id": "keep", "repetitions": "unlimited"}
    grow = _scaling(options)
    return Fragment(
        rules=[{**every, "action": submit}, *grow.rules, idle],
        statistics=grow.statistics,
        heartbeat=grow.heartbeat,
    )


# -- random-selection --------------------------------------------------------------------------


def _random(options: Mapping[str, Any], view: AlgorithmView) -> Fragment:
    groups, at_once = options["groups"], options["at_once"]
    grow = Fragment()
    if options["scale"]:
        if view.capabilities is not None and "resize" not in view.capabilities:
            raise UsageError(
                "'scale' needs an executor that can resize the cluster; this executor cannot",
                hint="remove 'scale', or choose another executor",
                code="cannot-resize",
            )
        grow = _scaling(options)
    active = _sum(groups, "count.{}.active")
    submit = {"name": "submit-next", "groups": groups, "order": "random", "seed": options["seed"]}
    submit["count"] = f"= {at_once} - ({active})"
    begin = {"id": "begin", "trigger": "start", "repetitions": "unlimited", "action": submit}
    return Fragment(
        rules=[begin, *after_each(groups, submit), *grow.rules],
        statistics=grow.statistics,
        heartbeat=grow.heartbeat,
    )


# -- workload-success --------------------------------------------------------------------------


def _success(options: Mapping[str, Any], view: AlgorithmView) -> Fragment:
    group, wanted, at_once = options["group"], options["successes"], options["at_once"]
    known = view.groups.get(group, {})
    parameters = known.get("parameters")
    values = parameters.values() if isinstance(parameters, Mapping) else ()
    swept = any(isinstance(value, (Mapping, list, tuple)) for value in values)
    sweep = next((key for key in ("points", "replicas") if known.get(key)), swept and "parameters")
    if sweep:
        raise UsageError(
            f"the job group {group!r} has {sweep!r}, but this algorithm submits jobs one by one",
            hint=f"remove {sweep!r}; to tell jobs apart, use {{index}} or {{id}}",
            code="bad-value",
        )
    good = "count.rule.valid" if "valid" in options else f"count.{group}.success"
    active, submitted = f'metric("count.{group}.active")', f'metric("count.{group}.submitted")'
    missing = f'{wanted} - metric("{good}") - {active}'
    rooms = [f"{at_once} - {active}", missing]
    if "most" in options:
        rooms.append(f"{options['most']} - {submitted}")
    another = {"name": "submit", "label": group, "with": {"count": f"= min({', '.join(rooms)})"}}
    rules: list[dict[str, Any]] = [
        {"id": "begin", "trigger": "start", "repetitions": "unlimited", "action": another}
    ]
    if "valid" in options:
        rules.append(
            {
                "id": "valid",
                "trigger": "job-success",
                "name": group,
                "when": options["valid"],
                "repetitions": "unlimited",
                "action": {"name": "log", "message": "{job} is valid"},
            }
        )
    rules += [
        {
            "id": "met",
            "trigger": "metric",
            "name": good,
            "when": f">= {wanted}",
            "action": {"name": "terminate"},
        },
        *after_each([group], another),
        {
            "id": "spent",
            "trigger": "idle",
            "name": group,
            "when": f'metric("{good}") < {wanted}',
            "action": {"name": "terminate", "exit_code": 3},
        },
    ]
    return Fragment(rules=rules)


# -- avoid-bad-nodes ---------------------------------------------------------------------------


def _avoid_bad_nodes(options: Mapping[str, Any], view: AlgorithmView) -> Fragment:
    asked = {name: options[name] for name in NODE_OPTIONS if name in options}
    message = "{host}: {failures} jobs failed on this node ({jobs})"
    rule = {
        "id": "avoid",
        "trigger": "bad-node",
        **asked,
        "repetitions": "unlimited",
        "action": [
            {"name": "log", "level": "warning", "message": message},
            {"name": "avoid", "node": "{host}", "most": options["most"]},
        ],
    }
    return Fragment(rules=[rule])


# -- the records -------------------------------------------------------------------------------

_DEMAND_EXAMPLE = """\
# ensemble run --slots 1 --min-slots 1 --max-slots 4 demand.yaml
jobs:
  - {name: small, command: sleep 0.2, count: 3}
  - {name: large, command: sleep 0.3, nodes: 1, tasks: 1, count: 2}
use:
  - algorithm: workload-demand
    as: demand
    with: {groups: [small, large], order: ascending, every: 0.1, checks: 2, idle: 10}
"""
_RANDOM_EXAMPLE = """\
jobs:
  - {name: sim, command: "true {T}", parameters: {T: [1, 2, 3, 4, 5, 6]}}
use:
  - {algorithm: random-selection, with: {groups: [sim], at_once: 2, seed: 7}}
"""
_NODES_EXAMPLE = """\
jobs:
  - {name: sim, command: "true {index}", count: 4, retry: {times: 2}}
rules:
  - {trigger: start, action: {name: submit}}
use:
  - {algorithm: avoid-bad-nodes, with: {failures: 3, within: 10m}}
"""
_SUCCESS_EXAMPLE = """\
jobs:
  - {name: sim, command: "sh -c 'exit $(({index} % 2))'"}
use:
  - algorithm: workload-success
    with: {group: sim, successes: 3, at_once: 2, most: 20}
"""


def _schema(required: Sequence[str], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


@hookimpl
def ensemble_algorithms() -> Iterable[AlgorithmPlugin]:
    """Return the built-in algorithms."""
    yield AlgorithmPlugin(
        name="workload-demand",
        summary="submit all jobs, and scale the cluster with the queue",
        objective="all jobs done in the shortest time, on no more nodes than needed",
        build=_demand,
        options=_schema(
            ["groups"],
            groups=GROUPS,
            order={
                "description": "Order of submission; see the action submit-next.",
                "enum": ["given", "random", "ascending", "descending", "shortest", "longest"],
                "default": "given",
            },
            seed=_SEED,
            **_SCALING_OPTIONS,
            idle={
                "description": "End the run after this many checks without any job left.",
                "type": "integer",
                "minimum": 1,
                "default": 10,
            },
            keep={
                "description": "Keep the cluster at its minimum size instead of ending the run.",
                "type": "boolean",
                "default": False,
            },
        ),
        needs=frozenset({"resize"}),
        example=_DEMAND_EXAMPLE,
    )
    yield AlgorithmPlugin(
        name="random-selection",
        summary="submit jobs in random order, a fixed number at a time",
        objective="an unbiased sample of the jobs at any moment",
        build=_random,
        options=_schema(
            ["groups", "at_once"],
            groups=GROUPS,
            at_once=AT_ONCE,
            seed=_SEED,
            scale={
                "description": "Scale the cluster with the queue, as workload-demand does.",
                "type": "boolean",
                "default": False,
            },
            **_SCALING_OPTIONS,
        ),
        example=_RANDOM_EXAMPLE,
    )
    yield AlgorithmPlugin(
        name="workload-success",
        summary="submit jobs of a group until enough of them have succeeded",
        objective="a number of successes with the fewest jobs",
        build=_success,
        options=_schema(
            ["group", "successes"],
            group={"description": "The job group.", "type": "string", "x-ensemble": "group"},
            successes={
                "description": "End the run after this many successful jobs.",
                "type": "integer",
                "minimum": 1,
            },
            at_once={**AT_ONCE, "default": 1},
            valid={
                "description": "Condition that a successful job must satisfy at its end to be "
                "counted, such as last.energy < 0.",
                "type": "string",
                "minLength": 1,
            },
            most={
                "description": "Maximum number of jobs; then the run ends with exit code 3. "
                "Default: no limit.",
                "type": "integer",
                "minimum": 1,
            },
        ),
        example=_SUCCESS_EXAMPLE,
    )
    yield AlgorithmPlugin(
        name="avoid-bad-nodes",
        summary="submit no more jobs to a node on which several jobs have failed",
        objective="few jobs lost to a broken node",
        build=_avoid_bad_nodes,
        options=_schema([], **NODE_OPTIONS, most={**MOST_NODES, "default": 3}),
        needs=frozenset({"avoid"}),
        example=_NODES_EXAMPLE,
    )
    yield from LEARNING
