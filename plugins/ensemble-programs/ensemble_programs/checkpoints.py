"""Finds the newest usable checkpoint of a job."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ensemble_core import EnsembleError

#: Seconds by which the file system's clock may lag behind the queue's.
_CLOCKS = 10.0
#: Maximum number of rejected checkpoints to list for the user.
_MOST_PASSED = 5


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a search: the newest checkpoint, and rejected ones with the reasons."""

    newest: str | None
    passed: tuple[tuple[str, str], ...] = ()


def find(
    folder: str,
    patterns: Sequence[str],
    reject: Callable[[str], str | None],
    *,
    begun: float | None = None,
    kept: Collection[str] = (),
) -> Search:
    """Return the newest checkpoint of a job in its folder: a file, or a folder.

    The patterns are in order of preference. A checkpoint that matches several of them has the rank
    of the last one: programs write the older of two checkpoints later, when they rename it.
    ``begun`` is the start of the job, in seconds since the epoch. Checkpoints more than 10 s older
    are those of another run, and rejected, unless the job itself continued from one of the
    ``kept``.
    """
    ranks: dict[str, int] = {}
    for rank, pattern in enumerate(patterns):
        for path in glob.iglob(os.path.join(glob.escape(folder), pattern), recursive=True):
            ranks[path] = rank
    found = [(ranks[path], -_time(path), path) for path in ranks]
    times = {path: -time for _, time, path in sorted(found)}
    oldest = None if begun is None else begun - _CLOCKS
    return choose(times, lambda path: _unreadable(path) or reject(path), oldest, kept)


def choose(
    times: Mapping[str, float],
    reject: Callable[[str], str | None],
    oldest: float | None,
    kept: Collection[str],
) -> Search:
    """Return the first of these checkpoints that is usable.

    Each has the time when it was written. Those from before ``oldest`` are rejected, except the
    ``kept``.
    """
    passed: list[tuple[str, str]] = []
    for path, time in times.items():
        if oldest is not None and time < oldest and path not in kept:
            reason: str | None = "it is older than the job"
        else:
            reason = reject(path)
        if reason is None:
            return Search(path, tuple(passed))
        if len(passed) < _MOST_PASSED:
            passed.append((path, reason))
    return Search(None, tuple(passed))


def _unreadable(path: str) -> str | None:
    if not os.access(path, os.R_OK):
        return "it cannot be read"
    return "it is empty" if os.path.isfile(path) and not os.path.getsize(path) else None


def _time(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def newest_checkpoint(
    job: Mapping[str, Any], find: Callable[[str], Search], what: str
) -> tuple[Search, str]:
    """Return what ``find`` finds in the job's folder, and the newest checkpoint.

    Raises :class:`EnsembleError` if there is none. ``what`` is the word for a checkpoint in its
    message.
    """
    workdir = job.get("workdir")
    if not workdir:
        raise no_checkpoint("it never ran, or its folder is unknown")
    if not os.path.isdir(workdir):
        raise no_checkpoint(f"its folder {workdir} does not exist on this machine")
    found = find(workdir)
    if found.newest is None:
        said = "".join(f"; {os.path.basename(path)}: {reason}" for path, reason in found.passed)
        raise no_checkpoint(f"no {what} in {workdir}{said}")
    return found, found.newest


def no_checkpoint(what: str) -> EnsembleError:
    """Return the error of a job without a checkpoint to continue from."""
    return EnsembleError(what, code="no-checkpoint")
