"""Events of jobs in a virtual queue, equal to those of the local executor."""

from __future__ import annotations

from collections.abc import Mapping

from ensemble_core import Event, JobEvent

#: Contexts of events.
SUCCESS = {"status": 0}
CANCELLED = {"type": "cancel", "severity": 0, "note": ""}
RELEASE = {"ranks": "all", "final": True}
#: Exception types by cause. Other causes have only a wait status.
EXCEPTIONS = {
    "timeout": "timeout",
    "memory": "out-of-memory",
    "node-failure": "node-failure",
    "preempted": "preempted",
    "cancelled": "cancel",
    "lost": "lost",
    "submit": "submit",
}


def arrival_events(now: float, name: str, priority: Mapping[str, int]) -> tuple[Event, ...]:
    """Return the events of a job that arrives in the queue."""
    return (
        JobEvent(now, name, "submit", {"queue_id": name}),
        JobEvent(now, name, "validate"),
        JobEvent(now, name, "depend"),
        JobEvent(now, name, "priority", priority),
    )


def refusal_events(now: float, name: str, why: str) -> tuple[Event, Event]:
    """Return the events of a job that can never run."""
    context = {"type": "alloc", "severity": 0, "note": why}
    return JobEvent(now, name, "exception", context), JobEvent(now, name, "clean")
