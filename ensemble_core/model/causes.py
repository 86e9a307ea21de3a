"""Causes: why a job ended, as one word that is the same for every queue.

An executor that knows the cause sets the field ``cause`` in the context of the event ``exception``
or ``finish``. Otherwise, :func:`cause_of` derives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Cause = Literal[
    "exit",  # the program exited, with any code
    "signal",  # killed by a signal, or exited with a code by which shells report a signal
    "timeout",  # reached its time limit
    "memory",  # ran out of memory
    "node-failure",
    "preempted",  # the queue gave its resources to another job
    "cancelled",
    "submit",  # could not be started: rejected, no program, no folder
    "environment",  # an entry of its group's ``within`` could not be set up
    "lost",  # the queue no longer knows how or whether the job ended
    "output",  # its files exceeded ``limits.output``, or one of its ``outputs`` is missing or empty
    "result",  # exited with code 0, but its group's ``fail_if`` is true
    "unknown",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

#: Exit code of the command of an environment (``within``) that could not be set up.
ENVIRONMENT_FAILED = 122
#: The type of the exception of a job whose files exceeded ``limits.output``.
OUTPUT_LIMIT = "output-limit"
#: The type of the exception of a job that has not left all files of its group's ``outputs``.
OUTPUT_MISSING = "output-missing"

#: The cause for each type of the first fatal exception.
_OF_EXCEPTION: Mapping[str, Cause] = {
    "timeout": "timeout",
    "out-of-memory": "memory",
    "node-failure": "node-failure",
    "preempted": "preempted",
    "interrupted": "preempted",
    "preempt": "preempted",
    "cancel": "cancelled",
    "lost": "lost",
    "alloc": "submit",
    "dependency": "submit",
    "exec": "submit",
    "jobspec": "submit",
    "launch": "submit",
    "output": "submit",
    OUTPUT_LIMIT: "output",
    OUTPUT_MISSING: "output",
    "prolog": "submit",
    "result": "result",
    "submit": "submit",
    "validate": "submit",
    "workdir": "submit",
}
#: Exit codes by which shells, Flux and Slurm report the signals 1 to 31.
_BY_SIGNAL = range(129, 160)


def reported_cause(context: Mapping[str, object]) -> Cause | None:
    """Return the field ``cause`` of an event's context, or ``None`` if it is not a valid cause."""
    said = context.get("cause")
    return said if said in CAUSES else None


def cause_of(exception: str | None, status: int | None) -> Cause:
    """Return why a job ended, from the type of its first fatal exception and from its wait status.

    Either argument is ``None`` if the queue did not report it.

    >>> cause_of("timeout", 15), cause_of(None, 3 << 8), cause_of(None, 9), cause_of(None, 137 << 8)
    ('timeout', 'exit', 'signal', 'signal')
    """
    if exception is not None:
        return _OF_EXCEPTION.get(exception, "unknown")
    if status is None:
        return "unknown"
    return "signal" if status & 0x7F or (status >> 8) & 0xFF in _BY_SIGNAL else "exit"
