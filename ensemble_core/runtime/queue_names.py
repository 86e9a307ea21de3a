"""Names of jobs in the queue, where these are not our ids: those of jobs that were requeued.

An executor is given a job under a name that it has never seen, whatever happened to the one before,
so none needs to tell two of a name apart. The engine and the journal know the job by its id. Used
by the controller, on the way to the executor and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ensemble_core.model.events import Event, JobEvent, Problem
from ensemble_core.model.jobs import Job

__all__ = ["QueueNames"]


class QueueNames:
    """Translates ids of requeued jobs; false while there is none."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        #: Our ids by name; ``None`` for a name under which a job was handed on before.
        self._ids: dict[str, str | None] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def learn(self, job: Job) -> None:
        """This job is in the queue, or is about to be."""
        if job.requeued:
            for earlier in range(job.requeued):
                self._ids[replace(job, requeued=earlier).queue_name] = None
            self._ids[job.queue_name] = job.id
            self._names[job.id] = job.queue_name

    def given(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Jobs as the executor is given them."""
        if not any(job.requeued for job in jobs):
            return jobs
        for job in jobs:
            self.learn(job)
        return tuple(replace(job, id=job.queue_name) for job in jobs)

    def name(self, job: str) -> str:
        """The name in the queue of the job with this id."""
        return self._names.get(job, job)

    def names(self, jobs: Iterable[str]) -> tuple[str, ...]:
        """The same of several."""
        return tuple([self._names.get(job, job) for job in jobs])

    def ours(self, events: Iterable[Event]) -> list[Event]:
        """Events of the executor with our ids; without late news of jobs that were requeued."""
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
        """The executor's answer about these jobs, by our ids."""
        return {job: known[name] for job in jobs if (name := self.name(job)) in known}
