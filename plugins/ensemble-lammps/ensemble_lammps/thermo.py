"""Reads the thermo output of a LAMMPS log, whole or while it grows, in pieces cut anywhere.

Called by the observer; knows LAMMPS and nothing of files. A log is not made for machines: between
the rows of a table stand warnings, what fixes print and what the user prints. So a line is taken
for a row only where LAMMPS is known to print one, and only if it looks as LAMMPS prints it: every
wrong value is worse than a missing one.

What a run prints, by ``thermo_modify line``:

- ``one``: the line ``Per MPI rank memory allocation …`` (left out by ``run … pre no``), a header of
  column names, one line a row, ``Loop time of …``. Header and rows end with a space.
- ``multi``: for each row a line ``------------ Step 10 ----- CPU = 0.1 (sec) ----`` and then lines
  of up to three times ``Name     = value``. Nothing says that a row is over but the head of the
  next one; from the second row on, the number of its values is known.
- ``yaml``: ``keywords: ['Step', …]``, then ``  - [0, 1.44, …]`` for each row, then ``...``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from ensemble_core import Row

__all__ = ["ThermoReader"]

#: No line that LAMMPS prints is nearly as long; what is longer is not kept, so memory is bounded.
LONGEST_LINE = 256 * 1024
#: No row has nearly as many values; a row of several lines ends here, so memory is bounded.
MOST_VALUES = 10_000

#: What the keywords of ``thermo_style`` are called in a header.
KEYWORDS = frozenset({
    "Step", "Elapsed", "Elaplong", "Dt", "Time", "CPU", "T/CPU", "S/CPU", "CPULeft", "Part",
    "TimeoutLeft", "Atoms", "Temp", "Press", "PotEng", "KinEng", "TotEng", "Nbuild", "Ndanger",
    "Enthalpy", "E_vdwl", "E_coul", "E_pair", "E_bond", "E_angle", "E_dihed", "E_impro",
    "E_mol", "E_long", "E_tail", "Volume", "Density", "Lx", "Ly", "Lz", "Xlo", "Xhi", "Ylo",
    "Yhi", "Zlo", "Zhi", "Xy", "Xz", "Yz", "Avecx", "Avecy", "Avecz", "Bvecx", "Bvecy",
    "Bvecz", "Cvecx", "Cvecy", "Cvecz", "Xlat", "Ylat", "Zlat", "Bonds", "Angles", "Diheds",
    "Impros", "Pxx", "Pyy", "Pzz", "Pxy", "Pxz", "Pyz", "Fmax", "Fnorm", "Cella", "Cellb",
    "Cellc", "CellAlpha", "CellBeta", "CellGamma",
})  # fmt: skip
_REFERENCE = re.compile(r"[cfv]_\w+(\[[^\[\]]+\])*")

_NUMBER = rb"([-+0-9.eE]+)"
_LOOP = re.compile(
    rb"Loop time of " + _NUMBER + rb" on \d+ procs\b.* for (\d+) steps with \d+ atoms"
)
_WALL = re.compile(rb"Total wall time: (\d+):(\d\d):(\d\d)\s*\Z")
_MULTI = re.compile(rb"-{4,} Step +(-?\d+) -{3,} CPU = +(\S+) \(sec\) -{3,}\s*\Z")
_SPACES = re.compile(r"\s{2,}")
_MEMORY = (b"Per MPI rank memory allocation", b"Memory usage per processor")
_NOISE = (b"WARNING", b"INFO", b"SHAKE stats")


class ThermoReader:
    """The rows of one log.

    ``columns`` keeps only the values of these names. Values are named as the log prints them
    (``Temp``, ``v_eper``, ``c_msd[4]``); a row's clock is its step, where it has one. Beside the
    columns there are ``NonFinite`` (how many values of a row were nan or infinite, and therefore
    left out; only where there were any), at the end of each run ``LoopTime`` (seconds),
    ``LoopSteps`` and ``StepsPerSecond``, and ``WallTime`` (seconds) at the end of the log.
    """

    def __init__(self, columns: Collection[str] | None = None) -> None:
        self._columns = None if columns is None else frozenset(columns)
        self.reset()

    def reset(self) -> None:
        """Forget everything: the log begins anew."""
        self._rest = bytearray()
        self._too_long = False
        self._begin_run()
        #: The columns of the last table, which the next one may have again without more ado.
        self._known: tuple[str, ...] = ()

    def feed(self, data: bytes) -> list[Row]:
        """Rows that are complete with these further bytes."""
        rows: list[Row] = []
        if b"\n" not in data:
            self._keep(data)
            return rows
        first, *lines = data.split(b"\n")
        last = lines.pop()
        self._keep(first)
        if not self._too_long:
            self._line(bytes(self._rest), rows)
        self._rest.clear()
        self._too_long = False
        for line in lines:
            if len(line) <= LONGEST_LINE:
                self._line(line, rows)
        self._keep(last)
        return rows

    def finish(self) -> list[Row]:
        """The row in hand, of which each line is complete. A line that was cut is no line."""
        rows: list[Row] = []
        self._end_multi(rows)
        self._begin_run()
        return rows

    def _keep(self, data: bytes) -> None:
        if self._too_long or len(self._rest) + len(data) > LONGEST_LINE:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += data

    # Where we are: one of expecting a header, in a table, in multi-line rows, in yaml, or elsewhere

    def _begin_run(self, *, expecting: bool = False) -> None:
        self._expecting = expecting
        self._names: tuple[str, ...] = ()
        #: The header read as names with single spaces in them (``thermo_modify colname``).
        self._spaced: tuple[str, ...] = ()
        self._padded = False
        self._yaml = False
        self._step: float | None = None
        self._multi: dict[str, float] | None = None
        self._multi_size = 0
        self._multi_count = 0

    def _line(self, line: bytes, rows: list[Row]) -> None:
        if self._names and not self._yaml:
            row = self._table_row(line)
            if row is not None:
                rows.append(row)
                return
        elif self._yaml and line.lstrip().startswith(b"- ["):
            row = self._yaml_row(line)
            if row is not None:
                rows.append(row)
            return
        elif self._multi is not None and self._multi_line(line, rows):
            return
        if not self._mark(line, rows):
            self._header(line)

    def _mark(self, line: bytes, rows: list[Row]) -> bool:
        """Whether this line says where we are, or is known to say nothing."""
        if line.startswith(_NOISE) or not line.strip():
            return True
        if line.startswith(_MEMORY):
            self._end_multi(rows)
            self._begin_run(expecting=True)
        elif line.startswith(b"----") and (match := _MULTI.match(line)):
            self._begin_multi(match, rows)
        elif line.startswith(b"keywords: ["):
            self._yaml_header(line)
        elif line.startswith(b"Loop time of "):
            self._end_multi(rows)
            self._loop(line, rows)
            self._begin_run()
        elif line.startswith(b"Total wall time: "):
            if match := _WALL.match(line):
                hours, minutes, seconds = map(float, match.groups())
                self._emit(rows, {"WallTime": hours * 3600 + minutes * 60 + seconds}, None)
        elif line.startswith((b"LAMMPS (", b"ERROR")):
            self._end_multi(rows)
            self._begin_run()
        elif line.startswith(b"...") and self._yaml:
            self._names, self._yaml = (), False
        else:
            return line.startswith(b"---")
        return True

    # One line a row

    def _header(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        names = tuple(text.split())
        if any(_is_number(name) for name in names):
            return
        expected, self._expecting = self._expecting, False
        padded = text[-1:] == " "
        # Only the line after the memory's may name columns that we know nothing of.
        if expected or (padded and (names == self._known or all(map(_is_column, names)))):
            self._begin_run()
            self._names = self._known = names
            self._spaced = tuple(_SPACES.split(text.strip())) if expected else names
            self._padded = padded

    def _table_row(self, line: bytes) -> Row | None:
        tokens = line.split()
        if not tokens or (self._padded and line[-1] not in b" \r"):
            return None
        if len(tokens) != len(self._names):
            if len(tokens) != len(self._spaced):
                return None
            self._names = self._known = self._spaced
        return self._row(tokens)

    # yaml

    def _yaml_header(self, line: bytes) -> None:
        inner = line.decode("utf-8", "replace").strip()[len("keywords: [") :]
        if not inner.endswith("]"):
            return
        names = inner[:-1].rstrip(", ")
        self._begin_run()
        if len(names) > 1 and names[0] == names[-1] == "'":
            self._names = tuple(names[1:-1].split("', '"))
            self._yaml = True

    def _yaml_row(self, line: bytes) -> Row | None:
        inner = line.strip()[len(b"- [") :]
        if not inner.endswith(b"]"):
            return None
        tokens = [token.strip() for token in inner[:-1].rstrip(b", ").split(b",")]
        if len(tokens) != len(self._names):
            return None
        return self._row([_YAML_SPECIAL.get(token, token) for token in tokens])

    def _row(self, tokens: list[bytes]) -> Row | None:
        values: dict[str, float] = {}
        for name, token in zip(self._names, tokens, strict=True):
            value = _number(token)
            if value is None:
                return None
            # A name that stands there twice stands for the first.
            values.setdefault(name, value)
        return self._checked(values, values.get("Step"))

    # Several lines a row

    def _begin_multi(self, match: re.Match[bytes], rows: list[Row]) -> None:
        if self._multi_count:
            # Now we know how many values a row of this run has.
            self._multi_size = max(self._multi_size, self._multi_count)
        self._end_multi(rows)
        self._names, self._yaml, self._expecting = (), False, False
        self._multi = {"Step": float(match[1])}
        cpu = _number(match[2])
        if cpu is not None:
            self._multi["CPU"] = cpu
        self._multi_count = 0

    def _multi_line(self, line: bytes, rows: list[Row]) -> bool:
        """Read ``Name = value  Name = value``; whether it was such a line."""
        multi = self._multi
        # LAMMPS pads the name to eight characters.
        if multi is None or line.startswith(_NOISE) or line[:9].find(b"=") >= 0:
            return False
        parts = line.split(b" = ")
        # A name may have blanks in it (thermo_modify colname), and then the value is padded; words
        # and numbers that a user prints are not.
        if len(parts) < 2 or (b" " in parts[0].strip() and parts[1][:1] != b" "):
            return False
        names, values = [parts[0].strip()], []
        for part in parts[1:-1]:
            value, _, name = part.strip().partition(b" ")
            values.append(_number(value))
            names.append(name.strip())
        values.append(_number(parts[-1].strip()))
        if None in values or not all(names):
            return False
        for name, number in zip(names, values, strict=True):
            if number is not None:
                multi.setdefault(name.decode("utf-8", "replace"), number)
        self._multi_count += len(names)
        if self._multi_count >= (self._multi_size or MOST_VALUES):
            self._end_multi(rows)
        return True

    def _end_multi(self, rows: list[Row]) -> None:
        multi, self._multi = self._multi, None
        if multi is None or not self._multi_count:
            return
        row = self._checked(multi, multi.get("Step"))
        if row is not None:
            rows.append(row)

    # Values

    def _checked(self, values: dict[str, float], step: float | None) -> Row | None:
        """The row, if its step comes after the last one's; else the line was something else."""
        if step is not None:
            if not math.isfinite(step) or (self._step is not None and step <= self._step):
                return None
            self._step = step
        if self._columns is not None:
            values = {name: value for name, value in values.items() if name in self._columns}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if len(finite) < len(values) and self._wants("NonFinite"):
            finite["NonFinite"] = float(len(values) - len(finite))
        return Row(finite, step) if finite else None

    def _loop(self, line: bytes, rows: list[Row]) -> None:
        match = _LOOP.match(line)
        seconds = None if match is None else _number(match[1])
        if match is None or seconds is None:
            return
        steps = float(match[2])
        values = {"LoopTime": seconds, "LoopSteps": steps}
        if steps and seconds > 0:
            values["StepsPerSecond"] = steps / seconds
        self._emit(rows, values, self._step)

    def _emit(self, rows: list[Row], values: dict[str, float], clock: float | None) -> None:
        kept = {
            name: value
            for name, value in values.items()
            if self._wants(name) and math.isfinite(value)
        }
        if kept:
            rows.append(Row(kept, clock))

    def _wants(self, name: str) -> bool:
        return self._columns is None or name in self._columns


_YAML_SPECIAL = {b".nan": b"nan", b".inf": b"inf", b"-.inf": b"-inf", b".NAN": b"nan"}


def _number(token: bytes) -> float | None:
    # Python reads more than C prints: 1_000 is a number to it.
    if b"_" in token:
        return None
    try:
        return float(token)
    except ValueError:
        return None


def _is_number(token: str) -> bool:
    return _number(token.encode("utf-8", "replace")) is not None


def _is_column(name: str) -> bool:
    return name in KEYWORDS or _REFERENCE.fullmatch(name) is not None
