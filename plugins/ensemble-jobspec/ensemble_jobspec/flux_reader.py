"""Reader of the form ``flux``: Flux's own jobspecs (RFC 14, V1 of RFC 25).

The readers of the other forms use it for resources, commands, scripts and attributes, which all
forms write alike.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core import EnsembleError, did_you_mean
from ensemble_core.cli.toolkit import parse_duration
from ensemble_jobspec.jobspec_errors import Faults, Path
from ensemble_jobspec.workload import Attributes, Request, Script, Task, Vertex, Workload


def slots(vertex: Vertex) -> list[Vertex]:
    """Return the slots in a resource, at any depth."""
    found = [vertex] if vertex.type == "slot" else []
    return found + [slot for inner in vertex.within for slot in slots(inner)]


def read_flux(faults: Faults, name: str) -> Workload:
    """Return the workload of a Flux jobspec."""
    data = faults.document.data
    given = data["tasks"][0]
    count = given["count"]
    request = request_of_list(faults, count.get("per_slot", 1), count.get("total"))
    labels = [slot.label for slot in slots(request.alternatives[0])]
    if given["slot"] not in labels:
        known = ", ".join(repr(label) for label in labels if label)
        what = f"the resources have no slot {given['slot']!r}"
        hint = f"its slots are {known}" if known else "give the slot a label and use it here"
        faults.report(("tasks", 0, "slot"), what, hint=hint, code="no-such-slot")
    own = system(faults)
    named = own.extra.get("job")
    if isinstance(named, dict) and isinstance(named.get("name"), str):
        name = named["name"]
    for key, are in (("attributes", "are"), ("distribution", "is")):
        if given.get(key):
            faults.warn(("tasks", 0, key), f"the task's {key!r} {are} ignored, as by Flux")
    words, script = command(faults, ("tasks", 0, "command"), name)
    task = Task(name, words, script, request, 1, own, where=faults.at(("tasks", 0)))
    return Workload("flux", name, (task,), warnings=tuple(faults.warnings))


_KNOWN = ("duration", "cwd", "environment", "watch")
_SHELL = frozenset({"|", ">", ">>", "<", "&&", "||", ";", "&", "2>&1", "2>", "<<"})


def vertex(faults: Faults, path: Path) -> Vertex:
    """Return the resource at this path, with the resources that it contains."""
    given = faults.document.get(path)
    if "count" in given and "replicas" in given:
        what = "'count' cannot be combined with 'replicas' (a number of resources, anywhere)"
        faults.report((*path, "replicas"), what, code="bad-resources", key=True)
    if given.get("schedule") is not None:
        said = "'schedule' is ignored: the queue decides what it schedules"
        faults.warn((*path, "schedule"), said)
    extra = {key: given[key] for key in ("unit", "id") if key in given}
    own = given.get("attributes")
    inner = range(len(given.get("with", ())))
    return Vertex(
        type=given["type"].removesuffix("s")
        if given["type"] in ("cores", "gpus")
        else given["type"],
        count=given.get("count", given.get("replicas", 1)),
        within=tuple(vertex(faults, (*path, "with", number)) for number in inner),
        anywhere="replicas" in given,
        label=given.get("label"),
        exclusive=bool(given.get("exclusive", False)),
        requires=tuple(requirement(each) for each in given.get("requires", ())),
        extra={**extra, **({"attributes": own} if own else {})},
        where=faults.at(path),
    )


def requirement(given: str | Mapping[str, Any]) -> str:
    """Return a resource's requirement in the notation of the site file.

    >>> requirement({"name": "system", "field": "cpu.target", "match": "amd64"})
    'system.cpu.target=amd64'
    """
    if isinstance(given, str):
        return given
    subject = [str(given[key]) for key in ("name", "field", "attribute") if key in given]
    if subject:
        value = given.get("match", given.get("value", "true"))
        return f"{'.'.join(subject)}={value}"
    return "&".join(f"{key}={value}" for key, value in given.items())


def request_of_list(faults: Faults, per_slot: int = 1, total: int | None = None) -> Request:
    """Return the request in forms where ``resources`` is a list with one entry."""
    where = faults.at(("resources", 0))
    return Request((vertex(faults, ("resources", 0)),), (), per_slot, total, where)


def command(faults: Faults, path: Path, name: str) -> tuple[tuple[str, ...], Script | None]:
    """Return the words of a command, or its script."""
    document = faults.document
    given = document.get(path)
    if isinstance(given, list):
        words = tuple(document.written((*path, at), word) for at, word in enumerate(given))
    elif given.startswith("#!") or "\n" in given.strip():
        if "\0" in given:
            faults.report(
                path,
                "the command has a NUL character, which no program can receive",
                code="bad-value",
            )
        return (), Script(given, name)
    else:
        try:
            words = tuple(shlex.split(given))
        except ValueError as error:
            what = f"the command cannot be split into words: {str(error).lower()}"
            hint = "close the quote, escape it, or write the command as a list"
            faults.report(path, what, hint=hint, code="bad-command")
            return (), None
        unheard = next((word for word in words if word in _SHELL or word.endswith(";")), None)
        if unheard is not None:
            said = f"the command runs without a shell, so {unheard!r} is an ordinary argument"
            faults.warn(
                path,
                f"{said}; to use a shell, write bash -c '...', or a script that begins with #!",
            )
    if not words or not words[0]:
        faults.report(
            path, "the command is empty", hint="write a command, such as 'echo hello'", code="empty"
        )
    elif any("\0" in word for word in words):
        faults.report(
            path, "the command has a NUL character, which no program can receive", code="bad-value"
        )
    return words, None


def attributes(faults: Faults, path: Path) -> Attributes:
    """Return the attributes of a jobspec in the form ``nextgen``. Warn about unknown ones."""
    given = faults.document.get(path) or {}
    extra = {key: value for key, value in given.items() if key not in _KNOWN}
    if "system" in extra:
        del extra["system"]
        what = "'system' is ignored in this form: write what is in it directly into 'attributes'"
        faults.warn((*path, "system"), what)
    _warn_of_unknown(faults, path, extra, _KNOWN)
    return Attributes(
        duration=_duration(faults, (*path, "duration"), given.get("duration")),
        cwd=given.get("cwd"),
        environment=_environment(faults, (*path, "environment"), given.get("environment")),
        watch=given.get("watch"),
        extra=extra,
        where=faults.at(path),
    )


def system(faults: Faults) -> Attributes:
    """Return the attributes of a jobspec in Flux's form."""
    given = faults.document.get(("attributes",)) or {}
    path: Path = ("attributes", "system")
    own = given.get("system", {})
    extra = {key: value for key, value in own.items() if key not in _KNOWN[:3]}
    _warn_of_unknown(faults, path, extra, _KNOWN[:3])
    if given.get("user"):
        extra["user"] = given["user"]
    return Attributes(
        duration=_duration(faults, (*path, "duration"), own.get("duration")),
        cwd=own.get("cwd"),
        environment=_environment(faults, (*path, "environment"), own.get("environment")),
        extra=extra,
        where=faults.at(path),
    )


