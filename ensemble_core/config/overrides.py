"""Overrides (``--set KEY=VALUE``): changes to the data of a file before the file is checked.

KEY is a dotted path, such as ``jobs.sleep.count``. An entry of a list is selected by its name or
index:

- ``jobs``: its ``name``. An entry with a source, such as ``{task-list: tasks.yaml}``, has
  the source's name: ``jobs.task-list.prefix=day-``.
- ``rules``: its ``id``, or ``rule-N`` for the N-th rule if it has no ``id``.
- ``generators``: its ``name``, or its index.
- ``use``: its ``as``, its ``algorithm`` if it has no ``as``, or its index.
- Other lists: its index, from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ensemble_core.config.document import Document, Path
from ensemble_core.config.yaml_reader import read_value
from ensemble_core.errors import EnsembleError, Location, UsageError, did_you_mean

#: Sections that are lists.
_LISTS: tuple[Path, ...] = (("jobs",), ("rules",), ("use",), ("generators",))


def apply(document: Document, overrides: Iterable[str]) -> dict[str, EnsembleError]:
    """Apply overrides in order. Return each one that failed, with its error."""
    errors: dict[str, EnsembleError] = {}
    for text in overrides:
        try:
            _apply(document, text)
        except EnsembleError as error:
            errors[text] = error
    return errors


def keys(data: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what can follow ``--set`` for a file with this data, each with the sign ``=``.

    These are the keys of the file, and those that its job groups, rules and limits can also have.
    """
    sections = {
        "jobs": schema["$defs"]["group-fields"],
        "rules": schema["$defs"]["rule"],
        "limits": schema["properties"]["limits"],
    }
    found: dict[str, None] = {}
    for section, value in {**data, "limits": data.get("limits") or {}}.items():
        found |= dict.fromkeys(_keys(section, value))
        fields = sections.get(section, {}).get("properties", ())
        names = [section]
        if isinstance(value, list):
            names = [each for each, _ in _named(section, value)]
        found |= dict.fromkeys(f"{name}.{each}" for name in names for each in fields)
    whole = {key.rpartition(".")[0] for key in found}
    return (f"{key}=" for key in found if key not in whole)


def _keys(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        inner = iter([(f"{path}.{key}", each) for key, each in value.items()])
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        inner = _named(path, value)
    else:
        yield path
        return
    for name, each in inner:
        yield from _keys(name, each)


def _named(path: str, entries: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each entry of a list with the key by which ``--set`` finds it."""
    for number, entry in enumerate(entries):
        known = entry if isinstance(entry, dict) else {}
        step: object = number
        if path == "jobs":
            step = known.get("name", next(iter(known), number))
        elif path == "rules":
            step = known.get("id", f"rule-{number + 1}")
        elif path == "generators":
            step = known.get("name", number)
        elif path == "use":
            step = known.get("as", known.get("algorithm", number))
        yield f"{path}.{step}", entry


def _apply(document: Document, text: str) -> None:
    origin = f"--set {text}"
    key, equals, value_text = text.partition("=")
    steps = key.strip().split(".")
    if not equals or not all(steps) or len(steps) > 20:
        raise _error(
            origin, f"{text!r} is not of the form KEY=VALUE", ("for example: jobs.sleep.count=3")
        )
    value, spelled = read_value(value_text, origin)
    path: Path = ()
    here: Any = document.data
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        found = _step(document, path, here, step, origin)
        path = (*path, found)
        if last:
            here[found] = value
        elif isinstance(here, dict):
            inner = here.get(step)
            if inner is None and path in _LISTS:
                raise _error(origin, f"the file has no {step!r}")
            if inner is None:
                inner = here[step] = {}
                document.overrides[path] = Location(origin)
            here = inner
        else:
            here = here[found]
    places: dict[Path, Any]
    for places in (document.spelled, document.overrides):
        for known in [place for place in places if place[: len(path)] == path]:
            del places[known]
    document.spelled.update({path + inner: written for inner, written in spelled.items()})
    document.overrides[path] = Location(origin)


def _step(document: Document, path: Path, here: Any, step: str, origin: str) -> str | int:
    if isinstance(here, dict):
        return step
    if not isinstance(here, list):
        described = ".".join(map(str, path)) or "the file"
        raise _error(origin, f"{described} is neither a mapping nor a list: it has no {step!r}")
    if path == ("jobs",):
        for number, entry in enumerate(here):  # entries of sources have no name
            if isinstance(entry, dict) and step in entry and "name" not in entry:
                return number
        return _find_entry(here, "name", step, origin, "job group")
    if path == ("use",):
        entries = (entry if isinstance(entry, dict) else {} for entry in here)
        names = [entry.get("as", entry.get("algorithm")) for entry in entries]
        if step in names or not step.isdigit():
            return _place(names, step, origin, "instance")
    if path == ("generators",) and not step.isdigit():
        return _find_entry(here, "name", step, origin, "generator")
    if path == ("rules",):
        for number, rule in enumerate(here, 1):
            if step == f"rule-{number}" and isinstance(rule, dict) and "id" not in rule:
                return number - 1
        return _find_entry(here, "id", step, origin, "rule")
    if step.isascii() and step.isdigit() and len(step) < 7 and int(step) < len(here):
        return int(step)
    raise _error(
        origin,
        f"there is no item {step!r} in a list of length {len(here)}",
        "count the items from 0",
    )


def _find_entry(entries: Iterable[Any], key: str, step: str, origin: str, noun: str) -> int:
    names = [entry.get(key) if isinstance(entry, dict) else None for entry in entries]
    return _place(names, step, origin, noun)


def _place(names: list[Any], step: str, origin: str, noun: str) -> int:
    if step in names:
        return names.index(step)
    hint = did_you_mean(step, (name for name in names if isinstance(name, str)), None)
    raise _error(origin, f"there is no {noun} {step!r}", hint)


def _error(origin: str, what: str, hint: str | None = None) -> UsageError:
    return UsageError(what, where=Location(origin), hint=hint, code="bad-override")
