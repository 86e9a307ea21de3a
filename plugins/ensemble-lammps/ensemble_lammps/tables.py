"""Reads LAMMPS' thermo output with one line for each step: styles ``one`` and ``yaml``."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from math import inf, isfinite, nan

from ensemble_core import Row, read_number

__all__ = ["LONGEST_LINE", "NUMBER", "Keeper", "OneTable", "Table", "YamlTable", "number"]

#: Maximum length of a line, to limit memory. LAMMPS' lines are far shorter.
LONGEST_LINE = 256 * 1024

#: Pattern of a value, also nan and infinity; ``1.#QNAN`` is of older C libraries of Windows.
NUMBER = (
    rb"(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    rb"|[-+]?(?:\.?(?:[nN][aA][nN](?:\([0-9A-Za-z_]*\))?|[iI][nN][fF])"
    rb"|1\.#(?:QNAN|SNAN|IND|INF)[0-9]*))"
)
_ONE = re.compile(rb" *" + NUMBER + rb"(?: +" + NUMBER + rb")* *")
_YAML = re.compile(rb" *- \[ *(" + NUMBER + rb"(?: *, *" + NUMBER + rb")*) *,? *\] *")
#: The characters of rows of finite numbers.
_PLAIN = b" 0123456789+-.eE"
#: The point before nan and inf in YAML.
_POINT = re.compile(r"\.(?=[ni])", re.IGNORECASE)


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
        if self.counts:
            count = sum(not isfinite(value) for value in values.values())
            if count:
                values["NonFinite"] = float(count)
        return Row(values, step)


class Table(ABC):
    """Thermo output of one run."""

    #: Step of the last row.
    step: float | None = None
    #: Number of lines of a usual row.
    _height = 1

    def __init__(self, names: tuple[str, ...], keeper: Keeper) -> None:
        self._keeper = keeper
        self._use(names)

    def _use(self, names: tuple[str, ...]) -> None:
        """Set the names of the columns, as printed."""
        self.names = names
        #: Places of the kept columns. If a name occurs twice, the first value counts.
        self._places = {name: names.index(name) for name in names if self._keeper.wants(name)}
        self._at_step = names.index("Step") if "Step" in names else None

    @abstractmethod
    def _usual_cells(self, text: bytes) -> Sequence[bytes]:
        """Return the cells of a row, or none unless the text is a usual row of finite numbers."""

    def usual_rows(self, lines: list[bytes], at: int, out: list[Row]) -> int:
        """Read usual rows from ``lines[at]`` on. Return the place of the first line after them.

        This only saves time: :meth:`line` reads all rows.
        """
        # This loop takes most of the time, so constant work is done before it.
        usual, names, places, at_step = self._usual_cells, self.names, self._places, self._at_step
        height, width, every = self._height, len(names), len(places) == len(names)
        last, counts = -1.0 if self.step is None else self.step, self._keeper.counts
        step: float | None = None
        for start in range(at, len(lines) if places else at, height):
            text = lines[start] if height == 1 else b"\n".join(lines[start : start + height])
            cells = usual(text)
            if len(cells) != width:
                break
            try:
                numbers = [*map(float, cells)]
            except ValueError:  # such as ``1-2`` or ``e``
                break
            if at_step is not None:
                step = numbers[at_step]
                if not (cells[at_step].isdigit() and last < step < inf):
                    break
                self.step = last = step
            at += height
            if every:
                values = dict(zip(names, numbers))  # noqa: B905 - 'strict' takes time
            else:
                values = {name: numbers[place] for name, place in places.items()}
            # A sum is finite only if all its terms are.
            if counts and not isfinite(sum(numbers)):
                out.append(self._keeper.row(values, step))
            else:
                out.append(Row(values, step))
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
        #: Start and end of the first value in the first row. Both are 0 before the first row.
        self._start = self._stop = 0
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
            return (
                len(cells) == len(self.names)
                and self._is_aligned(start, stop, length, padded=padded)
                and self._row(cells, out)
            )
        for names in self._choices:
            self._use(names)
            if self._row(cells, out):
                self._start, self._stop, self._last = start, stop, length if padded else None
                return True
        return False

    def _usual_cells(self, text: bytes) -> Sequence[bytes]:
        cells = text.split()
        if (
            not text.translate(None, _PLAIN)
            and cells
            and text.index(cells[0]) + len(cells[0]) == self._stop
            and (text[-1:] == b" ") is (self._last is not None)
        ):
            return cells
        return []

    def _is_aligned(self, start: int, stop: int, length: int, *, padded: bool) -> bool:
        """Return whether a line is aligned like rows, and not like numbers that a script prints."""
        # The first column is aligned with its right or left edge in the first row. A sign may
        # precede a value, and a value that is too wide starts at the beginning of the line.
        if self._start == 0 < start and stop < self._stop:
            # The value in the first row was too wide for its column.
            self._start, self._stop = start, stop
        elif (
            stop != self._stop
            and abs(start - self._start) > 1
            and not (start == 0 and stop > self._stop)
        ):
            return False
        if self._last is None:
            self._last = length if padded else None
            return True
        # Rows end with a blank, unless a value is too wide.
        return padded or length >= self._last


class YamlTable(Table):
    """Style ``yaml``: a line ``  - [0, 1.44, ]`` for each row."""

    def _usual_cells(self, text: bytes) -> Sequence[bytes]:
        if text.startswith(b"  - [") and text.endswith(b", ]"):
            inner = text[5:-3]
            if not inner.translate(None, b"," + _PLAIN):
                return inner.split(b", ")
        return []

    def line(self, line: bytes, out: list[Row]) -> bool:
        match = _YAML.fullmatch(line)
        return match is not None and self._row([*map(bytes.strip, match[1].split(b","))], out)
