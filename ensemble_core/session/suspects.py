"""Suspects: parameter values whose jobs failed more often than chance explains.

Used by ``inspection``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["suspects"]

#: Parameters with more distinct values are skipped; at most so many suspects are named.
_VALUES, _NAMED = 2000, 3
#: A value is a suspect if chance would produce one in at most one of ten runs.
_EVIDENCE = math.log(10)


def suspects(
    parameters: Mapping[str, Sequence[Any]], failed: Sequence[int]
) -> list[dict[str, Any]]:
    """Return values of parameters whose jobs failed more often than chance explains."""
    share = len(failed) / max(map(len, parameters.values()), default=1)
    found = []
    for name, values in parameters.items():
        total = _counted(values)
        if not 1 < len(total) <= _VALUES:
            continue
        for text, (value, count) in _counted([values[at] for at in failed]).items():
            of = total[text][1]
            evidence = _evidence(count, of, share) - math.log(len(total))
            if count > 1 and evidence > _EVIDENCE:
                found.append(
                    (evidence, {"name": name, "value": value, "failed": count, "total": of})
                )
    return [one for _, one in sorted(found, key=lambda each: -each[0])[:_NAMED]]


def _evidence(failed: int, total: int, share: float) -> float:
    """Return the negative logarithm of the Chernoff bound on the probability that ``failed`` of
    ``total`` jobs fail if each fails with the probability ``share``."""
    part = failed / total
    if part <= share:
        return 0.0
    rest = (1 - part) * math.log((1 - part) / (1 - share)) if part < 1 else 0.0
    return total * (part * math.log(part / share) + rest)


def _counted(values: Sequence[Any]) -> dict[str, tuple[Any, int]]:
    """Map the text of each value to the value and its count, without ``None``."""
    try:
        counts = Counter(values)
    except TypeError:  # lists and mappings
        counts = Counter(json.dumps(value) for value in values if value is not None)
        return {text: (json.loads(text), count) for text, count in counts.items()}
    return {str(v): (v, count) for v, count in counts.items() if v is not None}
