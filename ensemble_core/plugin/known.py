"""Distributions that are known to exist and may not be installed, for hints on what to install.

They stand in ``known_distributions.json``: what each registers, by kind, what ``pip`` is to be told
and the public names of ``ensemble_core`` that it brings. Nothing here depends on which they are.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

__all__ = ["FILE", "import_public", "is_missing", "known_provider"]

FILE = Path(__file__).parent / "known_distributions.json"


def known_provider(kind: str, name: str) -> tuple[str, str] | None:
    """The distribution that is known to have something of this kind and name, and the command that
    installs it; ``None`` where none is known."""
    for distribution, entry in _known().items():
        if name in entry.get(kind, ()):
            return distribution, f"pip install {shlex.quote(entry['install'])}"
    return None


def import_public(name: str) -> Any:
    """A public name of ``ensemble_core`` that a known distribution brings. Raises
    :class:`ImportError` with what to install."""
    if is_missing(name):
        distribution, install = known_provider("public", name) or ("", "")
        raise ImportError(f"{name} comes with {distribution}, which is not installed: {install}")
    return getattr(import_module(_modules()[name]), name)


def is_missing(name: str) -> bool:
    """Whether nothing that is installed brings this public name."""
    top = _modules().get(name, "").partition(".")[0]
    return bool(top) and top not in sys.modules and PathFinder.find_spec(top) is None


def _modules() -> dict[str, str]:
    """The public names that known distributions bring, each with its module."""
    return {
        name: module
        for entry in _known().values()
        for name, module in entry.get("public", {}).items()
    }


def _known() -> Mapping[str, Mapping[str, Any]]:
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return known
