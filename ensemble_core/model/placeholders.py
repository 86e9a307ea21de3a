"""Fills in the placeholders ``{name}`` and ``{name:format}`` in the texts of jobs and messages.

One rule holds for all braces: a pair of braces around a name is a placeholder; a doubled pair,
``{{…}}``, becomes a single one, whatever is in it; every other brace stays as it is. ``${name}`` is
left to the shell. A placeholder with an unknown name stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import as_text, format_number, whole

_NAME = r"[A-Za-z_]\w*"
#: A column such as ``c_msd[4]`` or ``PotEng.error``, or a statistic with a filter:
#: ``mean.U(L == 16)``.
#: Or a metric: ``mean.sim-energy``, ``metric('count.sim.done')``.
_QUOTED = r"(?:'[^'{}]*'|\"[^\"{}]*\")"
_METRIC = rf"metric\(\s*{_QUOTED}\s*\)"
_FIELD = rf"(?:{_METRIC}|{_NAME}(?:(?:\.\w+(?:-\w+)*|\[(?:[\w.]+|{_QUOTED})\])+(?:\([^{{}}]*\))?)?)"


def _pattern(name: str) -> re.Pattern[str]:
    return late_pattern(rf"({name})(:[^{{}}\s]*)?")


#: The content of a placeholder in a command, workdir, environment, option or output path.
PLACEHOLDER = _pattern(_NAME)

#: An index in quotes, as in ``U["hex"]``.
_INDEX = late_pattern(rf"\[({_QUOTED})\]")

#: The content of a placeholder in a message.
FIELD_PLACEHOLDER = _pattern(_FIELD)

#: The content of a placeholder for a field of the event's job (``{job.workdir}``). Used in texts
#: where a bare name means a field of the new job, so all other braces stay as they are.
JOB_PLACEHOLDER = _pattern(rf"job\.(?:outputs\[\d+\]|{_NAME})")

#: Placeholders that are available in every group. No parameter can have one of these names.
#: ``here`` is the folder of the ensemble file.
BUILTIN_PLACEHOLDERS: frozenset[str] = frozenset({"group", "index", "id", "here"})

#: What a job requests: fields of :class:`Job`.
REQUESTS = ("nodes", "tasks", "cores_per_task", "gpus_per_task", "memory_per_task")

#: Further placeholders: the run's tag, the folder where the run was started, the numbers of the
#: job's replica and attempt, from 0, its time limit in seconds, and what the job requests. A
#: parameter with the same name takes precedence.
RUN_PLACEHOLDERS: frozenset[str] = frozenset(
    {"run", "cwd", "replica", "attempt", "limit", *REQUESTS}
)

#: Allowed formats: width and precision are at most 999, and placeholders are not nested.
_FORMAT = late_pattern(
    r"(?:.?[<>=^])?[-+ ]?#?0?[0-9]{0,3}[_,]?(?:\.[0-9]{1,3})?[bcdeEfFgGnosxX%]?", re.DOTALL
)
#: Types of formats that show a fraction.
_FRACTIONS = ("e", "E", "f", "F", "g", "G", "n", "%")


class Placeholder(NamedTuple):
    """A placeholder in a text."""

    name: str  #: In its normal form, see :func:`normal_name`.
    form: str | None  #: The format, without the colon.
    text: str  #: The placeholder as written, with its braces.
    start: int  #: Its position in the text.


def placeholders(text: str, pattern: re.Pattern[str] = PLACEHOLDER) -> Iterator[Placeholder]:
    """Yield the placeholders of a text.

    >>> [one.name for one in placeholders('{"T": {T:.1f}} {{x}} ${HOME} {1}')]
    ['T']
    """
    return (part for part in _parts(text, pattern) if not isinstance(part, str))


def other_braces(text: str, pattern: re.Pattern[str] = PLACEHOLDER) -> Iterator[str]:
    """Yield the contents of pairs of braces that stay as they are, if they have no inner braces.

    >>> list(other_braces("{T} {T + 1} {{x}} ${HOME} {a {b!r}}"))
    ['T + 1', 'b!r']
    """
    if "{" not in text:
        return
    filled = {one.start for one in placeholders(text, pattern)}
    for start, end in _pairs(text).items():
        content = text[start + 1 : end]
        if start not in filled and text[start - 1 : start] not in ("{", "$") and "{" not in content:
            yield content


def unpaired_braces(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names that have only one brace of a placeholder, each with its text.

    >>> list(unpaired_braces("n:2d} and {T} } { and {mean.sim-T"))
    [('n', 'n:2d}'), ('mean.sim-T', '{mean.sim-T')]
    """
    closed = _pairs(text)
    paired = {*closed, *closed.values()}
    for at in (match.start() for match in _BRACE.finditer(text)):
        if at in paired:
            continue
        if text[at] == "{":
            one = _OPENED.match(text, at + 1) if text[at - 1 : at] != "$" else None
        else:
            one = _CLOSED.search(text, max(0, at - _LONGEST), at)
        if one is not None:
            yield one[1], f"{{{one[0]}" if text[at] == "{" else f"{one[0]}}}"


