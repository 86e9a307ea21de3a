"""Reads run time, speed, warnings and errors from a LAMMPS log, but not its thermo output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

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
_FLOAT = rb"([0-9]{1,15}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,2})?)"
_INTEGER = rb"([0-9]{1,20})"
_LOOP = re.compile(
    rb"Loop time of %b on [0-9]+ procs\b.* for %b steps with %b atoms"
    % (_FLOAT, _INTEGER, _INTEGER)
)
_PERFORMANCE = re.compile(rb"Performance: %b (ns|fs|tau)/day\b" % _FLOAT)
_SPEEDS = {b"ns": ("NsPerDay", 1.0), b"fs": ("NsPerDay", 1e-6), b"tau": ("TauPerDay", 1.0)}
_TASKS = re.compile(rb"[.0-9]+% CPU use with " + _INTEGER + rb" MPI tasks? x ")
_GRID = re.compile(rb" +%b by %b by %b MPI processor grid\s*" % (_INTEGER, _INTEGER, _INTEGER))
_WALL = re.compile(rb"Total wall time: " + _INTEGER + rb":([0-9]{2}):([0-9]{2})\s*")
_COUNTED = {"Warnings": re.compile(rb"WARNING"), "Errors": re.compile(rb"ERROR(?: on proc \d+)?: ")}


def is_thermo(values: Mapping[str, float]) -> bool:
    """Return whether these are values of a row of thermo output."""
    return not values.keys() <= NO_COLUMNS and _END.isdisjoint(values)


class Facts:
    """Run time, speed, warnings and errors of one log, which is read line by line."""

    def __init__(self) -> None:
        self._counts = {"Errors": 0.0, "Warnings": 0.0}
        self._ranks: float | None = None
        #: Unreported facts of the last finished run.
        self._run: dict[str, float] | None = None

    def loop(self, line: bytes, *, atoms: bool) -> None:
        """Read the line ``Loop time of …``, without its number of atoms unless ``atoms`` is set."""
        if match := _LOOP.match(line):
            seconds, steps, count = map(float, match.groups())
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
            run[name] = float(match[1]) * unit
        elif match := _TASKS.match(line):
            run["Ranks"] = self._ranks = float(match[1])
        else:
            return not line.strip()
        return True

    def take(self) -> dict[str, float] | None:
        """Return the facts of the finished run, or ``None``, and forget them."""
        run, self._run = self._run, None
        if run is not None:
            run |= {name: count for name, count in self._counts.items() if count}
        return run

    def other(self, line: bytes) -> dict[str, float] | None:
        """Read any other line. Return the facts to report immediately."""
        for name, begins in _COUNTED.items():
            if begins.match(line):
                self._counts[name] += 1
                return {name: self._counts[name]}
        if match := _WALL.fullmatch(line):
            hours, minutes, seconds = map(float, match.groups())
            return {"WallTime": hours * 3600 + minutes * 60 + seconds}
        if match := _GRID.fullmatch(line):
            self._ranks = prod(map(float, match.groups())) or None
        return None
