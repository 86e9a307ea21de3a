"""Reads sweeps: the values of a group's ``parameters``, also from files of points.

Each row of a file of points (CSV) has the parameters of a job.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.file_text import read_attachment, sibling_path
from ensemble_core.errors import Location, did_you_mean
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import read_number
from ensemble_core.model.placeholders import BUILTIN_PLACEHOLDERS
from ensemble_core.model.sweep_values import GivenBy, Range, by_count, by_step

#: Maximum number of jobs in one submit.
MOST_JOBS = 1_000_000
#: Maximum length of a range, so that ``len()`` works. The number of jobs is checked before any
#: value is computed, because a short text such as ``{from: 1, to: 1e9}`` can mean many values.
MOST_COUNTED = 10**15

_NUMBER = r"[-+]?[0-9.]*[0-9]"
#: Matches a text that other tools read as a range or a list of numbers, and not times (12:30).
_SEVERAL = late_pattern(
    rf"{_NUMBER}(\s*(\.\.+|[,;])\s*{_NUMBER})+|(?!.*:[0-9]{{2}}$){_NUMBER}(:{_NUMBER}){{1,2}}"
)
#: Matches a range in Python's notation, such as ``range(1, 5)``.
_PYTHON_RANGE = late_pattern(r"\s*(?:np\.|numpy\.)?a?range\(([^()]*)\)?\s*")

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


def read_parameters(
    context: Context, path: Path, given: Mapping[str, Any]
) -> dict[str, Sequence[object]]:
    """Return the values of each valid parameter, and report the invalid ones."""
    found: dict[str, Sequence[object]] = {}
    for name, value in given.items():
        inner = (*path, name)
        check_parameter_name(context, inner, name)
        if isinstance(value, dict) and "function" in value:
            values: Sequence[object] | None = _read_function(context, inner, value)
        elif isinstance(value, dict):
            values = _range(context, inner, value)
        elif isinstance(value, list):
            values = tuple(value)
            for index, item in enumerate(value):
                _check_value(context, (*inner, index), item)
            if path[:1] == ("jobs",):  # a rule's expressions have samples here
                warn_of_equals(context, inner, "values", values, repr(name))
        else:
            values = (value,)
            _check_value(context, inner, value)
            if isinstance(value, str) and _SEVERAL.fullmatch(value.strip()):
                context.warnings.append(
                    f"{context.document.at(inner)}: {value!r} is one text; for several values, "
                    f"write a list or {{from: 1, to: 5}}; for this text, [{value!r}]"
                )
        found[name] = () if values is None else values
    return found


def warn_of_equals(
    context: Context, path: Path, noun: str, rows: Sequence[object], whole: str
) -> None:
    """Warn if two values or rows are equal: their jobs are the same, and all of them run."""
    first: dict[object, int] = {}
    for number, row in enumerate(rows, 1):
        earlier = first.setdefault(row, number)
        if earlier != number:
            context.warnings.append(
                f"{context.document.at(path)}: {noun} {earlier} and {number} of {whole} are equal, "
                "so the same jobs run twice; for repetitions, write 'replicas: 2'"
            )
            return


def _read_function(context: Context, path: Path, given: Mapping[str, Any]) -> tuple[GivenBy] | None:
    """Read ``{function: NAME}``. The names of functions in job groups are checked later."""
    if not context.is_valid(path):
        return None
    check_function(context, (*path, "function"), given["function"])
    return (GivenBy(given["function"]),)


def check_function(context: Context, path: Path, name: str) -> None:
    """Report a function that ``custom:`` does not define."""
    names = context.known.functions
    if names is None or name in names:
        return
    if names:
        context.unknown(path, "function", name, names)
        return
    context.report(
        path,
        f"there is no function {name!r}",
        hint=f"define 'def {name}(group, index, metrics, results):' in a file, and write "
        "'custom: FILE.py'",
        code="no-such-function",
    )


def check_functions(context: Context, jobs: Iterable[tuple[int, Any]]) -> None:
    """Check the names of functions that compute parameters under ``jobs:``."""
    for index, entry in jobs:
        given = entry.get("parameters") if isinstance(entry, dict) else None
        for name, value in given.items() if isinstance(given, dict) else ():
            path: Path = ("jobs", index, "parameters", name, "function")
            if isinstance(value, dict) and "function" in value and context.is_valid(path):
                check_function(context, path, value["function"])


def check_parameter_name(
    context: Context, path: Path, name: str, where: Location | None = None
) -> None:
    """Report a parameter whose name a placeholder already has."""
    if name in BUILTIN_PLACEHOLDERS:
        context.report(
            path,
            f"{{{name}}} is built in, so no parameter can have this name",
            hint="choose another name",
            code="bad-name",
            where=where or context.document.at_key(path),
        )


def _check_value(context: Context, path: Path, value: object) -> None:
    if isinstance(value, str):
        if "\0" in value:
            context.report(path, "a NUL character cannot be passed to a program", code="bad-value")
        meant = _PYTHON_RANGE.fullmatch(value)
        if meant is not None:
            context.report(
                path,
                f"{value!r} is not a range: jobs would receive it as text",
                hint=_convert_range(meant[1]),
                code="bad-value",
            )
    elif isinstance(value, float) and not math.isfinite(value):
        context.report(
            path,
            f"a parameter cannot have the value {context.document.written(path, value)}",
            hint="quote it to use it as text",
            code="wrong-type",
        )


def _convert_range(arguments: str) -> str:
    """Convert the arguments of a Python ``range``, which excludes its end, to our notation."""
    words = arguments.split(",")
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3:
        return "write {from: 1, to: 4}, and add 'step' if it is not 1"
    first, end = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = numbers[2] if len(numbers) == 3 else 1
    last = range(first, end, step)[-1] if step and range(first, end, step) else end
    return f"write {{from: {first}, to: {last}{f', step: {step}' if step != 1 else ''}}}"


def _range(context: Context, path: Path, given: Mapping[str, Any]) -> Range | None:
    """Read a range ``{from, to, step}`` or ``{from, to, count}``."""
    if not all(context.is_valid((*path, key)) for key in ("from", "to", "step", "count", "log")):
        return None
    first, last, log = given["from"], given["to"], given.get("log", False)
    if "step" in given and "count" in given:
        where = context.document.at_key((*path, "count"))
        context.report(
            path,
            "both 'step' and 'count' are given",
            hint="keep one of them",
            code="bad-range",
            where=where,
        )
        return None
    if log and ("count" not in given or first == 0 or (first > 0) != (last > 0)):
        what = "needs 'count', the number of values"
        if "count" in given:
            what = "needs 'from' and 'to' of the same sign, not 0"
        context.report((*path, "log"), f"a range with 'log' {what}", code="bad-range")
        return None
    if "count" in given:
        count = int(given["count"])
        if count == 1 and first != last:
            context.report(
                (*path, "count"),
                "'count: 1' cannot include both 'from' and 'to'",
                hint="write 'count: 2' to include both",
                code="bad-range",
            )
            return None
        return by_count(first, last, count, log=bool(log))
    step = given.get("step", 1)
    if step == 0:
        context.report((*path, "step"), "'step' is 0, so the range never ends", code="bad-range")
        return None
    if abs(last - first) / abs(step) > MOST_COUNTED:
        context.report(
            path,
            f"the range has more than {MOST_COUNTED:.0e} values",
            hint=f"use fewer values: at most {MOST_JOBS} jobs can be submitted at once",
            code="out-of-range",
        )
        return None
    values = by_step(first, last, step)
    if not values:
        context.report(
            path,
            f"the range is empty: steps of {step} from {first} never reach {last}",
            hint=f"write 'step: {-step}'" if "step" in given else "write 'step: -1' to count down",
            code="empty",
        )
        return None
    return values


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
