"""Loader of ensemble files, with :func:`load` as the entry point.

A condition (``when:``) passes through these modules:

1. ``yaml_reader`` parses the YAML file, and ``schema_check`` checks it against the schema.
2. ``condition_check`` checks the names in the condition.
3. ``model/expressions`` parses it, and ``formula_compiler`` compiles it to a function.
4. ``engine/rule_index`` finds the rules that an event or a changed metric concerns.
5. ``engine/rule_evaluation`` (``consider``) evaluates the condition.
"""

from __future__ import annotations

from typing import Any

from ensemble_core.config.loading import expanded, load, load_text, resolved
from ensemble_core.config.schema import compose
from ensemble_core.plugin.registry import Registry

__all__ = ["config_schema", "expanded", "load", "load_text", "resolved", "schema"]


def config_schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON Schema of a configuration file with profiles."""
    definitions = compose(registry)["$defs"]
    profiles = definitions["config"]["properties"]["profiles"]
    profiles["additionalProperties"] = {"$ref": "#/$defs/profile"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": "#/$defs/config",
        "$defs": definitions,
    }


def schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an ensemble file, including what plugins add."""
    return compose(registry)
