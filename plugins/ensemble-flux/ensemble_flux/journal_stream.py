"""Stream of the events of all jobs in a Flux instance: the journal of its job manager.

Only the instance's owner may read it; for others there is ``eventlog_watcher``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from ensemble_core import JobEvent
from ensemble_flux.event_translation import Journal
from ensemble_flux.jobspec import tag_of
from ensemble_flux.reactor import Reactor, error_text

#: Seconds between attempts to reopen the journal, and maximum number of attempts.
_AGAIN, _ATTEMPTS = 0.5, 240


class JournalStream:
    """Reads the journal, reopens it if it ends, and finds jobs of an earlier controller in it.

    ``sought`` has the names of jobs that are searched for. The other arguments are callbacks:

    - ``tell`` is called with events.
    - ``found`` is called with the name, id, jobspec and eventlog of a job that was searched for.
    - ``lost`` is called with the name of a job that the instance no longer knows.
    - ``complete`` is called when all events so far have been read.
    - ``problem`` is called with a warning for the user.
    - ``failed`` is called with a reason if the journal cannot be reopened.
    """

    def __init__(
        self,
        reactor: Reactor,
        journal: Journal,
        run_id: str,
        sought: Mapping[str, float],
        *,
        tell: Callable[[Sequence[JobEvent]], None],
        found: Callable[[str, int, Mapping[str, Any], Sequence[Mapping[str, Any]]], None],
        lost: Callable[[str], None],
        complete: Callable[[], None],
        problem: Callable[[str], None],
        failed: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._journal = journal
        self._run_id = run_id
        self._sought = sought
        self._tell = tell
        self._found = found
        self._lost = lost
        self._complete = complete
        self._problem = problem
        self._failed = failed
        #: Whether the executor is being opened: then, an error is not a reason to reopen.
        self.opening = True
        #: Why the journal could not be opened.
        self.refused: OSError | None = None
        #: Whether all events so far have been read.
        self.is_open = False
        self._stream: int | None = None
        self._attempts = 0
        #: Responses of the current backlog about jobs that are searched for.
        self._candidates: list[Mapping[str, Any]] = []
        self._finders: list[Callable[[set[str]], None]] = []

    def open(self, *, full: bool) -> None:
        """Begin to read the journal; with ``full``, from its start."""
        self.is_open = False
        self._stream = self._reactor.stream(
            "job-manager.events-journal", {"full": full}, self._handle_response, self._journal_ended
        )

    def find(self, known: Callable[[set[str]], None]) -> None:
        """Look for the jobs that are searched for, and call ``known`` with those that exist."""
        self._finders.append(known)
        self._reopen()

    def give_up(self) -> None:
        """Answer all searches, because no more responses will arrive."""
        for answer in self._finders:
            answer(set())

    def _handle_response(self, text: str) -> None:
        response = json.loads(text)
        if self._sought and (jobspec := response.get("jobspec")):
            tag = tag_of(jobspec)
            if tag.get("id") == self._run_id and tag.get("job") in self._sought:
                self._candidates.append(response)
                return
        if not response["events"]:
            self._take_candidates()
        told = self._journal.take(response)
        if told:
            self._tell(told)
        if not response["events"] and not self.is_open:
            self.is_open = True
            self._attempts = 0
            # The reply arrives after all events streamed so far, so it is consistent with them.
            self._complete()
            if not self.opening:
                self._after_backlog()

    def _take_candidates(self) -> None:
        """Take up the jobs of an earlier controller.

        Somebody may have submitted a job's jobspec again: the run's own job is the oldest.
        """
        candidates, self._candidates = self._candidates, []
        for each in sorted(candidates, key=itemgetter("id")):
            job = str(tag_of(each["jobspec"])["job"])
            self._found(job, each["id"], each["jobspec"], each["events"])
            self._journal.take(each)

    def _journal_ended(self, error: OSError) -> None:
        if self.opening:
            # Do not keep the error itself, because its traceback would keep the handle alive.
            self.refused = OSError(error.errno, error_text(error))
            return
        why = error_text(error)
        if self._attempts == 0:
            self._problem(f"Flux's journal of job events ended ({why}); reopening it")
        self._attempts += 1
        if self._attempts > _ATTEMPTS:
            self._failed(f"cannot reopen Flux's journal of job events: {why}")
        else:
            self._reactor.after(_AGAIN, self._reopen)

    def _reopen(self) -> None:
        if self._stream is not None:
            self._reactor.end_stream(self._stream)
        self._journal.reopen()
        self._candidates.clear()
        self.open(full=True)

    def _after_backlog(self) -> None:
        """Handle the end of a reopened journal's backlog, when the state of all jobs is known."""
        finders, self._finders = self._finders, []
        for answer in finders:
            answer(set(self._journal.met))
        self._journal.met.clear()
        for job in self._journal.missing():
            self._lost(job)
