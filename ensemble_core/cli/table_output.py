"""Tables as text and files: CSV, JSON, Markdown, Parquet, and aligned columns for people.

Rows are written as they come, so that memory does not grow with their number; only aligned columns
need to know all rows that are shown.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from ensemble_core.cli.columns import imported
from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.json_lines import to_json
from ensemble_core.cli.text_style import format_table, format_time, print_line, printable, style_of
from ensemble_core.errors import EnsembleError, UsageError

__all__ = ["FORMATS", "output_options", "write_table"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: The formats, by the ending of a file's name.
FORMATS = {"csv": "csv", "json": "json", "md": "markdown", "parquet": "parquet"}
#: Rows that are shown to people; of more it is said how many there are.
_SHOWN = 1000
#: Rows that Parquet is given at a time.
_BATCH = 20_000


def output_options(function: _F) -> _F:
    """``--csv``, ``--json``, ``--markdown``, ``--parquet`` and ``-o FILE``: the command gets
    ``form`` and ``output``."""
    options = [
        click.option("--csv", "form", flag_value="csv", help="Comma-separated values."),
        click.option("--json", "form", flag_value="json", help="A list of JSON objects."),
        click.option("--markdown", "form", flag_value="markdown", help="A Markdown table."),
        click.option("--parquet", "form", flag_value="parquet", help="Parquet (needs pyarrow)."),
        click.option(
            "-o",
            "--output",
            metavar="FILE",
            type=click.Path(dir_okay=False, allow_dash=True),
            help="Write to this file; its ending says the format, where no option does.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def write_table(
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    form: str | None,
    output: str | None,
    times: Collection[str] = (),
) -> None:
    """Write rows in a format, to a file or to stdout; ``times`` are columns with seconds since the
    epoch, which people are shown as dates. Raises :class:`EnsembleError`."""
    if output == "-":
        output = None
    if form is None and output is not None:
        ending = Path(output).suffix.lower().removeprefix(".")
        if ending not in FORMATS:
            raise UsageError(
                f"{output!r} does not say which format is meant",
                hint=f"end it with {', '.join(f'.{each}' for each in FORMATS)}, or add an option "
                "such as --csv",
                code="bad-option",
            )
        form = FORMATS[ending]
    if form == "parquet":
        if output is None:
            raise UsageError(
                "Parquet is no text for a terminal",
                hint="name a file: -o results.parquet",
                code="bad-option",
            )
        _write_parquet(names, rows, output)
        return
    with _opened(output) as stream:
        if form == "csv":
            _write_csv(names, rows, stream)
        elif form == "json":
            _write_json(names, rows, stream)
        elif form == "markdown":
            for line in _markdown(names, rows):
                stream.write(line + "\n")
        else:
            _show(names, rows, times)


@contextmanager
def _opened(output: str | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    try:
        with open(output, "w", encoding="utf-8", newline="") as stream:
            yield stream
    except OSError as error:
        raise _unwritable(output, error) from error


def _unwritable(output: str, error: OSError) -> EnsembleError:
    return UsageError(
        f"{output} cannot be written",
        cause=error.strerror or str(error),
        hint="name a file in a folder that you may write to",
        code="unwritable",
    )


def _write_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]], stream: TextIO) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] for row in rows)


def _write_json(names: Sequence[str], rows: Iterable[Mapping[str, Any]], stream: TextIO) -> None:
    before = "["
    for row in rows:
        stream.write(f"{before}\n{to_json({name: row.get(name) for name in names})}")
        before = ","
    stream.write("[]\n" if before == "[" else "\n]\n")


def _text(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return printable(text).replace("\n", " ")


def _markdown(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    yield line(names)
    yield line("---" for _ in names)
    for row in rows:
        yield line(_text(row.get(name)) for name in names)


def _show(names: Sequence[str], rows: Iterable[Mapping[str, Any]], times: Collection[str]) -> None:
    """Aligned columns; those in which nothing stands are left out."""
    rows = iter(rows)
    shown = list(itertools.islice(rows, _SHOWN))
    rest = sum(1 for _ in rows)
    names = [name for name in names if not shown or any(row.get(name) is not None for row in shown)]
    right = [not any(isinstance(row.get(name), str) for row in shown) for name in names]
    lines = format_table(
        [
            [*names],
            *(
                [
                    format_time(row.get(name)) if name in times else _text(row.get(name))
                    for name in names
                ]
                for row in shown
            ),
        ],
        right,
    )
    look = style_of(sys.stdout)
    print_line(look.paint(lines[0], "bold"))
    for line in lines[1:]:
        print_line(line)
    if rest:
        print_line(f"{look.ellipsis} {rest:,} more; --csv has them all")


def _write_parquet(names: Sequence[str], rows: Iterable[Mapping[str, Any]], output: str) -> None:
    arrow = imported("pyarrow", "Parquet")
    parquet = imported("pyarrow.parquet", "Parquet")
    with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
        kinds = _spooled(spool, names, rows)
        types = {float: arrow.float64(), int: arrow.int64(), bool: arrow.bool_()}
        schema = arrow.schema([(name, types.get(kinds[name], arrow.string())) for name in names])
        again = map(json.loads, spool)
        try:
            with parquet.ParquetWriter(output, schema) as writer:
                while batch := list(itertools.islice(again, _BATCH)):
                    columns = [
                        arrow.array([_as(row[place], kinds[name]) for row in batch], field.type)
                        for place, (name, field) in enumerate(zip(names, schema, strict=True))
                    ]
                    writer.write_batch(arrow.record_batch(columns, schema=schema))
        except OSError as error:
            raise _unwritable(output, error) from error


def _as(value: Any, kind: type) -> Any:
    return value if value is None or type(value) is kind else kind(value)


def _spooled(
    spool: TextIO, names: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> dict[str, type]:
    """Put the rows by in a file, to be read again from its beginning: what each column's values
    are, text where they are of several kinds."""
    seen: dict[str, set[type]] = {name: set() for name in names}
    for row in rows:
        values = [row.get(name) for name in names]
        for name, value in zip(names, values, strict=True):
            if value is not None:
                seen[name].add(type(value))
        spool.write(json.dumps(values) + "\n")
    spool.seek(0)
    kinds: dict[str, type] = {}
    for name, found in seen.items():
        kinds[name] = next(iter(found)) if len(found) == 1 else str
        if len(found) > 1 and found <= {int, float}:
            kinds[name] = float
        elif len(found) > 1:
            print_warning(f"{name} has numbers and texts: it is written as text")
    return kinds
