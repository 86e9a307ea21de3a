"""Job group binding: the semantic checks that make a :class:`JobGroup` of the fields in the file.

Called by the loader for each entry under ``jobs:``, and for every ``with:`` that changes some of a
group's fields, in the file or while a run is under way.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.schema import defaults
from ensemble_core.model.jobs import BUILTIN_PLACEHOLDERS, PLACEHOLDER, JobGroup

__all__ = ["as_written", "change_group", "make_group"]

_MOST_JOBS = 1_000_000
_NUMBERS = ("count", "nodes", "tasks", "cores_per_task", "gpus_per_task", "urgency")
_TEXTS = ("workdir", "stdout", "stderr")
#: A member of the ensemble service: NAME or NAMESPACE/NAME.
_MEMBER = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SHELL = frozenset({"|", ">", ">>", "<", "&&", "||", ";", "&", "2>&1", "2>", "<<"})


def make_group(context: Context, path: Path, spec: Mapping[str, Any]) -> JobGroup | None:
    """The group that an entry under ``jobs:`` describes; ``None`` where it has errors."""
    before = len(context.errors)
    fields = _fields(context, path, spec)
    if not context.intact(path) or len(context.errors) > before:
        # Placeholders are still worth a look: an error elsewhere must not hide theirs.
        if "command" in fields:
            fields.setdefault("name", "")
            _check_placeholders(context, path, spec, JobGroup(**fields))
        return None
    group = JobGroup(name=spec["name"], here=context.known.here, **fields)
    _check_whole(context, path, spec, group)
    command = spec["command"]
    if isinstance(command, str):
        unheard = sorted(_SHELL & set(group.command))
        if unheard:
            context.warnings.append(
                f"job group {group.name!r}: no shell reads the command, so {unheard[0]!r} is an "
                f"ordinary argument; write bash -c '...' if it is meant for a shell"
            )
    return group if len(context.errors) == before else None


def change_group(
    context: Context, path: Path, group: JobGroup, spec: Mapping[str, Any]
) -> JobGroup | None:
    """The group with some fields changed; an environment is added to, all else replaced."""
    before = len(context.errors)
    fields = _fields(context, path, spec)
    if not context.intact(path) or len(context.errors) > before:
        return None
    if "environment" in fields:
        fields["environment"] = {**group.environment, **fields["environment"]}
    changed = replace(group, **fields)
    _check_whole(context, path, spec, changed)
    return changed if len(context.errors) == before else None


def _check_whole(context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup) -> None:
    _check_placeholders(context, path, spec, group)
    if group.size > _MOST_JOBS:
        context.report(
            (*path, "parameters" if "parameters" in spec else "count"),
            f"one submit of {group.name!r} would be {group.size} jobs; at most {_MOST_JOBS}",
            hint="make the sweep or the count smaller",
            code="out-of-range",
        )
    if group.executor is not None and "executor" in spec:
        _check_executor(context, (*path, "executor"), group.name, group.executor)


def _check_executor(context: Context, path: Path, group: str, name: str) -> None:
    """A group's executor is that of the run, or one of the members that it steers."""
    chosen, executors = context.executor, context.registry.executors
    if chosen is not None:
        if name in executors and executors[name].name == chosen.name:
            return
        if chosen.members:
            if not _MEMBER.fullmatch(name):
                context.report(
                    path,
                    f"the job group {group!r} asks for the member {name!r}, which no member can be "
                    "called",
                    hint="a member is NAME or NAMESPACE/NAME: small letters, digits and -",
                    code="bad-member",
                )
            return
    if name in executors:
        if chosen is not None:
            context.report(
                path,
                f"the job group {group!r} asks for the executor {name!r}, "
                f"and this run has {chosen.name!r}",
                hint=f"run with --executor {name}, or remove the key",
                code="other-executor",
            )
        return
    having = [known for known, record in executors.items() if record.members]
    possible = bool(having) and _MEMBER.fullmatch(name) is not None
    if chosen is None and possible and not get_close_matches(name, executors, 1):
        return  # a member of the run that this file is for; that is known when it runs
    hint = context.registry.explain_missing("executor", name)
    if possible:
        hint += f"; with --executor {having[0]} it would name a member"
    context.report(path, f"there is no executor {name!r}", hint=hint, code="no-such-executor")


