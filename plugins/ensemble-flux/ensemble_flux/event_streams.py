"""Streams of the events of jobs in a Flux instance: its journal, or each job's eventlog.

The journal of the job manager has the events of all jobs, but only the instance's owner may read
it. Other users (guests) follow the eventlogs of their run's jobs.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from ensemble_core import JobEvent
from ensemble_flux.event_translation import EventTranslation
from ensemble_flux.jobspec import tag_of
from ensemble_flux.reactor import Reactor, error_text

#: Seconds until a stream that ended is reopened, and how often the journal is tried at most.
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
        journal: EventTranslation,
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


class EventlogWatcher:
    """Follows the eventlogs of a run's jobs, and finds the run's jobs among all jobs of the user.

    The arguments are callbacks:

    - ``tell`` is called with events.
    - ``found`` is called with the name, id, jobspec and eventlog of a job that was searched for.
    - ``lost`` is called with the name of a job that the instance no longer knows.
    - ``problem`` is called with a warning for the user.
    - ``moved`` is called when free resources may have changed.
    """

    def __init__(
        self,
        flux: Any,
        reactor: Reactor,
        journal: EventTranslation,
        run_id: str,
        *,
        tell: Callable[[Sequence[JobEvent]], None],
        found: Callable[[str, int, Mapping[str, Any], Sequence[Mapping[str, Any]]], None],
        lost: Callable[[str], None],
        moved: Callable[[], None],
        problem: Callable[[str], None],
    ) -> None:
        self._flux = flux
        self._reactor = reactor
        self._journal = journal
        self._run_id = run_id
        self._tell = tell
        self._found = found
        self._lost = lost
        self._moved = moved
        self._problem = problem

    def watch(self, name: str, queue_id: int) -> None:
        """Follow the eventlog of one of the run's jobs."""
        place = 0

        def answered(future: Any) -> bool:
            nonlocal place
            try:
                event = future.get_event()
            except OSError as error:
                self._ended(name, queue_id, error)
                return False
            if event is None:
                return False
            self._tell(self._journal.take({"id": queue_id, "events": [dict(event)]}, place))
            place += 1
            self._moved()
            return True

        future = self._flux.job.event_watch_async(self._reactor.handle, queue_id)
        self._reactor.follow(future, answered)

    def _ended(self, name: str, queue_id: int, error: OSError) -> None:
        if not self._journal.waits_for(name):
            return
        if error.errno == errno.ENOENT:
            self._lost(name)
        else:
            self._reactor.after(_AGAIN, partial(self.watch, name, queue_id))

    def find(self, jobs: Collection[str], known: Callable[[set[str]], None]) -> None:
        """Search the user's jobs for ``jobs``, and call ``known`` with the names that exist."""
        met: set[str] = set()
        candidates: list[tuple[int, str, Mapping[str, Any], list[Mapping[str, Any]]]] = []
        questions = 1

        def settle() -> None:
            nonlocal questions
            questions -= 1
            if questions:
                return
            # Somebody may have submitted a job's jobspec again: the run's own job is the oldest.
            for queue_id, name, jobspec, entries in sorted(candidates, key=itemgetter(0)):
                if name not in met:
                    met.add(name)
                    self._journal.accepted(name, queue_id)
                    self._found(name, queue_id, jobspec, entries)
                    self.watch(name, queue_id)
            known(met)

        def looked_up(queue_id: int, text: str | None) -> None:
            answer = json.loads(text or "{}")
            jobspec = json.loads(answer.get("jobspec", "{}"))
            tag = tag_of(jobspec)
            name = str(tag.get("job"))
            if tag.get("id") == self._run_id and name in jobs:
                entries = map(json.loads, answer.get("eventlog", "").splitlines())
                candidates.append((queue_id, name, jobspec, list(entries)))
            settle()

        def listed(text: str | None) -> None:
            nonlocal questions
            for entry in json.loads(text or "{}").get("jobs", ()):
                if entry.get("name") not in jobs:  # our id of a job serves as its name
                    continue
                questions += 1
                self._reactor.ask(
                    "job-info.lookup",
                    {"id": entry["id"], "keys": ["jobspec", "eventlog"], "flags": 0},
                    partial(looked_up, entry["id"]),
                    lambda _error: settle(),
                )
            settle()

        def refused(error: OSError) -> None:
            self._problem(f"cannot list this user's jobs: {error_text(error)}")
            settle()

        question = {
            "max_entries": 0,
            "attrs": ["name"],
            "since": 0.0,
            "constraint": {"userid": [os.getuid()]},
        }

        def ask(_answer: object = None) -> None:
            self._reactor.ask("job-list.list", question, listed, refused)

        def synchronize(text: str | None) -> None:
            # The list follows the queue with a delay. It answers about a job once it has the job.
            newest = {"id": json.loads(text or "{}")["max_jobid"], "attrs": ["name"]}
            self._reactor.ask("job-list.list-id", newest, ask, ask)

        self._reactor.ask("job-manager.getinfo", {}, synchronize, ask)
