"""Reads the thermo output of a LAMMPS log: the tables that LAMMPS prints while a simulation runs.

:class:`ThermoReader` finds where tables begin and end. A table is in style ``one``, ``multi`` or
``yaml``.

Missing a row is better than reporting a wrong value, so unexpected lines are skipped.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from math import inf, isfinite, nan

from ensemble_core import Observer, Row, read_number
from ensemble_lammps.log_facts import MEMORY, Facts

#: Columns without physics, which may be infinite or nan in a healthy run.
TIMES = frozenset({
    "Step", "Elapsed", "Elaplong", "Dt", "Time", "CPU", "T/CPU", "S/CPU", "CPULeft", "Part",
    "TimeoutLeft", "Nbuild", "Ndanger", "NonFinite",
})  # fmt: skip
#: Names of ``thermo_style`` keywords in a header.
_PHYSICS = """
Atoms Temp Press PotEng KinEng TotEng Enthalpy Ecouple Econserve E_vdwl E_coul E_pair E_bond
E_angle E_dihed E_impro E_mol E_long E_tail Volume Density Lx Ly Lz Xlo Xhi Ylo Yhi Zlo Zhi Xy Xz
Yz Avecx Avecy Avecz Bvecx Bvecy Bvecz Cvecx Cvecy Cvecz Xlat Ylat Zlat Bonds Angles Diheds Impros
Pxx Pyy Pzz Pxy Pxz Pyz Fmax Fnorm Cella Cellb Cellc CellAlpha CellBeta CellGamma
"""
KEYWORDS = (TIMES - {"NonFinite"}) | {*_PHYSICS.split()}
_REFERENCE = re.compile(r"[cfv]_\w+(\[[^\[\]]+\])*")
_SPACES = re.compile(r"\s{2,}")
_YAML_HEAD = re.compile(r"keywords: \['(.*)'[, ]*\]\s*")


# The output of a run depends on ``thermo_modify line``:
#
# - ``one``: the line ``Per MPI rank memory allocation …`` (missing after ``run … pre no``), a
#   header with column names, one line per row, and ``Loop time of …`` (missing after ``timer off``)
# - ``multi``: for each row a line ``------------ Step 10 ----- CPU = 0.1 (sec) ----``, then lines
#   with up to three ``Name = value``
# - ``yaml``: ``keywords: ['Step', …]``, then `` - [0, 1.44, …]`` for each row, then ``...``
#
# Between rows, a log also has warnings, and lines that fixes and the user's script print.


class ThermoReader(Observer):
    """Converts the text of one log into rows.

    Parameters
    ----------
    columns:
        Names of the values to keep; ``None`` for all.
    path:
        The log, relative to the job's workdir; ``None`` for the job's own output.

    Values have the names that the log uses (``Temp``, ``v_eper``, ``c_msd[4]``), and may be nan or
    infinite. ``Row.clock`` is the step, if the row has one. A truncated line is ignored.

    If kept values in a row are not finite, the row's ``NonFinite`` is the number of such values.

    There are further rows:

    - for each warning: ``Warnings``, the number of warnings so far
    - for each error: ``Errors``, the number of errors so far
    - at the end of each run: ``LoopTime`` (seconds), ``LoopSteps``, ``StepsPerSecond``,
      ``NsPerDay`` or ``TauPerDay``, ``Atoms`` (unless it is a column), ``Ranks`` and, unless they
      are 0, ``Errors`` and ``Warnings``
    - at the end of the log: ``WallTime`` (seconds)
    """

    def __init__(self, columns: Collection[str] | None = None, path: str | None = None) -> None:
        self._keeper = Keeper(columns)
        self._path = path
        self.truncated()

    @property
    def path(self) -> str | None:
        return self._path

    def truncated(self) -> None:
        self._rest = bytearray()
        self._facts = Facts()
        #: Whether the header may be the next line.
        self._expecting = False
        self._table: Table | None = None
        #: Columns of the last table, which the next table may repeat.
        self._known: tuple[str, ...] = ()
        #: Last header as printed. A run without preparation (``pre no``) prints it again.
        self._header_line = b""
        #: Last step of the previous table, for lines after it.
        self._step: float | None = None

    def feed(self, data: bytes) -> list[Row]:
        rows: list[Row] = []
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        lines = [line.removesuffix(b"\r") for line in lines if len(line) <= LONGEST_LINE]
        at = 0
        while at < len(lines):
            if self._table is not None:
                at = self._table.usual_rows(lines, at, rows)
            for line in lines[at : at + 1]:
                self._line(line, rows)
            at += 1
        # A longer line is not kept, but known to be too long.
        self._rest += rest[: LONGEST_LINE + 1 - len(self._rest)]
        return rows

    def finish(self) -> list[Row]:
        rows: list[Row] = []
        self._end_table(rows)
        self._add_row(rows, self._facts.take())
        return rows

    def _line(self, line: bytes, rows: list[Row]) -> None:
        if self._table is not None:
            if self._table.line(line, rows):
                return
        elif self._facts.read_summary(line):
            return
        if not line or line.isspace() or line.startswith(NOISE):
            return
        self._add_row(rows, self._facts.take())
        if line.startswith(MEMORY):
            self._end_table(rows)
            self._expecting = True
        elif line.startswith(b"Loop time of "):
            names = () if self._table is None else self._table.names
            self._end_table(rows)
            self._facts.loop(line, atoms="Atoms" not in names)
        elif MULTI_HEAD.fullmatch(line.rstrip()):
            self._begin_table(table := MultiTable(self._keeper), rows)
            table.line(line, rows)
        elif line.startswith(b"keywords: ["):
            self._yaml(line, rows)
        elif line.startswith(b"..."):
            if isinstance(self._table, YamlTable):
                self._end_table(rows)
        elif not line.startswith(b"---"):
            facts = self._facts.other(line)
            if line.startswith((b"ERROR", b"LAMMPS (")):  # the current row is older
                self._end_table(rows)
            self._add_row(rows, facts)
            if facts is None:
                self._header(line, rows)

    # Where tables begin and end

    def _begin_table(self, table: Table, rows: list[Row]) -> None:
        self._end_table(rows)
        self._table, self._known, self._step = table, table.names, None

    def _end_table(self, rows: list[Row]) -> None:
        table, self._table = self._table, None
        self._expecting = False
        if table is not None:
            table.end(rows)
            self._step, self._known = table.step, table.names

    def _header(self, line: bytes, rows: list[Row]) -> None:
        text = line.decode("utf-8", "replace")
        names = tuple(text.split())
        if any(map(_IS_NUMBER.fullmatch, names)):
            return
        # Unknown columns are accepted only in the line after ``Per MPI rank memory``, or in a line
        # that was a header before.
        expected, self._expecting = self._expecting or line == self._header_line, False
        known = names == self._known or (len(names) > 1 and all(map(_is_column, names)))
        if expected or (known and text[-1:] == " "):
            spaced = tuple(_SPACES.split(text.strip())) if expected else names
            self._begin_table(OneTable(names, spaced, self._keeper), rows)
            self._header_line = line

    def _yaml(self, line: bytes, rows: list[Row]) -> None:
        self._end_table(rows)
        if match := _YAML_HEAD.fullmatch(line.decode("utf-8", "replace")):
            names = tuple(match[1].split("', '"))
            self._begin_table(YamlTable(names, self._keeper), rows)

    # Values outside of tables

    def _add_row(self, rows: list[Row], values: Mapping[str, float] | None) -> None:
        wants = self._keeper.wants
        kept = {name: value for name, value in (values or {}).items() if wants(name)}
        if kept:
            step = self._step if self._table is None else self._table.step
            rows.append(Row(kept, None if "WallTime" in kept else step))


def _is_column(name: str) -> bool:
    return name in KEYWORDS or _REFERENCE.fullmatch(name) is not None


#: Maximum length of a line, to limit memory. LAMMPS' lines are far shorter.
LONGEST_LINE = 256 * 1024

#: Pattern of a value, also nan and infinity; ``1.#QNAN`` is of older C libraries of Windows.
NUMBER = (
    rb"(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    rb"|[-+]?(?:\.?(?:[nN][aA][nN](?:\([0-9A-Za-z_]*\))?|[iI][nN][fF])"
    rb"|1\.#(?:QNAN|SNAN|IND|INF)[0-9]*))"
)
_IS_NUMBER = re.compile(NUMBER.decode())
_ONE = re.compile(rb" *" + NUMBER + rb"(?: +" + NUMBER + rb")* *")
_YAML = re.compile(rb" *- \[ *(" + NUMBER + rb"(?: *, *" + NUMBER + rb")*) *,? *\] *")
#: In usual rows, a value that is kept, and one that is not: the latter is not converted.
_KEPT, _UNKEPT = rb"([-+.0-9eE]+)", rb"[-+]?[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?"
#: The point before nan and inf in YAML.
_POINT = re.compile(r"\.(?=[ni])", re.IGNORECASE)

#: Maximum number of values in a row, to limit memory.
MOST_VALUES = 10_000
#: Number of values in the head line.
_IN_HEAD = 2

#: Head line of a row.
MULTI_HEAD = re.compile(rb"-{4,} Step +([0-9]+) -{3,} CPU = +(" + NUMBER + rb") \(sec\) -{3,} *")
#: A number in the lines of a row.
_VALUE = re.compile(rb"(?:(?<=Step )|(?<= = )) *" + NUMBER + rb"(?= |$)", re.MULTILINE)
_PAIR = re.compile(rb"((?:(?! = ).)+) = ( *)(" + NUMBER + rb")(?: |$)")
_PAIRS = re.compile(rb"(?:%b)+ *" % _PAIR.pattern)
#: Starts of other lines between rows, besides warnings.
NOISE = (b"INFO", b"SHAKE stats")


def number(token: bytes) -> float:
    """Return the number, nan or infinity that matches :data:`NUMBER`."""
    try:
        return float(token)
    except ValueError:
        found = read_number(_POINT.sub("", token.decode("ascii", "replace"), count=1))
        return nan if found is None else found


class Keeper:
    """Creates rows from the values of the wanted columns."""

    def __init__(self, columns: Collection[str] | None) -> None:
        self.columns = None if columns is None else frozenset(columns)
        #: Whether the column ``NonFinite`` is wanted: the number of values that are not finite.
        self.counts = self.wants("NonFinite")

    def wants(self, name: str) -> bool:
        return self.columns is None or name in self.columns

    def row(self, values: dict[str, float], step: float | None) -> Row:
        """Return the row of these values, all of which are kept."""
        if self.counts and (count := sum(not isfinite(value) for value in values.values())):
            values["NonFinite"] = float(count)
        return Row(values, step)


class Table(ABC):
    """Thermo output of one run."""

    #: Step of the last row.
    step: float | None = None
    #: Number of lines of a usual row, and where its first value ends, unless that is 0.
    _height, _stop = 1, 0
    #: Pattern of usual rows.
    _usual: re.Pattern[bytes] | None = None

    def __init__(self, names: tuple[str, ...], keeper: Keeper) -> None:
        self._keeper = keeper
        self._use(names)

    def _use(self, names: tuple[str, ...]) -> None:
        """Set the names of the columns, as printed."""
        self.names = names
        #: Places of the kept columns. If a name occurs twice, the first value counts.
        self._places = {name: names.index(name) for name in names if self._keeper.wants(name)}
        self._at_step = names.index("Step") if "Step" in names else None

    def _learn(self, texts: Sequence[bytes]) -> None:
        """Learn usual rows: finite numbers with the texts of these patterns around them."""
        captured = sorted({0, self._at_step or 0, *self._places.values()})
        cells = [_KEPT if at in captured else _UNKEPT for at in range(len(self.names))]
        if self._at_step is not None:
            cells[self._at_step] = rb"([0-9]+)"
        self._usual = re.compile(b"".join(chain(*zip(texts, [*cells, b""], strict=True))))
        #: The places of the kept columns and of the step in the groups of the pattern.
        self._groups = {name: captured.index(at) for name, at in self._places.items()}
        self._step_group = None if self._at_step is None else captured.index(self._at_step)

    def usual_rows(self, lines: list[bytes], at: int, out: list[Row]) -> int:
        """Read usual rows from ``lines[at]`` on. Return the place of the first line after them.

        This only saves time: :meth:`line` reads all rows.
        """
        if self._usual is None or not self._places:
            return at
        # This loop takes most of the time, so constant work is done before it.
        usual, stop, height = self._usual.fullmatch, self._stop, self._height
        kept, at_step = self._groups, self._step_group
        every, counts = len(kept) == self._usual.groups, self._keeper.counts
        last = -1.0 if self.step is None else self.step
        step: float | None = None
        for first in range(at, len(lines), height):
            row = lines[first] if height == 1 else b"\n".join(lines[first : first + height])
            match = usual(row)
            if match is None or (stop and match.end(1) != stop):
                break
            try:
                numbers = [*map(float, match.groups())]
            except ValueError:  # such as ``1-2`` or ``e``
                break
            if at_step is not None:
                step = numbers[at_step]
                if not last < step < inf:
                    break
                last = step
            at += height
            if every:
                values = dict(zip(kept, numbers))  # noqa: B905 - 'strict' takes time
            else:
                values = {name: numbers[place] for name, place in kept.items()}
            # A sum is finite only if all its terms are.
            odd = counts and not isfinite(sum(numbers))
            out.append(self._keeper.row(values, step) if odd else Row(values, step))
        self.step = last if last >= 0 else None
        return at

    @abstractmethod
    def line(self, line: bytes, out: list[Row]) -> bool:
        """Read a line. Return whether it belongs to the table."""

    def end(self, out: list[Row]) -> None:
        """End the run. Add the current row to ``out``, if there is one."""

    def _row(self, cells: list[bytes], out: list[Row]) -> bool:
        """Read a row with these cells. Return whether it is one."""
        if len(cells) != len(self.names):
            return False
        step = None
        if self._at_step is not None:
            digits = cells[self._at_step]
            step = float(digits) if digits.isdigit() else inf
            if not self._follows(step):
                return False
            self.step = step
        values = {name: number(cells[at]) for name, at in self._places.items()}
        if values:
            out.append(self._keeper.row(values, step))
        return True

    def _follows(self, step: float) -> bool:
        return isfinite(step) and (self.step is None or step > self.step)


class OneTable(Table):
    """Style ``one``: each row is a line of numbers separated by blanks."""

    def __init__(self, names: tuple[str, ...], spaced: tuple[str, ...], keeper: Keeper) -> None:
        super().__init__(names, keeper)
        #: After ``thermo_modify colname``, a name may contain single blanks. So each word of the
        #: header is a name, or a name ends where at least two blanks follow (``spaced``). The
        #: number of values in the first row decides.
        self._choices = (names, spaced)
        #: Start of the first value in the first row. It and its end are 0 before the first row.
        self._start = 0
        #: Length of the last value in a row, if a blank follows it.
        self._last: int | None = None

    def line(self, line: bytes, out: list[Row]) -> bool:
        if _ONE.fullmatch(line) is None:
            return False
        cells = line.split()
        start = len(line) - len(line.lstrip(b" "))
        stop, length = start + len(cells[0]), len(cells[-1])
        padded = line.endswith(b" ")
        if self._stop:
            is_row = len(cells) == len(self.names) and self._is_aligned(start, stop, length, padded)
            return is_row and self._row(cells, out)
        for names in self._choices:
            self._use(names)
            if self._row(cells, out):
                self._start, self._stop, self._last = start, stop, length if padded else None
                self._learn_usual()
                return True
        return False

    def _learn_usual(self) -> None:
        between = [rb" +"] * (len(self.names) - 1)
        self._learn([rb" *", *between, b"" if self._last is None else rb" +"])

    def _is_aligned(self, start: int, stop: int, length: int, padded: bool) -> bool:
        """Return whether a line is aligned like rows, and not like numbers that a script prints."""
        # The first column is aligned with its right or left edge in the first row. A sign may
        # precede a value, and a value that is too wide starts at the beginning of the line.
        if self._start == 0 < start and stop < self._stop:
            # The value in the first row was too wide for its column.
            self._start, self._stop = start, stop
        elif stop != self._stop and abs(start - self._start) > 1 and (start or stop < self._stop):
            return False
        if self._last is None:
            if padded:
                self._last = length
                self._learn_usual()
            return True
        # Rows end with a blank, unless a value is too wide.
        return padded or length >= self._last


class YamlTable(Table):
    """Style ``yaml``: a line ``  - [0, 1.44, ]`` for each row."""

    def __init__(self, names: tuple[str, ...], keeper: Keeper) -> None:
        super().__init__(names, keeper)
        self._learn([rb"  - \[", *[b", "] * (len(names) - 1), rb", \]"])

    def line(self, line: bytes, out: list[Row]) -> bool:
        match = _YAML.fullmatch(line)
        return match is not None and self._row([*map(bytes.strip, match[1].split(b","))], out)


class MultiTable(Table):
    """Thermo output in style ``multi`` of one LAMMPS run."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__((), keeper)
        #: Number of values in a row. It is known only when the second row begins.
        self._size = 0
        #: Current row: its lines, and its names and values.
        self._lines: list[bytes] = []
        self._pairs: list[tuple[str, bytes]] = []

    def usual_rows(self, lines: list[bytes], at: int, out: list[Row]) -> int:
        return at if self._pairs else super().usual_rows(lines, at, out)

    def line(self, line: bytes, out: list[Row]) -> bool:
        if match := MULTI_HEAD.fullmatch(line):
            # The previous row is complete now, so the number of values in a row is known.
            self._size = max(self._size, len(self._pairs))
            self.end(out)
            self._lines, self._pairs = [line], [("Step", match[1]), ("CPU", match[2])]
            return True
        pairs = self._read(line) if self._pairs else []
        if pairs:
            self._lines.append(line)
            self._pairs += pairs
            if len(self._pairs) >= (self._size or MOST_VALUES):
                self.end(out)
        return bool(pairs)

    def end(self, out: list[Row]) -> None:
        pairs, self._pairs = self._pairs, []
        if len(pairs) <= _IN_HEAD or not self._follows(float(pairs[0][1])):
            return
        names = tuple(name for name, _ in pairs)
        new = self.names != names
        self._use(names)
        if new and self._size == len(names):
            self._learn_usual()
        self._row([token for _, token in pairs], out)

    def _learn_usual(self) -> None:
        """Learn the form of usual rows from the current row, all of whose lines are complete."""
        texts = _VALUE.split(b"\n".join(line.rstrip(b" ") for line in self._lines))
        if len(texts) != len(self.names) + 1:  # a name has a number, as in ``Step 5``
            return
        self._learn([re.escape(each).replace(b"\\\n", b" *\n") + b" *" for each in texts])
        self._height = len(self._lines)

    @staticmethod
    def _read(line: bytes) -> list[tuple[str, bytes]]:
        """Return the names and values of a line ``Name = value  Name = value``, if it is one."""
        # LAMMPS pads the name to eight characters.
        if line.startswith((b"WARNING", *NOISE)) or b"=" in line[:9] or not _PAIRS.fullmatch(line):
            return []
        found = [(label.strip(), padding, token) for label, padding, token in _PAIR.findall(line)]
        # A name may contain blanks (thermo_modify colname); the value is then padded. Words and
        # numbers printed by the user are not padded.
        name, padding, _ = found[0]
        if (b" " in name and not padding) or not all(name for name, _, _ in found):
            return []
        return [(name.decode("utf-8", "replace"), token) for name, _, token in found]
