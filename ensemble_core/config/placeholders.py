"""Checks the placeholders of a job group: names exist, formats fit, and every parameter is used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.errors import did_you_mean
from ensemble_core.model.jobs import JobGroup
from ensemble_core.model.placeholders import (
    BUILTIN_PLACEHOLDERS,
    PLACEHOLDER,
    RUN_PLACEHOLDERS,
    format_value,
)
from ensemble_core.model.sweeps import Range

__all__ = ["TEXTS", "check_placeholders", "has_formats", "words_of"]

#: Fields of a group that may contain placeholders, in addition to the command and the environment.
TEXTS = ("workdir", "stdout", "stderr")
_WORD = re.compile(r"[A-Za-z_]\w*")
_BUILTIN = BUILTIN_PLACEHOLDERS | RUN_PLACEHOLDERS
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
    used: set[str] = set()
    missing: dict[str, Path] = {}
    for text, place in _texts(path, spec, group):
        for match in PLACEHOLDER.finditer(text):
            name = match[3]
            if name is None:
                continue
            if name in known:
                used.add(name)
                _check_format(context, place, match, group)
            elif match[4] is None:  # {x:y} is probably plain text
                missing.setdefault(name, place)
    for name, place in missing.items():
        otherwise = f"add {name} to 'parameters', or"
        meant = did_you_mean(name, known, otherwise, cutoff=0.7, form="did you mean {{{}}}? Or")
        context.report(
            place,
            f"unknown placeholder {{{name}}}: no parameter has this name",
            hint=f"{meant} write {{{{{name}}}}} for literal braces",
            code="no-such-parameter",
            where=context.document.at_text(place, f"{{{name}}}"),
        )
    for part in ("observe", "options"):
        for text in _strings(getattr(group, part)):
            for match in PLACEHOLDER.finditer(text):
                if match[3] in known:
                    used.add(match[3])
                    _check_format(context, (*path, part) if part in spec else path, match, group)
    if not all(context.is_valid((*path, name)) for name in ("command", "environment", *TEXTS)):
        return
    if not group.command:
        return
    for name in group.parameters:
        if name not in used and name not in context.known.spoken:
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


def has_formats(group: JobGroup, names: Iterable[str]) -> bool:
    """Return True if a placeholder of one of these parameters has a format."""
    texts = [*group.command, *group.environment.values()]
    texts += [text for name in TEXTS if (text := getattr(group, name))]
    for part in (group.observe, group.options):
        texts += _strings(part)
    with_colon = [text for text in texts if ":" in text]
    return any(f"{{{name}:" in text for text in with_colon for name in names)


def _check_format(context: Context, place: Path, match: re.Match[str], group: JobGroup) -> None:
    """Check the format of this placeholder with each value that the placeholder can have."""
    name, form = match[3], match[4]
    if form is None:
        return
    for value in _values(name, group):
        if value is None:
            continue
        try:
            format_value(value, form[1:])
        except ValueError as error:
            context.report(
                place,
                f"invalid format in {match[0]}: {error}",
                hint=f"write {{{name}:.2f}} for two decimals, {{{name}:03d}} for three-digit "
                f"whole numbers; {{{{{name}{form}}}}} for literal braces",
                code="bad-format",
                where=context.document.at_text(place, match[0]),
            )
            return


def _values(name: str, group: JobGroup) -> Iterator[object]:
    """Yield sample values of a placeholder, at least one of each type."""
    found: Sequence[object] | None = group.parameters.get(name, group.points.get(name))
    if isinstance(found, Range):
        yield from islice(found, _TRIED)
    elif found is not None:
        yield from found
    elif name in ("index", "replica", "attempt"):
        yield 0
    else:
        yield name


def _texts(path: Path, spec: Mapping[str, Any], group: JobGroup) -> Iterator[tuple[str, Path]]:
    """Yield the texts of a job that may contain placeholders, each with its path.

    For texts that are not in ``spec``, the path is ``path``.
    """
    for index, word in enumerate(group.command):
        command = spec.get("command")
        inner: Path = ("command", index) if isinstance(command, list) else ("command",)
        yield word, (*path, *inner) if "command" in spec else path
    for name in TEXTS:
        text = getattr(group, name)
        if text is not None:
            yield text, (*path, name) if name in spec else path
    for key, value in group.environment.items():
        yield value, (*path, "environment", key) if "environment" in spec else path


def _strings(value: Any) -> Iterator[str]:
    """Yield every text in the options of an observer or queue."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)
