"""Reads the thermo output of a LAMMPS log: the tables that LAMMPS prints while a simulation runs.

Missing a row is better than reporting a wrong value, so unexpected lines are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from ensemble_core import Row
from ensemble_lammps.log_facts import MEMORY, Facts
from ensemble_lammps.multiline import HEAD, MultiTable
from ensemble_lammps.tables import (
    LONGEST_LINE,
    VALUE,
    Keeper,
    OneTable,
    Table,
    YamlTable,
)

__all__ = ["KEYWORDS", "ThermoReader"]

#: Names of ``thermo_style`` keywords in a header.
KEYWORDS = frozenset({
    "Step", "Elapsed", "Elaplong", "Dt", "Time", "CPU", "T/CPU", "S/CPU", "CPULeft", "Part",
    "TimeoutLeft", "Atoms", "Temp", "Press", "PotEng", "KinEng", "TotEng", "Nbuild", "Ndanger",
    "Enthalpy", "Ecouple", "Econserve", "E_vdwl", "E_coul", "E_pair", "E_bond", "E_angle",
    "E_dihed", "E_impro", "E_mol", "E_long", "E_tail", "Volume", "Density", "Lx", "Ly", "Lz",
    "Xlo", "Xhi", "Ylo", "Yhi", "Zlo", "Zhi", "Xy", "Xz", "Yz", "Avecx", "Avecy", "Avecz",
    "Bvecx", "Bvecy", "Bvecz", "Cvecx", "Cvecy", "Cvecz", "Xlat", "Ylat", "Zlat", "Bonds",
    "Angles", "Diheds", "Impros", "Pxx", "Pyy", "Pzz", "Pxy", "Pxz", "Pyz", "Fmax", "Fnorm",
    "Cella", "Cellb", "Cellc", "CellAlpha", "CellBeta", "CellGamma",
})  # fmt: skip
_REFERENCE = re.compile(r"[cfv]_\w+(\[[^\[\]]+\])*")
_NUMBER = re.compile(VALUE.decode())
_SPACES = re.compile(r"\s{2,}")
_NOISE = (b"INFO", b"SHAKE stats")


# The output of a run depends on ``thermo_modify line``:
#
# - ``one``: the line ``Per MPI rank memory allocation …`` (missing after ``run … pre no``), a
#   header with column names, one line per row, and ``Loop time of …`` (missing after ``timer off``)
# - ``multi``: for each row a line ``------------ Step 10 ----- CPU = 0.1 (sec) ----``, then lines
#   with up to three ``Name = value``
# - ``yaml``: ``keywords: ['Step', …]``, then `` - [0, 1.44, …]`` for each row, then ``...``
#
# Between rows, a log also has warnings, and lines that fixes and the user's script print.


class ThermoReader:
    """Converts the text of one log into rows.

    Parameters
    ----------
    columns:
        Names of the values to keep; ``None`` for all.
    extra:
        Function that computes further values of a row from the row's step and values.

    Values have the names that the log uses (``Temp``, ``v_eper``, ``c_msd[4]``), and may be nan or
    infinite. ``Row.clock`` is the step, if the row has one.

    If kept values in a row are not finite, the row's ``NonFinite`` is the number of such values.

    There are further rows:

    - for each warning: ``Warnings``, the number of warnings so far
    - for each error: ``Errors``, the number of errors so far
    - at the end of each run: ``LoopTime`` (seconds), ``LoopSteps``, ``StepsPerSecond``,
      ``NsPerDay`` or ``TauPerDay``, ``Atoms`` (unless it is a column), ``Ranks`` and, unless they
      are 0, ``Errors`` and ``Warnings``
    - at the end of the log: ``WallTime`` (seconds)
    """

    def __init__(
        self,
        columns: Collection[str] | None = None,
        extra: Callable[[float | None, Mapping[str, float]], Mapping[str, float]] | None = None,
    ) -> None:
        self._keeper = Keeper(columns, extra)
        self.reset()

    def reset(self) -> None:
        """Forget everything, because the log restarted."""
        self._rest = bytearray()
        self._too_long = False
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

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the last table."""
        return self._known

    def feed(self, data: bytes) -> list[Row]:
        """Return the rows that these bytes complete."""
        rows: list[Row] = []
        end = data.rfind(b"\n") + 1
        if end:
            block = data[:end]
            if self._too_long:
                block = block[block.index(b"\n") + 1 :]
            elif self._rest:
                block = bytes(self._rest) + block
            self._rest.clear()
            self._too_long = False
            self._block(block, rows)
            data = data[end:]
        if data:
            self._store_rest(data)
        return rows

    def finish(self) -> list[Row]:
        """Return the last rows, all of whose lines are complete. A truncated line is ignored."""
        rows: list[Row] = []
        self._end_table(rows)
        self._add_row(rows, self._facts.take())
        return rows

    def _store_rest(self, data: bytes) -> None:
        if self._too_long or len(self._rest) + len(data) > LONGEST_LINE:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += data

    def _block(self, block: bytes, rows: list[Row]) -> None:
        """Read whole lines."""
        place, end = 0, len(block)
        while place < end:
            if self._table is not None:
                place = self._table.rows(block, place, rows)
                if place == end:
                    return
            stop = block.index(b"\n", place)
            if stop - place <= LONGEST_LINE:
                self._line(block[place:stop], rows)
            place = stop + 1

    def _line(self, line: bytes, rows: list[Row]) -> None:
        """Read a line that is not a row on its own."""
        if self._table is not None:
            if self._table.line(line, rows):
                return
        elif self._facts.read_summary(line):
            return
        if not line or line.isspace() or line.startswith(_NOISE):
            return
        self._add_row(rows, self._facts.take())
        if line.startswith(MEMORY):
            self._end_table(rows)
            self._expecting = True
        elif line.startswith(b"Loop time of "):
            names = () if self._table is None else self._table.names
            self._end_table(rows)
            self._facts.loop(line, atoms="Atoms" not in names)
        elif line.startswith(b"----"):
            self._multi(line, rows)
        elif line.startswith(b"keywords: ["):
            self._yaml(line, rows)
        elif line.startswith(b"..."):
            if isinstance(self._table, YamlTable):
                self._end_table(rows)
        elif line.startswith((b"WARNING", b"ERROR", b"Total wall time: ")):
            # The current row is older than this line.
            if line.startswith(b"ERROR"):
                self._end_table(rows)
            self._add_row(rows, self._facts.other(line))
        elif line.startswith(b"LAMMPS ("):
            self._end_table(rows)
        elif not line.startswith(b"---"):
            self._facts.other(line)
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
        if any(map(_NUMBER.fullmatch, names)):
            return
        # Unknown columns are accepted only in the line after ``Per MPI rank memory``, or in a line
        # that was a header before.
        expected, self._expecting = self._expecting or line == self._header_line, False
        known = names == self._known or (len(names) > 1 and all(map(_is_column, names)))
        if expected or (known and text[-1:] == " "):
            spaced = tuple(_SPACES.split(text.strip())) if expected else names
            self._begin_table(OneTable(names, spaced, self._keeper), rows)
            self._header_line = line

    def _multi(self, line: bytes, rows: list[Row]) -> None:
        if HEAD.fullmatch(line.rstrip()):
            self._begin_table(table := MultiTable(self._keeper), rows)
            table.line(line, rows)

    def _yaml(self, line: bytes, rows: list[Row]) -> None:
        inner = line.decode("utf-8", "replace").strip()[len("keywords: [") :]
        names = inner[:-1].rstrip(", ")
        self._end_table(rows)
        if inner.endswith("]") and len(names) > 1 and names[0] == names[-1] == "'":
            self._begin_table(YamlTable(tuple(names[1:-1].split("', '")), self._keeper), rows)

    # Values outside of tables

    def _add_row(self, rows: list[Row], values: Mapping[str, float] | None) -> None:
        wants = self._keeper.wants
        kept = {name: value for name, value in (values or {}).items() if wants(name)}
        if kept:
            step = self._step if self._table is None else self._table.step
            rows.append(Row(kept, None if "WallTime" in kept else step))


def _is_column(name: str) -> bool:
    return name in KEYWORDS or _REFERENCE.fullmatch(name) is not None
