"""Follows the eventlogs of a run's jobs in Flux.

Needed for users who do not own the Flux instance (guests): they cannot read its journal, which has
the events of all jobs.
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
from ensemble_flux.event_translation import Journal
from ensemble_flux.jobspec import tag_of
from ensemble_flux.reactor import Reactor, error_text

#: Seconds until an interrupted eventlog stream is reopened.
_AGAIN = 0.5


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
        journal: Journal,
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
