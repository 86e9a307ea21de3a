"""Table of the active jobs that a run has submitted to one member."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ensemble_core import Event, JobEvent
from ensemble_service.proto import ensemble_pb2 as pb


@dataclass(slots=True)
class MemberJob:
    """An active job. Times are by the member's clock."""

    data: pb.Job | None  # the job to send; None once an event shows that the member has the job
    newest: float = 0.0  # time of the newest event
    # The value of ``newest`` when the member restarted. The member then repeats the job's events,
    # and those up to this time are dropped.
    since: float = 0.0
    sent: bool = False
    events: int = 0  # number of received events


class MemberJobs(dict[str, MemberJob]):
    """The active jobs, by id."""

    def __init__(self) -> None:
        super().__init__()
        #: Jobs that are over, but not forgotten by the member.
        self.ended: set[str] = set()

    def end(self, name: str) -> MemberJob:
        """Remove a job that is over, and return it."""
        self.ended.add(name)
        return self.pop(name)

    def forget(self, names: Iterable[str]) -> list[str]:
        """Return those of these jobs that the member can forget now."""
        gone = [name for name in names if name in self.ended]
        self.ended.difference_update(gone)
        return gone

    def unsent(self) -> dict[str, pb.Job]:
        """Return the jobs that the member does not have, each with the data to send."""
        return {name: job.data for name, job in self.items() if not job.sent and job.data}

    def to_ask(self, asked: Collection[str]) -> list[str]:
        """Return the jobs to ask a restarted member about, except those in ``asked``.

        Events that arrive later are new, or repeated because of the question. Don't call this
        method again when only the question is resent: by then newer events may have arrived.
        """
        names = [name for name, job in self.items() if job.sent and name not in asked]
        for name in names:
            self[name].since = self[name].newest
        return names

    def moved(self) -> None:
        """Record that an agent with another folder has taken over.

        The previous agent may only be paused, and may still submit the jobs that it was sent. So
        jobs that the new agent does not know are not resubmitted.
        """
        for job in self.values():
            if job.sent:
                job.data = None

    def found(self, names: Iterable[str], known: Mapping[str, bool]) -> list[str]:
        """Update these jobs according to a restarted member's answer. Return the lost jobs.

        Jobs that the member never received become unsent again.
        """
        lost: list[str] = []
        for name in names:
            job = self.get(name)
            if job is None:
                continue
            if known.get(name):
                job.sent = True
            elif job.newest or job.data is None:
                lost.append(name)
            else:
                job.sent = False
        return lost

    def is_news(self, event: JobEvent) -> bool:
        """Update a job by its event. Return whether the event is new."""
        job = self.get(event.job)
        if job is None or event.timestamp <= job.since:
            return False
        job.newest = max(job.newest, event.timestamp)
        job.data = None
        if event.name == "clean":
            self.end(event.job)
        return True

    def take_back(self, jobs: Iterable[str], now: float, member: str) -> list[Event]:
        """Return the events of jobs that were cancelled before they were sent."""
        note = f"before it was sent to member {member}"
        context = {"type": "cancel", "severity": 0, "note": note}
        events: list[Event] = []
        for job in jobs:
            del self[job]
            events.append(JobEvent(now, job, "submit"))
            events.append(JobEvent(now, job, "exception", context))
            events.append(JobEvent(now, job, "clean"))
        return events
