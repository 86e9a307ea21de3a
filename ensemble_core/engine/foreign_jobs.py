"""Foreign jobs: jobs in the queue that belong to other runs or users.

Only rules with ``scope: queue`` need them.
"""

from __future__ import annotations

from typing import Any

from ensemble_core.engine.job_states import TRANSITIONS, exit_code
from ensemble_core.model.causes import Cause, cause_of, reported_cause
from ensemble_core.model.events import JobEvent
from ensemble_core.model.jobs import JobState
from ensemble_core.quick_dataclass import dataclass


@dataclass(slots=True)
class _ForeignJob:
    """An unfinished job of another run or user."""

    state: int = JobState.NEW.value
    exception: str | None = None
    status: int | None = None
    cause: Cause | None = None


class ForeignJobs:
    """Foreign jobs in the queue that are not over yet."""

    def __init__(self) -> None:
        self._jobs: dict[str, _ForeignJob] = {}

    def handle_event(self, event: JobEvent) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Apply an event of a foreign job.

        Return the names of the trigger events that it causes, such as ``job-fail``, and the job's
        fields for conditions.
        """
        job = self._jobs.get(event.job)
        if job is None:
            job = self._jobs[event.job] = _ForeignJob()
        name, context = event.name, event.context
        step = TRANSITIONS[name]
        trigger_events = list(step.trigger_events)
        ended = job.state >= JobState.CLEANUP
        if step.phase > job.state:
            job.state = step.phase
            trigger_events = list(step.moving)
        if name == "exception" and context.get("severity", 0) == 0 and job.exception is None:
            job.exception = str(context.get("type", ""))
            job.cause = reported_cause(context)
        elif name == "finish":
            status = context.get("status")
            job.status = status if isinstance(status, int) else None
            if job.exception is None:
                job.cause = reported_cause(context)
        if name in ("finish", "clean") and not ended:
            if job.exception == "cancel":
                trigger_events.append("job-cancel")
            else:
                good = job.exception is None and job.status == 0
                trigger_events.append("job-success" if good else "job-fail")
        if name == "clean":
            del self._jobs[event.job]
        fields: dict[str, Any] = {**context, "name": name, "job": event.job}
        if job.status is not None:
            fields.update(status=job.status, exit_code=exit_code(job.status))
        if ended or name in ("finish", "clean") or job.exception is not None:
            fields["cause"] = job.cause or cause_of(job.exception, job.status)
        return tuple(dict.fromkeys(trigger_events)), fields
