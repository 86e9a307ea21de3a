"""The observer ``lammps``: which file, which columns. The hook names it; ``thermo`` reads.

In an ensemble file: ``observe: {lammps: {log: log.lammps, columns: [Temp, Press]}}``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ensemble_core import Job, Observer, Row
from ensemble_lammps.thermo import ThermoReader

__all__ = ["OPTIONS", "LammpsObserver", "build", "variables"]

#: What LAMMPS calls its log unless it is told otherwise.
DEFAULT_LOG = "log.lammps"

OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "log": {
            "type": ["string", "null"],
            "minLength": 1,
            "default": DEFAULT_LOG,
            "description": (
                "The log, relative to the job's workdir; null is the job's own output. {index} and "
                "the sweep's parameters may stand in it."
            ),
        },
        "columns": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "uniqueItems": True,
            "description": "Only these columns, as the log's header prints them; default: all.",
        },
    },
    "additionalProperties": False,
}


class LammpsObserver(Observer):
    """Reads the thermo output of one LAMMPS log.

    Parameters
    ----------
    log:
        The log's path, relative to the job's workdir; ``None`` is the job's own output.
    columns:
        The columns to keep; ``None`` keeps all.
    """

    def __init__(
        self, log: str | None = DEFAULT_LOG, columns: Collection[str] | None = None
    ) -> None:
        self._log = log
        self._reader = ThermoReader(columns)

    @property
    def path(self) -> str | None:
        return self._log

    def feed(self, data: bytes) -> Iterable[Row]:
        return self._reader.feed(data)

    def truncated(self) -> None:
        self._reader.reset()

    def finish(self) -> Iterable[Row]:
        return self._reader.finish()


def build(job: Job, options: Mapping[str, Any]) -> LammpsObserver:
    """The observer of this job."""
    log = options.get("log", DEFAULT_LOG)
    return LammpsObserver(None if log is None else job.fill(log), options.get("columns"))


def variables(options: Mapping[str, Any]) -> frozenset[str] | None:
    """The names that can come; not known beforehand unless the file lists ``columns``."""
    columns = options.get("columns")
    return None if columns is None else frozenset(columns)
