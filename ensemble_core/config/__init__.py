"""The ensemble file: its schema, YAML with positions, semantic checks, and binding.

:func:`load` is what the command line calls; nothing heavy is imported before it.
"""

from __future__ import annotations

from typing import Any

from ensemble_core.config.loading import expanded, load, load_text
from ensemble_core.config.schema import compose
from ensemble_core.plugin.registry import Registry

__all__ = ["expanded", "load", "load_text", "schema"]


def schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an ensemble file, including what plugins add."""
    return compose(registry)
