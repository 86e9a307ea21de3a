"""Checks the fields of a job group and creates a :class:`JobGroup` from them."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from operator import attrgetter
from typing import Any, Literal

from ensemble_core.config.avoid_and_warn_signal import (
    check_avoided,
    check_warning,
    read_avoided,
    read_warning,
)
from ensemble_core.config.command_warnings import command_warnings
from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.job_options import check_filled_options, read_options
from ensemble_core.config.outputs_and_discard import (
    check_discard,
    check_visible,
    read_discard,
    read_outputs,
)
from ensemble_core.config.pilots import ask_executor, check_pilot_of_group
from ensemble_core.config.placeholder_check import check_placeholders, has_formats
from ensemble_core.config.schema import option_defaults
from ensemble_core.config.sweeps import MOST_JOBS, read_parameters, read_points
from ensemble_core.config.within import check_within, read_within
from ensemble_core.errors import EnsembleError, call_plugin, closest
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.byte_sizes import memory_bytes
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.job_group import SIZE, JobGroup

#: Fields that are mappings. A change of a group is merged with them.
MAPPINGS = ("environment", "options", "parameters", "warn")
DEFAULTS = {
    each.name: None if each.default is MISSING else each.default
    for each in dataclass_fields(JobGroup)
} | dict.fromkeys((*MAPPINGS, "observe"), NOTHING)
_size = attrgetter(*SIZE)
#: Name of a member of the service: NAME or NAMESPACE/NAME.
_MEMBER = late_pattern(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
#: Suffixes of scripts, which an interpreter runs.
_SCRIPTS = (".py", ".sh", ".R", ".jl", ".pl", ".rb", ".lua")
_PLACEHOLDER = late_pattern(r"\{[^{}]*\}")


def make_group(context: Context, path: Path, spec: Mapping[str, Any]) -> JobGroup | None:
    """Return the group for an entry under ``jobs:``, or ``None`` after reporting errors."""
    before = len(context.errors)
    fields = read_fields(context, path, spec)
    if not context.is_valid(path) or len(context.errors) > before:
        # Check placeholders even if other fields have errors, to report all errors at once.
        if "command" in fields:
            fields.setdefault("name", "")
            check_placeholders(context, path, spec, JobGroup(**fields))
        return None
    fields["compared"] = context.registry.compared_options
    group = JobGroup(name=spec["name"], here=context.known.here, **fields)
    check_whole_group(context, path, spec, group)
    _check_observers(context, path, group)
    _check_program(context, group)
    context.warnings += command_warnings(group, split=isinstance(spec["command"], str))
    return group if len(context.errors) == before else None


def _check_observers(context: Context, path: Path, group: JobGroup) -> None:
    """Build each observer to report invalid options.

    Bugs in plugins are reported later, by the run.
    """
    if not group.observe or group.missing or not group.size:
        return
    from ensemble_core.plugin.observer import Observer

    job = next(group.jobs(0))
    for name, options in group.observe.items():
        try:
            record = context.registry.observers[name]
            shown = context.named(record, name)
            call_plugin(record.build, job, options, returns=Observer, whose=shown)
        except EnsembleError as error:
            context.attach(error, (*path, "observe", name))
        except Exception:
            continue


def _check_program(context: Context, group: JobGroup) -> None:
    """Warn about a program or script that does not exist. An environment may have any program.

    If jobs run on other machines, warn only if the ensemble file's folder or the current folder has
    a file with that name.
    """
    if not context.known.reads or group.within:
        return
    here = context.executor is not None and context.executor.name == "local"
    for number, name in enumerate(group.command):
        script = name.endswith(_SCRIPTS)
        problem = ""
        if name.startswith("{here}/") and (script or not number):
            problem = _here_program_error(context, group, name, runs=number == 0)
        elif "{" in name or (number and (os.path.isabs(name) or not (script or "/" in name))):
            continue
        elif _is_missing(group, name, number, here):
            found = _program_path(group, name, runs=number == 0 or script)
            if found is not None:
                problem = f"not found; did you mean {found}?"
            elif not number and here and ("/" not in name or os.path.isabs(name)):
                problem = "not found; is it installed and on the PATH?"
        if problem:
            context.warnings.append(f"job group {group.name!r}: program {name!r} {problem}")


def _here_program_error(context: Context, group: JobGroup, name: str, *, runs: bool) -> str:
    """Return what is wrong with a program in ``{here}``; empty if nothing is.

    A missing program is a problem only if jobs run on this machine.
    """
    path = name.replace("{here}", group.here)
    if "{" in path:
        return ""
    if not os.path.isfile(path):
        elsewhere = group.executor or (context.executor and context.executor.name != "local")
        return "" if elsewhere else f"not found: no file {path}"
    if runs and not os.access(path, os.X_OK):
        return f"is not executable; run chmod +x {shlex.quote(path)}"
    return ""


def _is_missing(group: JobGroup, name: str, number: int, here: bool) -> bool:
    """Return True if word ``number`` of the command is a program or script that cannot be found."""
    if number or ("/" in name and not os.path.isabs(name)):
        return _is_missing_everywhere(group, name)  # the path is relative to the job's folder
    if "/" in name:
        return here and not os.path.exists(name)
    if "PATH" in group.environment:
        return False
    paths = [os.path.join(folder, name) for folder in os.get_exec_path()]
    return not any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths)


def _is_missing_everywhere(group: JobGroup, name: str) -> bool:
    """Return True if the file is missing from all folders in which jobs of the group can start."""
    folder = (group.workdir or "").replace("{here}", group.here).replace("{cwd}", os.getcwd())
    found = glob.iglob(os.path.join(_PLACEHOLDER.sub("*", glob.escape(folder)), glob.escape(name)))
    return next(found, None) is None


def _program_path(group: JobGroup, name: str, *, runs: bool) -> str | None:
    """Return the path of a program in the ensemble file's folder or in the current folder, or
    ``None``.

    With ``runs``, an interpreter runs the file, so it need not be executable.
    """
    for word, folder in {"{here}": group.here, "{cwd}": os.getcwd()}.items():
        path = os.path.join(folder, name)
        if os.path.isfile(path) and (runs or os.access(path, os.X_OK)):
            return f"{word}/{os.path.normpath(name)}"
    return None


def check_whole_group(
    context: Context,
    path: Path,
    spec: Mapping[str, Any],
    group: JobGroup,
    old: JobGroup | None = None,
) -> None:
    """Check a whole group. If ``spec`` has changes of an existing group, ``old`` is that group."""
    if old is None or not _keeps_placeholders(old, group, spec):
        check_placeholders(context, path, spec, group)
    check_filled_options(context, path, spec, group)
    for name in group.environment_from:
        if name in group.environment:
            context.report(
                (*path, "environment", name) if "environment" in spec else path,
                f"{name!r} is set here and also taken from the run's environment",
                hint="remove it from 'environment' or from 'environment_from'",
                code="bad-value",
            )
    for number, name in enumerate(group.at_once_each):
        if name not in group.names and "at_once" in spec:
            what = f"{group.name!r} has no parameter {name!r}"
            place = (*path, "at_once", "each")
            place = place if isinstance(spec["at_once"]["each"], str) else (*place, number)
            context.unknown(place, "parameter", name, group.names, what=what)
    both = [name for name in group.points if name in group.parameters]
    if both:
        at = "parameters" if "parameters" in spec else "points"
        inner = (*path, "parameters", both[0])
        context.report(
            (*path, at),
            f"{both[0]!r} is both a parameter and a column of 'points'",
            hint="remove it from 'parameters', or select other columns with 'columns'",
            code="duplicate-name",
            where=context.document.at_key(inner) if at == "parameters" else None,
        )
    size = group.size
    if size > MOST_JOBS:
        at = next((key for key in ("parameters", "points", "replicas") if key in spec), "count")
        context.report(
            (*path, at),
            f"{group.name!r} would submit {size} jobs at once; the limit is {MOST_JOBS}",
            hint="use fewer parameter values, or a smaller 'count' or 'replicas'",
            code="out-of-range",
        )
    if "grace" in spec and context.executor is not None and context.executor.grace:
        context.warnings.append(
            f"{group.name}: 'grace' has no effect with the executor {context.executor.name}: "
            f"{context.executor.grace} decides how long a job may take to end after SIGTERM"
        )
    if spec.get("memory_per_task") and context.executor is not None and context.executor.memory:
        context.warnings.append(
            f"{group.name}: 'memory_per_task' has no effect with the executor "
            f"{context.executor.name}: {context.executor.memory}"
        )
    if old is None:
        context.known.unused.setdefault(group.name, []).append((path, spec, group))
    if old is None or _size(group) != _size(old):
        _check_size(context, path, spec, group, "never")
        if old is not None:
            _check_size(context, path, spec, group, "never_here")
    check_avoided(context, path, spec, made=old is not None)
    check_warning(context, path, spec, group)
    check_visible(context, path, spec)
    check_within(context, path, spec, group)
    check_discard(context, path, spec, group)
    if group.executor is not None and "executor" in spec:
        _check_executor(context, (*path, "executor"), group.name, group.executor)


def _keeps_placeholders(old: JobGroup, group: JobGroup, spec: Mapping[str, Any]) -> bool:
    """Return True if only the number of jobs or values of parameters change, so that placeholders
    need no new check.
    """
    return [*spec] == ["count"] or (
        [*spec] == ["parameters"]
        and old.parameters.keys() == group.parameters.keys()
        and old.points.keys() == group.points.keys()
        and not has_formats(group, group.parameters)
    )


def check_used(context: Context, name: str) -> None:
    """Check whether this machine can run a group that is submitted as it is.

    A group may be too large for this machine if each submit makes it smaller.
    """
    for path, spec, group in context.known.unused.pop(name, ()):
        _check_size(context, path, spec, group, "never_here")


def _check_size(
    context: Context,
    path: Path,
    spec: Mapping[str, Any],
    group: JobGroup,
    method: Literal["never", "never_here"],
) -> None:
    """Report a group whose jobs are too large for the executor, so that they could never run."""
    executor, options = context.executor, context.known.options
    if executor is None or options is None or getattr(executor, method) is None:
        return
    if method == "never_here" and context.known.purpose != "run":
        return
    task = f"say whether jobs of {group.name!r} can run"
    fault = ask_executor(executor, options, method, group, task)
    if fault is not None:
        key, why, hint = fault
        where = (*path, key) if key in spec else path
        context.report(where, f"{group.name}: {why}", hint=hint, code="cannot-hold")


def _check_executor(context: Context, path: Path, group: str, name: str) -> None:
    """Check that a group's executor is that of the run, or a member of the run."""
    chosen, executors = context.executor, context.registry.executors
    if chosen is not None:
        if name in executors and executors[name].name == chosen.name:
            return
        if chosen.members:
            if not _MEMBER.fullmatch(name):
                context.report(
                    path,
                    f"the job group {group!r} names the member {name!r}, which is not a valid "
                    "member name",
                    hint="write NAME or NAMESPACE/NAME, with lower-case letters, digits and -",
                    code="bad-member",
                )
            return
    if check_pilot_of_group(context, path, group, name):
        return
    if name in executors:
        if chosen is not None:
            context.report(
                path,
                f"the job group {group!r} needs the executor {name!r}, but this run uses "
                f"{chosen.name!r}",
                hint=f"run with --executor {name}, or remove 'executor' from the group",
                code="other-executor",
            )
        return
    having = [known for known, record in executors.items() if record.members]
    possible = bool(having) and _MEMBER.fullmatch(name) is not None
    if chosen is None and possible and not closest(name, executors):
        return  # it may be the name of a member; members are known only when the run starts
    hint = context.registry.explain_missing("executor", name)
    if possible:
        hint += f"; with --executor {having[0]} it names a member"
    context.report(path, f"there is no executor {name!r}", hint=hint, code="no-such-executor")


