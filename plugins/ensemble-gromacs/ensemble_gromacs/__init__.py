"""GROMACS plugin: reads the growing log of ``gmx mdrun``, so that rules can react to the physics.

Every run loads this module, so it only describes the program.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ensemble_programs import Kept, Program

from ensemble_core import Job, Observer, ObserverPlugin, hookimpl

#: A checkpoint begins and ends with these numbers, as XDR integers.
_BEGIN, _END = (number.to_bytes(4, "big") for number in (171817, 171819))


def _log_of(command: Sequence[str]) -> str | None:
    """Return the log that the command names, with its later parts."""
    named = dict(pairwise(command))
    name = named.get("-g") or named.get("-deffnm")
    return None if name is None else f"{name.removesuffix('.log')}.*log"


def _reject(path: str) -> str | None:
    """Return why a file is not a complete checkpoint, or ``None``."""
    try:
        with open(path, "rb") as file:
            begin = file.read(4)
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4))
            end = file.read()
    except OSError as error:
        return f"cannot read it: {error.strerror}"
    if begin != _BEGIN:
        return "it is not a checkpoint of GROMACS"
    return None if end == _END else "it is truncated, or still being written"


def _resume(kept: Kept) -> list[str]:
    """Return the command that continues in new files: ``md.part0002.log`` follows ``md.log``."""
    words: list[str] = []
    follows = False  # the checkpoint of an earlier attempt
    for word, following in zip(kept.words, [*kept.words[1:], "-"], strict=True):
        if follows or word in ("-append", "-noappend", "-cpi"):
            follows = word == "-cpi" and not following.startswith("-")
        else:
            words.append(word)
    return [*words, "-cpi", kept.path, "-noappend"]


_ERROR = r"^(?:Fatal error|Internal error \(bug\)):\n"

#: How messages of errors begin; the next line says what is wrong.
_KINDS_OF_ERRORS = (
    "Fatal error",
    r"Internal error \(bug\)",
    "Inconsistency in user input",
    "Error in user input",
    "Software inconsistency error",
    "File input/output error",
    "Command line option error",
    "Standard library logic error",
    "Range checking error",
    "Assertion failed",
    "Out of memory",
)

GROMACS = Program(
    name="gromacs",
    title="GROMACS",
    log="md.*log",
    log_of=_log_of,
    reader="table",
    reading={"layout": "pairs-of-lines", "clock": "Step"},
    columns={
        "Potential": "Potential",
        "Kinetic": "Kinetic En.",
        "Total": "Total Energy",
        "Conserved": "Conserved En.",
        "Temperature": "Temperature",
        "Pressure": "Pressure (bar)",
        "LJ": "LJ (SR)",
        "Coulomb": "Coulomb (SR)",
        "Bond": "Bond",
        "Angle": "Angle",
        "ConstraintError": "Constr. rmsd",
    },
    chosen=("Potential", "Kinetic", "Total", "Conserved", "Temperature", "Pressure"),
    began=r":-\) GROMACS - ",
    complete=[r"^\w[\w ]* converged to (?:Fmax|machine precision).*"],
    ended=r"^Finished mdrun.*",
    unfinished=[
        r"^Received the .* signal.*",
        r"^Step \d+: Run time exceeded.*",
        r"^Energy minimization (?:reached the maximum number of steps|has stopped).*",
        r"^\w[\w -]* did not converge to .*",
    ],
    diverged=[
        _ERROR + r"(?:Step \d+: )?The total potential energy is .*, which is not finite",
        _ERROR + r"Too many (?:LINCS|SETTLE|constraint).*",
        _ERROR + r".*can not be settled.*",
        _ERROR + r".*moved more than the distance allowed.*",
        _ERROR + r".*particles communicated to PME rank.*",
    ],
    failed=[rf"^(?:{'|'.join(_KINDS_OF_ERRORS)}).*:\n.*"],
    step=r"^ +Step +Time\n +(\d+) +\d|^Writing checkpoint, step (\d+) ",
    goal=r"^ +nsteps += (-?\d+)\n +init-step += (\d+)$"
    r"|^Overriding nsteps with value passed on the command line: (\d+) steps",
    executables=("gmx", "gmx_mpi", "gmx_d", "gmx_mpi_d", "mdrun", "mdrun_mpi"),
    checkpoint=("*.cpt", "*_prev.cpt"),
    reject=_reject,
    resume=_resume,
)

ensemble_triggers, ensemble_actions = GROMACS.hooks()[1:]

#: Names of columns in ``.edr`` files.
_EDR = {**GROMACS.columns, "Pressure": "Pressure", "ConstraintError": "Constr. rmsd"}


def _edr_fields(options: Mapping[str, Any]) -> Mapping[str, str]:
    given = options.get("columns", GROMACS.chosen)
    return given if isinstance(given, Mapping) else {name: _EDR[name] for name in given}


def _edr(job: Job, options: Mapping[str, Any]) -> Observer:
    from ensemble_gromacs.edr import EdrObserver

    return EdrObserver(job.fill(options.get("path", "ener*.edr")), _edr_fields(options))


@hookimpl
def ensemble_observers() -> Iterable[ObserverPlugin]:
    """Return the observers ``gromacs`` and ``gromacs-edr``."""
    (log,) = GROMACS.observers()
    columns = log.options["properties"]["columns"]
    path = {
        "description": "The .edr file, relative to the job's workdir, or a pattern with * for its "
        "parts. May contain {index} and the sweep's parameters.",
        "type": "string",
        "minLength": 1,
        "default": "ener*.edr",
    }
    edr = ObserverPlugin(
        name="gromacs-edr",
        summary="Energies in the growing .edr file of GROMACS, by column name.",
        build=_edr,
        options={
            "type": "object",
            "additionalProperties": False,
            "properties": {"path": path, "columns": columns},
        },
        variables=lambda options: frozenset(_edr_fields(options)),
    )
    return [log, edr]