def escape_braces(text: str, keep: Collection[str] = ()) -> str:
    """Double the braces of a text, so that filling it in gives the text again.

    The placeholders in ``keep`` stay placeholders.

    >>> escape_braces("{x} {T} {", ["T"]), fill(escape_braces('{x} {{"m": {}}} {'), {"x": 1})
    ('{{x}} {T} {', '{x} {{"m": {}}} {')
    """
    if "{" not in text:
        return text
    closed = _pairs(text)
    kept = {one.start for one in placeholders(text) if one.name in keep} if keep else set()
    # ``${name}`` stays as it is, anyway, but ``${{name}}`` does not.
    kept |= {
        at for at in closed if text[at - 1 : at] == "$" and closed.get(at + 1) != closed[at] - 1
    }
    matched = {brace for at in closed.keys() - kept for brace in (at, closed[at])}
    return "".join(char * 2 if at in matched else char for at, char in enumerate(text))


def unescape_braces(text: str) -> str:
    """Undo :func:`escape_braces`: doubled braces become single ones.

    >>> unescape_braces("{{x}} {T}")
    '{x} {T}'
    """
    return fill(text, {})


def fill(
    text: str,
    values: Mapping[str, object],
    pattern: re.Pattern[str] = PLACEHOLDER,
    shown: Callable[[object], str] = as_text,
) -> str:
    """Replace each placeholder whose name is in ``values`` by its value, and ``{{…}}`` by ``{…}``.

    If a placeholder has no format, or an invalid one, ``shown`` converts the value to text.

    >>> fill('run-{T:.2f} ${HOME} {{T}} {{"T": {T}}} {"T": {T}}', {"T": 2.0})
    'run-2.00 ${HOME} {T} {"T": 2} {"T": 2}'
    """
    if "{" not in text:
        return text
    parts = _parts(text, pattern)
    filled = [p if isinstance(p, str) else _filled(p, values, shown) for p in parts]
    if pattern is JOB_PLACEHOLDER:  # the text will be filled in again, but not these values
        filled = [
            new if isinstance(p, str) or p.name not in values else escape_braces(new)
            for p, new in zip(parts, filled, strict=True)
        ]
    return "".join(filled)


def _filled(one: Placeholder, values: Mapping[str, object], shown: Callable[[object], str]) -> str:
    if one.name not in values:
        return one.text
    value = values[one.name]
    if one.form is None:
        return shown(value)
    try:
        return format_value(value, one.form)
    except ValueError:
        return shown(value)


