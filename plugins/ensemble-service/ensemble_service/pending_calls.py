"""Pending calls of a run to a member: those without an answer yet, and the jobs they are about.

``member_proxy`` keeps them, and has them written into messages here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ensemble_service.proto import ensemble_pb2 as pb

__all__ = ["Kind", "MemberJob", "Waiting", "fill"]

Kind = Literal["submit", "cancel", "resize", "reattach", "forget", "close"]


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


@dataclass(slots=True)
class Waiting:
    """A call that has not been answered yet."""

    id: int
    kind: Kind
    jobs: list[str] = field(default_factory=list)
    resize: pb.Resize | None = None
    sent: bool = False
    when: float = 0.0
    #: A question of the proxy itself, and not of the run: which jobs another life knows.
    own: bool = False


def fill(call: pb.Call, waiting: Waiting, jobs: Mapping[str, MemberJob]) -> None:
    """Write into a message what is asked. Jobs that are submitted count as sent from here on."""
    kind = waiting.kind
    if kind == "submit":
        for name in waiting.jobs:
            job = jobs.get(name)
            if job is not None and job.data is not None:
                job.sent = True
                call.submit.jobs.append(job.data)
        call.submit.SetInParent()
    elif kind == "cancel":
        call.cancel.jobs.extend(waiting.jobs)
        call.cancel.SetInParent()
    elif kind == "resize":
        assert waiting.resize is not None
        call.resize.CopyFrom(waiting.resize)
    elif kind == "reattach":
        for name in waiting.jobs:
            job = jobs.get(name)
            if job is not None:
                call.reattach.jobs[name] = job.newest
        call.reattach.SetInParent()
    elif kind == "forget":
        call.forget.jobs.extend(waiting.jobs)
        call.forget.SetInParent()
    else:
        call.close.SetInParent()
