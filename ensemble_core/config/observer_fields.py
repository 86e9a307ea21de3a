"""Hints for names of an observer's fields that rules cannot use, such as ``metrics.loss``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core.config.document import shown
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.store import VARIABLES

_NAME = late_pattern(r"[A-Za-z0-9_-]+")
#: How many fields a hint spells out.
_MOST = 6


def may_rename(schema: Mapping[str, Any] | None) -> bool:
    """Return True if a schema allows names, and also a mapping of names to other texts."""
    if schema is None:
        return False
    names, items = schema.get("propertyNames"), schema.get("items")
    return isinstance(items, dict) and "pattern" in items and names == items


def renamed(fields: Sequence[object], key: str) -> str | None:
    """Return a hint that gives each field a name which rules can use; ``None`` if a field is empty.

    >>> renamed(["epoch", "train/loss", "Pressure (bar)"], "fields")
    "write each name with that in the output: fields: {epoch: epoch, loss: train/loss, \
Pressure_bar: 'Pressure (bar)'}"
    """
    if "" in fields:
        return None
    names: dict[str, str] = {}
    for printed in map(str, fields):
        short, whole = (_cleaned(text) for text in (re.split(r"[./:]", printed)[-1], printed))
        taken = (*names, *VARIABLES, *(each for each in fields if each != printed))
        free = [
            name
            for name in (short, whole, whole and f"{whole}_value")
            if name and name not in taken
        ]
        names[free[0] if free else f"field_{len(names)}"] = printed
    pairs = [f"{name}: {_quoted(printed)}" for name, printed in [*names.items()][:_MOST]]
    pairs += ["…"] if len(names) > _MOST else []
    return f"write each name with that in the output: {key}: {{{', '.join(pairs)}}}"


def turned_round(name: str, printed: object, key: str) -> str | None:
    """Return a hint if a field's name and its name in the output are the wrong way round."""
    if isinstance(printed, str) and _NAME.fullmatch(printed) and not _NAME.fullmatch(name):
        return f"the name for rules comes first: {key}: {{{printed}: {_quoted(name)}}}"
    return None


def _cleaned(text: str) -> str:
    return "_".join(_NAME.findall(text)).strip("_-")


def _quoted(text: str) -> str:
    """Return a name as YAML, in a flow mapping."""
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*", text)
    return text if plain else shown(text)
