"""The built-in action ``submit-next``, which submits the jobs of a group a few at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError
from ensemble_core.model.expressions import evaluate_options
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
