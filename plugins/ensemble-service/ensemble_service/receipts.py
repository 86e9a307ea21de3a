"""Receipts for a member's events: which are new by their numbers, and acknowledgements of them.

Within a *life* of the member's agent events are numbered from 1, and kept there until they are
acknowledged. ``member_proxy`` has one :class:`Receipts` for its member.
"""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.run_context import RunContext

__all__ = ["Receipts"]

#: Events after which an acknowledgement goes at once, and seconds between two otherwise: of a
#: thousand members, one for each of their messages would be as much to carry as the messages.
_AT_ONCE, _EVERY = 500, 1.0


class Receipts:
    """Numbers of one member's events. ``life`` is the one that they are of, if any was begun."""

    def __init__(self, member: str, run: RunContext) -> None:
        self._member = member
        self._run = run
        self.life: str | None = None
        self._next = 1
        self._acknowledged = 0
        self._due = 0.0

    def begin(self, life: str, kept_from: int) -> None:
        """The member has opened the run. What was acknowledged while nobody listened, which is all
        below ``kept_from``, is acknowledged again."""
        self._acknowledged = kept_from - 1
        if life != self.life:
            self.life, self._next = life, 1

    def new(self, batch: pb.Batch) -> Sequence[pb.Event] | None:
        """The events of a batch that have not come yet, which counts them as come; ``None`` where
        some before them did not arrive."""
        if batch.life != self.life:
            return ()  # of a life that is over, or that is not known yet
        skip = self._next - batch.first
        if skip < 0:
            return None
        new = batch.events[skip:]
        self._next += len(new)
        return new

    def acknowledge(self, now: float | None = None) -> None:
        """Acknowledge what came: at the time ``now`` (monotonic seconds) if that is due; without a
        time, if many events wait for it."""
        behind = self._next - 1 - self._acknowledged
        if self.life is None or behind < (_AT_ONCE if now is None else 1):
            return
        if now is not None:
            if now < self._due:
                return
            self._due = now + _EVERY
        self._acknowledged = self._next - 1
        run, seq = self._run, self._acknowledged
        ack = pb.Ack(run=run.run, member=self._member, life=self.life, seq=seq)
        run.send(pb.FromRun(ack=ack))
