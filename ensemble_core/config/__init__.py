"""The ensemble file: its schema, YAML with positions, semantic checks, and binding.

The command line calls :func:`load`; no heavy module is imported before that.

A ``when:`` is processed as follows. ``reader`` reads it, and ``binding`` and ``conditions`` check
its names. ``model/conditions`` parses it with ``expressions``, and ``compiler`` turns it into a
function. If the condition compares a metric with a number, ``engine/rule_index`` evaluates it.
``rule_evaluation`` (``consider``) evaluates all other conditions, with fields from ``names``.
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
