"""Pace of a polled queue: how long its executor waits for what, in seconds."""

from __future__ import annotations

#: In which jobs gather before the first of them is handed in.
GATHER = 0.02
#: Between looks at what wrappers wrote: while there is news, and when there is none.
READ, READ_LATER = 0.1, 1.0
#: Until the queue is asked again: after a cancel, and of a job that one answer lacks; of one that
#: two lack, or that is being cancelled, and of a batch of which nobody knows; one that is away.
SOON, SOON_AGAIN, AWAY = 0.3, 2.0, 10.0
#: Until a full queue is tried again; until a batch that nobody has seen is handed in again; until a
#: cancel is repeated that the queue does not follow.
FULL, SETTLE, HEEDS = 15.0, 10.0, 20.0
#: Answers in a row that lack a job until it is given up (a number), and what they take together,
#: with the time that the queue answers in.
MISSES, RESERVE = 3, 3.0
#: That a job has at least, once the queue has taken it, to come into the answers: also where the
#: queue is asked more often than it looks.
SHOWN = 3.0
#: That jobs have to come to the queue when the run lets go, and a queue to be asked for jobs of an
#: earlier controller.
LEAVE, PATIENCE = 10.0, 120.0


def between(period: float) -> float:
    """From one question to the next, so that the answers which settle that a job is gone fit into
    what is left of a period: of 15 s it is 12 s, of a minute 57 s. They do not where a period is
    less than twice as long as they take.

    >>> between(15.0), between(60.0), between(5.0), between(1.0)
    (12.0, 57.0, 3.0, 1.0)
    """
    return max(period - RESERVE, min(period, RESERVE))


def until_sure(misses: int) -> float:
    """From the ``misses``-th answer in a row that lacks a job to the next that counts. A queue that
    is behind, or answers from a list that it keeps for a while, is so for no less where it is asked
    often."""
    return SOON if misses < 2 else SOON_AGAIN


def until_shown(period: float) -> float:
    """That a job has, once the queue has taken it, to be in its answers.

    >>> until_shown(15.0), until_shown(1.0)
    (5.0, 3.0)
    """
    return min(5.0, max(SHOWN, period / 2))
