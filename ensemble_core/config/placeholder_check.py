"""Checks the placeholders of a job group: names exist, formats fit, and every parameter is used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.errors import closest, did_you_mean
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.store import GAUGES
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.placeholders import (
    BUILTIN_PLACEHOLDERS,
    RUN_PLACEHOLDERS,
    Placeholder,
    format_value,
    is_format,
    other_braces,
    placeholders,
    unpaired_braces,
)
from ensemble_core.model.sweep_values import Range

#: Fields of a group that may contain placeholders, in addition to the command and the environment.
TEXTS = ("workdir", "stdout", "stderr")
#: The start of a template of Go or Jinja, which other programs fill in.
_TEMPLATE = late_pattern(r"(?<!\{)\{\{(?:-?\s*\.[^{}]*| \w+ )\}\}(?!\})")
#: A name with blanks around it, or with a conversion of Python.
_NOT_QUITE = late_pattern(r" *([A-Za-z_]\w*) *(?:![rsa])? *(?::[^\s{}]*)?")
#: The same, or a calculation that begins with a name.
_CALCULATED = late_pattern(r" *([A-Za-z_]\w*) *(?:[-+*/%!][^\"']*)?(?::[^\s{}]*)?")
#: A part of a value, as in Python's formats.
_PART = late_pattern(r"([A-Za-z_]\w*)(?:\.\w+|\[\w*\])+(?::[^\s{}]*)?")
#: The start of an expression in ``with``.
_EXPRESSION = late_pattern(r"= *[\w(-]")
_WORD = late_pattern(r"[A-Za-z_]\w*")
_BUILTIN = BUILTIN_PLACEHOLDERS | RUN_PLACEHOLDERS
#: Built-in placeholders whose values are whole numbers.
_NUMBERS = _BUILTIN - {"group", "id", "here", "run", "cwd"}
#: Options of observers that name a file.
_FILLED_BY_OBSERVERS = ("path", "log")
#: How many computed values are tried with a format at most.
_TRIED = 1000


def words_of(value: Any) -> Iterator[str]:
    """Yield every word in plain data that could be the name of a parameter."""
    if isinstance(value, str):
        yield from _WORD.findall(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _WORD.findall(key)
            yield from words_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from words_of(inner)


def check_placeholders(
    context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup
) -> None:
    """Report unknown placeholders, formats that do not fit, and parameters that are not used."""
    if not all(context.is_valid((*path, name)) for name in ("parameters", "points")):
        return
    if "points" in spec and not group.points:
        return  # the points file had errors
    names = {*group.points, *group.parameters}
    known = _BUILTIN | names
    split = isinstance(spec.get("command"), str) and _warn_of_split_braces(context, group)
    used: set[str] = set()
    missing: dict[str, tuple[Path, str]] = {}
    for text, place, kind in _texts(path, spec, group):
        if "{{" in text:
            _warn_of_template(context, group, text)
        for one in placeholders(text):
            if one.name in known:
                used.add(one.name)
                _check_format(context, place, one, group)
            elif kind != "pattern" and not _is_plain(one, kind, known):
                missing.setdefault(one.name, (place, one.text))
        if kind == "other" and _EXPRESSION.match(text):
            context.warnings.append(
                f"job group {group.name!r}: {text!r} stays as it is, because only 'with' of a rule "
                "or of 'retry' has expressions; use a placeholder"
            )
        if kind != "pattern":
            _check_others(context, place, text, known, command=kind == "command")
        if kind != "pattern" and not (split and kind == "command"):
            _check_unpaired(context, place, text, known, group.name if kind == "command" else "")
    for name, (place, text) in missing.items():
        otherwise = f"add {name} to 'parameters', or"
        meant = did_you_mean(name, known, otherwise, cutoff=0.7, form="did you mean {{{}}}? Or")
        context.report(
            place,
            f"unknown placeholder {text}: no parameter has this name",
            hint=f"{meant} write {{{text}}} for literal braces",
            code="no-such-parameter",
            where=context.document.at_text(place, text),
        )
    if not all(context.is_valid((*path, name)) for name in ("command", "environment", *TEXTS)):
        return
    if not group.command:
        return
    for name in group.parameters:
        if name not in used and name not in context.known.words_in_use:
            own = (*path, "parameters", name)
            place = own if "parameters" in spec else path
            context.report(
                place,
                f"the parameter {name!r} is not used, so jobs with different values would be "
                "identical",
                hint=f"write {{{name}}} in the command, workdir, environment, stdout or stderr",
                code="unused-parameter",
                where=context.document.at_key(place),
            )


def _warn_of_split_braces(context: Context, group: JobGroup) -> bool:
    """Warn of a pair of braces whose content has blanks, so that it is several words."""
    opened = -1
    for place, word in enumerate(group.command):
        depth = word.count("{") - word.count("}")
        if opened < 0 < depth:
            opened = place
        elif depth < 0 <= opened:
            context.warnings.append(
                f"job group {group.name!r}: {' '.join(group.command[opened : place + 1])!r} is "
                f"{place + 1 - opened} words of the command, because it is not quoted, and its "
                "braces stay as they are; quote it"
            )
            return True
    return False


def _is_plain(one: Placeholder, kind: str, known: Collection[str]) -> bool:
    """Return True if the braces are probably text of another language, as in ``{a:1}``.

    In a command, ``{x:.2f}`` may be Python's; elsewhere, it is a placeholder with an unknown name.
    """
    if one.form is None:
        return False
    if not is_format(one.form):
        return True
    return kind == "command" and closest(one.name, known, 0.7) is None


def _check_others(
    context: Context, path: Path, text: str, known: Collection[str], *, command: bool
) -> None:
    """Report braces that would stay as they are, although they have the name of a parameter.

    In a command, they can be another language, so only ``{ T }`` and ``{T!r}`` are reported.
    """
    for content in other_braces(text):
        name = _NOT_QUITE.fullmatch(content) if command else _CALCULATED.fullmatch(content)
        part = _PART.fullmatch(content) if name is None else None
        if name is not None and name[1] in known:
            report_unfilled(context, path, content, name[1])
        elif part is not None and part[1] in known and part[1] not in _BUILTIN:
            report_unfilled(context, path, content, part[1])
        elif content in GAUGES:
            context.report(
                path,
                f"{{{content}}} is a metric, which has no value in the texts of jobs, so it would "
                "stay as it is",
                hint=f"add a parameter, and set it in a rule: with: {{parameters: {{NAME: "
                f"'= {content}'}}}}; write {{{{{content}}}}} for literal braces",
                code="bad-format",
                where=context.document.at_text(path, f"{{{content}}}"),
            )


def _check_unpaired(
    context: Context, path: Path, text: str, known: Collection[str], command_of: str
) -> None:
    """Report names of placeholders with only one brace.

    ``command_of``: the group, if the text is its command. A command may be in another language, so
    it only causes a warning.
    """
    for one, found in unpaired_braces(text):
        if one in known and command_of:
            context.warnings.append(
                f"job group {command_of!r}: {found!r} in {text!r} stays as it is: it lacks a brace"
            )
        elif one in known:
            report_unpaired(context, path, found, one)


def report_unpaired(context: Context, path: Path, found: str, name: str) -> None:
    """Report a known name with only one brace."""
    context.report(
        path,
        f"{found!r} lacks a brace, so it would stay as it is",
        hint=f"write {{{name}}}",
        code="bad-format",
        where=context.document.at_text(path, found),
    )


def report_unfilled(context: Context, path: Path, content: str, name: str) -> None:
    """Report braces with this content, which has the known name but is no placeholder."""
    context.report(
        path,
        f"{{{content}}} is no placeholder, so it would stay as it is",
        hint=f"write {{{name}}} or {{{name}:.2f}}, without blanks, '!' and operators; "
        f"{{{{{content}}}}} for literal braces",
        code="bad-format",
        where=context.document.at_text(path, f"{{{content}}}"),
    )


def _warn_of_template(context: Context, group: JobGroup, text: str) -> None:
    """Warn if braces of another program's template, such as ``{{.ID}}``, would become single."""
    found = _TEMPLATE.search(text)
    if found is not None:
        single = found[0][1:-1]
        context.warnings.append(
            f"job group {group.name!r}: {found[0]} becomes {single}, because doubled braces are "
            f"literal single ones; write {{{{{found[0]}}}}} for {found[0]}"
        )


