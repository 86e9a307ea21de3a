"""Shutdown of a run: decides how long a run that has ended waits for its last jobs.

The controller asks after each event. A silent queue, or a journal that cannot be written, must not
keep a run that was told to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ensemble_core.engine.engine import Engine
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Cancel, Terminate
from ensemble_core.model.events import Event, JobEvent, Observed
from ensemble_core.runtime.orders import Performer
from ensemble_core.runtime.queue_names import QueueNames

#: If the journal of a stopped run cannot be written: how many seconds the run waits for jobs of
#: which the queue has never reported an event, and after how many seconds it looks again.
_UNHEARD_GRACE, _TICK = 10.0, 0.2
_LEFT_ALONE = (
    "the stop cancels no job, because it cannot be recorded: jobs that run continue\n"
    "  hint: 'ensemble resume' or 'ensemble cancel' when the journal can be written"
)
#: Seconds between checks for cancelled jobs without events, and how many such jobs a message names.
_LOOK, _SHOWN = 1.0, 10


class Shutdown:
    """Shutdown of one run.

    - ``detaches``: whether the queue can keep jobs that outlive the run
    - ``patience``: seconds without an event of a cancelled job after which the queue is silent
    - ``report``: called with the number and the names of the jobs of a silent queue
    - ``warn``: called with a warning
    """

    def __init__(
        self,
        engine: Engine,
        performer: Performer,
        journal: JournalWriter | None,
        names: QueueNames,
        *,
        detaches: bool,
        patience: float,
        report: Callable[[str, str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._performer = performer
        self._journal = journal
        self._names = names
        self._detaches = detaches
        self._patience = patience
        self._report = report
        self._warn = warn
        #: True if cancelled jobs had no event for too long, so that the run ends without them.
        self.gave_up = False
        #: Time of the last event of a cancelled job; ``None`` before an end or a stop.
        self._last_news: float | None = None
        #: When a stopped run failed to write its journal for the first time.
        self._stuck_since: float | None = None

    @property
    def resumable_end(self) -> bool:
        """True if the queue was lost, or the run has an end that a resume revokes."""
        state = self._engine.state
        return state.lost or (state.ended is not None and state.ended is state.resumable_end)

    def limit(self, seconds: float | None) -> float | None:
        """Return how long to wait for an event at most, given when the next timer is due."""
        if self._stuck_since is not None:
            seconds = _TICK
        if self._last_news is not None:
            return _LOOK if seconds is None else min(_LOOK, seconds)
        return seconds

    def heard(self, events: Iterable[Event]) -> None:
        """Note that these events have arrived."""
        if self._last_news is not None and any(map(_is_own_event, events)):
            self._last_news = time.monotonic()

    def is_over(self, ended: Terminate) -> bool:
        """Return whether a run with this end waits for nothing more."""
        if self.resumable_end or not self._engine.busy:
            return True
        if ended.stopped:
            over = not self._engine.waits_for_cancelled
        else:
            over = not ended.cancel and self._detaches  # jobs that are not cancelled outlive it
        return over or self._is_queue_silent(ended)

    def _is_queue_silent(self, ended: Terminate) -> bool:
        """Return True, and report it, if cancelled jobs have had no event for some time.

        Time during which the queue is unreachable does not count. A resume asks the queue about
        these jobs.
        """
        if not ended.cancel:
            return False
        now = time.monotonic()
        if self._last_news is None or self._performer.retrying:
            self._last_news = now
        if now - self._last_news < self._patience:
            return False
        self.gave_up = True
        jobs = [job for job, _ in self._engine.in_queue()]
        shown = ", ".join(jobs[:_SHOWN]) + (" …" if len(jobs) > _SHOWN else "")
        self._report(f"{len(jobs)} cancelled job{'s' if len(jobs) != 1 else ''}", shown)
        return True

    def is_journal_stuck(self, ended: Terminate, *, stopped: bool) -> bool:
        """Carry out the cancels of a stop even if the journal cannot be written.

        First, the stop is recorded beside the journal, so that a resume does not take the jobs for
        cancelled by others. If that is impossible, the jobs are left alone.

        Return True if the run waits for nothing more, or only for jobs whose submit waits for the
        journal.
        """
        if not stopped or self._journal is None or not self._journal.failure:
            self._stuck_since = None
            return False
        now = time.monotonic()
        if self._stuck_since is None:
            self._stuck_since = now
            # Once the journal can be written, the cancel is repeated, after pending submits.
            if ended.cancel:
                if not self._journal.mark_stop():
                    self._warn(_LEFT_ALONE)
                    return True
                self._performer.perform(Cancel(jobs=self._names.names(ended.cancel)))
        unheard = not any(record.newest for _, record in self._engine.in_queue())
        return unheard and now - self._stuck_since > _UNHEARD_GRACE


def _is_own_event(event: Event) -> bool:
    """Return True if the event is about a job of this run."""
    return isinstance(event, Observed) or (isinstance(event, JobEvent) and event.ours)
