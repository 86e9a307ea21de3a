"""State machines of attempts and of indices, as tables.

An attempt is one submission of a job, an index is a job with all its attempts. The engine changes
their states only through these tables: ``JobTable.move`` and ``JobTable.move_index``.
``docs/job-states.md`` shows the tables as diagrams (``scripts/job_states.py`` writes it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from ensemble_core.model.jobs import JOB_EVENTS, JobState

AttemptState: TypeAlias = Literal[
    "new", "looking", "reused", "held", "paced", "queued", "running", "suspended", "ended", "gone"
]
CancelState: TypeAlias = Literal["none", "asked", "refused", "stopping"]
IndexState: TypeAlias = Literal["open", "called", "waiting", "done", "lost"]

#: States of an attempt: ``{state: {cause: next state}}``. The causes ``start``, ``suspend``,
#: ``unsuspend``, ``requeue``, ``finish`` and ``clean`` are events of the queue; in a state without
#: this cause, the event has no effect. All other causes are the engine's own decisions; in a state
#: without such a cause, the decision is an error of the engine.
ATTEMPT: Mapping[AttemptState, Mapping[str, AttemptState]] = {
    "new": {"look up": "looking", "hold": "held", "pace": "paced", "submit": "queued"},
    "looking": {"not found": "held", "found": "reused", "cancel": "gone"},
    "held": {"pace": "paced", "submit": "queued", "cancel": "gone"},
    "paced": {"its turn": "queued", "cancel": "gone"},
    "queued": {
        "start": "running",
        "requeue": "queued",
        "finish": "ended",
        "clean": "gone",
        "cancel": "gone",
        "submit again": "held",
    },
    "running": {
        "suspend": "suspended",
        "requeue": "queued",
        "finish": "ended",
        "clean": "gone",
        "submit again": "held",
    },
    "suspended": {
        "unsuspend": "running",
        "requeue": "queued",
        "finish": "ended",
        "clean": "gone",
        "submit again": "held",
    },
    "reused": {"start": "reused", "finish": "ended", "clean": "gone"},
    "ended": {"clean": "gone"},
    "gone": {},
}

#: States of the cancel of an attempt: "asked": the executor was asked to cancel the job.
#: "refused": it could not. "stopping": a stop, or the end of the allocation, ends the job, and a
#: resume submits it again. In a state without a cause, the cause has no effect. "end": the run
#: ends, so that no resume follows.
CANCEL: Mapping[CancelState, Mapping[str, CancelState]] = {
    "none": {"cancel": "asked", "stop": "stopping"},
    "asked": {"refuse": "refused"},
    "refused": {"cancel": "asked"},
    "stopping": {"cancel": "asked", "end": "asked", "submit again": "none"},
}

#: States of an attempt that its executor has, or soon gets, and that has no outcome.
HANDED_OVER: frozenset[AttemptState] = frozenset({"paced", "queued", "running", "suspended"})
#: States of an attempt that its queue does not know.
NOT_HANDED_OVER: frozenset[AttemptState] = frozenset({"looking", "held", "paced"})

#: States of an index. "called": functions are running that rules called because of one of its
#: attempts. "waiting": another attempt will follow.
INDEX: Mapping[IndexState, Mapping[str, tuple[IndexState, ...]]] = {
    "open": {"attempt over": ("called", "waiting", "open", "done", "lost")},
    "called": {"last answer": ("waiting", "open", "done", "lost"), "end": ("lost",)},
    "waiting": {"wait over": ("waiting", "open", "lost"), "cancel or end": ("lost",)},
    "done": {},
    "lost": {"retry requested": ("called", "waiting")},
}


class ImpossibleMove(Exception):
    """A change of a state that is not in the table: an error of the engine."""


Outcome = Literal["success", "failed", "cancelled"]

#: Phase of a job after each event (RFC 21).
_PHASE_AFTER: dict[str, JobState] = {
    "submit": JobState.NEW,
    "validate": JobState.DEPEND,
    "depend": JobState.PRIORITY,
    "priority": JobState.SCHED,
    "alloc": JobState.RUN,
    "start": JobState.RUN,
    "finish": JobState.CLEANUP,
    "clean": JobState.INACTIVE,
}

#: Events that change the state of an attempt.
_MOVING = frozenset(cause for ways in ATTEMPT.values() for cause in ways) & frozenset(JOB_EVENTS)
_MOVING -= {"submit"}
#: Events that do not change the state of an attempt and that it has at most once, or once after
#: each ``requeue``. Duplicates are ignored.
_ONCE = ("submit", "validate", "depend", "alloc", "free")


def exit_code(status: int) -> int:
    """Return the exit code that a shell would report for a wait status, as ``os.wait`` returns it.

    If signal N has killed the process, the exit code is 128 + N.

    >>> exit_code(256), exit_code(9)
    (1, 137)
    """
    signal = status & 0x7F
    return 128 + signal if signal else (status >> 8) & 0xFF


#: Phases that are also names of trigger events. DEPEND and PRIORITY are missing, because RFC 21
#: has events with these names.
_PHASE_EVENT = {
    JobState.SCHED: "job-sched",
    JobState.RUN: "job-run",
    JobState.CLEANUP: "job-cleanup",
    JobState.INACTIVE: "job-inactive",
}


class Transition(NamedTuple):
    """The effect of one event on a job."""

    #: True if the event has an effect only in states of ``ATTEMPT`` that have it as a cause.
    moves: bool
    #: If a job has the event at most once: the event's bit in the set of events that a job has had.
    #: Otherwise, 0.
    once: int
    #: The new phase of RFC 21, or 0 if the phase does not change.
    phase: int
    #: The trigger events for rules, if the event does not change the job's phase.
    trigger_events: tuple[str, ...]
    #: The trigger events for rules, if the event changes the job's phase.
    moving: tuple[str, ...]


def _transition_of(name: str) -> Transition:
    phase = _PHASE_AFTER.get(name, JobState.NEW)
    own = (f"job-{name}", "job-sched") if name == "requeue" else (f"job-{name}",)
    moving = (*own, _PHASE_EVENT[phase]) if phase in _PHASE_EVENT else own
    once = 1 << _ONCE.index(name) if name in _ONCE else 0
    return Transition(name in _MOVING, once, phase.value, own, moving)


class _Transitions(dict[str, Transition]):
    def __missing__(self, name: str) -> Transition:
        return _transition_of(name)


#: The effect of each event of RFC 21, and of any other event.
TRANSITIONS = _Transitions({name: _transition_of(name) for name in JOB_EVENTS})

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
