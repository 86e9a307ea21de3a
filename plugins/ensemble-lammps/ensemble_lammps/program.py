"""LAMMPS as a :class:`~ensemble_programs.Program`: its observer, its triggers and its outcomes.

The observer is used as in ``observe: {lammps: {log: log.lammps, columns: [Temp, Press]}}``. Every
run imports this module, so the log reader is imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_programs import Program, convergence, observer
from ensemble_programs.actions import TEXT, option

from ensemble_core import Job, Observer, ObserverPlugin, Trigger, TriggerPlugin, hookimpl
from ensemble_lammps import command_line
from ensemble_lammps.log_facts import FACTS, NO_COLUMNS, is_thermo

if TYPE_CHECKING:
    from ensemble_programs import Outcome

    from ensemble_core import Event

#: LAMMPS' default log.
_LOG = "log.lammps"
_OPTIONS = observer.options_schema(
    "Log, relative to the job's workdir; null means the job's own output. May contain "
    "{index} and the sweep's parameters.",
    option(
        "Columns to keep, as named in the log's header; default: all.",
        type="array",
        items=TEXT,
        minItems=1,
        uniqueItems=True,
    ),
    default=_LOG,
)


def _observer(job: Job, options: Mapping[str, Any]) -> Observer:
    """Return the observer of this job. Columns that should converge are always kept."""
    from ensemble_lammps.thermo import ThermoReader

    log, converged = options.get("log", _LOG), options.get("converged")
    reader = ThermoReader(_names(options), None if log is None else job.fill(log))
    return observer.ProgramObserver(reader, LAMMPS, converged, sure=True, counts=is_thermo)


def _names(options: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names that rows may contain; ``None`` if the options do not list ``columns``."""
    return convergence.variables(options, options["columns"]) if "columns" in options else None


def _unasked(options: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the names that rows would have with other options, each with a hint."""
    more = FACTS if "columns" in options else ()
    return convergence.Unasked(options, options.get("columns", ()), more)


def _read(path: str, status: int | None, *, over: bool) -> Outcome:
    from ensemble_lammps import outcome

    return outcome.read(path, status, over=over)


LAMMPS = Program(
    name="lammps",
    title="LAMMPS",
    log=_LOG,
    log_of=command_line.log,
    observer=ObserverPlugin(
        name="lammps",
        summary="Rows of thermo output in a growing LAMMPS log, by column name.",
        build=_observer,
        options=_OPTIONS,
        variables=_names,
        unasked=_unasked,
    ),
    read=_read,
    kinds={
        "completed": "LAMMPS reached the end of its script",
        "lost-atoms": "atoms were lost",
        "nan": "the thermo output ended with values that are not finite",
        "halted": "fix halt stopped it, or its last run ended early",
        "timed-out": "timer timeout stopped it",
        "error": "LAMMPS ended with another error",
        "killed": "it was killed, or the log is truncated",
    },
)

ensemble_observers = LAMMPS.hooks()[0]


def _thermo(name: str | None, options: Mapping[str, Any]) -> Trigger:
    from ensemble_core import Observed

    def prints_thermo(event: Event, fields: Mapping[str, Any]) -> bool:
        if not isinstance(event, Observed) or event.observer.rpartition(":")[2] != LAMMPS.name:
            return False
        return is_thermo(event.values)

    return Trigger(events=("observed",), group=name, match=prints_thermo)


@hookimpl
def ensemble_triggers() -> Iterable[TriggerPlugin]:
    """Return the triggers ``lammps-thermo`` and ``lammps-converged``."""
    yield TriggerPlugin(
        name="lammps-thermo",
        summary="a LAMMPS job of the group printed a row of thermo output",
        build=_thermo,
        name_means="group",
        needs_observer=LAMMPS.name,
        lacks=dict.fromkeys(
            NO_COLUMNS - {"NonFinite", "Converged"},
            "rows of thermo output do not have it; use 'trigger: observed' for rows that do",
        ),
    )
    yield from LAMMPS.triggers()