@lru_cache(maxsize=1024)
def _parts(text: str, pattern: re.Pattern[str]) -> tuple[str | Placeholder, ...]:
    """Split a text into its placeholders and the texts between them, with ``{{…}}`` replaced."""
    halve = pattern is not JOB_PLACEHOLDER
    closed = _pairs(text)
    dropped: set[int] = set()
    found: list[Placeholder] = []
    literal = -1  # the inner brace of a doubled pair
    for start in sorted(closed):
        end = closed[start]
        if start == literal:
            continue
        if closed.get(start + 1) == end - 1:
            literal = start + 1
            if halve:
                dropped |= {start, end}
            continue
        match = pattern.fullmatch(text, start + 1, end)
        if match is not None and text[max(start - 1, 0)] != "$":
            name, form = match.groups()
            written = text[start : end + 1]
            found.append(Placeholder(normal_name(name), form and form[1:], written, start))
    parts: list[str | Placeholder] = []
    at = 0
    for one in (*found, None):
        end = len(text) if one is None else one.start
        plain = "".join(text[i] for i in range(at, end) if i not in dropped)
        if plain:
            parts.append(plain)
        if one is not None:
            parts.append(one)
            at = one.start + len(one.text)
    return tuple(parts)


def _pairs(text: str) -> dict[int, int]:
    """Return the position of the closing brace of each opening one."""
    opened: list[int] = []
    closed: dict[int, int] = {}
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            closed[opened.pop()] = match.start()
    return closed


#: Characters before a brace in which its name is searched.
_LONGEST = 200
_BRACE = late_pattern(r"[{}]")
_OPENED = late_pattern(rf"({_FIELD})")
_CLOSED = late_pattern(rf"(?<![\w.-])({_FIELD})(?::[^{{}}\s]*)?$")


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
    without: list[str] = []
    for one in placeholders(text, FIELD_PLACEHOLDER):
        if one.name in fields:
            known[one.name] = fields[one.name]
            if known[one.name] is None and "." in one.name:  # a statistic or metric
                known[one.name] = "?"
                without.append(metric_path(one.name))
        elif _is_field(one) and one.name not in known:
            known[one.name] = "?"
            missing.append(repr(one.name))
    message = fill(text, known, FIELD_PLACEHOLDER, _shown)
    if missing:
        message += f" (the event has no {', '.join(missing)})"
    if without:
        message += f" ({', '.join(dict.fromkeys(without))} has no value)"
    return message, bool(missing or without)


def metric_path(name: str) -> str:
    """Return the path in ``metric('PATH')``, or the name itself.

    >>> metric_path("metric('count.sim.done')"), metric_path("mean.sim-energy")
    ('count.sim.done', 'mean.sim-energy')
    """
    return name[7:-1].strip()[1:-1] if name.startswith("metric(") else name


@lru_cache(maxsize=1024)
def normal_name(name: str) -> str:
    """Return a name in which the filter or index has its normal form, as in formulas.

    >>> normal_name("mean.U(L==16)"), normal_name("mean.U"), normal_name("max.t.U['hex']")
    ('mean.U(L == 16)', 'mean.U', 'max.t.U[hex]')
    """
    base, bracket, inner = name.partition("(")
    name = _INDEX.sub(lambda found: f"[{index_label(found[1][1:-1])}]", base) + bracket + inner
    if not bracket:
        return name
    import ast  # the supervisor of jobs does not need it

    try:
        return ast.unparse(ast.parse(name, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return name


def index_label(value: object) -> str:
    """Format a value for the brackets in a column's name, such as ``U[16]`` or ``U[hex]``.

    >>> index_label(16.0), index_label(0.5), index_label("hex"), index_label("16")
    ('16', '0.5', 'hex', "'16'")
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str) and re.fullmatch(r"[-+.\d].*|", value):
        return repr(value)
    return str(value)


def _shown(value: object) -> str:
    return format_number(value) if isinstance(value, float) else str(value)


def _is_field(one: Placeholder) -> bool:
    """Return False if the braces are probably plain text, as in ``{x:y}``."""
    return one.form is None or is_format(one.form)


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
    if "." not in form and not form.endswith(_FRACTIONS):
        value = whole(value)
    try:
        return format(value, form)
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"the format {form!r} does not fit {value!r}") from error
