"""Suspects: parameter values whose jobs failed more often than chance explains."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

#: ``_VALUES``: parameters with more distinct values than this are skipped. ``_NAMED``: maximum
#: number of suspects.
_VALUES, _NAMED = 2000, 3
#: A value is a suspect if chance alone would produce such a value in at most one of ten runs.
_EVIDENCE = math.log(10)


def suspects(
    parameters: Mapping[str, Sequence[Any]], failed: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the suspects, those with the strongest evidence first.

    ``parameters`` maps the name of each parameter to a list with its value in each job. ``failed``
    has the positions of the failed jobs in these lists.

    Each suspect has the ``name`` and the ``value`` of a parameter. ``total`` is the number of jobs
    with this value, and ``failed`` is the number of failed ones.
    """
    share = len(failed) / max(map(len, parameters.values()), default=1)
    found = []
    for name, values in parameters.items():
        total = _count_values(values)
        if not 1 < len(total) <= _VALUES:
            continue
        for text, (value, count) in _count_values([values[at] for at in failed]).items():
            of = total[text][1]
            evidence = _evidence(count, of, share) - math.log(len(total))
            if count > 1 and evidence > _EVIDENCE:
                found.append(
                    (evidence, {"name": name, "value": value, "failed": count, "total": of})
                )
    found.sort(key=lambda each: -each[0])
    # A pair of values that explains the failures better than each of them is the first suspect. Its
    # key ``with`` has the second parameter and its value.
    if (pair := _pair(parameters, failed, found, share)) is not None:
        found.insert(0, pair)
    return [one for _, one in found[:_NAMED]]


def _pair(
    parameters: Mapping[str, Sequence[Any]],
    failed: Sequence[int],
    found: Sequence[tuple[float, dict[str, Any]]],
    share: float,
) -> tuple[float, dict[str, Any]] | None:
    """Return the strongest suspect together with the strongest suspect of another parameter.

    Return ``None`` if the pair is not stronger evidence than each of the two alone.
    """
    first = found[0][1] if found else {}
    other = next((one for _, one in found if one["name"] != first["name"]), None)
    if other is None:
        return None
    columns = [parameters[one["name"]] for one in (first, other)]
    wanted = (first["value"], other["value"])
    total = sum(both == wanted for both in zip(*columns, strict=True))
    count = sum((columns[0][at], columns[1][at]) == wanted for at in failed)
    if not count:
        return None
    pairs = math.prod(len(_count_values(column)) for column in columns)
    evidence = _evidence(count, total, share) - math.log(pairs)
    if evidence <= found[0][0]:
        return None
    more = {other["name"]: other["value"]}
    return evidence, {**first, "with": more, "failed": count, "total": total}


def _evidence(failed: int, total: int, share: float) -> float:
    """Return the negative logarithm of a bound on a probability (the Chernoff bound).

    The probability is that of ``failed`` failures among ``total`` jobs, if each job fails with the
    probability ``share``.
    """
    part = failed / total
    if part <= share:
        return 0.0
    rest = (1 - part) * math.log((1 - part) / (1 - share)) if part < 1 else 0.0
    return total * (part * math.log(part / share) + rest)


def _count_values(values: Sequence[Any]) -> dict[str, tuple[Any, int]]:
    """Map each value's text to the value and its count. ``None`` is left out."""
    try:
        counts = Counter(values)
    except TypeError:  # lists and mappings
        counts = Counter(json.dumps(value) for value in values if value is not None)
        return {text: (json.loads(text), count) for text, count in counts.items()}
    return {str(v): (v, count) for v, count in counts.items() if v is not None}
