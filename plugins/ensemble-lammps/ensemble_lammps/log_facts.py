"""Reads run time, speed, warnings and errors from a LAMMPS log, but not its thermo output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite, prod

__all__ = ["FACTS", "LOOP", "MEMORY", "NO_COLUMNS", "Facts", "is_thermo"]

#: Names of the facts. ``Atoms`` may also be a column.
FACTS = frozenset({
    "Atoms", "Errors", "LoopSteps", "LoopTime", "NonFinite", "NsPerDay", "Ranks",
    "StepsPerSecond", "TauPerDay", "WallTime", "Warnings",
})  # fmt: skip

#: Names that the observer adds to rows and that are no columns. ``Atoms`` may be a column too.
NO_COLUMNS = (FACTS | {"Converged"}) - {"Atoms"}
#: Each row at the end of a run has at least one of these names.
_END = frozenset({"LoopSteps", "LoopTime", "Ranks", "StepsPerSecond"})

#: Possible starts of the line before a table.
MEMORY = (b"Per MPI rank memory allocation", b"Memory usage per processor")
#: The line ``Loop time of …``. Groups: seconds, processors, steps, atoms.
LOOP = re.compile(
    rb"Loop time of ([-+.0-9eE]+) on ([0-9]+) procs\b.* for ([0-9]+) steps with ([0-9]+) atoms"
)
_PERFORMANCE = re.compile(rb"Performance: ([-+.0-9eE]+) (ns|fs|tau)/day\b")
_SPEEDS = {b"ns": ("NsPerDay", 1.0), b"fs": ("NsPerDay", 1e-6), b"tau": ("TauPerDay", 1.0)}
_TASKS = re.compile(rb"[.0-9]+% CPU use with ([0-9]+) MPI tasks? x ")
_GRID = re.compile(rb" +([0-9]+) by ([0-9]+) by ([0-9]+) MPI processor grid\s*")
_WALL = re.compile(rb"Total wall time: ([0-9]+):([0-9]{2}):([0-9]{2})\s*")
_WARNING = b"WARNING"
_ERROR = re.compile(rb"ERROR(?: on proc [0-9]+)?: ")

#: Maximum length of a number. LAMMPS prints no more digits.
_LONGEST = 40


def _float(text: bytes) -> float | None:
    try:
        value = float(text) if len(text) <= _LONGEST else None
    except ValueError:
        return None
    return value if value is not None and isfinite(value) else None


def is_thermo(values: Mapping[str, float]) -> bool:
    """Return whether these are values of a row of thermo output."""
    return not values.keys() <= NO_COLUMNS and _END.isdisjoint(values)


class Facts:
    """Run time, speed, warnings and errors of one log, which is read line by line."""

    def __init__(self) -> None:
        self.errors = 0
        self.warnings = 0
        self._ranks: float | None = None
        #: Unreported facts of the last finished run.
        self._run: dict[str, float] | None = None

    def loop(self, line: bytes, *, atoms: bool) -> None:
        """Read the line ``Loop time of …``, without its number of atoms unless ``atoms`` is set."""
        match = LOOP.match(line)
        numbers = [] if match is None else [_float(text) for text in match.groups()]
        if not numbers or None in numbers:
            return
        seconds, _, steps, count = (number or 0.0 for number in numbers)
        self._run = {"LoopTime": seconds, "LoopSteps": steps}
        if steps and seconds > 0:
            self._run["StepsPerSecond"] = steps / seconds
        if atoms:
            self._run["Atoms"] = count
        if self._ranks is not None:
            self._run["Ranks"] = self._ranks

    def read_summary(self, line: bytes) -> bool:
        """Read a line after ``Loop time of …``. Return whether the line is about that run."""
        run = self._run
        if run is None:
            return False
        if match := _PERFORMANCE.match(line):
            name, unit = _SPEEDS[match[2]]
            if (value := _float(match[1])) is not None:
                run[name] = value * unit
        elif match := _TASKS.match(line):
            if (value := _float(match[1])) is not None:
                run["Ranks"] = self._ranks = value
        else:
            return not line.strip()
        return True

    def take(self) -> dict[str, float] | None:
        """Return the facts of the finished run, or ``None``, and forget them."""
        run, self._run = self._run, None
        if run is not None:
            if self.errors:
                run["Errors"] = float(self.errors)
            if self.warnings:
                run["Warnings"] = float(self.warnings)
        return run

    def other(self, line: bytes) -> dict[str, float] | None:
        """Read any other line. Return the facts to report immediately."""
        if line.startswith(_WARNING):
            self.warnings += 1
            return {"Warnings": float(self.warnings)}
        if line.startswith(b"ERROR"):
            if _ERROR.match(line) is None:
                return None
            self.errors += 1
            return {"Errors": float(self.errors)}
        if line.startswith(b"Total wall time: "):
            if match := _WALL.fullmatch(line):
                hours, minutes, seconds = (_float(text) for text in match.groups())
                if hours is not None and minutes is not None and seconds is not None:
                    return {"WallTime": hours * 3600 + minutes * 60 + seconds}
        elif line.endswith(b"grid") and (match := _GRID.fullmatch(line)):
            sides = [_float(text) for text in match.groups()]
            self._ranks = prod(side or 0.0 for side in sides) or None
        return None
