"""Wrapper reports: the line that a job's wrapper sends, parsed.

A report counts if it has the run's token. Which job, which submission and which life of a requeued
job it speaks of stands in it; ``job_state`` decides what that changes. Pure; used by the listener
and the spool.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import Literal

from ensemble_batch import status_of

__all__ = ["LONGEST", "Report", "read_report"]

#: The longest line that is read, in bytes.
LONGEST = 4096

_WORD = "ensemble1"
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\.\d+(-\d+)?")
_ID = re.compile(r"\d+(_\d+)?")


@dataclass(frozen=True, slots=True)
class Report:
    """The report of one life of one job.

    ``start``: the command runs. ``end``: it has ended with ``status`` (a wait status); ``why`` is
    ``timeout`` where the wrapper ended it, ``stopped`` where Slurm told it to end, else empty.
    ``fail``: it could not be started; ``why`` is what was wrong, ``note`` says it in words.
    ``seconds`` is how long the command ran, ``at`` the node's own time (seconds since the epoch).
    """

    job: str
    queue_id: str
    life: int
    kind: Literal["start", "end", "fail"]
    at: float
    status: int = 0
    why: str = ""
    note: str = ""
    seconds: float = 0.0
    host: str = ""


def read_report(line: bytes, token: str) -> Report | None:
    """The report that a line is; ``None`` for anything else, above all without the token."""
    if len(line) > LONGEST:
        return None
    words = line.decode("utf-8", "replace").strip().split(" ")
    if len(words) < 8 or words[0] != _WORD:
        return None
    if not hmac.compare_digest(words[1].encode(), token.encode()):
        return None
    job, queue_id, life, kind, *rest = words[2:]
    if not _JOB.fullmatch(job) or not _ID.fullmatch(queue_id) or not life.isdigit():
        return None
    try:
        if kind == "start":
            return Report(job, queue_id, int(life), "start", float(rest[0]), host=rest[1])
        if kind == "fail":
            return Report(
                job, queue_id, int(life), "fail", float(rest[1]),
                why=rest[0], note=" ".join(rest[3:]), host=rest[2],
            )  # fmt: skip
        if kind == "end":
            began, ended = float(rest[2]), float(rest[3])
            return Report(
                job, queue_id, int(life), "end", ended,
                status=status_of(int(rest[0])), why="" if rest[1] == "-" else rest[1],
                seconds=max(0.0, ended - began), host=rest[4],
            )  # fmt: skip
    except (ValueError, IndexError):
        return None
    return None
