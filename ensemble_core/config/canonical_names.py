"""Replaces names in a file that are qualified by a distribution (``DISTRIBUTION:NAME``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ensemble_core.plugin.registry import Registry


def canonical_names(value: Any, registry: Registry, keys: Collection[str]) -> None:
    """Replace names that are qualified by a distribution by canonical names, at any depth."""
    if isinstance(value, list):
        for item in value:
            canonical_names(item, registry, keys)
    elif isinstance(value, dict):
        records: Mapping[str, Mapping[str, object]] = {
            "trigger": registry.triggers,
            "name": registry.actions,
            "statistic": registry.statistics,
            "executor": registry.executors,
            "use": registry.generators,
            "observe": registry.observers,
        }
        for key, inner in value.items():
            if key in keys and isinstance(inner, str):
                value[key] = _listed_name(inner, records[key])
            elif key == "observe" and key in keys and isinstance(inner, dict):
                value[key] = {_listed_name(name, records[key]): inner[name] for name in inner}
            else:
                canonical_names(inner, registry, keys)


def _listed_name(name: str, records: Mapping[str, object]) -> str:
    if ":" not in name or name not in records:
        return name
    record = records[name]
    return next((known for known in records if records[known] is record), name)
