"""OpenFOAM plugin: reads what a running solver prints.

Every run loads this module, so it only describes the program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from glob import escape, glob

from ensemble_programs import Kept, Program

from ensemble_core import EnsembleError

_PROCESSOR = re.compile(r"processor(s)?\d+(_\d+-\d+)?$")
#: The last line of each file that OpenFOAM writes.
_END = b"// ***"
#: The lines that a continued job's controlDict ends with.
_START = "// openfoam-continue\nstartFrom startTime;\nstartTime {};\n"
_OLD_START = re.compile(re.escape(_START).replace(r"\{\}", r"\S+"))


def _case(time: str) -> str:
    """Return the folder of the case to which a written time belongs."""
    folder = os.path.dirname(time)
    return os.path.dirname(folder) if _PROCESSOR.match(os.path.basename(folder)) else folder


def _files(time: str) -> Iterator[str]:
    for folder, _, names in os.walk(time):
        yield from (os.path.join(folder, name) for name in names)


def _is_whole(file: str) -> bool:
    """Return whether a file of a written time ends as it should."""
    if file.endswith(".gz"):
        import gzip

        with suppress(OSError, EOFError), gzip.open(file) as data:
            while data.read(1 << 20):
                pass
            return True
        return False
    with open(file, "rb") as data:
        data.seek(max(0, os.fstat(data.fileno()).st_size - 200))
        return _END in data.read()


def _reject(path: str) -> str | None:
    """Return why a folder is not a complete written time, or ``None``."""
    name = os.path.basename(path)
    try:
        if float(name) == 0:
            return "it is the start"
    except ValueError:
        return "its name is not a time"
    parts = [path]
    if _case(path) != os.path.dirname(path):
        processors = os.path.join(escape(_case(path)), "processor*")
        parts = [os.path.join(each, name) for each in sorted(glob(processors))]
    fields: set[str] | None = None
    for part in parts:
        if not os.path.isdir(part):
            return f"{part} does not exist"
        files = {os.path.relpath(file, part) for file in _files(part)}
        own = {file for file in files if os.sep not in file}
        if not own:
            return f"{part} has no fields"
        fields = own if fields is None else fields
        if own != fields:
            return f"{part} lacks {', '.join(sorted(fields ^ own))}, or others do"
        for file in sorted(files):
            try:
                if not _is_whole(os.path.join(part, file)):
                    return f"{os.path.join(part, file)} is truncated, or still being written"
            except OSError as error:
                return f"cannot read {os.path.join(part, file)}: {error.strerror}"
    return None


def _resume(kept: Kept) -> list[str]:
    """Let the case start from the written time. The command stays."""
    file = os.path.join(_case(kept.path), "system", "controlDict")
    real, folder = os.path.realpath(file), os.path.realpath(kept.workdir)
    if os.path.commonpath([real, folder]) != folder:
        raise EnsembleError(
            f"{file} is a link to {real}, which other jobs may use, so it cannot be changed",
            hint="copy the folder 'system' into each job's folder",
            code="no-input",
        )
    try:
        with open(file, encoding="utf-8") as text:
            before = _OLD_START.sub("", text.read())
        with open(f"{file}.new", "w", encoding="utf-8") as text:
            text.write(before.rstrip("\n") + "\n" + _START.format(os.path.basename(kept.path)))
        os.replace(f"{file}.new", file)
    except OSError as error:
        raise EnsembleError(f"cannot change {file}: {error.strerror}", code="no-input") from None
    return list(kept.words)


def _residual(field: str) -> str:
    return rf"Solving for {field}, Initial residual = ([^,\s]+)"


#: Fields whose residuals are columns, as in ``Solving for Ux``.
_FIELDS = ("Ux", "Uy", "Uz", "p", "p_rgh", "k", "epsilon", "omega", "nuTilda", "T", "h", "e")

OPENFOAM = Program(
    name="openfoam",
    title="OpenFOAM",
    reader="regex",
    columns={
        "time": r"^Time = ([^s\s]+)",
        **{field: _residual(field) for field in _FIELDS},
        "iterations": r"Solving for p(?:_rgh)?, .* No Iterations (\d+)",
        "continuity": r"^time step continuity errors : sum local = ([^,\s]+)",
        "courant": r"^Courant Number mean: \S+ max: (\S+)",
        "deltaT": r"^deltaT = (\S+)",
        "Cd": r"^ +Cd +[:=] (\S+)",
        "Cl": r"^ +Cl +[:=] (\S+)",
        "seconds": r"^ExecutionTime = (\S+)",
    },
    chosen=("time", "Ux", "Uy", "Uz", "p", "p_rgh", "continuity", "courant"),
    block="time",
    first=_FIELDS,
    began=r"^Exec +: \S*Foam\b(?!.* -postProcess)",
    complete=[r"^\S+ solution converged in \d+ iterations"],
    ended=r"^End\s*$",
    other=r"^Exec +: ",
    unfinished=[r"^(?:SIMPLE|PIMPLE): convergence criteria\n(?: +field.*\n)+(?=(?s:.*)^End\s*$)"],
    diverged=[
        r"^.*Foam::sigFpe::sigHandler.*",
        r"^(?!trapFpe).*Floating point exception.*",
        r"^.*Maximum number of iterations exceeded.*",
        r"^.*expected scalar value, found .*'-?nan'.*",
    ],
    failed=[r"^--> FOAM FATAL (?:IO )?ERROR ?: ?.*(?:\n *)*.*", r"^.*Foam::sigSegv.*"],
    step=r"^Time = ([^s\s]+)",
    goal=r"Calculations will run for (\d+) steps",
    executables=("*Foam", "foamRun", "foamMultiRun"),
    checkpoint=("[0-9]*", "processor0/[0-9]*"),
    reject=_reject,
    resume=_resume,
)

ensemble_observers, ensemble_triggers, ensemble_actions = OPENFOAM.hooks()
