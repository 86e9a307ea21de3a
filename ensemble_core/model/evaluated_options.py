"""Fills in options of actions and the changes of a group (``with``) when a rule fires.

They may contain expressions (``= 2 * T``) and placeholders (``{T}``, ``{job.workdir}``).
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, cast

from ensemble_core.errors import EnsembleError
from ensemble_core.model.expressions import Formula, expression
from ensemble_core.model.numbers import as_text, whole
from ensemble_core.model.placeholders import (
    FIELD_PLACEHOLDER,
    JOB_PLACEHOLDER,
    fill,
    is_format,
    placeholders,
)
from ensemble_core.model.sweep_values import rounded, without_noise

#: Fields whose texts never contain expressions, because they hold patterns or columns of files.
LITERAL_FIELDS = frozenset({"observe", "points", "retry"})
_NO_VALUE_HINT = "add a condition to the rule that waits for this value"


def evaluate_options(
    value: Any,
    fields: Mapping[str, Any],
    metric: Callable[[str], float | None],
    pattern: re.Pattern[str] = FIELD_PLACEHOLDER,
) -> Any:
    """Replace each ``= EXPRESSION`` and each placeholder in ``value``, at any depth.

    If a string consists of a single placeholder, the result keeps the field's type. Numbers are
    rounded as in a sweep, but only if all numbers in the expression are: measured values keep their
    digits. Whole numbers become integers. Raises :class:`EnsembleError` if a value is missing.

    >>> evaluate_options({"T": "= 2 ** T", "start": "{T}", "tag": "T-{T}"}, {"T": 3}, {}.get)
    {'T': 8, 'start': 3, 'tag': 'T-3'}
    """
    if isinstance(value, Mapping):
        return {key: evaluate_options(item, fields, metric, pattern) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [evaluate_options(item, fields, metric, pattern) for item in value]
    if not isinstance(value, str):
        return value
    if not value.startswith("="):
        return _filled(value, fields, pattern)
    formula = expression(value, texts=True, conditions=True)
    found = formula.result(fields, metric)
    if found is None:
        verdict = formula.evaluate(fields.get("value"), fields, metric)
        found = verdict if isinstance(verdict, bool) else None
    if isinstance(found, float):
        short = _is_short(formula, fields, metric)
        return whole(rounded(found) if short else without_noise(found))
    if found is None:
        missing = [name for name in sorted(formula.names) if fields.get(name) is None]
        missing += [path for path in sorted(formula.metrics) if metric(path) is None]
        if missing:
            why = f"{', '.join(missing)} {'have' if len(missing) > 1 else 'has'} no value yet"
        else:
            why = "the result is not a finite number"
        raise EnsembleError(
            f"cannot compute {value!r}: {why}", hint=_NO_VALUE_HINT, code="no-value"
        )
    return found


def _is_short(
    formula: Formula, fields: Mapping[str, Any], metric: Callable[[str], float | None]
) -> bool:
    """Return True if no number in the formula has more digits than a value of a sweep."""
    numbers = [fields.get(name) for name in formula.names] + [metric(p) for p in formula.metrics]
    return all(number == rounded(number) for number in numbers if isinstance(number, float))


def _filled(text: str, fields: Mapping[str, Any], pattern: re.Pattern[str]) -> Any:
    for one in placeholders(text, pattern):
        if not is_format(one.form or ""):
            continue
        found = fields.get(one.name)
        if found is None:
            raise EnsembleError(
                f"cannot fill in {text!r}: {one.name} has no value yet",
                hint=_NO_VALUE_HINT,
                code="no-value",
            )
        if one.text == text and one.form is None:
            if isinstance(found, float) and found - found != 0:
                raise EnsembleError(
                    f"the value of {text!r} is not a finite number", code="no-value"
                )
            if not isinstance(found, str):
                return whole(found)
    return fill(text, fields, pattern)


def changed_fields(
    fields: Mapping[str, Any],
    known: Mapping[str, Any],
    metric: Callable[[str], float | None],
) -> dict[str, Any]:
    """Return an action's changes to a group's fields, with expressions evaluated.

    In ``parameters``, all placeholders are filled in. In other fields, only ``{job.NAME}`` is
    filled in; ``{NAME}`` stays, because it means a field of the new job. Raises
    :class:`EnsembleError` if a value is missing.
    """
    # A job that never ran has no node to avoid.
    anywhere = (
        ChainMap(cast("dict[str, Any]", known), {"job.host": ""}) if "avoid" in fields else known
    )
    return {
        key: value
        if key in LITERAL_FIELDS
        else fill_command(value, known)
        if key == "command" and _names_job(value)
        else evaluate_options(
            value,
            anywhere if key == "avoid" else known,
            metric,
            FIELD_PLACEHOLDER if key == "parameters" else JOB_PLACEHOLDER,
        )
        for key, value in fields.items()
    }


def fill_command(command: str, fields: Mapping[str, Any]) -> list[str]:
    """Return the words of a command in which ``{job.NAME}`` is filled in.

    As in a job group, the command is split first, so that a value with a blank or a quote, such as
    the path of a folder, stays one word.

    >>> fill_command("ls '-l' {job.workdir}", {"job.workdir": "/data/my study"})
    ['ls', '-l', '/data/my study']
    """
    import shlex

    lexer = shlex.shlex(command, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    return [as_text(_filled(word, fields, JOB_PLACEHOLDER)) for word in lexer]


def _names_job(command: object) -> bool:
    """Return True for a command with ``{job.NAME}`` that is not an expression or a list."""
    return (
        isinstance(command, str)
        and not command.startswith("=")
        and next(placeholders(command, JOB_PLACEHOLDER), None) is not None
    )
