"""Reads LAMMPS' thermo output in style ``multi``, which has several lines for each step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ensemble_core import Row
from ensemble_lammps.tables import NUMBER, Keeper, Table, number

__all__ = ["HEAD", "MultiTable"]

#: Maximum number of values in a row, to limit memory.
MOST_VALUES = 10_000
#: Number of values in the head line.
_IN_HEAD = 2

#: Head line of a row.
HEAD = re.compile(rb"-{4,} Step +([0-9]+) -{3,} CPU = +(" + NUMBER + rb") \(sec\) -{3,} *")
#: A number in the lines of a row.
_VALUE = re.compile(rb"(?:(?<=Step )|(?<= = )) *" + NUMBER + rb"(?= |$)", re.MULTILINE)
_TOKEN = re.compile(NUMBER)
_NOISE = (b"WARNING", b"INFO", b"SHAKE stats")


class MultiTable(Table):
    """Thermo output in style ``multi`` of one LAMMPS run."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__((), keeper)
        #: Number of values in a row. It is known only when the second row begins.
        self._size = 0
        #: Current row: its kept values, its lines, the names of all its values, and each name.
        self._values: dict[str, float] | None = None
        self._lines: list[bytes] = []
        self._all: list[str] = []
        self._seen: set[str] = set()
        self._row_step = 0.0
        #: Pattern of usual rows.
        self._usual: re.Pattern[bytes] | None = None

    def usual_rows(self, lines: list[bytes], at: int, out: list[Row]) -> int:
        ready = self._usual is not None and self._values is None
        return super().usual_rows(lines, at, out) if ready else at

    def _usual_cells(self, text: bytes) -> Sequence[bytes]:
        match = None if self._usual is None else self._usual.fullmatch(text)
        return () if match is None else match.groups()

    def line(self, line: bytes, out: list[Row]) -> bool:
        if match := HEAD.fullmatch(line):
            if self._values is not None:
                # The previous row is complete now, so the number of values in a row is known.
                self._size = max(self._size, len(self._all))
            self.end(out)
            self._values, self._lines, self._all, self._seen = {}, [line], [], set()
            self._row_step = float(match[1])
            self._store("Step", match[1])
            self._store("CPU", match[2])
            return True
        return self._values is not None and self._pairs(line, out)

    def end(self, out: list[Row]) -> None:
        values, self._values = self._values, None
        if values is None or len(self._all) == _IN_HEAD or not self._follows(self._row_step):
            return
        self.step = self._row_step
        if self._size == len(self._all) and (self._usual is None or self.names != tuple(self._all)):
            self._learn()
        self._use(tuple(self._all))
        if values:
            out.append(self._keeper.row(values, self.step))

    def _learn(self) -> None:
        """Learn the form of usual rows from the current row, all of whose lines are complete."""
        texts = _VALUE.split(b"\n".join(line.rstrip(b" ") for line in self._lines))
        between = rb" *([-+.0-9eE]+)"
        pattern = between.join(map(re.escape, texts)).replace(b"\\\n", b" *\n") + b" *"
        self._usual = re.compile(pattern)
        self._height = len(self._lines)

    def _store(self, name: str, token: bytes) -> None:
        """Keep a value if it is wanted. If a name occurs twice, the first value counts."""
        if name not in self._seen and self._values is not None and self._keeper.wants(name):
            self._values[name] = number(token)
        self._seen.add(name)
        self._all.append(name)

    def _pairs(self, line: bytes, out: list[Row]) -> bool:
        """Read ``Name = value  Name = value``. Return whether the line has this form."""
        # LAMMPS pads the name to eight characters.
        if line.startswith(_NOISE) or b"=" in line[:9]:
            return False
        parts = line.split(b" = ")
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
        self._lines.append(line)
        if len(self._all) >= (self._size or MOST_VALUES):
            self.end(out)
        return True
