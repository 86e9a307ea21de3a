"""Reads LAMMPS' thermo output in style ``multi``, which has several lines for each step."""

from __future__ import annotations

import re
from math import isfinite

from ensemble_core import Row
from ensemble_lammps.tables import LONGEST_LINE, UNKEPT, VALUE, Keeper, Table, number

__all__ = ["HEAD", "MultiTable"]

#: Maximum number of values in a row, to limit memory.
MOST_VALUES = 10_000

_HEAD = rb"-{4,} Step +([0-9]+) -{3,} CPU = +(" + VALUE + rb") \(sec\) -{3,} *"
#: Head line of a row, without its end.
HEAD = re.compile(_HEAD)
_TOKEN = re.compile(VALUE)
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
        #: Patterns of the lines of the current row, and of the row from which ``_compiled`` was
        #: built.
        self._shape: list[bytes] = []
        self._learnt: list[bytes] = []
        self._compiled: re.Pattern[bytes] | None = None
        #: Pattern of a whole row, if the last row was complete; otherwise ``None``. It only saves
        #: time: reading line by line gives the same result.
        self._pattern: re.Pattern[bytes] | None = None

    def rows(self, block: bytes, place: int, out: list[Row]) -> int:
        pattern = self._pattern
        if pattern is None or self._values is not None:
            return place
        names = tuple(name for name in self.names if self._keeper.wants(name))
        wants_step, wants_cpu = self._keeper.wants("Step"), self._keeper.wants("CPU")
        while (match := pattern.match(block, place)) is not None:
            head, cpu, *tokens = match.groups()
            step = float(head)
            if (self.step is not None and step <= self.step) or not isfinite(step):
                break
            if match.end() - place > LONGEST_LINE:
                break
            if wants_cpu:
                tokens.insert(0, cpu)
            if wants_step:
                tokens.insert(0, head)
            numbers = [number(token) for token in tokens]
            if None in numbers:
                break
            self.step = step
            values = {n: v for n, v in zip(names, numbers, strict=True) if v is not None}
            if values:
                out.append(self._keeper.row(values, step))
            place = match.end()
        return place

    def line(self, line: bytes, out: list[Row]) -> bool:
        if line.startswith(b"----") and (match := HEAD.fullmatch(line.removesuffix(b"\r"))):
            if self._values is not None:
                # The previous row is complete now, so the number of values in a row is known.
                self._size = max(self._size, self._count)
            self.end(out)
            self._values, self._seen, self._count, self._shape = {}, {}, 0, []
            self._row_step = float(match[1])
            self._store("Step", match[1])
            self._store("CPU", match[2])
            return True
        return self._values is not None and self._pairs(line, out)

    def end(self, out: list[Row]) -> None:
        values, self._values = self._values, None
        step = self._row_step
        if values is None or not self._count or not isfinite(step):
            return
        if self.step is not None and step <= self.step:
            return
        self.step, self.names = step, tuple(self._seen)
        if values:
            out.append(self._keeper.row(values, step))
        self._pattern = None
        if self._count == self._size:
            if self._shape != self._learnt:
                self._learnt = self._shape
                self._compiled = re.compile(rb"\r?\n".join([_HEAD, *self._shape, b""]))
            self._pattern = self._compiled

    def _store(self, name: str, token: bytes) -> None:
        """Keep a value if it is wanted. If a name occurs twice, the first value counts."""
        if name in self._seen:
            return
        self._seen[name] = None
        if self._values is not None and self._keeper.wants(name):
            value = number(token)
            if value is not None:
                self._values[name] = value

    def _pairs(self, line: bytes, out: list[Row]) -> bool:
        """Read ``Name = value  Name = value``. Return whether the line has this form."""
        # LAMMPS pads the name to eight characters.
        if line.startswith(_NOISE) or line[:9].find(b"=") >= 0:
            return False
        parts = line.removesuffix(b"\r").split(b" = ")
        # A name may contain blanks (thermo_modify colname); the value is then padded. Words and
        # numbers printed by the user are not padded.
        padded = b" " in parts[0].strip()
        if len(parts) < 2 or (padded and parts[1][:1] != b" "):
            return False
        label, pairs = parts[0], []
        for part in parts[1:-1]:
            value, blank, rest = part.lstrip(b" ").partition(b" ")
            pairs.append((label, value))
            label = blank + rest
        pairs.append((label, parts[-1].strip(b" ")))
        pattern: list[bytes] = []
        fresh: dict[str, bytes] = {}
        for label, token in pairs:
            name = label.strip().decode("utf-8", "replace")
            if not name or _TOKEN.fullmatch(token) is None or number(token) is None:
                return False
            kept = name not in self._seen and name not in fresh and self._keeper.wants(name)
            fresh.setdefault(name, token)
            blanks = b" = {2,}" if padded and not pattern else b" = +"
            pattern += [re.escape(label), blanks, b"(" + VALUE + b")" if kept else UNKEPT]
        for name, token in fresh.items():
            self._store(name, token)
        self._count += len(pairs)
        self._shape.append(b"".join(pattern) + b" *")
        if self._count >= (self._size or MOST_VALUES):
            self.end(out)
        return True
