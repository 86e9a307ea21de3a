"""Entry points of installed distributions, read from their metadata files: nothing is imported.

Plugins (group ``ensemble``) and their commands (``ensemble.commands``) are found here, by one look
at each folder of ``sys.path``. ``importlib.metadata`` finds the same, but to import it takes longer
than all that is done here: it is asked only for what is no folder, such as a zip file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

from ensemble_core.errors import PluginError

__all__ = ["EntryPoint", "entry_points", "normalize", "version_of"]

_FORM = re.compile(r"([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[.*\]\s*)?")


class EntryPoint(NamedTuple):
    """One entry point; ``error`` says why it cannot even be read."""

    name: str
    value: str
    distribution: str
    version: str
    error: str | None = None

    @property
    def module(self) -> str:
        return self.value.partition(":")[0].partition("[")[0].strip()

    def load(self) -> Any:
        """Import the object. Raises whatever the import does."""
        match = _FORM.fullmatch(self.value)
        if match is None:
            raise PluginError(
                f"its entry point {self.value!r} is not of the form 'module' or 'module:object'"
            )
        found: Any = import_module(match[1])
        for attribute in (match[2] or "").split(".") if match[2] else ():
            found = getattr(found, attribute)
        return found


def normalize(distribution: str) -> str:
    """A distribution's name as indexes compare it: ``Ensemble_Foo`` is ``ensemble-foo``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group, by distribution and name."""
    found: dict[tuple[str, str, str], EntryPoint] = {}
    for name, where in _installed():
        for point in _read(group, name, where):
            found.setdefault((normalize(point.distribution), point.name, point.value), point)
    return [found[key] for key in sorted(found)]


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution; ``None`` where it is not installed."""
    wanted = normalize(distribution)
    return next((_identity(name, at)[1] for name, at in _installed() if name == wanted), None)


def _installed() -> Iterator[tuple[str, Any]]:
    """Every distribution, as :func:`_distributions` gives it. What is first on the path counts."""
    seen: set[str] = set()
    for place in dict.fromkeys(sys.path):
        for name, where in _distributions(place or "."):
            if name not in seen:
                seen.add(name)
                yield name, where


def _distributions(place: str) -> Iterator[tuple[str, Any]]:
    """Each distribution in a folder or zip file: its normalized name, and where its metadata is, a
    folder's path or an object of ``importlib.metadata``."""
    try:
        names = sorted(os.listdir(place), reverse=True)  # of two versions the newer
    except NotADirectoryError:
        from importlib.metadata import distributions

        for each in distributions(path=[place]):
            yield normalize(each.metadata["Name"] or "unknown"), each
        return
    except OSError:
        return
    for name in names:
        stem, dot, kind = name.rpartition(".")
        if dot and kind in ("dist-info", "egg-info"):
            yield normalize(stem.partition("-")[0]), os.path.join(place, name)


def _read(group: str, name: str, where: Any) -> Iterator[EntryPoint]:
    if not isinstance(where, str):
        data = (where.read_text("entry_points.txt") or "").encode()
    else:
        try:
            with open(os.path.join(where, "entry_points.txt"), "rb") as file:
                data = file.read()
        except OSError:
            return
    if group.encode() not in data:
        return
    known_as: tuple[str, str] | None = None
    section = ""
    try:
        for line in data.decode().splitlines():
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("["):
                section = text.strip("[] \t")
                continue
            if section != group:
                continue
            known_as = known_as or _identity(name, where)
            key, equals, value = (part.strip() for part in text.partition("="))
            if not (key and equals and value):
                raise ValueError(f"line {text!r} is not of the form NAME = MODULE")
            yield EntryPoint(key, value, *known_as)
    except ValueError as error:
        known_as = known_as or _identity(name, where)
        reason = f"its entry_points.txt cannot be read: {error}"
        yield EntryPoint(known_as[0], "", *known_as, reason)


def _identity(name: str, where: Any) -> tuple[str, str]:
    """A distribution's name and version; metadata without them is no reason to give up."""
    if not isinstance(where, str):
        return str(where.metadata["Name"] or name), str(where.metadata["Version"] or "")
    fields: dict[str, str] = {}
    for file in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(where, file), encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    key, colon, value = line.partition(":")
                    if not colon or {"name", "version"} <= fields.keys():
                        break
                    fields.setdefault(key.lower(), value.strip())
        except OSError:
            continue
    return fields.get("name", name), fields.get("version", "")