def as_written(context: Context, path: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Changes to a group with numbers that are text to a job kept as the file spells them."""
    fields = dict(spec)
    for name in ("command", "environment"):
        if name in fields:
            fields[name] = _written(context, (*path, name), fields[name])
    return fields


def _written(context: Context, path: Path, value: Any) -> Any:
    """The scalars of a list or mapping as the file spells them."""
    if isinstance(value, list):
        return [context.document.written((*path, i), word) for i, word in enumerate(value)]
    if isinstance(value, dict):
        return {key: context.document.written((*path, key), inner) for key, inner in value.items()}
    return value


def _fields(context: Context, path: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the entry has and that are right, as a JobGroup takes them."""
    fields: dict[str, Any] = {}
    for name, value in spec.items():
        read = _READ.get(name)
        if read is None or value is None or not context.intact((*path, name)):
            continue
        found = read(context, (*path, name), value)
        if found is not None:
            fields[name] = found
    if "command" in fields:
        fields["command"], fields["text"] = fields["command"]
    return fields


def _number(context: Context, path: Path, value: float) -> int:
    return int(value)


def _text(context: Context, path: Path, text: str) -> str | None:
    if "\0" not in text:
        return text
    context.report(path, "a NUL character, which no program can be given", code="bad-value")
    return None


def _observers(context: Context, path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    records = context.registry.observers
    return {name: defaults(records[name].options, options or {}) for name, options in given.items()}


def _options(context: Context, path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(options) for name, options in given.items()}


def _command(
    context: Context, path: Path, command: str | list[Any]
) -> tuple[tuple[str, ...], str] | None:
    """The command's words, and its text."""
    if isinstance(command, list):
        words: list[str] = _written(context, path, command)
        text = shlex.join(words)
    else:
        text = command.strip()
        lexer = shlex.shlex(text, posix=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            words = list(lexer)
        except ValueError as error:
            quote = getattr(lexer, "state", None)  # the quote that was begun
            context.report(
                path,
                f"'command' cannot be split into words: {str(error).lower()}"
                + (f" (the {quote} is never closed)" if quote in ("'", '"') else ""),
                hint="close the quote, escape it, or write the command as a list",
                code="bad-command",
            )
            return None
    if not words or not words[0]:
        context.report(path, "'command' is empty", hint="command: echo hello", code="empty")
        return None
    if any(_text(context, path, word) is None for word in words):
        return None
    return tuple(words), text


def _environment(context: Context, path: Path, given: Mapping[str, Any]) -> dict[str, str]:
    values: dict[str, str] = _written(context, path, given)
    for key, value in values.items():
        _text(context, (*path, key), key + value)
    return values


def _parameters(
    context: Context, path: Path, given: Mapping[str, list[Any]]
) -> dict[str, tuple[object, ...]]:
    for name, values in given.items():
        if name in BUILTIN_PLACEHOLDERS:
            context.report(
                (*path, name),
                f"{{{name}}} is built in, so no parameter can have this name",
                hint="choose another name",
                code="bad-name",
                where=context.document.at_key((*path, name)),
            )
        for index, value in enumerate(values):
            inner = (*path, name, index)
            if isinstance(value, str):
                _text(context, inner, value)
            elif isinstance(value, float) and not math.isfinite(value):
                context.report(
                    inner,
                    f"{context.document.written(inner, value)} is not a number to sweep over",
                    hint="quote it if the text is meant",
                    code="wrong-type",
                )
    return {name: tuple(values) for name, values in given.items()}


#: How each field is read: the value that a JobGroup takes, ``None`` where an error was reported.
_READ: Mapping[str, Callable[[Context, Path, Any], Any]] = {
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys((*_TEXTS, "executor"), _text),
    "duration": Context.duration,
    "command": _command,
    "environment": _environment,
    "parameters": _parameters,
    "observe": _observers,
    "options": _options,
}


def _check_placeholders(
    context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup
) -> None:
    """Each placeholder has a parameter, and each parameter is used."""
    if not context.intact((*path, "parameters")):
        return
    known = BUILTIN_PLACEHOLDERS | set(group.parameters)
    used: set[str] = set()
    missing: dict[str, Path] = {}
    for text, place in _texts(path, spec, group):
        for match in PLACEHOLDER.finditer(text):
            name = match[2]
            if name is not None:
                used.add(name)
                if name not in known:
                    missing.setdefault(name, place)
    for name, place in missing.items():
        near = get_close_matches(name, known, 1, 0.7)
        meant = f"did you mean {{{near[0]}}}? Or" if near else f"add {name} to 'parameters', or"
        context.report(
            place,
            f"the placeholder {{{name}}} has no parameter",
            hint=f"{meant} write {{{{{name}}}}} for literal braces",
            code="no-such-parameter",
            where=context.document.at_text(place, f"{{{name}}}"),
        )
    if not all(context.intact((*path, name)) for name in ("command", "environment", *_TEXTS)):
        return
    if not group.command:
        return
    for name in group.parameters:
        if name not in used and not _mentions((group.observe, group.options), name):
            own = (*path, "parameters", name)
            place = own if "parameters" in spec else path
            context.report(
                place,
                f"the parameter {name!r} is used nowhere, so all its jobs would be the same",
                hint=f"write {{{name}}} in the command, workdir, environment, stdout or stderr",
                code="unused-parameter",
                where=context.document.at_key(place),
            )


def _texts(path: Path, spec: Mapping[str, Any], group: JobGroup) -> Iterator[tuple[str, Path]]:
    """What a job is given that may have placeholders; what ``spec`` lacks stands at ``path``."""
    for index, word in enumerate(group.command):
        command = spec.get("command")
        inner: Path = ("command", index) if isinstance(command, list) else ("command",)
        yield word, (*path, *inner) if "command" in spec else path
    for name in _TEXTS:
        text = getattr(group, name)
        if text is not None:
            yield text, (*path, name) if name in spec else path
    for key, value in group.environment.items():
        yield value, (*path, "environment", key) if "environment" in spec else path


def _mentions(value: Any, name: str) -> bool:
    """True if a placeholder of this name stands anywhere in what observers or queues are given."""
    if isinstance(value, str):
        return any(match[2] == name for match in PLACEHOLDER.finditer(value))
    if isinstance(value, Mapping):
        return any(_mentions(inner, name) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return any(_mentions(inner, name) for inner in value)
    return False
