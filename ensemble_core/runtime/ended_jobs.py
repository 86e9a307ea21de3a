"""Ended jobs of a run that its executor does not have to remember any longer."""

from __future__ import annotations

import time

from ensemble_core.journal.writer import JournalWriter
from ensemble_core.plugin.executor import Executor
from ensemble_core.runtime.orders import Forget, Performer

#: Ended jobs are passed to the executor after this number, or this time in seconds.
_AT_ONCE, _AFTER = 100, 1.0


class EndedJobs:
    """Ended jobs, collected for :meth:`Executor.forget`.

    The executor receives them soon, because they may occupy its queue: in Kubernetes, a finished
    job counts towards quotas until it is deleted. With a journal, they are passed on when their
    ends are on disk.
    """

    def __init__(
        self, executor: Executor, performer: Performer, journal: JournalWriter | None
    ) -> None:
        self._performer = performer
        self._journal = journal
        #: True if the executor needs to know which jobs it can forget.
        self._wanted = type(executor).forget is not Executor.forget
        self._jobs: list[str] = []
        #: When to pass the jobs on (monotonic seconds); ``None`` without jobs.
        self.due: float | None = None

    def add(self, job: str) -> None:
        """Add a job whose end was appended to the journal."""
        if not self._wanted:
            return
        self._jobs.append(job)
        if self.due is None:
            self.due = time.monotonic() + _AFTER
        if len(self._jobs) >= _AT_ONCE:
            self.pass_on()

    def pass_if_due(self) -> None:
        """Pass the jobs on if they have waited long enough."""
        if self.due is not None and time.monotonic() >= self.due:
            self.pass_on()

    def pass_on(self) -> None:
        """Order the executor to forget the jobs."""
        jobs, self._jobs, self.due = tuple(self._jobs), [], None
        if not jobs:
            return
        if self._journal is None:
            self._performer.perform(Forget(jobs))
        else:
            self._journal.then(lambda: self._performer.perform(Forget(jobs)))
