"""Reads LAMMPS' thermo output in style ``multi``, which has several lines for each step."""

from __future__ import annotations

import re

from ensemble_core import Row
from ensemble_lammps.tables import NUMBER, Keeper, Table

__all__ = ["HEAD", "MultiTable"]

#: Maximum number of values in a row, to limit memory.
MOST_VALUES = 10_000
#: Number of values in the head line.
_IN_HEAD = 2

#: Head line of a row.
HEAD = re.compile(rb"-{4,} Step +([0-9]+) -{3,} CPU = +(" + NUMBER + rb") \(sec\) -{3,} *")
#: A number in the lines of a row.
_VALUE = re.compile(rb"(?:(?<=Step )|(?<= = )) *" + NUMBER + rb"(?= |$)", re.MULTILINE)
_PAIR = re.compile(rb"((?:(?! = ).)+) = ( *)(" + NUMBER + rb")(?: |$)")
_PAIRS = re.compile(rb"(?:%b)+ *" % _PAIR.pattern)
_NOISE = (b"WARNING", b"INFO", b"SHAKE stats")


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
        if match := HEAD.fullmatch(line):
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
        if line.startswith(_NOISE) or b"=" in line[:9] or not _PAIRS.fullmatch(line):
            return []
        found = [(label.strip(), padding, token) for label, padding, token in _PAIR.findall(line)]
        # A name may contain blanks (thermo_modify colname); the value is then padded. Words and
        # numbers printed by the user are not padded.
        name, padding, _ = found[0]
        if (b" " in name and not padding) or not all(name for name, _, _ in found):
            return []
        return [(name.decode("utf-8", "replace"), token) for name, _, token in found]
