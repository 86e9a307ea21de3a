"""Reports about the start and end of jobs, which their wrapper scripts write or send."""

from __future__ import annotations

import hmac
import math
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

#: Longest line that is read, in bytes.
LONGEST = 4096

_WORD = "ensemble1"
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\.\d+(-\d+)?(~\d+)?", re.ASCII)
_LIFE = re.compile(r"[0-9]{1,9}")
_ID = re.compile(r"[A-Za-z0-9_.\[\]-]+")


def status_of(code: int) -> int:
    """Return the wait status for a shell's exit code, where 129 to 159 means 128 plus a signal.

    >>> status_of(3), status_of(137), status_of(255)
    (768, 9, 65280)
    """
    return code - 128 if 128 < code < 160 else (code & 0xFF) << 8


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a wrapper script on one execution of a job; a restart is another execution."""

    kind: Literal["start", "end", "fail"]  # fail: the command could not be started
    at: float  # seconds since the epoch, by the node's clock
    status: int = 0  # after ``end``: the wait status of the command
    #: After ``end``: ``timeout`` if the wrapper ended the command, ``stopped`` if the queue told
    #: the wrapper to end, ``deleted`` if it said that the job was deleted, ``memory`` if the kernel
    #: killed a process of it for lack of memory, ``requeue`` if the queue may start it again after
    #: this exit code, otherwise empty. After ``fail``: a code.
    why: str = ""
    note: str = ""  # after ``fail``: the reason in words
    seconds: float = 0.0  # how long the command ran
    host: str = ""
    job: str = ""
    queue_id: str = "-"
    life: int = 0  # number of restarts by the queue

    @property
    def doubtful(self) -> bool:
        """Return whether the queue may have ended the job, so that only the queue knows why."""
        killed = self.status & 0x7F in (signal.SIGKILL, signal.SIGTERM)
        told = self.why in ("stopped", "deleted", "memory", "requeue")
        return self.kind == "end" and self.why != "timeout" and (told or killed)


def read_report(line: bytes, token: str) -> Report | None:
    """Parse a line as a report; return ``None`` if it is invalid or lacks the token."""
    if len(line) > LONGEST:
        return None
    words = line.decode("utf-8", "replace").strip().split(" ")
    if len(words) < 8 or words[0] != _WORD:
        return None
    if not hmac.compare_digest(words[1].encode(), token.encode()):
        return None
    job, queue_id, life, kind, *rest = words[2:]
    if not _JOB.fullmatch(job) or not _ID.fullmatch(queue_id) or not _LIFE.fullmatch(life):
        return None
    try:
        made = _report(kind, rest)
    except (ValueError, IndexError):
        return None
    return made and replace(made, job=job, queue_id=queue_id, life=int(life))


def _report(kind: str, words: Sequence[str]) -> Report | None:
    if kind == "start":
        return Report("start", _time(words[0]), host=words[1])
    if kind == "fail":
        note = " ".join(words[3:])
        return Report("fail", _time(words[1]), why=words[0], note=note, host=words[2])
    return end_report(*words[:5]) if kind == "end" and len(words) > 4 else None


def _time(text: str) -> float:
    """Parse a time. Raise :class:`ValueError` if it is not a finite number."""
    time = float(text)
    if not math.isfinite(time):
        raise ValueError(f"{text!r} is no time")
    return time


def end_report(code: str, why: str, began: str, ended: str, host: str) -> Report:
    """Parse the words of an end report. Raise :class:`ValueError` if they are invalid."""
    seconds = max(0.0, _time(ended) - _time(began))
    why = "" if why == "-" else why
    if not 0 <= int(code) < 256:
        raise ValueError(f"{code} is no exit code")
    return Report("end", _time(ended), status_of(int(code)), why, seconds=seconds, host=host)
