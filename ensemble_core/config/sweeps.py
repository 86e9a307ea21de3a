"""Reads sweeps: the values of a group's ``parameters``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.errors import Location
from ensemble_core.late_pattern import late_pattern
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