def has_formats(group: JobGroup, names: Iterable[str]) -> bool:
    """Return True if a placeholder of one of these parameters has a format."""
    texts = repr(_with_texts(group))  # many submits ask, so do not look at each text
    return any(f"{{{name}:" in texts for name in names)


def _check_format(context: Context, place: Path, one: Placeholder, group: JobGroup) -> None:
    """Check the format of this placeholder with each value that the placeholder can have."""
    if one.form is None:
        return
    for value in _values(one.name, group):
        if value is None:
            continue
        try:
            format_value(value, one.form)
        except ValueError as error:
            context.report(
                place,
                f"invalid format in {one.text}: {error}",
                hint=f"write {{{one.name}:.2f}} for two decimals, {{{one.name}:03d}} for "
                f"three-digit whole numbers; {{{one.text}}} for literal braces",
                code="bad-format",
                where=context.document.at_text(place, one.text),
            )
            return


def _values(name: str, group: JobGroup) -> Iterator[object]:
    """Yield sample values of a placeholder, at least one of each type."""
    found: Sequence[object] | None = group.parameters.get(name, group.points.get(name))
    if isinstance(found, Range):
        yield from islice(found, _TRIED)
    elif found is not None:
        yield from found
    elif name in _NUMBERS:
        yield 0
    else:
        yield name


