"""Writes tables as CSV, JSON, Markdown, Parquet or aligned text."""

from __future__ import annotations

import csv
import functools
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

import click

from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.replaced_file import draft_of
from ensemble_core.display.column_types import (
    Batch,
    as_kind,
    column_kind,
    import_library,
    in_64_bits,
)
from ensemble_core.display.text_style import (
    format_table,
    format_time,
    is_terminal,
    print_line,
    print_table,
    printable,
    style_of,
)
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.model.numbers import format_number, whole

_F = TypeVar("_F", bound=Callable[..., Any])

#: Formats by file suffix.
FORMATS = {"csv": "csv", "json": "json", "md": "markdown", "parquet": "parquet"}
#: How many rows are printed on a terminal. The others are only counted.
_SHOWN = 1000
#: Number of rows in a batch. Memory does not grow with the number of rows.
_BATCH = 20_000
#: Signs with a meaning in the cells of a Markdown table.
_SIGNS = re.compile(r"[\\|]")
#: First characters of texts that a spreadsheet treats as formulas. Formulas may run programs
#: (OWASP).
_FORMULA = (*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def output_options(function: _F) -> _F:
    """Add options for the format of a table, and ``-o FILE``, to a command.

    The command receives the arguments ``form`` and ``output``.
    """
    options = [
        click.option("--csv", "form", flag_value="csv", help="Comma-separated values."),
        click.option(
            "--csv-safe",
            "safe",
            is_flag=True,
            help="CSV for a spreadsheet: puts ' before texts that would run as formulas.",
        ),
        click.option("--json", "form", flag_value="json", help="A list of JSON objects."),
        click.option("--markdown", "form", flag_value="markdown", help="A Markdown table."),
        click.option("--parquet", "form", flag_value="parquet", help="Parquet (needs pyarrow)."),
        click.option(
            "-o",
            "--output",
            metavar="FILE",
            type=click.Path(dir_okay=False, allow_dash=True),
            help="Write to this file; its suffix gives the format unless an option does.",
        ),
    ]

    @functools.wraps(function)
    def command(*args: Any, safe: bool, form: str | None, **values: Any) -> Any:
        if safe and form not in (None, "csv"):
            raise UsageError(
                f"--csv-safe cannot be combined with --{form}",
                hint="leave out one of them",
                code="bad-option",
            )
        return function(*args, form="csv-safe" if safe else form, **values)

    decorated: Any = command
    for option in reversed(options):
        decorated = option(decorated)
    return cast(_F, decorated)


def in_batches(
    names: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> Callable[[], Iterator[Batch]]:
    """Return a function that yields the rows in batches, for :func:`write_table`."""
    kept = rows if isinstance(rows, list) else list(rows)

    def batches() -> Iterator[Batch]:
        for at in range(0, len(kept), _BATCH):
            part = kept[at : at + _BATCH]
            yield [[row.get(name) for row in part] for name in names]

    return batches


def write_table(
    names: Sequence[str],
    batches: Callable[[], Iterator[Batch]],
    form: str | None,
    output: str | None,
    times: Collection[str] = (),
    kinds: Mapping[str, Collection[str]] | None = None,
    missing: str = "",
) -> None:
    """Write a table in one of the formats, to a file or to stdout.

    - ``batches`` is a function that yields the rows in batches. A batch is a list of columns, and
      a column is a list of values.
    - ``times`` lists columns whose values are seconds since the epoch. On a terminal, they are
      shown as dates.
    - ``kinds`` gives the types of some columns, as letters (see ``journal.job_rows``).
    - ``missing`` replaces missing values in aligned text.

    Raises :class:`EnsembleError` if the table cannot be written.
    """
    if output == "-":
        output = None
    if form is None and output is not None:
        ending = Path(output).suffix.lower().removeprefix(".")
        if ending not in FORMATS:
            raise UsageError(
                f"cannot tell the format from the file name {output!r}",
                hint=f"end the file name with {', '.join(f'.{each}' for each in FORMATS)}, or "
                "add an option such as --csv",
                code="bad-option",
            )
        form = FORMATS[ending]
    if form == "parquet":
        if output is None:
            raise UsageError(
                "Parquet cannot be shown on a terminal",
                hint="name a file: -o results.parquet",
                code="bad-option",
            )
        try:
            with draft_of(output) as place:
                _write_parquet(names, batches, place, kinds or {})
        except OSError as error:
            raise _unwritable(output, error) from error
        return
    with _open_output(output, exact=form is not None) as stream:
        if form in ("csv", "csv-safe"):
            _write_csv(names, batches, stream, safe=form == "csv-safe")
        elif form == "json":
            _write_json(names, _rows(batches), stream)
        elif form == "markdown":
            for line in _markdown(names, _rows(batches), times):
                stream.write(line + "\n")
        else:
            _show(names, batches, times, missing)


def _rows(batches: Callable[[], Iterator[Batch]]) -> Iterator[Sequence[Any]]:
    for batch in batches():
        yield from zip(*batch, strict=True)


@contextmanager
def _open_output(output: str | None, *, exact: bool) -> Iterator[TextIO]:
    if output is None:
        stdout = sys.stdout
        if exact and isinstance(stdout, TextIOWrapper):
            # A pipe gets the same bytes as a file, in every locale.
            if stdout.isatty():
                stdout.reconfigure(errors="backslashreplace")
            else:
                stdout.reconfigure(encoding="utf-8", errors=stdout.errors)
        yield sys.stdout
        return
    try:
        with draft_of(output) as draft, open(draft, "w", encoding="utf-8", newline="") as stream:
            yield stream
    except OSError as error:
        raise _unwritable(output, error) from error


def _unwritable(output: str, error: OSError) -> EnsembleError:
    return UsageError(
        f"cannot write {output}",
        cause=error.strerror or str(error),
        hint="choose a writable folder",
        code="unwritable",
    )


class _Lines:
    """Stream for the ``csv`` module that ends lines with LF instead of CR LF.

    The ``csv`` writer itself uses CR LF, because it then puts carriage returns in quotation marks.
    Some readers would otherwise end a line there.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> int:
        return self._stream.write(line[:-2] + "\n")


def _write_csv(
    names: Sequence[str], batches: Callable[[], Iterator[Batch]], stream: TextIO, *, safe: bool
) -> None:
    """Write CSV. Escape control characters on a terminal and, with ``safe``, formulas."""
    cleaned = safe or is_terminal(stream)

    def cell(value: Any) -> Any:
        if not cleaned or not isinstance(value, str):
            return _plain(value)
        text = printable(value)
        return f"'{text}" if safe and text.startswith(_FORMULA) else text

    writer = csv.writer(_Lines(stream), lineterminator="\r\n")
    writer.writerow(map(cell, names))
    for batch in batches():
        columns = [[*map(cell if cleaned else _plain, column)] for column in batch]
        writer.writerows(zip(*columns, strict=True))


def _write_json(names: Sequence[str], rows: Iterable[Sequence[Any]], stream: TextIO) -> None:
    before = "["
    for row in rows:
        stream.write(f"{before}\n{to_json(dict(zip(names, map(_plain, row), strict=True)))}")
        before = ","
    stream.write("[]\n" if before == "[" else "\n]\n")


#: Python types for the kinds of values in job rows.
_TYPES: dict[str, type] = {"i": int, "f": float, "b": bool, "s": str}


class _WiderType(Exception):
    """Raised if a value does not fit the type of its column."""


def _write_parquet(
    names: Sequence[str],
    batches: Callable[[], Iterator[Batch]],
    place: str,
    known: Mapping[str, Collection[str]],
) -> None:
    """Write a table as a Parquet file, in batches.

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
                print_warning(f"column {name} has both numbers and text: written as text")
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


def _plain(value: Any) -> Any:
    """Return a whole number without a decimal point, as the program printed it."""
    return whole(value) if type(value) is float else value


def _text(value: object) -> str:
    if value is None:
        return ""
    text = format_number(value) if isinstance(value, float) else str(value)
    return printable(text).replace("\n", " ")


def _markdown(
    names: Sequence[str], rows: Iterable[Sequence[Any]], times: Collection[str]
) -> Iterator[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(_SIGNS.sub(r"\\\g<0>", cell) for cell in cells) + " |"

    yield line(map(_text, names))
    yield line("---" for _ in names)
    texts = [format_time if name in times else _text for name in names]
    for row in rows:
        yield line(text(value) for text, value in zip(texts, row, strict=True))


def _show(
    names: Sequence[str],
    batches: Callable[[], Iterator[Batch]],
    times: Collection[str],
    missing: str,
) -> None:
    """Print the first rows as aligned columns."""
    shown: list[Sequence[Any]] = []
    rest = 0
    for batch in batches():
        room = _SHOWN - len(shown)
        shown += itertools.islice(zip(*batch, strict=True), room)
        rest += max(0, len(batch[0]) - room) if batch else 0
    lines = align_columns(names, shown, times, missing)
    look = style_of(sys.stdout)
    print_table(lines, look)
    if rest:
        print_line(f"{look.ellipsis} {rest:,} more; --csv prints all")


def align_columns(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    times: Collection[str] = (),
    missing: str = "",
) -> list[str]:
    """Return rows as aligned columns with headings. ``missing`` replaces missing values."""
    texts = [format_time if name in times else _text for name in names]
    right = [not any(isinstance(row[at], str) for row in rows) for at in range(len(names))]
    cells = (
        [missing if value is None else text(value) for text, value in zip(texts, row, strict=True)]
        for row in rows
    )
    return format_table([[*map(_text, names)], *cells], right)
