"""Reads LAMMPS' thermo output with one line for each step: styles ``one`` and ``yaml``."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import lru_cache
from math import inf, isfinite
from typing import Protocol

from ensemble_core import Row, read_number

__all__ = ["LONGEST_LINE", "UNKEPT", "VALUE", "Keeper", "OneTable", "Table", "YamlTable", "number"]

#: Maximum length of a line, to limit memory. LAMMPS' lines are far shorter.
LONGEST_LINE = 256 * 1024

#: nan and infinity; ``1.#QNAN`` is of older C libraries of Windows.
_SPECIAL = (
    rb"[-+]?(?:\.?(?:[nN][aA][nN](?:\([0-9A-Za-z_]*\))?|[iI][nN][fF])"
    rb"|1\.#(?:QNAN|SNAN|IND|INF)[0-9]*)"
)
#: Pattern of a value. The function :func:`number` checks values that are kept.
VALUE = rb"(?:[-+.0-9eE]+|" + _SPECIAL + rb")"
#: Pattern of a value that is neither kept nor converted.
UNKEPT = rb"(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|" + _SPECIAL + rb")"
#: The point before nan and inf in YAML.
_POINT = re.compile(r"\.(?=[ni])", re.IGNORECASE)


def number(token: bytes) -> float | None:
    """Parse a number, nan or infinity. Return ``None`` for any other text."""
    try:
        return float(token)
    except ValueError:
        # None: such as ``1-2`` or ``e``, which VALUE matches too.
        return read_number(_POINT.sub("", token.decode("ascii", "replace"), count=1))


class _Extra(Protocol):
    def __call__(self, step: float | None, values: Mapping[str, float], /) -> Mapping[str, float]:
        """Return the values to add to a row."""


class Keeper:
    """Creates rows from the values of the wanted columns."""

    __slots__ = ("columns", "counts", "extra")

    def __init__(self, columns: Collection[str] | None, extra: _Extra | None = None) -> None:
        self.columns = None if columns is None else frozenset(columns)
        self.extra = extra
        #: Whether the column ``NonFinite`` is wanted: the number of values that are not finite.
        self.counts = self.wants("NonFinite")

    def wants(self, name: str) -> bool:
        return self.columns is None or name in self.columns

    def row(self, values: dict[str, float], step: float | None) -> Row:
        """Return the row of these values, all of which are kept."""
        count = sum(not isfinite(value) for value in values.values()) if self.counts else 0
        if count:
            values["NonFinite"] = float(count)
        if self.extra is not None:
            values.update(self.extra(step, values))
        return Row(values, step)


class Table(ABC):
    """Thermo output of one run."""

    #: Names of the columns, as printed.
    names: tuple[str, ...] = ()
    #: Step of the last row.
    step: float | None = None

    @abstractmethod
    def rows(self, block: bytes, place: int, out: list[Row]) -> int:
        """Read consecutive rows from ``place``, the start of a line.

        Returns the position after the last row. The last line of ``block`` is complete.
        """

    def line(self, line: bytes, out: list[Row]) -> bool:
        """Read a line at which :meth:`rows` stopped. Return whether the line was part of a row."""
        return False

    def end(self, out: list[Row]) -> None:
        """End the run. Add the current row to ``out``, if there is one."""


@lru_cache(maxsize=64)
def _compile_rows(before: bytes, between: bytes, after: bytes, kinds: bytes) -> re.Pattern[bytes]:
    """Return the pattern of rows.

    The text ``kinds`` has a letter for each column: ``k`` (kept), ``s`` (step) or ``.`` (neither).
    """
    parts = {ord("k"): b"(" + VALUE + b")", ord("s"): b"([0-9]+)", ord("."): UNKEPT}
    return re.compile(before + between.join(parts[kind] for kind in kinds) + after)


class _LineTable(Table):
    """A table in which each row is a line."""

    _BEFORE: bytes
    _BETWEEN: bytes
    _AFTER: bytes
    #: Whether the pattern captures the first value even if it is not kept.
    _FIRST = False

    def __init__(self, names: tuple[str, ...], keeper: Keeper) -> None:
        self._keeper = keeper
        #: Start and end of a row's first value within its line. Both are 0 before the first row.
        self._start = self._stop = 0
        self._use(names)

    def _use(self, names: tuple[str, ...]) -> None:
        """Set the names of the columns."""
        self.names = names
        kinds = bytearray(b"." * len(names))
        kept: dict[str, int] = {}
        for index, name in enumerate(names):
            # If a name occurs twice, the first value counts.
            if self._keeper.wants(name) and name not in kept:
                kept[name] = index
                kinds[index] = ord("k")
        if self._FIRST and kinds[0] == ord("."):
            kinds[0] = ord("k")
        at_step = names.index("Step") if "Step" in names else None
        if at_step is not None:
            kinds[at_step] = ord("s")
        places = [index for index, kind in enumerate(kinds) if kind != ord(".")]
        at = [places.index(index) for index in kept.values()]
        self._kept = tuple(kept)
        self._kinds = bytes(kinds)
        #: Indices of the kept values among the captured values (``None``: all), and index of the
        #: step.
        self._at = None if at == list(range(len(places))) else at
        self._at_step = None if at_step is None else places.index(at_step)
        self._usual = self._pattern(self._AFTER)

    def _pattern(self, after: bytes) -> re.Pattern[bytes]:
        return _compile_rows(self._BEFORE, self._BETWEEN, after, self._kinds)

    def rows(self, block: bytes, place: int, out: list[Row]) -> int:
        # This loop takes most of the time, so constant work is done before it.
        usual, start, stop = self._usual.match, self._start, self._stop
        kept, at, at_step = self._kept, self._at, self._at_step
        keeper = self._keeper
        counts, plain = keeper.counts, keeper.extra is None
        last = self.step
        step: float | None = None
        while True:
            match = usual(block, place)
            if match is None or (
                stop and match.end(1) - place != stop and match.start(1) - place != start
            ):
                match = self._unusual(block, place)
                if match is None:
                    break
                usual, start, stop = self._usual.match, self._start, self._stop
            end = match.end()
            if end - place > LONGEST_LINE:
                break
            try:
                numbers = list(map(float, match.groups()))
            except ValueError:
                found = list(map(number, match.groups()))
                numbers = [value for value in found if value is not None]
                if len(numbers) < len(found):
                    break
            if at_step is not None:
                step = numbers[at_step]
                if (last is not None and step <= last) or step == inf:
                    break
                last = step
            if not stop:
                self._learn(block, match)
                usual, start, stop = self._usual.match, self._start, self._stop
            place = end
            if at is not None:
                numbers = [numbers[index] for index in at]
            if not numbers:
                continue
            values = dict(zip(kept, numbers))  # noqa: B905 - 'strict' takes time
            # A sum is finite only if all its terms are.
            if plain and (not counts or isfinite(sum(numbers))):
                out.append(Row(values, step))
            else:
                out.append(keeper.row(values, step))
        self.step = last
        return place

    def _unusual(self, block: bytes, place: int) -> re.Match[bytes] | None:
        """Read a row with an unusual format."""
        return None

    def _learn(self, block: bytes, match: re.Match[bytes]) -> None:
        """Learn the format of rows from this row."""


class OneTable(_LineTable):
    """Style ``one``: each row is a line of numbers separated by blanks."""

    _BEFORE, _BETWEEN, _AFTER = rb" *", rb" +", rb" *\r?\n"
    _BARE, _PADDED = rb"\r?\n", rb" +\r?\n"
    _FIRST = True

    def __init__(self, names: tuple[str, ...], spaced: tuple[str, ...], keeper: Keeper) -> None:
        super().__init__(names, keeper)
        #: After ``thermo_modify colname``, a name may contain single blanks. So each word of the
        #: header is a name, or a name ends where at least two blanks follow (``spaced``). The
        #: number of values in the first row decides.
        self._choices = tuple(dict.fromkeys((names, spaced)))
        #: Length of the last value in a row, if a blank follows it.
        self._last: int | None = None

    def rows(self, block: bytes, place: int, out: list[Row]) -> int:
        if self._stop:
            return super().rows(block, place, out)
        for names in self._choices:
            self._use(names)
            end = super().rows(block, place, out)
            if end > place:
                return end
        return place

    def _unusual(self, block: bytes, place: int) -> re.Match[bytes] | None:
        # A line of numbers that a user's script prints is aligned in another way than the rows.
        match = self._pattern(self._AFTER).match(block, place)
        if match is None or not self._stop:
            return None
        start, stop = match.start(1) - place, match.end(1) - place
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
            return None
        blank, length = _ending(block, match)
        if self._last is None:
            if blank:
                self._pad(length)
        elif not blank and length < self._last:
            # Rows end with a blank, unless a value is too wide.
            return None
        return match

    def _learn(self, block: bytes, match: re.Match[bytes]) -> None:
        self._start, self._stop = (place - match.start() for place in match.span(1))
        blank, length = _ending(block, match)
        if blank:
            self._pad(length)
        else:
            self._usual = self._pattern(self._BARE)

    def _pad(self, length: int) -> None:
        self._last = length
        self._usual = self._pattern(self._PADDED)


_BLANK, _RETURN = b" \r"


def _ending(block: bytes, match: re.Match[bytes]) -> tuple[bool, int]:
    """Return whether a line ends with a blank, and the length of its last value."""
    start, end = match.start(), match.end() - 1
    if block[end - 1] == _RETURN:
        end -= 1
    if block[end - 1] == _BLANK:
        return True, len(block[start:end].split()[-1])
    return False, end - 1 - block.rfind(b" ", start, end)


class YamlTable(_LineTable):
    """Style ``yaml``: a line ``  - [0, 1.44, ]`` for each row."""

    _BEFORE, _BETWEEN, _AFTER = rb" *- \[ *", rb" *, *", rb" *,? *\] *\r?\n"
