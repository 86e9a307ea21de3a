"""Plugin distributions: entry points of installed ones, and how to install the one that provides a
missing plugin.

``importlib.metadata`` is used only for zip files and the like, because importing it is slow.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from ensemble_core.errors import PluginError
from ensemble_core.late_pattern import late_pattern

_CORE = "ensemble-core"
#: ``_SIGNS``: first characters of a version requirement. ``_WIDTH``: how many numbers of a version
#: are compared.
_SIGNS = "~=!<>"
_WIDTH = 6
_FORM = late_pattern(r"([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[.*\]\s*)?")

#: Known distributions, with their plugins and how to install them.
FILE = os.path.join(os.path.dirname(__file__), "known_distributions.json")


class EntryPoint(NamedTuple):
    """One entry point. If it cannot be read or used, ``error`` is the reason."""

    name: str
    value: str
    distribution: str
    version: str
    error: str | None = None

    @property
    def module(self) -> str:
        return self.value.partition(":")[0].partition("[")[0].strip()

    def load(self) -> Any:
        """Import the object to which the entry point refers. Errors during the import propagate."""
        match = _FORM.fullmatch(self.value)
        if match is None:
            raise PluginError(
                f"the entry point {self.value!r} must have the form 'module' or 'module:object'"
            )
        found: Any = import_module(match[1])
        for attribute in (match[2] or "").split(".") if match[2] else ():
            found = getattr(found, attribute)
        return found


def normalize(distribution: str) -> str:
    """Return a distribution's normalized name: ``Ensemble_Foo`` becomes ``ensemble-foo``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, sorted by distribution and name."""
    found: dict[tuple[str, str, str], EntryPoint] = {}
    installed = dict(_installed_distributions())
    core = _metadata(_CORE, installed[_CORE])[1] if _CORE in installed else ""
    for name, where in installed.items():
        for point in _read(group, name, where, core):
            found.setdefault((normalize(point.distribution), point.name, point.value), point)
    return [found[key] for key in sorted(found)]


def _installed_distributions() -> Iterator[tuple[str, Any]]:
    """Yield every installed distribution: its normalized name and its metadata (see
    ``_distributions``).

    If several distributions have the same name, the first one on the path takes precedence.
    """
    seen: set[str] = set()
    # The empty entry is the current folder, where others may be able to write.
    for place in filter(None, dict.fromkeys(sys.path)):
        for name, where in _distributions(place):
            if name not in seen:
                seen.add(name)
                yield name, where


def _distributions(place: str) -> Iterator[tuple[str, Any]]:
    """Yield the normalized name and the metadata of each distribution in a folder or zip file.

    The metadata is the path of a folder or an object of ``importlib.metadata``.
    """
    try:
        names = sorted(os.listdir(place), reverse=True)  # the newer of two versions first
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


def _read(group: str, name: str, where: Any, core: str) -> Iterator[EntryPoint]:
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
    name, version, required = _metadata(name, where)
    unmet = None
    if not _meets(core, required):
        unmet = f"{name} {version} needs {_CORE}{required}, but {core} is installed"
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
            key, equals, value = (part.strip() for part in text.partition("="))
            if not (key and equals and value):
                raise ValueError(f"line {text!r} is not of the form NAME = MODULE")
            yield EntryPoint(key, value, name, version, unmet)
    except ValueError as error:
        reason = f"its entry_points.txt cannot be read: {error}"
        yield EntryPoint(name, "", name, version, reason)


def _metadata(name: str, where: Any) -> tuple[str, str, str]:
    """Return the name of a distribution, its version, and which versions of the core it requires.

    If the metadata lacks one of these, it is empty. An empty requirement accepts any version.
    """
    fields: dict[str, str] = {}
    required = ""
    for key, value in _headers(where):
        fields.setdefault(key, value)
        if key == "requires-dist" and normalize(value[: len(_CORE)]) == _CORE:
            versions = value[len(_CORE) :].strip(" ()")
            # Otherwise, it may be a marker, an extra, a URL, or part of a longer name.
            if versions[:1] in _SIGNS and ";" not in versions:
                required = versions
    return fields.get("name", name), fields.get("version", ""), required


def _headers(where: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields in a distribution's metadata, with names in lower case."""
    if not isinstance(where, str):
        yield from ((key.lower(), str(value)) for key, value in where.metadata.items())
        return
    for file in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(where, file), encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if not line.strip():
                        break  # the description follows
                    key, _, value = line.partition(":")
                    yield key.lower(), value.strip()
        except OSError:
            continue


def _meets(version: str, required: str) -> bool:
    """Return True if a version meets a requirement.

    Only release numbers are compared, so 2.0rc1 counts as 2.0. A requirement that cannot be parsed
    counts as met.
    """
    have = _release(version)
    for part in map(str.strip, required.split(",") if have else ()):
        text = part.lstrip(_SIGNS)
        sign, want = part.removesuffix(text), _release(text)
        width = len(want) - (sign == "~=") if sign == "~=" or text.endswith(".*") else _WIDTH
        here, there = ((each + [0] * _WIDTH)[:_WIDTH] for each in (have, want))
        same = here[:width] == there[:width]
        met = {
            "==": same, "!=": not same, "~=": same and here >= there,
            ">=": here >= there, ">": here > there, "<=": here <= there, "<": here < there,
        }  # fmt: skip
        if want and not met.get(sign, True):
            return False
    return True


def _release(version: str) -> list[int]:
    numbers = itertools.takewhile(str.isdigit, version.strip().split("."))
    return [int(number) for number in numbers]


def known_provider(kind: str, name: str) -> tuple[str, str] | None:
    """Return the distribution that has this plugin, and the command that installs it.

    Return ``None`` if no known distribution has a plugin of this kind and name.
    """
    for distribution, entry in _load_known().items():
        if name in entry.get(kind, ()):
            return distribution, _install_command(distribution, entry["install"])
    return None


def _install_command(distribution: str, released: str) -> str:
    """Return the command that installs a distribution.

    If the core is installed from a checkout, so is the distribution. Otherwise, ``released`` is the
    argument for ``pip install``.
    """
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import distribution as installed
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    names = [released]
    with suppress(PackageNotFoundError, OSError, ValueError, TypeError, AttributeError):
        origin = json.loads(installed("ensemble-core").read_text("direct_url.json") or "{}")
        url = urlsplit(origin.get("url", ""))
        plugins = Path(unquote(url.path)) / "plugins"
        if url.scheme == "file" and (plugins / distribution / "pyproject.toml").is_file():
            text = (plugins / distribution / "pyproject.toml").read_text(encoding="utf-8")
            # Also list the workspace packages that the distribution requires, because no package
            # index has them.
            others = re.findall(r"^(ensemble-\S+) = \{ workspace", text, re.MULTILINE)
            parts = [plugins / name for name in (*others, distribution) if name != "ensemble-core"]
            near = [os.path.relpath(part) for part in parts]
            names = [
                str(part) if there.startswith("..") else os.path.join(".", there)
                for part, there in zip(parts, near, strict=True)
            ]
    return f"pip install {shlex.join(names)}"


def _load_known() -> Mapping[str, Mapping[str, Any]]:
    import json

    with open(FILE, encoding="utf-8") as file:
        known: dict[str, dict[str, Any]] = json.load(file)
    return known
