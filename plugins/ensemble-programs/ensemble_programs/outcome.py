"""Determines how a job of a program ended, from its log and its wait status.

Rules act on the outcome, so it is ``unknown`` in case of doubt, and has the line that proves it.
"""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, BinaryIO

from ensemble_core import UNREADABLE, Job

if TYPE_CHECKING:
    from ensemble_programs.program import Program

#: Number of bytes to read at the start of the last attempt, and at the end, of a longer log.
_HEAD, _END = 1 << 19, 1 << 22
#: Number of bytes to read at the end of other files.
TAIL = 1 << 19
#: Size in bytes of the pieces in which a long log is searched for the start of its last attempt.
_PIECE, _OVERLAP = 1 << 24, 1 << 10
#: Maximum length of a message.
_LONGEST = 300

#: Signals of crashes and kills: from users, queues and the kernel.
_CRASHES = frozenset({
    signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV,
})  # fmt: skip
_ENDS = _CRASHES | {signal.SIGKILL, signal.SIGTERM}
_DEADLY = _ENDS | {
    signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. Unknown numbers are ``None``."""

    #: ``complete``, ``unfinished``, ``diverged`` or ``failed`` (or one of the program's own kinds);
    #: ``running`` or ``unknown``
    kind: str
    message: str = ""  #: the line that proves it, or why it is not known
    step: float | None = None  #: how far it got
    goal: float | None = None  #: how far it should go


def read(
    program: Program,
    path: str,
    status: int | None = None,
    *,
    over: bool = True,
    accounts: Iterable[str] = (),
) -> Outcome:
    """Return how the job with this log ended.

    The job's wait status is ``status``, if known. Set ``over`` to false if the job may still be
    running. ``accounts`` are further files in which errors may be, such as standard error. An
    unreadable file raises no error.
    """
    where = f"no log {path}"
    text = b""
    for found in _parts(path)[-1:]:
        try:
            with open_regular(found) as file:
                text, where = read_ends(file, program.began.encode()), f"{found} is empty"
        except OSError as error:
            where = f"cannot read {found}: {error.strerror or error}"
    extra = b"".join(map(tail, accounts))
    starts = [m.start() for m in _finditer(program.began, text)] if program.began else [0]
    attempt = text[starts[-1] :] if starts else b""
    step, goal = _number(program.step, attempt), _number(program.goal, attempt)
    if goal is None:  # an attempt that appends to the log may not repeat it
        goal = _number(program.goal, text)
    if goal is not None and goal < 0:  # without a goal
        goal = None

    def ended(kind: str, message: str) -> Outcome:
        return Outcome(kind, message, step, goal)

    # The log takes precedence over the exit status: many programs exit with 0 after errors.
    for kind, patterns in (("diverged", program.diverged), ("failed", program.failed)):
        if line := _first(patterns, attempt or text) or _first(patterns, extra):
            return ended(kind, line)
    if text and not starts:
        return Outcome("unknown", f"{found} is not a log of {program.title}")
    if line := _not_finite(program, attempt):
        return ended("diverged", line + ("" if step is None else f" at {step:.15g}"))
    if line := _first(program.complete, attempt):
        return ended("complete", line)
    if line := _first(program.unfinished, attempt):
        return ended("unfinished", line)
    others = [m.start() for m in _finditer(program.other, attempt)] if program.other else []
    own = attempt[: next((start for start in others if start), None)]
    if program.ended and (line := _first([program.ended], own)):
        if goal is None or step is None or step >= goal:
            return ended("complete", line)
        return ended("unfinished", f"{line}, but it stopped at {step:.15g} of {goal:.15g}")
    return ended(*without_end(where if not text else "the log has no end", status, over))


def no_progress(program: Program, path: str, earlier: str, now: float | None) -> str | None:
    """Return how a job that ended at the step ``now`` got no further than the attempt before.

    Return ``None`` if it did. ``earlier`` is an older log than those of ``path``.
    """
    step = _step_before(program, path, earlier)
    if step is None or (now is not None and now > step):
        return None
    where = "printed no step" if now is None else f"ended at step {now:.15g}"
    return (
        f"made no progress: it {where}, and the attempt before at step {step:.15g}. Is its time "
        "limit shorter than the time between two checkpoints?"
    )


def _step_before(program: Program, path: str, earlier: str) -> float | None:
    """Return how far the attempt before the last one got: the one before in the newest of these
    logs, or the last one in the log before it. ``earlier`` is an older log than those of ``path``.
    """
    logs = [each for each in (earlier, *_parts(path)) if each][-2:]
    steps: list[float | None] = []
    for log in logs:
        with suppress(OSError), open_regular(log) as file:
            text = read_ends(file, program.began.encode())
            starts = [m.start() for m in _finditer(program.began, text)] if program.began else [0]
            steps += [_number(program.step, text[a:b])
                      for a, b in pairwise([*starts, len(text)])]  # fmt: skip
    return steps[-2] if len(steps) > 1 else None


def without_end(
    what: str,
    status: int | None,
    over: bool,
    *,
    sure: bool = True,
    source: str = "its standard error",
) -> tuple[str, str]:
    """Return the kind and message for a log that does not say how the job ended.

    ``sure`` means that the program would have written its end to this log; ``source`` is where
    the reason of a failure may be.
    """
    if status is None:
        return ("unfinished", what) if over else ("running", what)
    if not status:
        hint = "; was the disk full?" if sure else ""
        return "unfinished", f"the job exited with 0, but {what}{hint}"
    killer, how = describe_status(status)
    if killer is not None:
        return "failed" if killer in _CRASHES else "unfinished", f"the job {how}, and {what}"
    return "failed", f"the job {how}, and {what}; {source} may say why"


def describe_status(status: int) -> tuple[int | None, str]:
    """Return the signal, if any, that ended a job with this wait status, and how the job ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return number, f"was killed by {_signal_name(number)}"
    code = os.WEXITSTATUS(status)
    # Exit code for signal n: 128 + n from a shell, 256 - n from scripts in Python, and n from
    # MPICH's mpiexec.
    for number, known in ((code - 128, _DEADLY), (256 - code, _DEADLY), (code, _ENDS)):
        if number in known:
            return number, f"exited with {code}, as after {_signal_name(number)}"
    return None, f"exited with {code}"


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


# Searching


def _finditer(pattern: str, text: bytes) -> Iterable[re.Match[bytes]]:
    return re.finditer(pattern.encode(), text, re.MULTILINE)


def _first(patterns: Sequence[str], text: bytes) -> str:
    """Return what the first match in the text says, on one line, or an empty text."""
    found = [m for each in patterns if (m := re.search(each.encode(), text, re.MULTILINE))]
    if not found:
        return ""
    first = min(found, key=lambda match: match.start())
    return " ".join(first[0].decode("utf-8", "replace").split())[:_LONGEST]


def _number(pattern: str, text: bytes) -> float | None:
    """Return the number in the last match of the pattern: the sum of its groups that matched."""
    last = None
    text = text[: text.rfind(b"\n") + 1]  # a part of a line may end with a part of a number
    for match in _finditer(pattern, text) if pattern else ():
        last = match
    groups = [] if last is None else [group for group in last.groups() if group is not None]
    with suppress(ValueError):
        return sum(map(float, groups)) if groups else None
    return None


def _not_finite(program: Program, text: bytes) -> str:
    """Return which of the last values of the program's columns are not finite."""
    if not text or not program.columns:
        return ""
    (record,) = program.observers()
    job = Job(id="log.0", group="log", index=0, command=("true",))
    observer = record.build(job, {})
    last: dict[str, float] = {}
    rows = [*observer.feed(text)]
    observer.interrupted()
    for row in (*rows, *observer.finish()):
        last.update(row.values)
    bad = [name for name, v in last.items() if not isfinite(v) and v is not UNREADABLE]
    return not_finite(bad) if bad else ""


def not_finite(names: Sequence[str]) -> str:
    """Return that the values of these names are nan or infinite."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not finite"


# Reading


def _parts(path: str) -> list[str]:
    """Return the files that match a path, the newest one last."""
    import glob

    if os.path.exists(path):
        return [path]

    def rank(each: str) -> tuple[int, list[tuple[int, str]]]:
        numbers = [(int(part), "") if part.isdigit() else (-1, part) for part in
                   re.split(r"(\d+)", each)]  # fmt: skip
        return os.stat(each).st_mtime_ns, numbers

    return sorted(filter(os.path.isfile, glob.iglob(path)), key=rank)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open the regular file at this path. Raise :class:`OSError` for a pipe, which would block."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError("it is not a regular file")
    return os.fdopen(number, "rb")


def tail(path: str) -> bytes:
    """Return up to :data:`TAIL` bytes at the end of a file; nothing if it cannot be read."""
    try:
        with open_regular(path) as file:
            return _part(file, file.seek(0, os.SEEK_END) - TAIL, TAIL)
    except OSError:
        return b""


def _part(file: BinaryIO, start: int, size: int) -> bytes:
    file.seek(max(0, start))
    return file.read(size + min(0, start))


def read_ends(file: BinaryIO, began: bytes, seam: bytes = b"", before: int = 0) -> bytes:
    """Return the log; of a long one, the start of its last attempt and its end.

    An attempt starts at the last line with ``began``. Before the end of the log, ``seam`` is
    searched for instead. ``before`` is the number of bytes before the start that are needed.
    """
    size = file.seek(0, os.SEEK_END)
    if size <= _HEAD + _END:
        return _part(file, 0, size)
    more = _part(file, size - _END - before, _END + before)
    more, end = (each[each.find(b"\n") + 1 :] for each in (more, more[-_END:]))
    if began and re.search(began, end, re.MULTILINE):
        return more
    place = size - _END if began else 0
    while place > 0:
        start = max(0, place - _PIECE)
        text = _part(file, start, min(place + _OVERLAP, size - _END) - start)
        starts = [m.start() for m in re.finditer(seam or began, text, re.MULTILINE)]
        if starts:
            start = max(0, start + starts[-1] - before)
            head = _part(file, start, min(_HEAD + before, size - _END - start))
            return head[: head.rfind(b"\n") + 1] + end
        place = start
    return end