#: Function that returns the fields of a group in which :func:`_texts` looks.
_with_texts = attrgetter(
    *("command", *TEXTS, "inputs", "avoid", "outputs", "discard"),
    *("environment", "options", "observe", "within"),
)


def _texts(path: Path, spec: Mapping[str, Any], group: JobGroup) -> Iterator[tuple[str, Path, str]]:
    """Yield the texts of a job that may contain placeholders, each with its path.

    For texts that are not in ``spec``, the path is ``path``. The last item is ``command``,
    ``pattern`` for options of observers that may be patterns, or ``other``.
    """
    for index, word in enumerate(group.command):
        command = spec.get("command")
        inner: Path = ("command", index) if isinstance(command, list) else ("command",)
        yield word, (*path, *inner) if "command" in spec else path, "command"
    for name in TEXTS:
        text = getattr(group, name)
        if text is not None:
            yield text, (*path, name) if name in spec else path, "other"
    for number, (text, _) in enumerate(group.inputs):
        yield text, (*path, *_given(spec, ("inputs", number))), "other"
    for number, text in enumerate(group.avoid):
        listed = isinstance(spec.get("avoid"), list)
        yield text, (*path, *_given(spec, ("avoid", number) if listed else ("avoid",))), "other"
    for key, texts in ("outputs", group.outputs), ("discard", group.discard):
        for number, text in enumerate(texts):
            yield text, (*path, *_given(spec, (key, number, "path"))), "other"
    for part in ("environment", "options", "observe", "within"):
        single = part == "within" and isinstance(spec.get(part), dict)
        for text, inner in strings(getattr(group, part), (part,)):
            pattern = part == "observe" and inner[-1] not in _FILLED_BY_OBSERVERS
            inner = (part, *inner[2:]) if single else inner
            yield text, (*path, *_given(spec, inner)), "pattern" if pattern else "other"


def _given(spec: Any, path: Path) -> Path:
    """Return the part of the path that ``spec`` gives."""
    for number, step in enumerate(path):
        if not isinstance(spec, (dict, list)) or (isinstance(spec, dict) and step not in spec):
            return path[:number]
        spec = spec[step]  # type: ignore[index]
    return path


def strings(value: Any, path: Path = ()) -> Iterator[tuple[str, Path]]:
    """Yield every text in nested options, also keys, each with its path."""
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key, (*path, key)
            yield from strings(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from strings(inner, (*path, number))