def _warn_of_unknown(
    faults: Faults, path: Path, extra: Mapping[str, Any], known: Sequence[str]
) -> None:
    """Warn about attributes that only Flux has. A name and limits of the shell change no result."""
    for key, value in extra.items():
        options = value.get("options", {}) if key == "shell" and isinstance(value, dict) else None
        if key == "job" or (isinstance(options, dict) and options.keys() <= {"rlimit"}):
            continue
        hint = did_you_mean(key, known, None)
        said = f"the attribute {key!r} is ignored, except on Flux"
        faults.warn((*path, key), f"{said} ({hint})" if hint else said)


def _duration(faults: Faults, path: Path, given: object) -> float | None:
    if given is None:
        return None
    try:
        return parse_duration(given)
    except EnsembleError as error:
        faults.report(path, error.what, hint=error.hint, code=error.code)
        return None


def _environment(faults: Faults, path: Path, given: Mapping[str, Any] | None) -> Mapping[str, str]:
    found = {}
    for key, value in (given or {}).items():
        inner = (*path, key)
        found[key] = faults.document.written(inner, value)
        if not key or "=" in key or "\0" in key + found[key]:
            what = f"{key!r} cannot be set in an environment"
            faults.report(inner, what, code="bad-name", key=True)
    return found


def inside(faults: Faults, path: Path, name: str) -> bool:
    """Return whether the path stays inside its folder; report a mistake otherwise."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or name in (".", "./"):
        what = f"{name!r} is outside the staging folder"
        faults.report(
            path,
            what,
            hint="use a path inside the staging folder, such as run.sh",
            code="path-outside",
        )
        return False
    return True
