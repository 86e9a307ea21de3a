"""Delays and timeouts of a queue's executor, in seconds."""

from __future__ import annotations

#: Time in which jobs gather before a batch is submitted.
GATHER = 0.02
#: Interval between reads of wrappers' files: while reports arrive; otherwise; and if wrappers also
#: report over the network.
READ, READ_LATER, READ_RARELY = 0.1, 0.3, 1.0
#: Delays until the next query. ``SOON``: after a cancel, or if one reply omits a job.
#: ``SOON_AGAIN``: if two replies omit it, if it is being cancelled, or if a batch may be missing.
#: ``AWAY``: if the queue is unreachable.
SOON, SOON_AGAIN, AWAY = 0.3, 2.0, 10.0
#: Delays until a full queue is retried, a missing batch is resubmitted, and an ineffective cancel
#: is repeated.
FULL, SETTLE, HEEDS = 15.0, 10.0, 20.0
#: Number of consecutive replies that must omit a job until it is in doubt, and the seconds that
#: these replies take, including the queue's response times.
MISSES, RESERVE = 3, 3.0
#: Time after which a job is reported that waits because of a limit, while no job of the run runs.
LIMITED = 300.0
#: Minimum time for an accepted job to appear in replies, however frequent the queries are.
SHOWN = 3.0
#: Time for submissions to finish when the run closes, and for a queue to answer queries about an
#: earlier controller's jobs.
LEAVE, PATIENCE = 10.0, 120.0


def query_interval(period: float) -> float:
    """Return the interval between queries, for the ``period`` in which an end must be noticed.

    The interval is 3 s shorter than the period, because an end is confirmed by two more queries,
    which take 3 s. For a period of 3 to 6 s it is 3 s, and for a shorter period the period itself.

    >>> query_interval(15.0), query_interval(60.0), query_interval(5.0), query_interval(1.0)
    (12.0, 57.0, 3.0, 1.0)
    """
    return max(period - RESERVE, min(period, RESERVE))


def confirmation_delay(misses: int) -> float:
    """Return the minimum delay from the ``misses``-th reply without a job to the next that counts.

    A reply before that shows nothing new if the queue lags behind or answers from a cache.
    """
    return SOON if misses < 2 else SOON_AGAIN


def appearance_delay(period: float) -> float:
    """Return the time within which an accepted job must appear in the queue's replies.

    >>> appearance_delay(15.0), appearance_delay(1.0)
    (5.0, 3.0)
    """
    return min(5.0, max(SHOWN, period / 2))
