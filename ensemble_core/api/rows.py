"""Table for Python programs: a list of rows that converts to data frames."""

from __future__ import annotations

import html
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core.display.column_types import import_library, in_columns
from ensemble_core.display.text_style import format_time
from ensemble_core.errors import UsageError
from ensemble_core.model.numbers import format_number

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

#: How many rows a notebook shows.
_SHOWN = 30


class Rows(list[dict[str, Any]]):
    """A table as a list of rows, each of which is a dictionary.

    ``names`` are the columns, in order. ``times`` are the columns that contain times, in seconds
    since the epoch; a notebook shows them as dates.

    >>> rows = Rows(("T", "m"), [{"T": 2.0, "m": 0.9}, {"T": 2.5, "m": None}])
    >>> rows[0]["m"], rows.column("T")
    (0.9, [2.0, 2.5])
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: Iterable[Mapping[str, Any]],
        times: Collection[str] = (),
    ) -> None:
        self.names = tuple(names)
        self.times = times
        super().__init__({name: row.get(name) for name in self.names} for row in rows)

    def column(self, name: str) -> list[Any]:
        """Return the values of a column, with ``None`` for missing values.

        Raises :class:`UsageError` if the table has no such column.
        """
        if name not in self.names:
            raise UsageError(
                f"the table has no column {name!r}",
                hint=f"its columns are {', '.join(self.names)}",
                code="no-such-column",
            )
        return [row[name] for row in self]

    def to_arrow(self) -> pa.Table:
        """Convert to a pyarrow table. Raises :class:`UsageError` if pyarrow is not installed."""
        arrow = import_library("pyarrow", "to_arrow()")
        columns, kinds = self._columns()
        types = {float: arrow.float64(), int: arrow.int64(), bool: arrow.bool_()}
        schema = arrow.schema([(n, types.get(kinds[n], arrow.string())) for n in self.names])
        found: pa.Table = arrow.table(columns, schema=schema)
        return found

    def to_pandas(self) -> pd.DataFrame:
        """Convert to a pandas data frame. Missing numbers become nan.

        Raises :class:`UsageError` if pandas is not installed.
        """
        pandas = import_library("pandas", "to_pandas()")
        found: pd.DataFrame = pandas.DataFrame(self._columns()[0], columns=list(self.names))
        return found

    def to_polars(self) -> pl.DataFrame:
        """Convert to a polars data frame. Raises :class:`UsageError` if polars is not installed."""
        polars = import_library("polars", "to_polars()")
        columns, kinds = self._columns()
        types = {float: polars.Float64, int: polars.Int64, bool: polars.Boolean}
        schema = {name: types.get(kinds[name], polars.String) for name in self.names}
        found: pl.DataFrame = polars.DataFrame(columns, schema=schema)
        return found

    def _columns(self) -> tuple[dict[str, list[Any]], dict[str, type]]:
        columns, kinds, mixed = in_columns(self.names, self)
        for name in mixed:
            warnings.warn(f"column {name} has numbers and text: converted to text", stacklevel=3)
        return columns, kinds

    def _repr_html_(self) -> str:
        texts = [_time if name in self.times else _cell for name in self.names]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.names)
        body = "".join(
            "<tr>"
            + "".join(
                f"<td>{text(row[name])}</td>" for text, name in zip(texts, self.names, strict=True)
            )
            + "</tr>"
            for row in self[:_SHOWN]
        )
        more = len(self) - _SHOWN
        rest = f"<p>… {more:,} more rows</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _time(value: float | None) -> str:
    return "" if value is None else html.escape(format_time(value))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return html.escape(format_number(value) if isinstance(value, float) else str(value))
