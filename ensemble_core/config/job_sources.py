"""Replaces entries under ``jobs:`` by the job groups and rules that a plugin generates from them.

Such an entry has a *source*: a key that a plugin reads, such as ``jobspec:``. The generated groups
and rules are stored with the run, so a resume needs neither the original files nor the plugin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path, plain, shown, spelled
from ensemble_core.config.file_text import read_attachment, sibling_path
from ensemble_core.config.schema import option_defaults
from ensemble_core.config.schema_check import check_shape
from ensemble_core.errors import EnsembleError, FileErrors, Location, author_hint, kind_of
from ensemble_core.model.durations import seconds
from ensemble_core.plugin.distributions import known_provider
from ensemble_core.plugin.records import Fragment, SourceView
from ensemble_core.plugin.registry import LoadedPlugin

#: An expansion in the form in which it is stored: plain data.
Kept = Mapping[str, Any]


class _UnreadableFile(Exception):
    """Raised after the error for an unreadable file was reported."""


# -- sources -----------------------------------------------------------------------------------


def expand_sources(context: Context) -> None:
    """Replace each entry that has a source by the job groups and rules generated from it."""
    document = context.document
    entries = document.data.get("jobs")
    if not isinstance(entries, list):
        return
    expanded: dict[int, Kept] = {}
    places: dict[int, Location | None] = {}
    for index, entry in enumerate(entries):
        name = _source_name(context, index, entry) if isinstance(entry, dict) else None
        if name is not None:
            places[index] = document.at_key(("jobs", index, name))
            expanded[index] = _source(context, ("jobs", index), name) if name else {}
    if not expanded:
        return
    numbers: dict[int, int] = {}
    groups: list[Any] = []
    joined: list[tuple[int, int, Kept]] = []
    for index, entry in enumerate(entries):
        if index in expanded:
            joined.append((index, len(groups), expanded[index]))
            groups += expanded[index].get("jobs", ())
        else:
            numbers[index] = len(groups)
            groups.append(entry)
    document.renumber("jobs", numbers)
    entries[:] = groups
    for index, first, kept in joined:
        join(context, kept, places[index], first)


def _source_name(context: Context, index: int, entry: Mapping[str, Any]) -> str | None:
    """Return the name of the entry's source, or ``None`` if the entry is a job group.

    Return an empty name after reporting an error.
    """
    sources, path = context.registry.sources, ("jobs", index)
    named = [key for key in entry if key in sources or key in sources.clashes]
    if not named and "command" in entry:
        return None
    known = context.validators.schema["$defs"]["job"]["properties"]
    named = [key for key in named if key not in known]
    if len(named) == 1 and named[0] in sources:
        return named[0]
    if named:
        what = f"this entry has the sources {' and '.join(map(repr, named))}; an entry has only one"
        hint = "write one entry per source"
        if len(named) == 1:
            what = f"the source {named[0]!r} is ambiguous"
            hint = context.registry.explain_missing("source", named[0])
        context.report(
            path,
            what,
            hint=hint,
            code="bad-value",
            where=context.document.at_key((*path, named[-1])),
        )
        return ""
    absent = next(
        (key for key in entry if key not in known and known_provider("source", key)), None
    )
    if absent is None or "command" in entry:
        return None
    context.report(
        (*path, absent),
        f"no installed plugin reads the key {absent!r}",
        hint=context.registry.explain_missing("source", absent),
        code="no-such-source",
        where=context.document.at_key((*path, absent)),
    )
    return ""


def _source(context: Context, path: Path, name: str) -> Kept:
    record = context.registry.sources[name]
    errors = len(context.errors)
    check_shape(context, f"source-{name}", path)
    if len(context.errors) > errors:
        return {}
    options = option_defaults(record.options, context.document.get(path))
    if name != record.name:
        options[record.name] = options.pop(name)
    owner = context.registry.owner(record)
    whose = f"the source {record.name!r}" + (f" ({owner})" if owner else "")
    view = SourceView(
        read=lambda file: _read(context, (*path, name), file),
        called=lambda file: sibling_path(context, file),
        capabilities=None if context.executor is None else context.executor.capabilities,
    )
    build = partial(record.expand, options, view)
    return keep(context, path, f"{spelled(path)} {record.name}", whose, owner, build)


def _read(context: Context, path: Path, file: str) -> str:
    text = read_attachment(context, path, file)
    if text is None:
        raise _UnreadableFile
    return text


# -- sources and algorithms --------------------------------------------------------------------


def keep(
    context: Context,
    path: Path,
    key: str,
    whose: str,
    owner: LoadedPlugin | None,
    build: Callable[[], object],
) -> Kept:
    """Return the stored expansion with this key, or create and store it.

    Return an empty expansion after reporting an error.
    """
    key = f"expanded {key}"
    known = context.known.attached
    if key not in known:
        try:
            data = data_of(build(), whose, build)
        except _UnreadableFile:
            return {}
        except FileErrors as errors:
            for error in errors.errors:
                context.attach(error, path)
            return {}
        except Exception as error:  # a bug in the plugin, reported as such
            context.failed(path, whose, error)
            return {}
        data["whose"] = whose
        data["version"] = "" if owner is None else f"{owner.distribution} {owner.version}".strip()
        known[key] = json.dumps(data)
    found: Kept = json.loads(known[key])
    return found


def data_of(made: object, whose: str, build: object) -> dict[str, Any]:
    """Return the fragment ``made`` as plain data.

    ``build`` is the plugin's function that returned the fragment.

    ``whose`` names the plugin's source or algorithm in messages. Raises :class:`EnsembleError` if
    ``made`` is not a valid fragment.
    """
    if not isinstance(made, Fragment):
        raise _fragment_error(f"{whose} returned {kind_of(made)}, expected a Fragment", build)
    data: dict[str, Any] = {}
    for part in ("jobs", "rules", "warnings"):
        items = plain(getattr(made, part))
        wanted = str if part == "warnings" else dict
        if not isinstance(items, list) or not all(isinstance(item, wanted) for item in items):
            noun = "strings" if wanted is str else "mappings"
            raise _fragment_error(f"{whose} returned {part} that are not a list of {noun}", build)
        data[part] = items
    data["statistics"] = plain(made.statistics)
    if not isinstance(data["statistics"], dict):
        raise _fragment_error(f"{whose} returned statistics that are not a mapping", build)
    beat = made.heartbeat
    if beat is not None and (isinstance(beat, bool) or not isinstance(beat, (int, float))):
        raise _fragment_error(
            f"{whose} returned the heartbeat {shown(beat)}, expected seconds", build
        )
    data["heartbeat"] = beat
    data["places"] = [
        [list(path), place.file, place.line, place.column]
        for path, place in made.places.items()
        if place is not None and len(path) > 1
    ]
    return data


def _fragment_error(what: str, build: object) -> EnsembleError:
    return EnsembleError(what, hint=author_hint(build), code="bad-fragment")


def join(context: Context, kept: Kept, where: Location | None, first_group: int) -> None:
    """Add the rest of an entry's expansion (rules, statistics …) to the data of the file.

    Also note the positions of all its parts for error messages. The data already contains the job
    groups of the expansion, from index ``first_group`` on.
    """
    if not kept:
        return
    data, document = context.document.data, context.document
    rules = data.setdefault("rules", [])
    first = {"jobs": first_group, "rules": len(rules) if isinstance(rules, list) else 0}
    if isinstance(rules, list):
        rules += kept["rules"]
    _join_statistics(context, kept, where)
    _join_heartbeat(data, kept["heartbeat"])
    context.warnings += [f"{where}: {text}" if where else text for text in kept["warnings"]]
    for part, number in first.items():
        for index in range(len(kept[part])):
            path: Path = (part, number + index)
            if where is not None:
                document.overrides[path] = where
            context.made[path] = kept["whose"]
    for (part, index, *rest), *place in kept["places"]:
        if part in first:
            path = (part, first[part] + index, *rest)
            document.overrides[path] = Location(*place)
            context.made[path] = ""


def _join_statistics(context: Context, kept: Kept, where: Location | None) -> None:
    if not kept["statistics"]:
        return
    data, document = context.document.data, context.document
    if data.get("statistics") is None:
        data["statistics"] = {}
    known = data["statistics"]
    for name, spec in kept["statistics"].items():
        path: Path = ("statistics", name)
        if isinstance(known, dict) and known.setdefault(name, spec) != spec:
            context.report(
                path,
                f"{kept['whose']} needs a statistic {name!r}, but the file defines a "
                "different statistic with this name",
                hint="rename the statistic in the file",
                code="duplicate-name",
                where=where,
            )
        elif path not in document.values:
            context.made[path] = kept["whose"]
            if where is not None:
                document.overrides[path] = where


def _join_heartbeat(data: dict[str, Any], beat: float | None) -> None:
    """Shorten the file's heartbeat to ``beat`` seconds, the interval that an entry's rules need.

    If the file switches the heartbeat off, it stays off.
    """
    if beat is None:
        return
    if data.get("logging") is None:
        data["logging"] = {}
    logging = data["logging"]
    if not isinstance(logging, dict):
        return
    try:
        given = seconds(logging.get("heartbeat", beat))
    except EnsembleError:
        return  # the checks of the file report it
    logging["heartbeat"] = min(given, beat)
