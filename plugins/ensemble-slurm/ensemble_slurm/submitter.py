"""Idempotent job submission: as few ``sbatch`` as may be, and no job twice.

Jobs wait in a line while one ``sbatch`` is on its way, and what has gathered meanwhile goes next,
equal jobs as one array. A batch is on record before it is submitted. Where the answer is not known
(a deadline, a slurmctld that broke off), the queue is asked for the batch by its comment until
slurmctld must have worked off what it had; then that attempt is declared void, which its wrapper
heeds, the queue is asked once more, and only then it is submitted again. Used in the loop's thread.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ensemble_batch import CommandResult, Place, Sent

from ensemble_core import Job
from ensemble_slurm.batches import batches
from ensemble_slurm.commands import Then
from ensemble_slurm.names import Batch, suffix_of
from ensemble_slurm.parse import Site
from ensemble_slurm.refusals import Refusal, hint_for, refusal, words
from ensemble_slurm.script import Scripts

__all__ = ["Order", "Owner", "Submitter"]

#: Seconds in which jobs gather before the first of them goes.
_GATHER = 0.01
#: Seconds between looks for a batch of which nothing is known, and until a full queue, or a
#: slurmctld that is away, is tried again.
_AGAIN, _FULL, _DOWN = 2.0, 30.0, 10.0


@dataclass(slots=True)
class Order:
    """A job to submit, and where it runs and writes."""

    job: Job
    place: Place


class Owner(Protocol):
    """The parts of the loop that the submitter needs."""

    def now(self) -> float: ...

    def after(self, seconds: float, what: Callable[[], None]) -> None: ...

    def sbatch(
        self,
        words: Sequence[str],
        script: bytes,
        deadline: float,
        then: Then,
    ) -> None: ...

    def record(self, sent: Sent) -> bool: ...

    def find(self, batch: Batch, then: Callable[[str | None], None]) -> None: ...

    def void(self, batch: Batch) -> bool: ...

    def accepted(self, batch: Batch, queue_id: str) -> None: ...

    def refused(self, jobs: Sequence[str], kind: str, note: str) -> None: ...

    def trouble(self, of: str, what: str | None, hint: str | None = None) -> None: ...


@dataclass(slots=True)
class _Going:
    """The batch that is on its way."""

    batch: Batch
    orders: list[Order]
    #: When its answer was given up, and what was said then.
    since: float = 0.0
    why: str = ""
    voided: bool = False


class Submitter:
    """The jobs that Slurm does not have yet."""

    def __init__(self, owner: Owner, scripts: Scripts, site: Site) -> None:
        self._owner = owner
        self._scripts = scripts
        self._site = site
        self._waiting: dict[str, Order] = {}
        self._going: _Going | None = None
        self._pumping = False
        #: While the queue is full: how many jobs are tried at once.
        self._room: int | None = None
        self._held = False

    @property
    def idle(self) -> bool:
        """True if every job has been handed over."""
        return self._going is None and not self._waiting

    def take(self, orders: Sequence[Order]) -> None:
        """Submit these."""
        for order in orders:
            self._waiting[order.job.id] = order
        self._later(_GATHER)

    def cancel(self, job: str) -> bool:
        """Do not submit this job; whether it was still here."""
        return self._waiting.pop(job, None) is not None

    def room(self) -> None:
        """A job has ended: a full queue may take another."""
        if self._held:
            self._held = False
            self._later(1.0)

    def _later(self, seconds: float) -> None:
        if not self._pumping and self._going is None and not self._held:
            self._pumping = True
            self._owner.after(seconds, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._going is not None or not self._waiting or self._held:
            return
        most = max(1, min(self._site.largest_array, self._site.most_jobs))
        if self._room is not None:
            most = min(most, self._room)
        jobs = [order.job for order in self._waiting.values()]
        chosen = batches(jobs, self._scripts.tag, largest=most)[0]
        orders = [self._waiting.pop(job.id) for job in chosen]
        batch = Batch(
            self._scripts.tag,
            secrets.token_hex(4),
            chosen[0].group,
            tuple(job.index for job in chosen),
            suffix=suffix_of(chosen[0]),
        )
        self._send(_Going(batch, orders))

    # -- one batch -----------------------------------------------------------------------------

    def _send(self, going: _Going) -> None:
        self._going = going
        batch = going.batch
        files = {order.job.id: order.place.files for order in going.orders}
        if not self._owner.record(Sent(batch.key, files, [batch.comment], self._owner.now())):
            self._owner.after(_AGAIN, lambda: self._send(going))
            return
        first = going.orders[0].job
        words_ = ["sbatch", *self._scripts.options(batch, first)]
        script = self._scripts.write(batch, [(each.job, each.place) for each in going.orders])
        deadline = 3 * self._site.message_timeout
        self._owner.sbatch(words_, script, deadline, lambda done: self._answered(going, done))

    def _answered(self, going: _Going, done: CommandResult) -> None:
        match = re.search(r"^(\d+)(?:;\S+)?\s*$", done.out, re.M)
        if match is not None and done.good:
            self._accept(going, match[1])
            return
        kind = refusal(done.err)
        if done.code is None:
            kind = Refusal.FULL if kind is Refusal.FULL else Refusal.BUSY
        if kind is Refusal.FINAL:
            self._refuse(going, done)
        elif kind is Refusal.FULL and done.code is not None:
            self._full(going, done.err)
        else:
            going.since, going.why = self._owner.now(), done.err
            self._owner.trouble(
                "submit",
                f"it is not known whether Slurm has {len(going.orders)} jobs ({words(done.err)})",
                "they are looked for, and submitted again where they are not there",
            )
            self._look(going)

    def _accept(self, going: _Going, queue_id: str) -> None:
        self._going = None
        if self._room is not None:
            self._room *= 2
            if self._room >= self._site.largest_array:
                self._room = None
        self._owner.trouble("submit", None)
        self._owner.accepted(going.batch, queue_id)
        self._later(0.0)

    def _refuse(self, going: _Going, done: CommandResult) -> None:
        self._going = None
        note = words(done.err) or f"sbatch ended with exit code {done.code}"
        hint = hint_for(done.err)
        self._owner.refused(
            going.batch.jobs(), "submit", f"{note}. {hint[0].upper()}{hint[1:]}" if hint else note
        )
        self._later(0.0)

    def _full(self, going: _Going, said: str) -> None:
        """Slurm takes no more jobs for now: they wait here, and fewer are tried at once."""
        self._going = None
        waiting, self._waiting = self._waiting, {}
        self._waiting = {order.job.id: order for order in going.orders} | waiting
        size = len(going.orders)
        if size > 1:
            self._room = max(1, size // 2)
            self._later(0.0)
            return
        self._room = 1
        self._held = True
        count = len(self._waiting)
        self._owner.trouble(
            "submit",
            f"Slurm takes no more jobs for now ({words(said)}): {count} of this run wait here",
            "they are submitted as others end; nothing is lost",
        )
        self._owner.after(_FULL, self.room)

    # -- an answer that is not known -----------------------------------------------------------

    def _look(self, going: _Going) -> None:
        def found(queue_id: str | None) -> None:
            if queue_id is not None:
                self._accept(going, queue_id)
            else:
                self._absent(going)

        self._owner.find(going.batch, found)

    def _absent(self, going: _Going) -> None:
        """slurmctld answers, and does not have the batch."""
        waited = self._owner.now() - going.since
        if going.voided:
            batch = going.batch
            again = replace(batch, attempt=batch.attempt + 1)
            self._going = None
            if refusal(going.why) is Refusal.FULL:
                self._full(_Going(again, going.orders), going.why)
            else:
                self._send(_Going(again, going.orders))
        elif waited < self._site.message_timeout:
            self._owner.after(_AGAIN, lambda: self._look(going))
        elif self._owner.void(going.batch):
            going.voided = True
            self._look(going)
        else:
            # Not made again before it is certain that this attempt runs nothing.
            self._owner.after(_AGAIN, lambda: self._look(going))