def restore_spelling(context: Context, path: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, with numbers in ``command`` and ``environment`` spelled as in the file.

    YAML turns an unquoted ``1.10`` into 1.1, but a job must get the text ``1.10``.
    """
    fields = dict(spec)
    for name in ("command", "environment"):
        if name in fields:
            fields[name] = _spell_scalars(context, (*path, name), fields[name])
    return fields


def _spell_scalars(context: Context, path: Path, value: Any) -> Any:
    """Return a list or mapping with its scalars spelled as in the file."""
    if isinstance(value, list):
        return [context.document.written((*path, i), word) for i, word in enumerate(value)]
    if isinstance(value, dict):
        return {
            key: inner if inner is None else context.document.written((*path, key), inner)
            for key, inner in value.items()
        }
    return value


def read_fields(context: Context, path: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid fields of the entry as arguments of JobGroup."""
    fields: dict[str, Any] = {}
    for name, value in spec.items():
        read = _READ.get(name)
        if read is None or value is None or not context.is_valid((*path, name)):
            continue
        found = read(context, (*path, name), value)
        if found is not None:
            fields[name] = found
    if "command" in fields:
        fields["command"], fields["text"] = fields["command"]
    if "replicas" in fields:
        if "count" in fields:
            context.report(
                (*path, "replicas"),
                "'count' and 'replicas' both set the number of jobs: give only one",
                hint="remove 'count' if jobs need distinct numbers, such as seeds; otherwise, "
                "remove 'replicas'",
                code="bad-value",
                where=context.document.at_key((*path, "replicas")),
            )
        fields["count"], fields["replicated"] = fields.pop("replicas"), True
    if "at_once" in fields:
        fields["at_once"], fields["at_once_each"] = fields["at_once"]
    return fields


def _text(context: Context, path: Path, text: str) -> str | None:
    if "\0" not in text:
        return text
    context.report(path, "a NUL character cannot be passed to a program", code="bad-value")
    return None


def _number(context: Context, path: Path, value: Any) -> int:
    return int(value)


def _memory(context: Context, path: Path, value: object) -> int | None:
    try:
        return memory_bytes(value)
    except EnsembleError as error:
        context.attach(error, path)
        return None


def _at_once(context: Context, path: Path, given: Any) -> tuple[int, tuple[str, ...]]:
    if isinstance(given, dict):
        each = given.get("each", ())
        return int(given["jobs"]), (each,) if isinstance(each, str) else tuple(each)
    return int(given), ()


def read_observers(context: Context, path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the observers with the defaults of their options."""
    records = context.registry.observers
    return {
        name: option_defaults(records[name].options, options or {})
        for name, options in given.items()
    }


def _command(
    context: Context, path: Path, command: str | list[Any]
) -> tuple[tuple[str, ...], str] | None:
    """Return the words of the command, and its text."""
    if isinstance(command, list):
        words: list[str] = _spell_scalars(context, path, command)
        text = shlex.join(words)
    else:
        text = command.strip()
        lexer = shlex.shlex(text, posix=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            words = list(lexer)
        except ValueError as error:
            quote = getattr(lexer, "state", None)  # the opening quote
            context.report(
                path,
                f"'command' cannot be split into words: {str(error).lower()}"
                + (f" (the {quote} is never closed)" if quote in ("'", '"') else ""),
                hint="close the quote, escape it, or write the command as a list",
                code="bad-command",
            )
            return None
    if not words or not words[0]:
        context.report(
            path, "'command' is empty", hint="write a command, such as: echo hello", code="empty"
        )
        return None
    if any(_text(context, path, word) is None for word in words):
        return None
    return tuple(words), text


def _environment(context: Context, path: Path, given: Mapping[str, Any]) -> dict[str, str | None]:
    values: dict[str, str | None] = _spell_scalars(context, path, given)
    for key, value in values.items():
        _text(context, (*path, key), key + (value or ""))
    return values


def _environment_from(context: Context, path: Path, names: list[str]) -> tuple[str, ...]:
    if context.executor is not None and context.executor.secrets:
        context.report(
            path,
            f"'environment_from' cannot be used with the executor {context.executor.name}: its "
            "jobs do not inherit this run's environment",
            hint=f"remove 'environment_from' and {context.executor.secrets}",
            code="bad-value",
        )
    if "ENSEMBLE_TOKEN" in names:
        context.report(
            (*path, names.index("ENSEMBLE_TOKEN")),
            "'environment_from' contains ENSEMBLE_TOKEN, but jobs never get the service's token",
            hint="give the program its own token in another variable",
            code="bad-value",
        )
    return tuple(names)


def _inputs(context: Context, path: Path, given: list[Any]) -> tuple[tuple[str, str], ...]:
    found = []
    for number, each in enumerate(given):
        name, by = (each, "content") if isinstance(each, str) else (each["path"], "content")
        if isinstance(each, dict):
            by = each.get("by", by)
        _text(context, (*path, number), name)
        found.append((name, by))
    return tuple(found)


#: The function that reads the fields of a type of JobGroup. All its floats are durations.
_READ_TYPE: Mapping[str, Callable[[Context, Path, Any], Any]] = {
    **dict.fromkeys(("int", "int | None"), _number),
    **dict.fromkeys(("float", "float | None"), Context.duration),
    "str | None": _text,
    "bool": lambda context, path, value: bool(value),
}
#: The function that reads each other field. It returns a value for the JobGroup, or ``None`` after
#: reporting an error.
_READ: Mapping[str, Callable[[Context, Path, Any], Any]] = {
    **{
        each.name: _READ_TYPE[str(each.type)]
        for each in dataclass_fields(JobGroup)
        if each.type in _READ_TYPE
    },
    "replicas": _number,
    "memory_per_task": _memory,
    "at_once": _at_once,
    "uses": lambda context, path, value: (value,) if isinstance(value, str) else tuple(value),
    "command": _command,
    "environment": _environment,
    "environment_from": _environment_from,
    "inputs": _inputs,
    "outputs": read_outputs,
    "within": read_within,
    "discard": read_discard,
    "warn": read_warning,
    "avoid": read_avoided,
    "parameters": read_parameters,
    "points": read_points,
    "observe": read_observers,
    "options": read_options,
}
