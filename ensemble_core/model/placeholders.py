"""Fills in the placeholders ``{name}`` and ``{name:format}`` in the texts of jobs and messages.

``${name}`` is left to the shell, and ``{{name}}`` becomes the literal ``{name}``. A placeholder
with an unknown name stays as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

__all__ = [
    "BUILTIN_PLACEHOLDERS",
    "FIELD_PLACEHOLDER",
    "JOB_PLACEHOLDER",
    "PLACEHOLDER",
    "RUN_PLACEHOLDERS",
    "fill",
    "fill_message",
    "format_value",
    "is_format",
    "normal_name",
]

_NAME = r"[A-Za-z_]\w*"
#: A column such as ``c_msd[4]`` or ``PotEng.error``, or a statistic with a filter:
#: ``mean.U(L == 16)``.
_FIELD = rf"{_NAME}(?:(?:\.\w+|\[[\w.]+\])+(?:\([^{{}}]*\))?)?"


def _pattern(name: str) -> re.Pattern[str]:
    form = r"(:[^{}\s]*)?"
    return re.compile(rf"\{{\{{({name}){form}\}}\}}|(?<![${{])\{{({name}){form}\}}(?!\}})")


#: A placeholder in a command, workdir, environment or output path. The four regex groups are the
#: name and format within double braces, then the name and format within single braces.
PLACEHOLDER = _pattern(_NAME)

#: A placeholder in a message, with the same regex groups.
FIELD_PLACEHOLDER = _pattern(_FIELD)

#: A placeholder for a field of the event's job (``{job.workdir}``). Used in texts where a bare name
#: means a field of the new job.
JOB_PLACEHOLDER = _pattern(rf"job\.{_NAME}")

#: Placeholders that are available in every group. No parameter can have one of these names.
#: ``here`` is the folder of the ensemble file.
BUILTIN_PLACEHOLDERS: frozenset[str] = frozenset({"group", "index", "id", "here"})

#: Further placeholders: the run's tag, the folder where the run was started, and the numbers of the
#: job's replica and attempt, from 0. A parameter with the same name takes precedence.
RUN_PLACEHOLDERS: frozenset[str] = frozenset({"run", "cwd", "replica", "attempt"})

#: Allowed formats: width and precision are at most 999, and placeholders are not nested.
_FORMAT = re.compile(
    r"(?:.?[<>=^])?[-+ ]?#?0?[0-9]{0,3}[_,]?(?:\.[0-9]{1,3})?[bcdeEfFgGnosxX%]?", re.DOTALL
)
_WHOLE = "bcdoxX"


def fill(
    text: str,
    values: Mapping[str, object],
    pattern: re.Pattern[str] = PLACEHOLDER,
    shown: Callable[[object], str] = str,
) -> str:
    """Replace each ``{name}`` that is in ``values`` by its value, and ``{{name}}`` by ``{name}``.

    If a placeholder has no format, or an invalid one, ``shown`` converts the value to text.

    >>> fill("run-{T:.2f} ${HOME} {{T}}", {"T": 1.5})
    'run-1.50 ${HOME} {T}'
    """

    def replace(match: re.Match[str]) -> str:
        literal, literal_form, name, form = match.groups()
        if literal is not None:
            if literal_form is not None and literal not in values:
                return match.group()
            return "{" + literal + (literal_form or "") + "}"
        name = normal_name(name)
        if name not in values:
            return match.group()
        if form is None:
            return shown(values[name])
        try:
            return format_value(values[name], form[1:])
        except ValueError:
            return shown(values[name])

    return pattern.sub(replace, text) if "{" in text else text


def fill_message(text: str, fields: Mapping[str, object]) -> tuple[str, bool]:
    """Return the message with the event's fields filled in, and whether a field is missing.

    A missing field becomes ``?``, and the end of the message names the field.

    >>> fill_message("{job}: {E:.1f}", {"job": "sim.0", "E": 2})
    ('sim.0: 2.0', False)
    >>> fill_message("{job}: {F}", {"job": "sim.0"})
    ("sim.0: ? (the event has no 'F')", True)
    """
    known: dict[str, object] = {}
    missing = []
    for match in FIELD_PLACEHOLDER.finditer(text):
        name = normal_name(match[1] or match[3])
        if name in fields:
            known[name] = fields[name]
        elif match[3] and _is_field(name, match[4]) and name not in known:
            known[name] = "?"
            missing.append(repr(name))
    message = fill(text, known, FIELD_PLACEHOLDER, _shown)
    if missing:
        message += f" (the event has no {', '.join(missing)})"
    return message, bool(missing)


@lru_cache(maxsize=1024)
def normal_name(name: str) -> str:
    """Return a name in which the filter has its normal form, as in formulas.

    >>> normal_name("mean.U(L==16)"), normal_name("mean.U")
    ('mean.U(L == 16)', 'mean.U')
    """
    if not name.endswith(")"):
        return name
    try:
        return ast.unparse(ast.parse(name, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return name


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _is_field(name: str, form: str | None) -> bool:
    """Return False if the braces are probably plain text, as in ``{x.y}`` or ``{x:y}``."""
    return ("." not in name or name.startswith("job.")) and (form is None or is_format(form[1:]))


def is_format(form: str) -> bool:
    """Return True for a valid format.

    >>> is_format(".2f"), is_format("80/tcp")
    (True, False)
    """
    return _FORMAT.fullmatch(form) is not None


def format_value(value: object, form: str) -> str:
    """Format a value. Integer formats also accept a float without a fractional part.

    Raises ``ValueError`` if the format is invalid or does not fit the value.

    >>> format_value(3.0, "03d")
    '003'
    """
    if not is_format(form):
        raise ValueError(f"{form!r} is not a valid format")
    if isinstance(value, float) and value.is_integer() and form[-1:] in tuple(_WHOLE):
        value = int(value)
    try:
        return format(value, form)
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"the format {form!r} does not fit {value!r}") from error
