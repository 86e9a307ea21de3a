"""Kinds of failures: failed jobs with the same job group, cause, exit code and canceller, with
examples and suspects.

Suspects are parameter values whose jobs failed more often than chance explains.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from ensemble_core.session.jobs_in_memory import JobColumns


#: Limits for each kind: the number of examples, the number of examples whose output and node are
#: read, and the number of different lines and nodes that are listed.
_EXAMPLES, LOOKED, _COUNTED = 50, 20, 5
_FAILED = ("failed", "cancelled")
_NUMBER = re.compile(r"\d+")


def failure_kinds(
    jobs: JobColumns, parameters_of: Callable[[str], Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the kinds of failures, the most frequent first.

    ``parameters_of`` returns the names of a group's parameters.
    """
    found: list[dict[str, Any]] = []
    for group, own in jobs.ranges.items():
        named = ["outcome", "cause", "exit_code"]
        named += ["cancelled_by"] * ("cancelled_by" in jobs.names)
        columns = [list(jobs.column(n, group)) for n in named]
        kinds: dict[tuple[Any, ...], list[int]] = {}
        for at, outcome in enumerate(columns[0]):
            if outcome in _FAILED:
                kinds.setdefault(tuple(column[at] for column in columns), []).append(at)
        if not kinds:
            continue
        parameters = {name: list(jobs.column(name, group)) for name in parameters_of(group)}
        for (outcome, cause, code, *by), places in kinds.items():
            examples = [_example(jobs, own.start + at) for at in _sample(places)]
            found.append(
                {
                    "group": group,
                    "outcome": outcome,
                    "cause": cause,
                    "exit_code": code,
                    "cancelled_by": by[0] if by else None,
                    "count": len(places),
                    "of": len(own),
                    "parameters": suspects(parameters, places),
                    "examples": examples,
                    "looked": len(examples[:LOOKED]),
                }
            )
    return sorted(found, key=lambda each: -each["count"])


def count_ends(kind: dict[str, Any]) -> None:
    """Count the last lines of output, and the nodes, of the first examples of a kind.

    The counts are added to ``kind`` as ``lines`` and ``nodes``. Each example must have ``line`` and
    ``node``. Examples with the most frequent last line are moved to the front.
    """
    looked = kind["examples"][:LOOKED]
    often = Counter(_NUMBER.sub("0", each["line"]) for each in looked)
    looked.sort(key=lambda each: -often[_NUMBER.sub("0", each["line"])])
    kind["examples"][:LOOKED] = looked
    kind["lines"] = _count_texts("line", (each["line"] for each in looked))
    kind["nodes"] = _count_texts("node", (each["node"] for each in looked if each["node"]))


def _example(jobs: JobColumns, at: int) -> dict[str, Any]:
    """Return the name of the job at this position, and the name of its newest attempt."""
    row = dict(zip(jobs.names, jobs.row(at), strict=True))
    name = f"{row['group']}.{row['index']}"
    attempts = row["attempts"]
    return {"id": name, "attempt": name if attempts == 1 else f"{name}-{attempts - 1}"}


def _sample(places: Sequence[int]) -> list[int]:
    """Return a sample of at most ``_EXAMPLES`` of these positions.

    Its first ``LOOKED`` are a sample too.

    Positions are chosen by their checksums. New positions thus hardly change the sample, and
    periodic parameters or nodes do not bias it.
    """
    chosen = nsmallest(_EXAMPLES, places, key=lambda at: crc32(b"%d" % at))
    return [*sorted(chosen[:LOOKED]), *sorted(chosen[LOOKED:])]


def _count_texts(name: str, texts: Iterable[str]) -> list[dict[str, Any]]:
    """Count equal texts, the most frequent first.

    Texts that differ only in numbers count as equal.
    """
    kinds: dict[str, list[str]] = {}
    for text in texts:
        kinds.setdefault(text if name == "node" else _NUMBER.sub("0", text), []).append(text)
    often = sorted(kinds.values(), key=len, reverse=True)[:_COUNTED]
    return [{name: same[0], "count": len(same)} for same in often]


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
