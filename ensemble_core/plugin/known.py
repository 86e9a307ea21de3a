"""Distributions that are known to exist and may not be installed, for hints on what to install.

They stand in ``known_distributions.json``: what each registers, by kind, and what ``pip`` is to be
told. Nothing here depends on which there are.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

__all__ = ["FILE", "known_provider", "public_name"]

FILE = Path(__file__).parent / "known_distributions.json"


def known_provider(kind: str, name: str) -> tuple[str, str] | None:
    """The distribution that is known to have something of this kind and name, and the command that
    installs it; ``None`` where none is known."""
    for distribution, entry in _known().items():
        if name in entry.get(kind, ()):
            return distribution, f"pip install {shlex.quote(entry['install'])}"
    return None


def public_name(name: str) -> str | None:
    """The module that has a public name of ``ensemble_core`` that a known distribution brings."""
    for entry in _known().values():
        module: str | None = entry.get("public", {}).get(name)
        if module is not None:
            return module
    return None


def _known() -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return known
