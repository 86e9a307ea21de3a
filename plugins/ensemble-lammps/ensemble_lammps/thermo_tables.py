"""Tables of LAMMPS' thermo output in the styles ``one``, ``multi`` and ``yaml``."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from itertools import chain
from math import inf, isfinite, nan

from ensemble_core import Row, read_number

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
