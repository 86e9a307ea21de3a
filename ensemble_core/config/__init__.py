"""Loader of ensemble files: YAML with positions, schema, checks, and binding to immutable objects.

The entry point is :func:`load`. Heavy modules are imported only when it is called.

To follow a condition (``when:``) through the code:

1. ``loading`` reads the file with ``reader``, and checks it with ``schema_check``.
2. ``binding`` and ``conditions`` check the names in the condition.
3. ``model/conditions`` parses it, with the help of ``model/expressions``.
4. ``model/compiler`` compiles it to a function.
5. In the engine, ``rule_set`` adds the rule to ``rule_index``, which finds the rules that an event
   or a changed metric concerns.
6. ``rule_evaluation`` (``consider``) evaluates the condition. The values of its names come from
   ``state`` (``known``) and ``names``.
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
