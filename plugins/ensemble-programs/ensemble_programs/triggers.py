"""The trigger ``NAME-converged``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, Trigger, TriggerPlugin

if TYPE_CHECKING:
    from ensemble_core import Event
    from ensemble_programs.program import Program


def converged(program: Program) -> TriggerPlugin:
    """Return the record of the trigger ``NAME-converged``."""
    trigger = f"{program.name}-converged"

    def build(name: str | None, options: Mapping[str, Any]) -> Trigger:
        if name is None:
            raise EnsembleError(
                f"{trigger} needs a 'name': the job group whose replicas should converge",
                hint="add 'name: GROUP'",
                code="no-name",
            )
        replicas = options.get("replicas", 1)

        def enough(event: Event, fields: Mapping[str, Any]) -> bool:
            value = fields.get("value")
            return value is not None and bool(value >= replicas)

        return Trigger(metric=f"sum.{name}-Converged", group=name, match=enough)

    return TriggerPlugin(
        name=trigger,
        summary=f"a number of {program.title} jobs of the group have converged",
        build=build,
        name_means="group",
        fields=frozenset({"value"}),
        needs_variables=lambda options: frozenset({"Converged"}),
        options={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "replicas": {
                    "description": "Number of jobs that must have converged, as defined by the "
                    "observer's option 'converged'.",
                    "type": "integer",
                    "minimum": 1,
                    "default": 1,
                }
            },
        },
    )
