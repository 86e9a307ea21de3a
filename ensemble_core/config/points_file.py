"""Files of points: CSV files, each row of which has the parameters of a job."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core.config.attached_files import read_attachment, sibling_path
from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.sweeps import MOST_JOBS, check_parameter_name, warn_of_equals
from ensemble_core.errors import Location, did_you_mean
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import read_number

#: Maximum size of a points file in bytes.
_LARGEST = 64 * 1024 * 1024

_NAME = late_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
#: The beginning of a text such as ``007``, which is no number.
_ZEROS = late_pattern(r"[-+]?0[0-9]")
#: A text such as ``2D1``: a name, or an exponent of Fortran. Programs print a point
#: before it, or a sign after it.
_NAME_OR_NUMBER = late_pattern(r"[-+]?[0-9]+[dDqQ][0-9]+")
#: A whole number, at most as long as those in an ensemble file.
_WHOLE = late_pattern(r"[-+]?[0-9]{1,300}")
#: A number with a decimal comma.
_COMMA = late_pattern(r"[-+]?[0-9]+,[0-9]+")
#: Suffixes of points files.
_SUFFIXES = (".csv", ".tsv", ".txt", ".dat")
#: Separators of cells with other names in the ensemble file: the sign, and what it is called.
_SEPARATORS = {
    ";": (";", "semicolons"),
    "tab": ("\t", "tabs"),
    "|": ("|", "vertical bars"),
    "blanks": (" ", "blanks"),
}


def read_points(
    context: Context, path: Path, given: str | Mapping[str, Any]
) -> dict[str, Sequence[object]] | None:
    """Return the columns of a CSV file, or ``None`` after reporting an error. Each row is a job."""
    columns = read_columns(context, path, given)
    if columns:
        warn_of_equals(context, path, "rows", [*zip(*columns.values(), strict=True)], "the file")
    return columns


def read_columns(
    context: Context, path: Path, given: str | Mapping[str, Any]
) -> dict[str, Sequence[object]] | None:
    """Return the columns of a CSV file, or ``None`` after reporting an error."""
    before = len(context.errors)
    file = given if isinstance(given, str) else given["file"]
    place = path if isinstance(given, str) else (*path, "file")
    options = given if isinstance(given, dict) else {}
    text = read_attachment(context, place, file, largest=_LARGEST, suffixes=_SUFFIXES)
    if text is None:
        return None
    file = sibling_path(context, file)
    mark, decimal = options.get("separator", ","), options.get("decimal", ".")
    if mark == decimal:
        context.report(
            path,
            "the comma cannot be both the separator and the decimal sign",
            hint="add separator: ';' or another one",
            code="bad-value",
        )
        return None
    table = _table(context, file, text, mark)
    if table is None:
        return None
    header, rows, line = table
    separator = _separator(header)
    chosen = options.get("columns", header)
    columns: dict[str, Sequence[object]] = {}
    for index, name in enumerate(chosen):
        inner = (*path, "columns", index) if chosen is not header else path
        if name not in header:
            known = [each for each in header if _NAME.fullmatch(each)]
            listed = f"its columns are {', '.join(known[:15])}"
            context.report(
                inner,
                f"{file} has no column {name!r}",
                hint=did_you_mean(name, known, listed, cutoff=0.5),
                code="no-such-column",
            )
        elif not _NAME.fullmatch(name):
            # Don't quote the name: the file may contain something else, and it may be confidential.
            context.report(
                inner,
                f"column {index + 1} of {file} cannot be a parameter: a parameter's name consists "
                "of letters, digits and _",
                hint=f"the cells seem to be separated by {_SEPARATORS[separator][1]}: write "
                f"points: {{file: …, separator: {separator!r}}}"
                if separator
                else "rename it, or leave it out: {file: …, columns: [NAME, …]}",
                code="bad-name",
                where=Location(file, line, 1, quoted=False),
            )
        elif name in columns:
            context.report(inner, f"the column {name!r} is listed twice", code="duplicate-name")
        else:
            check_parameter_name(context, inner, name, Location(file, line, 1, quoted=False))
            at = header.index(name)
            cells = [row[at] for row in rows]
            columns[name] = _column(cells, decimal)
            texts = [cell for cell in cells if read_number(cell, decimal) is None]
            if texts and 2 * len(texts) < len(cells):
                context.warnings.append(
                    f"{context.document.at(path)}: the column {name!r} of {file} has numbers, but "
                    f"also {repr(texts[0]) if texts[0] else 'empty cells'}: all are texts"
                )
            doubtful = next(filter(_NAME_OR_NUMBER.fullmatch, cells), None)
            if doubtful and not texts:
                context.warnings.append(
                    f"{context.document.at(path)}: the column {name!r} of {file} has texts such as "
                    f"{doubtful!r}, so its values are texts; if these are numbers, write a point, "
                    f"as in {re.sub('[dDqQ]', '.0D', doubtful)}"
                )
            if decimal == "." and all(map(_COMMA.fullmatch, cells)):
                context.warnings.append(
                    f"{context.document.at(path)}: the column {name!r} of {file} has texts such as "
                    f"{cells[0]!r}; if these are numbers, add decimal: ',' to 'points'"
                )
    return columns if len(context.errors) == before else None


def _table(
    context: Context, file: str, text: str, separator: str
) -> tuple[list[str], list[list[str]], int] | None:
    """Return the header, the rows and the header's line number, or ``None`` after reporting an
    error.
    """
    import csv

    header: list[str] | None = None
    first, rows = 1, list[list[str]]()
    if separator == "blanks":
        text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    delimiter = _SEPARATORS.get(separator, (separator, ""))[0]
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True, skipinitialspace=True)

    def wrong(what: str, hint: str | None = None, line: int | None = None) -> None:
        where = Location(file, line or reader.line_num, 1, quoted=False)
        context.report((), what, hint=hint, code="bad-csv", where=where)

    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if header is None:
                header, first = cells, reader.line_num
                twice = [place for place, name in enumerate(cells) if name in cells[:place]]
                if twice:
                    earlier, name = cells.index(cells[twice[0]]), cells[twice[0]]
                    wrong(
                        f"columns {earlier + 1} and {twice[0] + 1} have the same name"
                        if name
                        else "several columns have no name",
                        "give each column its own name",
                    )
                    return None
            elif len(cells) != len(header):
                more = len(cells) > len(header)
                hint = "quote cells that contain the separator" if more else None
                if other := _separator(header):
                    hint = f"the cells seem to be separated by {_SEPARATORS[other][1]}: write "
                    hint += f"points: {{file: …, separator: {other!r}}}"
                    hint += ", with decimal: ',' if decimals have a comma"
                wrong(f"the row has {len(cells)} cells, the header {len(header)} columns", hint)
                return None
            else:
                rows.append(cells)
                if len(rows) > MOST_JOBS:
                    wrong(f"more than {MOST_JOBS} points")
                    return None
    except csv.Error as error:
        wrong(f"the file is not CSV: {error}")
        return None
    if header is None or not rows:
        wrong("no points: a header and at least one row are required", line=1)
        return None
    return header, rows, first


def _separator(header: Sequence[str]) -> str | None:
    """Return the separator that a header seems to have, although it was read with another one."""
    for name, (mark, _) in _SEPARATORS.items():
        if mark != " " and any(mark in cell for cell in header):
            return name
    words = header[0].split()
    spaced = len(header) == 1 and len(words) > 1 and all(map(_NAME.fullmatch, words))
    return "blanks" if spaced else None


def _column(cells: list[str], decimal: str) -> tuple[object, ...]:
    """Return the values of a column.

    They are numbers if every cell is a number without leading zeros, and strings otherwise.
    """
    numbers = [
        None
        if _ZEROS.match(cell) or _NAME_OR_NUMBER.fullmatch(cell)
        else int(cell)  # exactly, for example a seed of 64 bits
        if _WHOLE.fullmatch(cell)
        else read_number(cell, decimal)
        for cell in cells
    ]
    if any(number is None or not math.isfinite(number) for number in numbers):
        return tuple(cells)
    return tuple(numbers)
