"""Encodes the output of ``--json``: one JSON object per line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_DEEPEST = 40


def to_json(data: Mapping[str, Any]) -> str:
    """Return ``data`` as one line of valid JSON.

    Values that JSON cannot express are converted: nan and infinity to ``null``, others to text.
    """
    try:
        return json.dumps(data, default=_json_value, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return json.dumps(_json_value(data), allow_nan=False, separators=(",", ":"))


def _json_value(value: object, depth: int = 0) -> object:
    """Convert a value to one that JSON can express."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {str(key): _json_value(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [_json_value(inner, depth + 1) for inner in value]
        if isinstance(value, (set, frozenset)):
            return [_json_value(inner, depth + 1) for inner in sorted(value, key=str)]
    return f"<{type(value).__name__}>" if depth >= _DEEPEST else str(value)
