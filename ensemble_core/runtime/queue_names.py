"""Translates between the job ids of a run and the names of its jobs in the queue.

A job is *requeued* if a stop cancelled it, or its queue was lost: a resume submits the same attempt
again under a new name. The executor thus never sees two jobs with the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ensemble_core.model.events import Event, JobEvent, Problem
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import replace


class QueueNames:
    """Translates between job ids and queue names."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        #: Our ids by queue name. ``None`` for the names of earlier submissions.
        self._ids: dict[str, str | None] = {}

    def __bool__(self) -> bool:
        """Return False if the queue name of every job is the job's id."""
        return bool(self._names)

    def learn(self, job: Job) -> None:
        """Note a job that is in the queue or is about to be."""
        if job.requeued:
            for earlier in range(job.requeued):
                self._ids[replace(job, requeued=earlier).queue_name] = None
            self._ids[job.queue_name] = job.id
            self._names[job.id] = job.queue_name

    def given(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return jobs as the executor receives them, with their queue names."""
        if not any(job.requeued for job in jobs):
            return jobs
        for job in jobs:
            self.learn(job)
        return tuple(replace(job, id=job.queue_name) for job in jobs)

    def name(self, job: str) -> str:
        """Return the queue name of the job with this id."""
        return self._names.get(job, job)

    def names(self, jobs: Iterable[str]) -> tuple[str, ...]:
        """Return the queue names of several jobs."""
        return tuple([self._names.get(job, job) for job in jobs])

    def ours(self, events: Iterable[Event]) -> list[Event]:
        """Return events with our ids. Late events of earlier submissions are left out."""
        found: list[Event] = []
        for event in events:
            if isinstance(event, JobEvent) and event.ours:
                job = self._ids.get(event.job, event.job)
                if job is not None:
                    found.append(event if job == event.job else replace(event, job=job))
            elif isinstance(event, Problem) and event.jobs:
                jobs = (self._ids.get(job, job) for job in event.jobs)
                found.append(replace(event, jobs=tuple(job for job in jobs if job is not None)))
            else:
                found.append(event)
        return found

    def found(self, jobs: Iterable[str], known: Mapping[str, bool]) -> dict[str, bool]:
        """Return the executor's answer about these jobs, by our ids."""
        return {job: known[name] for job in jobs if (name := self.name(job)) in known}
