"""Pace of a polled queue: how long its executor waits for what, in seconds."""

from __future__ import annotations

#: In which jobs gather before the first of them is handed in.
GATHER = 0.02
#: Between looks at what wrappers wrote: while there is news, and when there is none.
READ, READ_LATER = 0.1, 1.0
#: Until the queue is asked again: of a job in doubt, first and later; one that is away.
SOON, SOON_AGAIN, AWAY = 0.3, 2.0, 10.0
#: Until a full queue is tried again; until a batch that nobody has seen is handed in again; until a
#: cancel is repeated that the queue does not follow.
FULL, SETTLE, HEEDS = 15.0, 10.0, 20.0
#: Answers in a row that lack a job until it is given up (a number).
MISSES = 3
#: That jobs have to come to the queue when the run lets go, and a queue to be asked for jobs of an
#: earlier controller.
LEAVE, PATIENCE = 10.0, 120.0
