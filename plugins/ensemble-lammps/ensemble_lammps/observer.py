"""The observer ``lammps``, as in ``observe: {lammps: {log: log.lammps, columns: [Temp, Press]}}``.

Every run imports this module, so the log reader is imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_programs import convergence

from ensemble_core import Job, Observer, Row

__all__ = ["DEFAULT_LOG", "OPTIONS", "build", "unasked", "variables"]

#: LAMMPS' default log.
DEFAULT_LOG = "log.lammps"

OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "log": {
            "type": ["string", "null"],
            "minLength": 1,
            "default": DEFAULT_LOG,
            "description": (
                "Log, relative to the job's workdir; null means the job's own output. May contain "
                "{index} and the sweep's parameters."
            ),
        },
        "columns": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "uniqueItems": True,
            "description": "Columns to keep, as named in the log's header; default: all.",
        },
        "converged": convergence.OPTIONS,
    },
    "additionalProperties": False,
}


def build(job: Job, options: Mapping[str, Any]) -> Observer:
    """Return the observer of this job. Columns that should converge are always kept."""
    from ensemble_programs.observer import ProgramObserver

    from ensemble_lammps.actions import LAMMPS
    from ensemble_lammps.log_facts import is_thermo
    from ensemble_lammps.thermo import ThermoReader

    class LammpsObserver(ProgramObserver):
        def _converges(self, row: Row) -> bool:
            return is_thermo(row.values)

    log, columns = options.get("log", DEFAULT_LOG), options.get("columns")
    converged = options.get("converged")
    if columns is not None:
        columns = {*columns, *(converged or ())}
    reader = ThermoReader(columns, None if log is None else job.fill(log))
    return LammpsObserver(reader, LAMMPS, converged, sure=True)


def variables(options: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names that rows may contain; ``None`` if the options do not list ``columns``."""
    columns, converged = options.get("columns"), options.get("converged")
    if columns is None:
        return None
    added = frozenset() if not converged else {*converged, *convergence.variables(converged)}
    return frozenset({*columns, *added})


class _UnlistedFields(Mapping[str, str]):
    """Names that the observer would yield with other options, each with a hint."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._columns = options.get("columns")
        self._converged = options.get("converged") or {}

    def __getitem__(self, name: str) -> str:
        from ensemble_lammps.log_facts import FACTS

        base, _, suffix = name.rpartition(".")
        asked = {*(self._columns or ()), *self._converged}
        if self._converged:
            asked |= convergence.variables(self._converged)
        else:
            asked.discard("Converged")
        if name in asked:
            raise KeyError(name)
        if name == "Converged":
            return "define convergence with the observer's option 'converged'"
        if base and suffix in ("mean", "error", "drift"):
            if base in self._converged:  # only the drift can be missing
                return f"give {base} a window in the observer's option 'converged'"
            return f"add {base} to the observer's option 'converged'"
        if name in FACTS and self._columns is not None:
            return f"add {name} to the observer's option 'columns'"
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        from ensemble_lammps.log_facts import FACTS

        return (name for name in sorted({*FACTS, "Converged"}) if self.get(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def unasked(options: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the names that rows would have with other options, each with a hint."""
    return _UnlistedFields(options)
