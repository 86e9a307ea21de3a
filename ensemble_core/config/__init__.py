"""The ensemble file: its schema, YAML with positions, semantic checks, and binding.

:func:`load` is what the command line calls; nothing heavy is imported before it.

The path of a ``when:`` to its evaluation: ``reader`` reads it, ``binding`` and ``conditions``
check its names. ``model/conditions`` parses it with ``expressions``, and ``compiler`` makes it a
function. ``engine/rule_index`` compares metrics with numbers; ``rule_evaluation`` (``consider``)
evaluates all other conditions, with fields from ``names``.
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
