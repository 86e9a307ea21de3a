"""The triggers ``lammps-thermo`` and ``lammps-converged``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, Trigger, TriggerPlugin
from ensemble_lammps.log_facts import FACTS

if TYPE_CHECKING:
    from ensemble_core import Event

__all__ = ["triggers"]

OBSERVER = "lammps"
#: Names that the observer adds to rows and that are no columns. ``Atoms`` may be a column too.
_NO_COLUMNS = (FACTS | {"Converged"}) - {"Atoms"}
#: Each row at the end of a run has at least one of these names.
_END = frozenset({"LoopSteps", "LoopTime", "Ranks", "StepsPerSecond"})


def _thermo(name: str | None, options: Mapping[str, Any]) -> Trigger:
    from ensemble_core import Observed

    def is_thermo(event: Event, fields: Mapping[str, Any]) -> bool:
        return (
            isinstance(event, Observed)
            and event.observer.rpartition(":")[2] == OBSERVER
            and not event.values.keys() <= _NO_COLUMNS
            and _END.isdisjoint(event.values)
        )

    return Trigger(events=("observed",), group=name, match=is_thermo)


def _build_converged(name: str | None, options: Mapping[str, Any]) -> Trigger:
    if name is None:
        raise EnsembleError(
            "lammps-converged needs a 'name': the job group whose replicas should converge",
            hint="add 'name: GROUP'",
            code="no-name",
        )
    replicas = options.get("replicas", 1)

    def enough(event: Event, fields: Mapping[str, Any]) -> bool:
        value = fields.get("value")
        return value is not None and bool(value >= replicas)

    return Trigger(metric=f"sum.{name}-Converged", group=name, match=enough)


def triggers() -> Iterable[TriggerPlugin]:
    """Return the plugin records of both triggers."""
    yield TriggerPlugin(
        name="lammps-thermo",
        summary="a LAMMPS job of the group printed a row of thermo output",
        build=_thermo,
        name_means="group",
        needs_observer=OBSERVER,
        lacks=dict.fromkeys(
            _NO_COLUMNS - {"NonFinite", "Converged"},
            "rows of thermo output do not have it; use 'trigger: observed' for rows that do",
        ),
    )
    yield TriggerPlugin(
        name="lammps-converged",
        summary="a number of LAMMPS jobs of the group have converged",
        build=_build_converged,
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
