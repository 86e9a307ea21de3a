"""The built-in actions ``submit-next``, which submits the jobs of a group a few at a time, and
``submit-best``, which submits the next job of the best group.

The option ``by`` of ``submit-best`` has an expression for each group, such as the mean run time of
its jobs. The best group is the one with the least value, or with the greatest if ``order`` is
``greatest``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError
from ensemble_core.model.evaluated_options import evaluate_options
from ensemble_core.model.expressions import expression
from ensemble_core.model.rules import Firing
from ensemble_core.plugin.hookspecs import ActionPlugin

if TYPE_CHECKING:  # not needed to check a file, which must be fast
    from ensemble_core.model.decisions import Decision


def _submit_next(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    groups = options.get("groups") or firing.groups
    given = options.get("count", 1)
    count = float(evaluate_options(given, firing.fields, firing.metric))
    if not count.is_integer():
        raise EnsembleError(
            f"expected a whole number of jobs, but {given!r} is {count:g}", code="bad-value"
        )
    names = [groups] if isinstance(groups, str) else list(groups)
    order, seed = options.get("order", "given"), int(options.get("seed", 0))
    return firing.submit_next(names, int(count), order=order, seed=seed) if count > 0 else []


SUBMIT_NEXT = ActionPlugin(
    name="submit-next",
    summary="submit the next jobs of groups' sweeps, each job once",
    plan=_submit_next,
    options={
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "groups": {
                "description": "The job group, or a list of them. Default: every group.",
                "type": ["string", "array"],
                "minItems": 1,
                "items": {"description": "A job group.", "type": "string"},
                "x-ensemble": "group",
            },
            "count": {
                "description": "Number of jobs; fewer if fewer are left.",
                "type": ["integer", "string"],
                "minimum": 1,
                "pattern": "^=",
                "default": 1,
                "x-ensemble": "expression",
            },
            "order": {
                "description": "The order of jobs: as given in the file, random by the seed, "
                "ascending or descending by nodes, or by the group's mean duration, shortest or "
                "longest first.",
                "enum": [*("given", "random", "ascending", "descending", "shortest", "longest")],
                "default": "given",
            },
            "seed": {
                "description": "Seed of a random order.",
                "type": "integer",
                "default": 0,
            },
        },
    },
    needs=frozenset({"submit"}),
)


def _count(firing: Firing, group: str, what: str) -> float:
    return firing.metric(f"count.{group}.{what}") or 0.0


def _submit_best(firing: Firing, options: Mapping[str, Any]) -> Iterator[Decision]:
    groups: list[str] = options["groups"]
    if len(options["by"]) != len(groups):
        raise EnsembleError(
            f"'by' has {len(options['by'])} expressions for {len(groups)} groups",
            hint="write one expression for each group, in the same order",
            code="bad-value",
        )
    total = options.get("total", math.inf)
    submitted = sum(_count(firing, group, "submitted") for group in groups)
    # Jobs of a disconnected member do not count towards 'at_once'.
    away = {group for group in groups if firing.metric(f"away.{group}")}
    active = sum(_count(firing, group, "active") for group in groups if group not in away)
    waits = _waiting_groups(firing, groups, options)
    for _ in range(int(max(0, min(options["at_once"] - active, total - submitted)))):
        group = _best_group(firing, groups, options, waits, away)
        if group is None and not any(_count(firing, each, "active") for each in groups):
            # Without an open job the run would end, so let one job wait for a disconnected member.
            group = _best_group(firing, groups, options, waits, set())
        if group is None:
            return
        if options.get("grow"):
            yield from _room(firing, group)
        yield from firing.submit_next([group])


def _waiting_groups(firing: Firing, groups: list[str], options: Mapping[str, Any]) -> set[str]:
    """Return the groups with waiting jobs: those whose expression under ``waits`` is positive."""
    found = zip(groups, options.get("waits", ()), strict=False)
    return {group for group, text in found if (_value(firing, text) or 0) > 0}


def _best_group(
    firing: Firing,
    groups: list[str],
    options: Mapping[str, Any],
    waits: set[str],
    away: set[str],
) -> str | None:
    """Return the group of the next job, or ``None`` if no group has jobs left."""
    left = [
        (number, group)
        for number, group in enumerate(groups)
        if group not in away and (firing.metric(f"backlog.{group}") or 0) > 0
    ]
    left = [each for each in left if each[1] not in waits] or left
    if not left:
        return None
    # First sample every group in turn. A group without remaining jobs counts as sampled.
    samples = options.get("samples", 1)
    untried = [
        (_count(firing, group, "submitted"), number, group)
        for number, group in left
        if _count(firing, group, "finished") < samples
    ]
    fresh = [each for each in untried if each[0] < samples]
    if fresh or len(untried) == len(left):
        return min(fresh or untried)[2]
    sign = -1.0 if options.get("order", "least") == "greatest" else 1.0
    values = {group: _value(firing, options["by"][number]) for number, group in left}
    return min(
        left,
        key=lambda each: (
            values[each[1]] is None,
            sign * (values[each[1]] or 0.0),
            firing.metric(f"mean.{each[1]}-pending") or 0.0,
            each[0],
        ),
    )[1]


def _value(firing: Firing, text: str) -> float | None:
    """Return the value of an expression, or ``None`` if one of its names has no value yet."""
    found = expression(text).value(firing.fields, firing.metric)
    return None if found is None or not math.isfinite(found) else float(found)


def _room(firing: Firing, group: str) -> Iterator[Decision]:
    """Request missing nodes for a job of the group, unless a waiting job already needs as many."""
    known, up = firing.group(group), firing.metric("nodes.up")
    if known is None or up is None or known.nodes <= up:
        return
    if (firing.metric("waiting.largest") or 0) < known.nodes:
        yield firing.resize(int(known.nodes - up))


SUBMIT_BEST = ActionPlugin(
    name="submit-best",
    summary="submit the next job of the group with the best value, up to a number of active jobs",
    plan=_submit_best,
    options={
        "type": "object",
        "additionalProperties": False,
        "required": ["groups", "by", "at_once"],
        "properties": {
            "groups": {
                "description": "The job groups.",
                "type": "array",
                "minItems": 1,
                "items": {"description": "A job group.", "type": "string"},
                "x-ensemble": "group",
            },
            "by": {
                "description": "Expressions by which groups are compared, one for each group.",
                "type": "array",
                "minItems": 1,
                "items": {"description": "'= …'.", "type": "string", "pattern": "^="},
                "x-ensemble": "expression",
            },
            "order": {
                "description": "Whether the least or the greatest value is best.",
                "enum": ["least", "greatest"],
                "default": "least",
            },
            "at_once": {
                "description": "Number of concurrent jobs of these groups.",
                "type": "integer",
                "minimum": 1,
            },
            "waits": {
                "description": "An expression for each group: its number of waiting jobs. Groups "
                "with waiting jobs are skipped while another group has none.",
                "type": "array",
                "items": {"description": "'= …'.", "type": "string", "pattern": "^="},
                "x-ensemble": "expression",
            },
            "samples": {
                "description": "Number of jobs of each group that must end before groups are "
                "compared.",
                "type": "integer",
                "minimum": 1,
                "default": 1,
            },
            "total": {
                "description": "Total number of jobs. Default: all jobs of the groups' sweeps.",
                "type": "integer",
                "minimum": 1,
            },
            "grow": {
                "description": "Request the missing nodes if a job needs more than are up.",
                "type": "boolean",
                "default": False,
            },
        },
    },
    needs=frozenset({"submit"}),
)
