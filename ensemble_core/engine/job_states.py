"""State machines of jobs and their attempts, as tables.

The events are those of Flux RFC 21. ``docs/job-states.md`` shows the tables as diagrams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from ensemble_core.model.jobs import JOB_EVENTS, JobState

__all__ = [
    "ATTEMPT",
    "INDEX",
    "OUTCOME_EVENTS",
    "TRANSITIONS",
    "Outcome",
    "States",
    "Transition",
    "events_of",
    "exit_code",
    "transition_of",
]

#: Type of a state machine: ``{state: {cause: next states}}``. A state changes in no other way.
States: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]

#: States of an attempt, which is one job in the queue. The cause ``submit`` is a decision;
#: ``start``, ``suspend``, ``unsuspend``, ``requeue``, ``finish`` and ``clean`` are events of the
#: queue. ``submit again``: a resume repeats the attempt, because a stop has cancelled it or its
#: queue has vanished.
ATTEMPT: States = {
    "new": {"submit": ("held", "paced", "queued")},
    "held": {"there is room": ("paced", "queued"), "cancel or end": ("gone",)},
    "paced": {"its turn": ("queued",), "cancel or end": ("gone",)},
    "queued": {
        "start": ("running",),
        "finish": ("ended",),
        "clean": ("gone",),
        "submit again": ("held",),
    },
    "running": {
        "suspend": ("suspended",),
        "finish": ("ended",),
        "clean": ("gone",),
        "requeue": ("queued",),
        "submit again": ("held",),
    },
    "suspended": {
        "unsuspend": ("running",),
        "finish": ("ended",),
        "clean": ("gone",),
        "requeue": ("queued",),
        "submit again": ("held",),
    },
    "ended": {"clean": ("gone",)},
    "gone": {},
}

#: States of an index, which is a job with all its attempts. "called": functions are running that
#: rules called because of one of its attempts. "waiting": another attempt will follow.
INDEX: States = {
    "open": {"attempt over": ("called", "waiting", "open", "done", "lost")},
    "called": {"last answer": ("waiting", "open", "done", "lost"), "end": ("lost",)},
    "waiting": {"wait over": ("open", "lost"), "cancel or end": ("lost",)},
    "done": {},
    "lost": {},
}

Outcome = Literal["success", "failed", "cancelled"]

#: State of a job after each event (RFC 21).
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

#: Events that change more of a job's record than its state.
_CHANGING = frozenset(
    {"submit", "start", "suspend", "unsuspend", "requeue", "exception", "finish", "clean"}
)
#: Events that a job has at most once, or once after each ``requeue``. Duplicates are ignored.
_ONCE = ("submit", "validate", "depend", "alloc", "start", "finish", "free", "clean")


def exit_code(status: int) -> int:
    """Return the exit code that a shell would report for a wait status, as ``os.wait`` returns it.

    If signal N has killed the process, the exit code is 128 + N.

    >>> exit_code(256), exit_code(9)
    (1, 137)
    """
    signal = status & 0x7F
    return 128 + signal if signal else (status >> 8) & 0xFF


#: Job states that are also names of trigger events. DEPEND and PRIORITY are missing, because RFC 21
#: has events with these names.
_STATE_EVENT = {
    JobState.SCHED: "job-sched",
    JobState.RUN: "job-run",
    JobState.CLEANUP: "job-cleanup",
    JobState.INACTIVE: "job-inactive",
}


class Transition(NamedTuple):
    """The effect of one event on a job."""

    #: If a job has the event at most once: the event's bit in the set of events that a job has had.
    #: Otherwise, 0.
    once: int
    #: True if the event changes more of the job's record than its state.
    changes: bool
    #: The new state, or 0 if the state does not change.
    state: int
    #: The trigger events for rules, if the event does not change the job's state.
    trigger_events: tuple[str, ...]
    #: The trigger events for rules, if the event changes the job's state.
    moving: tuple[str, ...]


def transition_of(name: str) -> Transition:
    """Return the effect of an event, even if RFC 21 does not define it."""
    state = _STATE_AFTER.get(name, JobState.NEW)
    changes = name in _CHANGING
    own = (f"job-{name}", "job-sched") if name == "requeue" else (f"job-{name}",)
    moving = (*own, _STATE_EVENT[state]) if state in _STATE_EVENT else own
    once = 1 << _ONCE.index(name) if name in _ONCE else 0
    return Transition(once, changes, state.value, own, moving)


TRANSITIONS = {name: transition_of(name) for name in JOB_EVENTS}

#: The trigger event for each outcome. It occurs at the job's ``finish`` or ``clean``.
OUTCOME_EVENTS: dict[Outcome, str] = {
    "success": "job-success",
    "failed": "job-fail",
    "cancelled": "job-cancel",
}


def events_of(trigger_event: str) -> Iterator[str]:
    """Yield the names of the job events that can cause this trigger event.

    >>> sorted(events_of("job-run")), sorted(events_of("job-fail"))
    (['alloc', 'run', 'start'], ['clean', 'fail', 'finish'])
    """
    if trigger_event.startswith("job-"):
        yield trigger_event.removeprefix("job-")
    if trigger_event in OUTCOME_EVENTS.values():
        yield from ("finish", "clean")
    for name, transition in TRANSITIONS.items():
        if trigger_event in transition.moving:
            yield name
