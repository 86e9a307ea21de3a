"""Jobs of one member that are not over, and what is known of each.

``member_proxy`` has one :class:`MemberJobs` for its member; what a job's end is that nobody tells
of any more is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ensemble_core import Event, JobEvent
from ensemble_service.proto import ensemble_pb2 as pb

__all__ = ["MemberJob", "MemberJobs"]


@dataclass(slots=True)
class MemberJob:
    """A job that is not over. ``data`` is kept until the member is known to have it; ``newest`` is
    the time of its newest event, and events up to ``since`` were seen in an earlier life: both by
    the member's own clock. ``events`` counts those that came."""

    data: pb.Job | None
    newest: float = 0.0
    since: float = 0.0
    sent: bool = False
    events: int = 0


class MemberJobs(dict[str, MemberJob]):
    """The jobs by their ids."""

    def unsent(self) -> dict[str, pb.Job]:
        """Jobs that the member does not have, with what is to be sent."""
        return {name: job.data for name, job in self.items() if not job.sent and job.data}

    def to_ask(self, asked: Collection[str]) -> list[str]:
        """Jobs that another life of the member is to be asked about, but for those that it was.
        What comes of them from here on is newer than now, or comes again: not to be called again
        when the question is only sent again, for by then some of what is newer may have come."""
        names = [name for name, job in self.items() if job.sent and name not in asked]
        for name in names:
            self[name].since = self[name].newest
        return names

    def moved(self) -> None:
        """An agent with another folder has taken over. The earlier one may be stopped only, and
        still submit what it was sent: what this one does not know is not submitted again."""
        for job in self.values():
            if job.sent:
                job.data = None

    def found(self, names: Iterable[str], known: Mapping[str, bool]) -> list[str]:
        """Take in which of these another life knows; those that are lost. What it never received
        is unsent again."""
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
        """True if a job's event was not seen before; it is taken in."""
        job = self.get(event.job)
        if job is None or event.timestamp <= job.since:
            return False
        job.newest = max(job.newest, event.timestamp)
        job.data = None
        if event.name == "clean":
            del self[event.job]
        return True

    def take_back(self, jobs: Iterable[str], now: float, member: str) -> list[Event]:
        """The events of jobs that are cancelled before they were sent."""
        note = f"before member {member} was asked to run it"
        context = {"type": "cancel", "severity": 0, "note": note}
        events: list[Event] = []
        for job in jobs:
            del self[job]
            events.append(JobEvent(now, job, "submit"))
            events.append(JobEvent(now, job, "exception", context))
            events.append(JobEvent(now, job, "clean"))
        return events
