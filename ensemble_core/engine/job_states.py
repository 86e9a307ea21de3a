"""States of attempts and indices, and the effect of each event (RFC 21).

``ATTEMPT`` and ``INDEX`` are the state machines; a property test compares the engine with them, and
docs/job-states.md is generated from them. ``TRANSITIONS`` has the effect of single events, for the
job table, foreign jobs and the index of rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from ensemble_core.model.jobs import RFC21_EVENTS, JobState

__all__ = [
    "ATTEMPT",
    "INDEX",
    "OUTCOME_OCCASIONS",
    "TRANSITIONS",
    "Outcome",
    "States",
    "Transition",
    "events_of",
    "exit_code",
    "transition_of",
]

#: ``{state: {cause: next states}}``. Nothing else changes a state.
States: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]

#: An attempt: one job in the queue. ``submit`` is a decision. ``start``, ``finish`` and ``clean``
#: are events of the queue. ``requeue``: a resume submits the attempt again, because a stop
#: cancelled it or its queue vanished.
ATTEMPT: States = {
    "new": {"submit": ("held", "paced", "queued")},
    "held": {"there is room": ("paced", "queued"), "cancel or end": ("gone",)},
    "paced": {"its turn": ("queued",), "cancel or end": ("gone",)},
    "queued": {
        "start": ("running",),
        "finish": ("ended",),
        "clean": ("gone",),
        "requeue": ("held",),
    },
    "running": {"finish": ("ended",), "clean": ("gone",), "requeue": ("held",)},
    "ended": {"clean": ("gone",)},
    "gone": {},
}

#: An index: a job with all its attempts. "called": functions about its attempts are running;
#: "waiting": its next attempt is to come.
INDEX: States = {
    "open": {"attempt over": ("called", "waiting", "open", "done", "lost")},
    "called": {"last answer": ("waiting", "open", "done", "lost"), "end": ("lost",)},
    "waiting": {"wait over": ("open", "lost"), "cancel or end": ("lost",)},
    "done": {},
    "lost": {},
}

Outcome = Literal["success", "failed", "cancelled"]

#: A job's state after each event (RFC 21).
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

#: Events that a job has at most once; duplicates are ignored.
_ONCE = ("submit", "validate", "depend", "alloc", "start", "finish", "free", "clean")


def exit_code(status: int) -> int:
    """Return the exit code as a shell reports it: 128 + signal after a signal.

    >>> exit_code(256), exit_code(9)
    (1, 137)
    """
    signal = status & 0x7F
    return 128 + signal if signal else (status >> 8) & 0xFF


#: States that are trigger events themselves. DEPEND and PRIORITY have events of those names
#: instead.
_STATE_OCCASION = {
    JobState.SCHED: "job-sched",
    JobState.RUN: "job-run",
    JobState.CLEANUP: "job-cleanup",
    JobState.INACTIVE: "job-inactive",
}


class Transition(NamedTuple):
    """The effect of an event on a job.

    ``once`` is the event's bit in a set, if a job has the event at most once. ``changes``: the
    event changes more of the record than its state. ``state`` is the new state (0: unchanged).
    Rules on the occasions ``moving`` are considered if the state changes, otherwise rules on
    ``occasions``.
    """

    once: int
    changes: bool
    state: int
    occasions: tuple[str, ...]
    moving: tuple[str, ...]


def transition_of(name: str) -> Transition:
    """Return the transition of an event, which RFC 21 need not define."""
    state = _STATE_AFTER.get(name, JobState.NEW)
    changes = name in ("submit", "start", "exception", "finish", "clean")
    own = (f"job-{name}",)
    moving = (*own, _STATE_OCCASION[state]) if state in _STATE_OCCASION else own
    once = 1 << _ONCE.index(name) if name in _ONCE else 0
    return Transition(once, changes, state.value, own, moving)


TRANSITIONS = {name: transition_of(name) for name in RFC21_EVENTS}

#: The occasion of each outcome, which is known at the job's ``finish`` or ``clean``.
OUTCOME_OCCASIONS: dict[Outcome, str] = {
    "success": "job-success",
    "failed": "job-fail",
    "cancelled": "job-cancel",
}


def events_of(occasion: str) -> Iterator[str]:
    """Yield the names of the job events that may cause this occasion.

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
