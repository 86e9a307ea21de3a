"""Determines the type of a table's column, and converts values to it.

Parquet, Arrow and data frames need one type per column. If a column has integers and floats, all
values become floats; if it has numbers and text, all become text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from ensemble_core.errors import UsageError

#: Values by column, in the order of the columns.
Batch = Sequence[Sequence[Any]]

#: For each optional library, what to do without it. Used in hints.
_WITHOUT = {"pyarrow": "CSV and JSON do not need it"}


def column_kind(found: Iterable[type]) -> type:
    """Return the type of a column whose values (except ``None``) have these types.

    >>> column_kind({int, float}), column_kind({int, str})
    (<class 'float'>, <class 'str'>)
    """
    kinds = set(found)
    if len(kinds) == 1:
        kind = next(iter(kinds))
        return kind if kind in (int, float, bool) else str
    return float if kinds and kinds <= {int, float} else str


def in_64_bits(value: int) -> bool:
    """Return True if an integer fits into an integer column."""
    return -(1 << 63) <= value < 1 << 63


def as_kind(value: Any, kind: type) -> Any:
    """Convert a value to the type of its column. Return ``None`` if that is impossible."""
    if value is None or type(value) is kind:
        return value
    try:
        return kind(value)
    except OverflowError:  # the integer is too large for a float
        return None


def in_columns(
    names: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, list[Any]], dict[str, type], list[str]]:
    """Return rows as columns.

    Also return the type of each column, and the names of the columns with both numbers and text.
    """
    columns: dict[str, list[Any]] = {}
    kinds: dict[str, type] = {}
    mixed: list[str] = []
    for name in names:
        values = [row.get(name) for row in rows]
        found = set(map(type, values)) - {type(None)}
        kind = column_kind(found)
        if kind is int and not all(each is None or in_64_bits(each) for each in values):
            kind = float
        kinds[name] = kind
        if found - {kind}:
            values = [as_kind(value, kind) for value in values]
        if kind is str and len(found) > 1:
            mixed.append(name)
        columns[name] = values
    return columns, kinds, mixed


def import_library(module: str, what: str) -> Any:
    """Import an optional library. Raises :class:`UsageError` with a hint on what to install."""
    library = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == library
        install = f"pip install {library}"
        without = _WITHOUT.get(library)
        raise UsageError(
            f"{what} needs {library}, which "
            + ("is not installed" if missing else "cannot be imported here"),
            cause=None if missing else str(error),
            hint=f"{install}; {without}" if without else install,
            code=f"no-{library}",
        ) from None
