"""Reads the thermo output of a LAMMPS log: the tables that LAMMPS prints while a simulation runs.

Missing a row is better than reporting a wrong value, so unexpected lines are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ensemble_core import Observer, Row
from ensemble_lammps import thermo_tables
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
_NUMBER = re.compile(thermo_tables.NUMBER.decode())
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
        self._keeper = thermo_tables.Keeper(columns)
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
        self._table: thermo_tables.Table | None = None
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
        lines = [
            line.removesuffix(b"\r") for line in lines if len(line) <= thermo_tables.LONGEST_LINE
        ]
        at = 0
        while at < len(lines):
            if self._table is not None:
                at = self._table.usual_rows(lines, at, rows)
            for line in lines[at : at + 1]:
                self._line(line, rows)
            at += 1
        # A longer line is not kept, but known to be too long.
        self._rest += rest[: thermo_tables.LONGEST_LINE + 1 - len(self._rest)]
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
        if not line or line.isspace() or line.startswith(thermo_tables.NOISE):
            return
        self._add_row(rows, self._facts.take())
        if line.startswith(MEMORY):
            self._end_table(rows)
            self._expecting = True
        elif line.startswith(b"Loop time of "):
            names = () if self._table is None else self._table.names
            self._end_table(rows)
            self._facts.loop(line, atoms="Atoms" not in names)
        elif thermo_tables.MULTI_HEAD.fullmatch(line.rstrip()):
            self._begin_table(table := thermo_tables.MultiTable(self._keeper), rows)
            table.line(line, rows)
        elif line.startswith(b"keywords: ["):
            self._yaml(line, rows)
        elif line.startswith(b"..."):
            if isinstance(self._table, thermo_tables.YamlTable):
                self._end_table(rows)
        elif not line.startswith(b"---"):
            facts = self._facts.other(line)
            if line.startswith((b"ERROR", b"LAMMPS (")):  # the current row is older
                self._end_table(rows)
            self._add_row(rows, facts)
            if facts is None:
                self._header(line, rows)

    # Where tables begin and end

    def _begin_table(self, table: thermo_tables.Table, rows: list[Row]) -> None:
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
            self._begin_table(thermo_tables.OneTable(names, spaced, self._keeper), rows)
            self._header_line = line

    def _yaml(self, line: bytes, rows: list[Row]) -> None:
        self._end_table(rows)
        if match := _YAML_HEAD.fullmatch(line.decode("utf-8", "replace")):
            names = tuple(match[1].split("', '"))
            self._begin_table(thermo_tables.YamlTable(names, self._keeper), rows)

    # Values outside of tables

    def _add_row(self, rows: list[Row], values: Mapping[str, float] | None) -> None:
        wants = self._keeper.wants
        kept = {name: value for name, value in (values or {}).items() if wants(name)}
        if kept:
            step = self._step if self._table is None else self._table.step
            rows.append(Row(kept, None if "WallTime" in kept else step))


def _is_column(name: str) -> bool:
    return name in KEYWORDS or _REFERENCE.fullmatch(name) is not None
