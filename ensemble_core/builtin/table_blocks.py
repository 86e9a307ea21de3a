"""Observer of blocks with names in one line and their numbers in the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from ensemble_core.builtin.line_observer import Fields
from ensemble_core.builtin.table_observer import Table
from ensemble_core.late_pattern import late_pattern
from ensemble_core.plugin.observer import Row

_BEGINS_AS_NUMBER = late_pattern(r"\s*[-+\u2212.*\dnNiI\u221e]")

#: How many headers are remembered with the places of their columns.
_MOST_HEADERS = 100


class TableBlocks(Table):
    """Observer of blocks with names in one line and their values in the next, as GROMACS prints.

    All pairs of a block form one row. A block ends when a name comes again, or when all listed
    fields were read. With ``clock``, a block without the clock gives no row.
    """

    _noun = "a line of numbers below a line of names"

    def __init__(
        self,
        path: str | None = None,
        fields: Fields | None = None,
        clock: str | None = None,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        header: str | None = None,
        until: str | None = None,
        decimal: str = ".",
    ) -> None:
        super().__init__(
            path, fields, clock, stream, header=header, until=until, separator=" ", decimal=decimal
        )
        self._block: dict[str, float] = {}
        self._known: dict[str, tuple[list[tuple[int, str]], str]] = {}
        #: The names in headers without a wanted name.
        self._unwanted: dict[str, str] = {}
        #: Other lines of names since the last block, those between the first two blocks, and one
        #: of them that later blocks lack.
        self._others: set[str] = set()
        self._blocks, self._usual = 0, set[str]()
        self._lacks: tuple[int, str] = (0, "")
        #: How many blocks begin with each of these names, and how many have it at all.
        self._leads, self._having = Counter[str](), Counter[str]()

    def truncated(self) -> None:
        super().truncated()
        self._block = {}

    def _line_of_table(self, text: str) -> Mapping[str, float] | None:
        header = self._texts[-1] if self._texts else ""
        self._texts.clear()
        pair = self._pair(header, text) if header else None
        if pair is None:
            self._texts.append(text)
            return self._whole_block() if self._is_whole else None
        done = None
        if self._is_whole or not self._block.keys().isdisjoint(pair):
            done = self._whole_block()
        self._block |= pair
        return self._whole_block() if done is None and self._is_whole else done

    def _pair(self, header: str, text: str) -> dict[str, float] | None:
        """Return the values of a line by the names in the line above it."""
        if not _BEGINS_AS_NUMBER.match(text):
            return None
        known = self._known.get(header)
        if header in self._unwanted:
            self._others.add(self._unwanted[header])
            return None
        if known is not None:
            self._reads, self._first = known
            self._latest, self._width = self._first, len(self._first.split())
        else:
            found = self._fit(text, header)
            if found is None or not all(map(self._is_numeric, found[1])):
                return None
            if not self._wants(found[0]):
                if len(self._unwanted) < _MOST_HEADERS:
                    self._unwanted[header] = " ".join(found[0])
                    self._others.add(self._unwanted[header])
                return None
            self._adopt(found[0], found[1], text, None)
            if len(self._known) < _MOST_HEADERS:
                self._known[header] = self._reads, text
        row = self._row_of(text)
        return None if row is None else dict(row)

    @property
    def _is_whole(self) -> bool:
        wanted = self._wanted
        if wanted is None or (self._clock is not None and self._clock not in self._block):
            return False
        return wanted.keys() <= self._block.keys()

    def _whole_block(self) -> Mapping[str, float] | None:
        """Return the row of the block, and begin the next block."""
        row, self._block = self._block, {}
        if row:
            self._compare_others(row)
        return None if self._clock is not None and self._clock not in row else row or None

    def _compare_others(self, row: Mapping[str, float]) -> None:
        """Count the block if it lacks a line of names that other blocks have, such as the step.

        The averages at the end of a log have the same names as the steps, but no step.
        """
        self._blocks += 1
        if self._wanted is None and self._clock is None:
            if self._blocks > 1:
                self._leads[next(iter(row))] += 1
                self._having.update(self._leads.keys() & row.keys())
        elif self._blocks <= 2:  # the first one also has what is printed before it
            self._usual = self._others
        elif self._wanted is not None and self._clock is None:
            missing = min(self._usual - self._others, default=None)
            if missing is not None:
                self._lacks = self._lacks[0] + 1, missing
        self._others = set()

    def complaint(self) -> str | None:
        said, (count, name) = super().complaint(), self._lacks
        for name, begun in self._leads.most_common(1):
            count = self._blocks - 1 - self._having[name] if begun > 1 else 0
        if not count:
            return said
        blocks = "1 row was read" if count == 1 else f"{count} rows were read"
        lacks = (
            f"{blocks} without the line {name[:60]!r} above, which other rows have: if these are "
            f"averages, use clock: {name.split()[0]}, or until"
        )
        return f"{said}; {lacks}" if said else lacks

    def finish(self) -> Iterable[Row]:
        rows = [*super().finish()]
        row = self._whole_block()
        if row is not None:
            made = self._row_with(row)
            rows += () if made is None else (made,)
        return rows
