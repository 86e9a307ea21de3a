"""Causes: why a job ended, in one word, whatever queue ran it.

What the queue says of an end is a fatal exception (RFC 21: ``timeout``, ``cancel``, and what else
it has), or a wait status, or neither. :func:`cause_of` makes one of :data:`CAUSES` of that. An
executor that knows more than these tell adds ``cause`` to the context of that ``exception`` or
``finish`` event; it then goes wherever events go. Used by the engine, which gives conditions the
name ``cause``, by whoever shows how jobs ended, and by executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

__all__ = ["CAUSES", "Cause", "cause_of", "said_cause"]

Cause = Literal[
    "exit",  # by itself, with any exit code
    "signal",  # by a signal, or with the exit code by which a shell reports one
    "timeout",  # at its time limit
    "memory",  # it used more memory than there was for it
    "node-failure",  # a machine that it ran on failed
    "preempted",  # the queue gave what it held to another job
    "cancelled",
    "submit",  # it could not be started: refused, no program, no folder
    "lost",  # whether and how it ended cannot be known
    "unknown",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

#: By the type of the first fatal exception.
_OF_EXCEPTION: Mapping[str, Cause] = {
    "timeout": "timeout",
    "out-of-memory": "memory",
    "node-failure": "node-failure",
    "preempted": "preempted",
    "preempt": "preempted",
    "cancel": "cancelled",
    "lost": "lost",
    "alloc": "submit",
    "dependency": "submit",
    "exec": "submit",
    "jobspec": "submit",
    "launch": "submit",
    "output": "submit",
    "prolog": "submit",
    "submit": "submit",
    "validate": "submit",
    "workdir": "submit",
}
#: Exit codes by which shells, Flux and Slurm report the signals 1 to 31.
_BY_SIGNAL = range(129, 160)


def said_cause(context: Mapping[str, object]) -> Cause | None:
    """Return the cause in an event's context, if it is a known one."""
    said = context.get("cause")
    return said if said in CAUSES else None


def cause_of(exception: str | None, status: int | None) -> Cause:
    """The cause of an end of which the executor says nothing more than the type of its first fatal
    exception, if there was one, and its wait status, if it has one.

    >>> cause_of("timeout", 15), cause_of(None, 3 << 8), cause_of(None, 9), cause_of(None, 137 << 8)
    ('timeout', 'exit', 'signal', 'signal')
    """
    if exception is not None:
        return _OF_EXCEPTION.get(exception, "unknown")
    if status is None:
        return "unknown"
    return "signal" if status & 0x7F or (status >> 8) & 0xFF in _BY_SIGNAL else "exit"
