"""Reattachment: finds jobs of an earlier controller, and batches whose submission got no answer.

``squeue`` is asked first, with comments; then what wrappers wrote; then accounting, where the site
has it. What an earlier controller had told is told again with the same times, from the records.
Used in the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ensemble_batch import Records, Sent

from ensemble_core import JobEvent
from ensemble_slurm.job_state import JobStates
from ensemble_slurm.names import Batch, queue_id
from ensemble_slurm.parse import Row, Site
from ensemble_slurm.queue_poller import QueuePoller

__all__ = ["Finder"]

_AGAIN = 2.0
#: Seconds beyond slurmctld's own timeout in which a submit may still arrive.
_MARGIN = 2.0

Answer = Callable[[Mapping[str, bool]], None]


class Owner(Protocol):
    """The parts of the loop that the finder needs."""

    def now(self) -> float: ...

    def after(self, seconds: float, what: Callable[[], None]) -> None: ...

    def void(self, batch: Batch) -> bool: ...

    def read_spool(self) -> None: ...

    def retell(self, events: Sequence[JobEvent]) -> None: ...

    def found(self) -> None: ...

    def cancel_again(self, jobs: Sequence[str]) -> None: ...


class Finder:
    """See the module."""

    def __init__(
        self,
        owner: Owner,
        poller: QueuePoller,
        states: JobStates,
        records: Records,
        site: Site,
        tag: str,
    ) -> None:
        self._owner = owner
        self._poller = poller
        self._states = states
        self._records = records
        self._site = site
        self._tag = tag

    def find_batch(self, batch: Batch, then: Callable[[str | None], None]) -> None:
        """Slurm's id of a batch, ``None`` where it has no such batch; asked until it answers."""

        def take(rows: list[Row] | None) -> None:
            if rows is None:
                self._owner.after(_AGAIN, lambda: self.find_batch(batch, then))
                return
            for row in rows:
                found = Batch.from_comment(row.comment, self._tag)
                if found is not None and (found.key, found.attempt) == (batch.key, batch.attempt):
                    then(row.job)
                    return
            then(None)

        self._poller.find(take)

    # -- jobs of an earlier controller ---------------------------------------------------------

    def find(self, jobs: Mapping[str, float], answer: Answer, *, voided: bool = False) -> None:
        """Say which of these jobs Slurm knows; tell what happened to those since."""

        def take(rows: list[Row] | None) -> None:
            if rows is None:
                self._owner.after(_AGAIN, lambda: self.find(jobs, answer, voided=voided))
                return
            if self._unanswered(rows, jobs):
                # A submit that was on its way when the controller went may still arrive.
                self._owner.after(_AGAIN, lambda: self.find(jobs, answer))
                return
            if not voided and (pending := self._pending(rows, jobs)):
                if all(self._owner.void(self._last_batch(sent)) for sent in pending):
                    self.find(jobs, answer, voided=True)
                else:
                    self._owner.after(_AGAIN, lambda: self.find(jobs, answer))
                return
            self._account(rows, jobs, answer)

        self._poller.find(take)

    def _pending(self, rows: Sequence[Row], jobs: Mapping[str, float]) -> list[Sent]:
        """Batches with some of these jobs whose submission was never answered, and is not seen."""
        there = {
            found.key
            for row in rows
            if (found := Batch.from_comment(row.comment, self._tag)) is not None
        }
        return [
            sent
            for key, sent in self._records.sent.items()
            if sent.ids is None and key not in there and any(job in jobs for job in sent.jobs)
        ]

    def _last_batch(self, sent: Sent) -> Batch:
        """The batch as it was last handed in, under its comment."""
        batch = Batch.from_comment(sent.names[-1], self._tag)
        assert batch is not None
        return batch

    def _unanswered(self, rows: Sequence[Row], jobs: Mapping[str, float]) -> bool:
        latest = max((sent.at for sent in self._pending(rows, jobs)), default=0.0)
        return self._owner.now() - latest < self._site.message_timeout + _MARGIN

    def _account(self, rows: Sequence[Row], jobs: Mapping[str, float], answer: Answer) -> None:
        known = self._known(rows)
        forgotten = [id_ for job, (id_, row) in known.items() if row is None and job in jobs]
        unknown = [job for job in jobs if job not in known]
        if not self._site.accounting or not (forgotten or unknown):
            self._settle(known, jobs, answer)
            return

        def take(found: list[Row] | None) -> None:
            # What squeue shows is newer than what accounting has.
            newer = {queue_id(row.job, row.task) for row in rows}
            more = [row for row in found or () if queue_id(row.job, row.task) not in newer]
            self._settle(self._known([*rows, *more]), jobs, answer)

        if unknown:
            sent = [each.at for each in self._records.sent.values()]
            oldest = self._owner.now() - min(sent, default=self._owner.now())
            self._poller.account((), take, since=max(86_400.0, oldest + 3_600.0))
        else:
            self._poller.account(forgotten, take)

    def _known(self, rows: Sequence[Row]) -> dict[str, tuple[str, Row | None]]:
        """Slurm's id of each job of this run, and what it says of it if it still does."""
        found: dict[str, tuple[str, Row | None]] = {}
        for sent in self._records.sent.values():
            if sent.ids is not None:
                batch = self._last_batch(sent)
                for job, name in zip(batch.jobs(), batch.queue_ids(sent.ids[0]), strict=True):
                    found[job] = (name, None)
        for row in rows:
            shown = Batch.from_comment(row.comment, self._tag)
            if shown is None and not row.comment:
                shown = Batch.from_name(row.name, self._tag)
            ours = None if shown is None else shown.job(row.task)
            if ours is None:
                continue
            name = queue_id(row.job, row.task)
            before = found.get(ours)
            if before is None or before[0] == name:
                found[ours] = (name, row)
        return found

    def _settle(
        self,
        known: Mapping[str, tuple[str, Row | None]],
        jobs: Mapping[str, float],
        answer: Answer,
    ) -> None:
        extras: dict[str, Mapping[str, Any]] = {}
        for sent in self._records.sent.values():
            extras.update(sent.jobs)
        answers: dict[str, bool] = {}
        restored: list[str] = []
        nobody: tuple[str | None, Row | None] = (None, None)
        for job, since in jobs.items():
            told = self._records.told.get(job, [])
            id_, _ = known.get(job, nobody)
            tracked, again_told = self._states.restore(job, extras.get(job, {}), id_, told, since)
            self._owner.retell(again_told)
            if tracked.over:
                answers[job] = True
                continue
            tracked.cancelled = job in self._records.cancelled
            restored.append(job)
            answers[job] = id_ is not None
        self._owner.found()
        self._owner.read_spool()
        now = self._owner.now()
        again = []
        for job in restored:
            tracked_now = self._states.jobs.get(job)
            if tracked_now is None:
                answers[job] = True  # its wrapper had written how it ended
                continue
            id_, row = known.get(job, nobody)
            if row is not None:
                self._states.accepted(job, id_ or "", row.submitted or now)
                self._states.seen(row, now)
            elif tracked_now.queue_id is not None:
                answers[job] = True
                if (
                    id_ is not None
                    and tracked_now.reported is None
                    and "start" not in tracked_now.told
                ):
                    self._states.accepted(job, id_, now)
                self._states.lose(job, now)
            else:
                del self._states.jobs[job]
            if job in self._states.jobs and self._states.jobs[job].cancelled:
                again.append(job)
        self._records.drop()
        if again:
            self._owner.cancel_again(again)
        answer(answers)
