"""Writes a table to a Parquet file, in batches. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ensemble_core.display.column_types import (
    Batch,
    as_kind,
    column_kind,
    import_library,
    in_64_bits,
)

#: Python types for the kinds of values in job rows.
_TYPES: dict[str, type] = {"i": int, "f": float, "b": bool, "s": str}


class _WiderType(Exception):
    """Raised if a value does not fit the type of its column."""


def write_parquet(
    names: Sequence[str],
    batches: Callable[[], Iterator[Batch]],
    place: str,
    known: Mapping[str, Collection[str]],
    warn: Callable[[str], None],
) -> None:
    """Write a table as a Parquet file.

    ``known`` contains the types of some columns; the others are inferred. Raises
    :class:`UsageError` if pyarrow is missing, and ``OSError`` if the file cannot be written.
    """
    arrow = import_library("pyarrow", "Parquet")
    parquet = import_library("pyarrow.parquet", "Parquet")
    found = {name: {_TYPES[kind] for kind in known.get(name, ()) if kind != "n"} for name in names}
    while True:
        kinds = {name: column_kind(types) for name, types in found.items()}
        types = {float: arrow.float64(), int: arrow.int64(), bool: arrow.bool_()}
        schema = arrow.schema([(name, types.get(kinds[name], arrow.string())) for name in names])
        try:
            with parquet.ParquetWriter(place, schema) as writer:
                for batch in batches():
                    arrays = [
                        arrow.array(_convert(values, kinds[name], found[name]), field.type)
                        for name, values, field in zip(names, batch, schema, strict=True)
                    ]
                    writer.write_batch(arrow.record_batch(arrays, schema=schema))
        except _WiderType:
            continue
        for name, seen in found.items():
            if kinds[name] is str and len(seen) > 1:
                warn(f"column {name} has both numbers and text: written as text")
        return


def _convert(values: Sequence[Any], kind: type, seen: set[type]) -> Sequence[Any]:
    """Convert values to the type of their column.

    Raises :class:`_WiderType` if they need another type.
    """
    there = set(map(type, values))
    there.discard(type(None))
    if int in there and not all(type(v) is not int or in_64_bits(v) for v in values):
        there.add(float)
    if not there <= seen:
        seen |= there
        if column_kind(seen) is not kind:
            raise _WiderType
    if there <= {kind}:
        return values
    return [as_kind(value, kind) for value in values]
