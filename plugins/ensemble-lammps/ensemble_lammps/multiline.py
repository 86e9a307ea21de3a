"""Reads LAMMPS' thermo output in style ``multi``, which has several lines for each step."""

from __future__ import annotations

import re

from ensemble_core import Row
from ensemble_lammps.tables import NUMBER, Keeper, Table, number

__all__ = ["HEAD", "MultiTable"]

#: Maximum number of values in a row, to limit memory.
MOST_VALUES = 10_000

#: Head line of a row.
HEAD = re.compile(rb"-{4,} Step +([0-9]+) -{3,} CPU = +(" + NUMBER + rb") \(sec\) -{3,} *\r?")
_TOKEN = re.compile(NUMBER)
_NOISE = (b"WARNING", b"INFO", b"SHAKE stats")


class MultiTable(Table):
    """Thermo output in style ``multi`` of one LAMMPS run."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        #: Number of values in a row. It is known only when the second row begins.
        self._size = 0
        #: Current row: its kept values, all its names, and the number of its values.
        self._values: dict[str, float] | None = None
        self._seen: dict[str, None] = {}
        self._count = 0
        self._row_step = 0.0

    def line(self, line: bytes, out: list[Row]) -> bool:
        if match := HEAD.fullmatch(line):
            if self._values is not None:
                # The previous row is complete now, so the number of values in a row is known.
                self._size = max(self._size, self._count)
            self.end(out)
            self._values, self._seen, self._count = {}, {}, 0
            self._row_step = float(match[1])
            self._store("Step", match[1])
            self._store("CPU", match[2])
            return True
        return self._values is not None and self._pairs(line, out)

    def end(self, out: list[Row]) -> None:
        values, self._values = self._values, None
        if values is None or not self._count or not self._follows(self._row_step):
            return
        self.step, self.names = self._row_step, tuple(self._seen)
        if values:
            out.append(self._keeper.row(values, self.step))

    def _store(self, name: str, token: bytes) -> None:
        """Keep a value if it is wanted. If a name occurs twice, the first value counts."""
        if name not in self._seen and self._values is not None and self._keeper.wants(name):
            self._values[name] = number(token)
        self._seen[name] = None

    def _pairs(self, line: bytes, out: list[Row]) -> bool:
        """Read ``Name = value  Name = value``. Return whether the line has this form."""
        # LAMMPS pads the name to eight characters.
        if line.startswith(_NOISE) or b"=" in line[:9]:
            return False
        parts = line.removesuffix(b"\r").split(b" = ")
        # A name may contain blanks (thermo_modify colname); the value is then padded. Words and
        # numbers printed by the user are not padded.
        if len(parts) < 2 or (b" " in parts[0].strip() and parts[1][:1] != b" "):
            return False
        label, pairs = parts[0], []
        for part in parts[1:-1]:
            value, _, rest = part.lstrip(b" ").partition(b" ")
            pairs.append((label, value))
            label = rest
        pairs.append((label, parts[-1].strip(b" ")))
        if not all(label.strip() and _TOKEN.fullmatch(token) for label, token in pairs):
            return False
        for label, token in pairs:
            self._store(label.strip().decode("utf-8", "replace"), token)
        self._count += len(pairs)
        if self._count >= (self._size or MOST_VALUES):
            self.end(out)
        return True
