"""States of a job: what an event of each name (RFC 21) changes, and the occasions that it makes.

Used by the job table, for foreign jobs, and by the index of rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from ensemble_core.model.jobs import RFC21_EVENTS, JobState

__all__ = [
    "OUTCOME_OCCASIONS",
    "TRANSITIONS",
    "Outcome",
    "Transition",
    "events_of",
    "exit_code",
    "transition_of",
]

Outcome = Literal["success", "failed", "cancelled"]

#: The state that an event brings a job to (RFC 21).
_STATE_AFTER: dict[str, JobState] = {
    "submit": JobState.NEW,
    "validate": JobState.DEPEND,
    "depend": JobState.PRIORITY,
    "priority": JobState.SCHED,
    "alloc": JobState.RUN,
    "start": JobState.RUN,
    "finish": JobState.CLEANUP,
    "clean": JobState.INACTIVE,
}

#: Events that a job has at most once: a second one is an echo and changes nothing.
_ONCE = ("submit", "validate", "depend", "alloc", "start", "finish", "free", "clean")


def exit_code(status: int) -> int:
    """The exit code as a shell reports it: 128 + signal for a job that a signal ended.

    >>> exit_code(256), exit_code(9)
    (1, 137)
    """
    signal = status & 0x7F
    return 128 + signal if signal else (status >> 8) & 0xFF


#: States that are an occasion of their own; of DEPEND and PRIORITY the events of that name speak.
_STATE_OCCASION = {
    JobState.SCHED: "job-sched",
    JobState.RUN: "job-run",
    JobState.CLEANUP: "job-cleanup",
    JobState.INACTIVE: "job-inactive",
}


class Transition(NamedTuple):
    """The change that an event of one name makes to a job.

    ``once`` is its bit, if a job has it only once; ``changes`` says that the record changes beside
    its state; ``state`` is the one that it leads to (0: none). It makes the occasions ``moving``
    if the job's state changes by it, ``occasions`` otherwise.
    """

    once: int
    changes: bool
    state: int
    occasions: tuple[str, ...]
    moving: tuple[str, ...]


def transition_of(name: str) -> Transition:
    """The transition of an event, whether or not RFC 21 names it."""
    state = _STATE_AFTER.get(name, JobState.NEW)
    changes = name in ("submit", "start", "exception", "finish", "clean")
    own = (f"job-{name}",)
    moving = (*own, _STATE_OCCASION[state]) if state in _STATE_OCCASION else own
    once = 1 << _ONCE.index(name) if name in _ONCE else 0
    return Transition(once, changes, state.value, own, moving)


TRANSITIONS = {name: transition_of(name) for name in RFC21_EVENTS}

#: The occasions of how a job ended, which is known by its ``finish`` or else its ``clean``.
OUTCOME_OCCASIONS: dict[Outcome, str] = {
    "success": "job-success",
    "failed": "job-fail",
    "cancelled": "job-cancel",
}


def events_of(occasion: str) -> Iterator[str]:
    """The names of the jobs' events that may make this occasion.

    >>> sorted(events_of("job-run")), sorted(events_of("job-fail"))
    (['alloc', 'run', 'start'], ['clean', 'fail', 'finish'])
    """
    if occasion.startswith("job-"):
        yield occasion.removeprefix("job-")
    if occasion in OUTCOME_OCCASIONS.values():
        yield from ("finish", "clean")
    for name, transition in TRANSITIONS.items():
        if occasion in transition.moving:
            yield name
