"""Kinds of failures: failed jobs with the same job group, cause, exit code and canceller, with
examples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ensemble_core.session.suspects import suspects

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
