"""Queue poller: one ``squeue`` for all jobs, periodically, and soon for those in doubt.

Never a query for a job. ``squeue --user`` is one request that slurmctld answers with this user's
jobs only; those over are in it for MinJobAge. What it has forgotten, ``sacct`` knows where the site
keeps accounts. Used in the loop's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ensemble_batch import CommandResult

from ensemble_slurm.commands import Then
from ensemble_slurm.job_state import JobStates
from ensemble_slurm.parse import (
    SACCT,
    SEPARATOR,
    SQUEUE,
    SQUEUE_COMMENT,
    Row,
    Site,
    read_sacct,
    read_squeue,
    unreadable,
)
from ensemble_slurm.refusals import words
from ensemble_slurm.states import STUCK, is_over

__all__ = ["Owner", "QueuePoller"]

#: Seconds until a job in doubt is looked for, the first time and after that.
_SOON, _SOON_AGAIN = 0.3, 1.0
#: Seconds after which a cancel is made again that Slurm has taken and does not follow: a slurmctld
#: that crashed has forgotten its last few.
_HEEDS = 20.0
#: Seconds until slurmctld is asked again that did not answer: at first, and at most.
_DOWN, _LONGEST = 2.0, 30.0
#: Jobs that one ``sacct`` is asked for.
_AT_ONCE = 300
_DEADLINE = 60.0


class Owner(Protocol):
    """The parts of the loop that the poller needs."""

    def now(self) -> float: ...

    def after(self, seconds: float, what: Callable[[], None]) -> None: ...

    def ask(self, words: Sequence[str], deadline: float, then: Then) -> None: ...

    def read_spool(self) -> None: ...

    def publish(self) -> None: ...

    def trouble(self, of: str, what: str | None, hint: str | None = None) -> None: ...

    def warn(self, message: str) -> None: ...

    def cancel_again(self, jobs: Sequence[str]) -> None: ...


class QueuePoller:
    """Looks every ``period`` seconds while there are jobs."""

    def __init__(self, owner: Owner, states: JobStates, site: Site, period: float) -> None:
        self._owner = owner
        self._states = states
        self._site = site
        self._period = max(0.2, min(period, site.least_age / 3 or period))
        self._looking = False
        self._due: float | None = None
        self._quick = 0
        self._back_off = _DOWN
        self._stuck: set[str] = set()
        #: Cancelled jobs that Slurm shows as if they were not: since when.
        self._unmoved: dict[str, float] = {}
        self._user = str(os.getuid())

    def begin(self) -> None:
        """Look now and then from here on."""
        self._owner.after(self._period, self._regular)

    def _regular(self) -> None:
        if any(tracked.queue_id is not None for tracked in self._states.jobs.values()):
            self._look()
        self._owner.after(self._period, self._regular)

    def soon(self) -> None:
        """A job is in doubt: look before long."""
        self._quick = 0
        self._plan(_SOON)

    def _plan(self, seconds: float) -> None:
        due = self._owner.now() + seconds
        if self._due is not None and self._due <= due:
            return
        self._due = due

        def come() -> None:
            if self._due == due:
                self._due = None
                self._look()

        self._owner.after(seconds, come)

    def _look(self) -> None:
        if self._looking:
            return
        self._looking = True
        # Those that are accepted meanwhile cannot be missed.
        known = [each.job for each in self._states.jobs.values() if each.queue_id is not None]
        self._squeue(SQUEUE, lambda rows: self._take(known, rows))

    def _squeue(self, columns: str, then: Callable[[list[Row] | None], None]) -> None:
        command = (
            "squeue", "--noheader", "--all", "--array", "--states=all",
            f"--user={self._user}", f"--Format={columns}",
        )  # fmt: skip

        def answered(done: CommandResult) -> None:
            if not done.good:
                self._owner.trouble(
                    "ask",
                    f"slurmctld does not say how jobs stand ({words(done.err)})",
                    "it is asked again until it does; jobs go on meanwhile",
                )
                then(None)
                return
            if (part := unreadable(done.out)) is not None:
                self._owner.trouble(
                    "ask",
                    f"squeue printed what cannot be read ({part})",
                    "it is asked again until it can; jobs go on meanwhile",
                )
                then(None)
                return
            self._owner.trouble("ask", None)
            then(list(read_squeue(done.out)))

        self._owner.ask(command, _DEADLINE, answered)

    def _take(self, known: Iterable[str], rows: list[Row] | None) -> None:
        self._looking = False
        if rows is None:
            self._back_off = min(_LONGEST, self._back_off * 2)
            self._plan(self._back_off)
            return
        self._back_off = _DOWN
        # What wrappers wrote before Slurm called their jobs over.
        self._owner.read_spool()
        now = self._owner.now()
        shown = set()
        unmoved: dict[str, float] = {}
        for row in rows:
            queue_id = row.job if row.task is None else f"{row.job}_{row.task}"
            name = self._states.job_of(queue_id)
            if name is None:
                continue
            shown.add(name)
            self._states.seen(row, now)
            if row.state == "PENDING":
                self._warn(name, row.reason)
            tracked = self._states.jobs.get(name)
            if tracked is not None and tracked.cancelled and row.state in ("PENDING", "RUNNING"):
                unmoved[name] = self._unmoved.get(name, now)
        again = [name for name, since in unmoved.items() if now - since > _HEEDS]
        self._unmoved = {name: now if name in again else since for name, since in unmoved.items()}
        if again:
            self._owner.cancel_again(again)
        missed = [
            job
            for name in known
            if name not in shown and (job := self._states.jobs.get(name)) is not None
        ]
        if missed and self._site.accounting:
            ids = [job.queue_id for job in missed if job.queue_id is not None]
            names = [job.job for job in missed]
            self.account(ids[:_AT_ONCE], lambda found: self._settle(names[:_AT_ONCE], found))
        else:
            self._settle([job.job for job in missed], ())

    def _settle(self, missed: Iterable[str], rows: Iterable[Row] | None) -> None:
        now = self._owner.now()
        if rows is not None:
            for row in rows:
                # Of a job that slurmctld does not have, accounting may say for ever that it runs.
                if is_over(row.state):
                    self._states.seen(row, now)
            for name in missed:
                self._states.missing(name, now)
        self._owner.publish()
        if self._states.doubtful():
            self._quick += 1
            self._plan(_SOON_AGAIN if self._quick < 10 else 2 * _SOON_AGAIN)
        elif any(tracked.missed for tracked in self._states.jobs.values()):
            self._plan(self._period)

    def _warn(self, name: str, reason: str) -> None:
        """A job waits for what will not come by itself: say so once for each reason and group."""
        word = reason.strip("()").partition(",")[0]
        hint = STUCK.get(word)
        key = f"{name.rpartition('.')[0]} {word}"
        if hint is None or key in self._stuck:
            return
        self._stuck.add(key)
        self._owner.warn(f"{name} waits in Slurm ({word}): {hint}")

    # -- asked for by others -------------------------------------------------------------------

    def find(self, then: Callable[[list[Row] | None], None]) -> None:
        """All of this user's jobs, with their comments; ``None`` where nobody answers."""
        self._squeue(SQUEUE_COMMENT, then)

    def account(
        self, ids: Sequence[str], then: Callable[[list[Row] | None], None], *, since: float = 0.0
    ) -> None:
        """Asks accounting about jobs: about these, or about all since a time."""
        command = [
            "sacct", "--allocations", "--noheader", "--parsable2", f"--delimiter={SEPARATOR}",
            f"--format={SACCT}",
        ]  # fmt: skip
        if ids:
            command.append(f"--jobs={','.join(ids)}")
        else:
            command += [f"--user={self._user}", f"--starttime=now-{int(since)}seconds"]

        def answered(done: CommandResult) -> None:
            then(list(read_sacct(done.out)) if done.good else None)

        self._owner.ask(command, _DEADLINE, answered)
