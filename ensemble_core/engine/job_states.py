"""States of attempts and indices, and what an event of each name (RFC 21) changes.

``ATTEMPT`` and ``INDEX`` say how jobs move through the engine; a property test holds the job table
and ``job_completion`` to them, and docs/job-states.md is drawn from them. ``TRANSITIONS`` are the
same for a single event, as the job table, foreign jobs and the index of rules use them.
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

#: An attempt: a job of the queue. ``submit`` is our decision; ``requeue`` is the resume's, after a
#: stop cancelled it or its queue vanished. ``start``, ``finish`` and ``clean`` are events of the
#: queue.
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

#: An index: a job with all its attempts. It is called while functions that its attempts' events
#: asked for are under way, and waiting while its next attempt is to come.
INDEX: States = {
    "open": {"attempt over": ("called", "waiting", "open", "done", "lost")},
    "called": {"last answer": ("waiting", "open", "done", "lost"), "end": ("lost",)},
    "waiting": {"wait over": ("open", "lost"), "cancel or end": ("lost",)},
    "done": {},
    "lost": {},
}

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


#: States that are an occasion of their own. DEPEND and PRIORITY have events of those names instead.
_STATE_OCCASION = {
    JobState.SCHED: "job-sched",
    JobState.RUN: "job-run",
    JobState.CLEANUP: "job-cleanup",
    JobState.INACTIVE: "job-inactive",
}


class Transition(NamedTuple):
    """The change that an event of one name makes to a job.

    ``once`` is its bit, if a job has it only once; ``changes`` says that the record changes beside
    its state; ``state`` is the one that it leads to (0: none). ``moving`` are the
    occasions if the job's state changes by it, ``occasions`` those if it does not.
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
