"""Distributions that are known to exist and may not be installed, for hints on what to install.

They stand in ``known_distributions.json``: what each registers, by kind, what ``pip`` installs once
it is released, and the public names of ``ensemble_core`` that it brings. Nothing here depends on
which they are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

__all__ = ["FILE", "import_public", "installed_names", "known_provider"]

FILE = Path(__file__).parent / "known_distributions.json"


def known_provider(kind: str, name: str) -> tuple[str, str] | None:
    """The distribution that is known to have something of this kind and name, and the command that
    installs it; ``None`` where none is known."""
    for distribution, entry in _known().items():
        if name in entry.get(kind, ()):
            return distribution, _install_command(distribution, entry["install"])
    return None


def _install_command(distribution: str, released: str) -> str:
    """Return the command that installs a distribution: from the checkout that the core was
    installed from, if it was, or else what was ``released``."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import distribution as installed
    from urllib.parse import unquote, urlsplit

    names = [released]
    with suppress(PackageNotFoundError, OSError, ValueError, TypeError, AttributeError):
        origin = json.loads(installed("ensemble-core").read_text("direct_url.json") or "{}")
        url = urlsplit(origin.get("url", ""))
        plugins = Path(unquote(url.path)) / "plugins"
        if url.scheme == "file" and (plugins / distribution / "pyproject.toml").is_file():
            text = (plugins / distribution / "pyproject.toml").read_text(encoding="utf-8")
            # It needs these too, and they are no more on an index than itself.
            others = re.findall(r"^(ensemble-\S+) = \{ workspace", text, re.MULTILINE)
            parts = [plugins / name for name in (*others, distribution) if name != "ensemble-core"]
            near = [os.path.relpath(part) for part in parts]
            names = [
                str(part) if there.startswith("..") else os.path.join(".", there)
                for part, there in zip(parts, near, strict=True)
            ]
    return f"pip install {shlex.join(names)}"


def import_public(name: str) -> Any:
    """A public name of ``ensemble_core`` that a known distribution brings. Raises
    :class:`ImportError` with what to install, :class:`AttributeError` where none brings it."""
    module = _modules().get(name)
    if module is None:
        raise AttributeError(f"module 'ensemble_core' has no attribute {name!r}")
    if not _is_installed(module):
        distribution, install = known_provider("public", name) or ("", "")
        raise ImportError(f"{name} comes with {distribution}, which is not installed: {install}")
    return getattr(import_module(module), name)


def installed_names() -> list[str]:
    """The public names that known distributions bring which are installed."""
    return [name for name, module in _modules().items() if _is_installed(module)]


def _is_installed(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.modules or PathFinder.find_spec(top) is not None


def _modules() -> dict[str, str]:
    return {
        name: module
        for entry in _known().values()
        for name, module in entry.get("public", {}).items()
    }


def _known() -> Mapping[str, Mapping[str, Any]]:
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return known
