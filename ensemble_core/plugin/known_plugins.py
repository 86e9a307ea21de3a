"""List of known plugin distributions, for hints on what to install."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "known_distributions.json"


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
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return known
