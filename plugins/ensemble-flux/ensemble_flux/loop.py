"""What a run does in its Flux instance, in the thread of the reactor.

Jobs are submitted without waiting, a window of them at a time. Their events come from the job
manager's journal, which has those of all jobs and is for the owner of the instance; a guest watches
the eventlog of each of its own jobs. Made and driven by the executor.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ensemble_core import (
    Emit,
    Event,
    ExecutorError,
    ExecutorLost,
    Job,
    JobEvent,
    Problem,
    Resources,
    Run,
)
from ensemble_flux.gauges import Gauges
from ensemble_flux.jobspec import JobspecError, Jobspecs
from ensemble_flux.journal import Journal
from ensemble_flux.nodes import Nodes
from ensemble_flux.notation import f58
from ensemble_flux.output import remove_empty
from ensemble_flux.reactor import Reactor, words

__all__ = ["WINDOW", "Loop", "Order"]

#: Submissions that may be on their way at once: Flux takes jobs in batches, and the more it has to
#: choose from, the faster (measured: 64 give 0.6 of what 1,024 give, and more give no more).
WINDOW = 2048
#: Submissions between two looks at what has come in.
_SLICE = 64
#: Seconds to wait for the instance's first word, and for an answer to ``reattach``.
PATIENCE = 120.0
#: Seconds between attempts to reopen the journal, and how many attempts there are.
_AGAIN, _ATTEMPTS = 0.5, 240
#: Seconds between attempts of a submit that found nobody to take it, and how many there are.
_BUSY, _RETRIES = 0.5, 60
_NOBODY = frozenset({errno.ENOSYS, errno.EAGAIN})


@dataclass(slots=True)
class Order:
    """A job to submit, with what was prepared for it. ``failed`` says why it cannot run."""

    job: Job
    output: Mapping[str, Any] | None = None
    kept: tuple[str, ...] = ()
    extra: Mapping[str, Any] | None = None
    failed: str | None = None
    attempts: int = 0


class Loop:
    """One run's dealings with one Flux instance.

    ``events`` is where events come from: ``journal``, ``eventlogs``, or ``auto`` for the journal
    where the instance lets us have it. ``window`` is how many submissions may be on their way.
    """

    def __init__(
        self,
        flux: Any,
        uri: str | None,
        run: Run,
        emit: Emit,
        jobspecs: Jobspecs,
        *,
        events: str = "auto",
        window: int = WINDOW,
    ) -> None:
        self._flux = flux
        self._run = run
        self._emit = emit
        self._jobspecs = jobspecs
        self._events = events
        self._window = window
        nodes = Nodes()
        self._journal = Journal(run.tag, nodes, strangers=True)
        self._reactor = Reactor(flux, uri, opened=self._opened, idle=self._flush, lost=self._broken)
        self._gauges = Gauges(self._reactor, nodes, self._journal, self._problem)
        self._waiting: OrderedDict[str, Order] = OrderedDict()
        self._on_the_way: dict[str, Order] = {}
        self._kept: dict[str, tuple[str, ...]] = {}
        #: Jobs to cancel once Flux has answered with their ids, and jobs that were cancelled.
        self._doomed: set[str] = set()
        self._cancelled: set[str] = set()
        self._out: list[Event] = []
        self._opening = True
        self._refused: OSError | None = None
        self._stream: int | None = None
        self._stream_open = False
        self._attempts = 0
        self._finders: list[Callable[[set[str]], None]] = []
        #: Whether the instance is somebody else's.
        self.guest = False
        #: The hosts of the instance's brokers, and its version. Known once it is open.
        self.hosts: tuple[str, ...] = ()
        self.version = ""
        #: The gauges now; replaced, never changed.
        self.gauges: Mapping[str, float] = {}
        #: Why nothing more will come, if so.
        self.lost: str | None = None

    # -- from other threads --------------------------------------------------------------------

    def start(self) -> None:
        """Connect. Raises :class:`OSError` or :class:`ExecutorError`."""
        self._reactor.start()

    def close(self) -> None:
        self._reactor.stop()

    def submit(self, orders: Sequence[Order]) -> None:
        self._reactor.post(partial(self._take_orders, orders))

    def cancel(self, jobs: Sequence[str]) -> None:
        self._reactor.post(partial(self._cancel_jobs, tuple(jobs)))

    def reattach(self, jobs: Mapping[str, float]) -> dict[str, bool]:
        """Which of these jobs the instance knows; news of those follow."""
        answered = threading.Event()
        met: set[str] = set()

        def answer(known: set[str]) -> None:
            met.update(known)
            answered.set()

        self._reactor.post(partial(self._find, dict(jobs), answer))
        if not answered.wait(PATIENCE) or self.lost is not None:
            raise ExecutorError(
                "the Flux instance does not say which jobs it knows",
                cause=self.lost or f"no answer within {PATIENCE:g} s",
                hint="look at it with 'flux jobs -a'",
                code="no-answer",
                transient=True,
            )
        return {job: job in met for job in jobs}

    # -- opening -------------------------------------------------------------------------------

    def _opened(self) -> None:
        handle = self._reactor.handle
        self.version = handle.attr_get("version")
        self.hosts = _hosts(handle)
        self._gauges.read_nodes()
        if self._events != "eventlogs":
            self._open_journal(full=False)
            self._wait(lambda: self._stream_open or self._refused is not None)
            if self._refused is not None and (
                self._events == "journal" or self._refused.errno != errno.EPERM
            ):
                raise self._refused
        if self._stream_open:
            self._gauges.follow()
            self._wait(lambda: self._gauges.complete)
        else:
            self.guest = True
            self._journal.no_backlog()
            self._gauges.follow_as_guest()
            self._wait(lambda: self._gauges.complete)
        self._gauges.changed()
        self.gauges = self._gauges.values()
        self._opening = False

    def _wait(self, done: Callable[[], bool]) -> None:
        if not self._reactor.wait(done, PATIENCE):
            raise ExecutorError(
                "the Flux instance does not answer",
                cause=f"no word of its jobs within {PATIENCE:g} s",
                hint="look at it with 'flux jobs -a' and 'flux dmesg'",
                code="no-answer",
            )

    # -- news ----------------------------------------------------------------------------------

    def _open_journal(self, *, full: bool) -> None:
        self._stream_open = False
        self._stream = self._reactor.stream(
            "job-manager.events-journal", {"full": full}, self._take, self._journal_ended
        )

    def _take(self, text: str) -> None:
        response = json.loads(text)
        told = self._journal.take(response)
        if told:
            self._tell(told)
        if not response["events"] and not self._stream_open:
            self._stream_open = True
            self._attempts = 0
            # Answered by the job manager after what it has streamed so far, so the two agree.
            self._gauges.count_inactive()
            if not self._opening:
                self._after_backlog()

    def _tell(self, events: Sequence[JobEvent]) -> None:
        self._out += events
        for event in events:
            if event.name == "clean" and event.ours:
                self._kept_files(event.job)
                self._cancelled.discard(event.job)

    def _kept_files(self, job: str) -> None:
        kept = self._kept.pop(job, None)
        if kept is not None:
            remove_empty(kept)

    def _journal_ended(self, error: OSError) -> None:
        if self._opening:
            self._refused = error
            return
        why = words(error)
        if self._attempts == 0:
            self._problem(f"Flux's journal of job events ended ({why}); it is opened again")
        self._attempts += 1
        if self._attempts > _ATTEMPTS:
            self._broken(f"Flux's journal of job events cannot be opened again: {why}")
        else:
            self._reactor.after(_AGAIN, self._reopen)

    def _reopen(self) -> None:
        if self._stream is not None:
            self._reactor.end_stream(self._stream)
        self._journal.reopen()
        self._open_journal(full=True)

    def _after_backlog(self) -> None:
        """A journal was opened again: what became of jobs is known now."""
        finders, self._finders = self._finders, []
        for answer in finders:
            answer(self._journal.met)
        for job in self._journal.missing():
            self._fail(job, "lost", "the Flux instance no longer knows this job")

    def _problem(self, message: str) -> None:
        self._out.append(Problem(self._run.clock(), message))

    def _flush(self) -> None:
        """Hand on what has come."""
        changed = self._gauges.changed()
        if changed:
            self.gauges = self._gauges.values()
            self._out.append(Resources(self._run.clock(), changed))
        if self._out:
            events, self._out = self._out, []
            self._emit(events)

    def _broken(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        for answer in self._finders:
            answer(set())
        self._out.append(
            ExecutorLost(
                self._run.clock(),
                "flux",
                reason,
                "jobs that were running may still be: see 'flux jobs -a' once the instance is back",
            )
        )
        events, self._out = self._out, []
        self._emit(events)

    # -- submitting ----------------------------------------------------------------------------

    def _take_orders(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self._journal.expect(order.job.id, order.job.nodes, order.extra)
            self._waiting[order.job.id] = order
        self._pump()

    def _pump(self) -> None:
        """Send waiting jobs on their way, as many as the window has room for."""
        submit_async = self._flux.job.submit_async
        handle = self._reactor.handle
        last = len(self._on_the_way) + _SLICE
        while self._waiting and len(self._on_the_way) < self._window:
            if len(self._on_the_way) == last:
                self._reactor.post(self._pump)
                return
            name, order = self._waiting.popitem(last=False)
            job = order.job
            if order.failed is not None:
                self._fail(name, "workdir", order.failed)
                continue
            try:
                jobspec = self._jobspecs.write(job, order.output)
                future = submit_async(handle, jobspec, urgency=job.urgency)
            except JobspecError as error:
                self._fail(name, "jobspec", str(error))
                continue
            except OSError as error:
                self._fail(name, "submit", words(error))
                continue
            self._on_the_way[name] = order
            if order.kept:
                self._kept[name] = order.kept
            self._reactor.then(future, partial(self._answered, name))

    def _answered(self, name: str, future: Any) -> None:
        order = self._on_the_way.pop(name)
        try:
            queue_id = self._reactor.wire.jobid(future)
        except OSError as error:
            self._not_taken(order, error)
        else:
            self._journal.accepted(name, queue_id)
            if self.guest:
                self._watch(name, queue_id)
            if name in self._doomed:
                self._doomed.discard(name)
                self._raise_cancel(name, queue_id)
        self._pump()

    def _not_taken(self, order: Order, error: OSError) -> None:
        name = order.job.id
        if error.errno in _NOBODY and order.attempts < _RETRIES and name not in self._doomed:
            # Nobody has seen the request: a module of the instance is being loaded again.
            order.attempts += 1
            self._waiting[name] = order
            self._reactor.after(_BUSY, self._pump)
        elif name in self._doomed:
            self._doomed.discard(name)
            self._fail(name, "cancel", "cancelled before Flux had taken it")
        else:
            self._fail(name, "submit", words(error))

    def _fail(self, name: str, kind: str, note: str) -> None:
        """A job of ours is over without Flux's having said so."""
        now = self._run.clock()
        if not self._journal.waits_for(name):
            return
        events = [] if self._journal.submitted(name) else [JobEvent(now, name, "submit")]
        context = {"type": kind, "severity": 0, "note": note}
        events += [JobEvent(now, name, "exception", context), JobEvent(now, name, "clean")]
        self._journal.forget(name)
        self._tell(events)

    # -- as a guest ----------------------------------------------------------------------------

    def _watch(self, name: str, queue_id: int) -> None:
        """Follow the eventlog of one job of ours."""
        place = 0

        def answered(future: Any) -> bool:
            nonlocal place
            try:
                event = future.get_event()
            except OSError as error:
                self._watch_ended(name, queue_id, error)
                return False
            if event is None:
                return False
            told = self._journal.take({"id": queue_id, "events": [dict(event)]}, place)
            place += 1
            self._tell(told)
            self._gauges.moved()
            return True

        future = self._flux.job.event_watch_async(self._reactor.handle, queue_id)
        self._reactor.follow(future, answered)

    def _watch_ended(self, name: str, queue_id: int, error: OSError) -> None:
        if not self._journal.waits_for(name):
            return
        if error.errno == errno.ENOENT:
            self._fail(name, "lost", "the Flux instance no longer knows this job")
        else:
            self._reactor.after(_AGAIN, partial(self._watch, name, queue_id))

    # -- cancelling ----------------------------------------------------------------------------

    def _cancel_jobs(self, jobs: Sequence[str]) -> None:
        for name in jobs:
            if self._waiting.pop(name, None) is not None:
                self._fail(name, "cancel", "cancelled before it was handed to Flux")
                continue
            queue_id = self._journal.queue_id(name)
            if queue_id is not None:
                self._raise_cancel(name, queue_id)
            elif name in self._on_the_way:
                self._doomed.add(name)

    def _raise_cancel(self, name: str, queue_id: int) -> None:
        if name in self._cancelled:
            return
        self._cancelled.add(name)

        def answered(future: Any) -> None:
            try:
                future.get()
            except OSError as error:
                self._cancelled.discard(name)
                # A job that is over cannot be cancelled, nor one that was forgotten.
                if self._journal.waits_for(name) and error.errno != errno.ENOENT:
                    self._problem(
                        f"job {name} ({f58(queue_id)}) could not be cancelled: {words(error)}"
                    )

        note = f"cancelled by run {self._run.tag}"
        future = self._flux.job.cancel_async(self._reactor.handle, queue_id, note)
        self._reactor.then(future, answered)

    # -- finding again -------------------------------------------------------------------------

    def _find(self, jobs: Mapping[str, float], answer: Callable[[set[str]], None]) -> None:
        for name, since in jobs.items():
            self._journal.expect(name, since=since)

        def known(met: set[str]) -> None:
            for name in jobs.keys() - met:
                self._journal.forget(name)
            answer(met)

        if self.guest:
            self._find_as_guest(jobs, known)
        else:
            self._finders.append(known)
            self._reopen()

    def _find_as_guest(self, jobs: Mapping[str, float], known: Callable[[set[str]], None]) -> None:
        """Look through the user's own jobs for those of this run."""
        met: set[str] = set()
        open_questions = 1

        def settle() -> None:
            nonlocal open_questions
            open_questions -= 1
            if not open_questions:
                known(met)

        def jobspec(queue_id: int, text: str | None) -> None:
            tag = _tag(json.loads(text or "{}"))
            name = str(tag.get("job"))
            if tag.get("run") == self._run.tag and name in jobs:
                met.add(name)
                self._journal.accepted(name, queue_id)
                self._watch(name, queue_id)
            settle()

        def listed(text: str | None) -> None:
            nonlocal open_questions
            for entry in json.loads(text or "{}").get("jobs", ()):
                if entry.get("name") not in jobs:
                    continue
                open_questions += 1
                self._reactor.ask(
                    "job-info.lookup",
                    {"id": entry["id"], "keys": ["jobspec"], "flags": 0},
                    partial(jobspec, entry["id"]),
                    lambda _error: settle(),
                )
            settle()

        def unlisted(error: OSError) -> None:
            self._problem(f"the list of this user's jobs could not be had: {words(error)}")
            settle()

        question = {
            "max_entries": 0,
            "attrs": ["name"],
            "since": 0.0,
            "constraint": {"userid": [os.getuid()]},
        }
        self._reactor.ask("job-list.list", question, listed, unlisted)


def _hosts(handle: Any) -> tuple[str, ...]:
    hostlist = import_module("flux.hostlist").Hostlist
    return tuple(hostlist(handle.attr_get("hostlist")))


def _tag(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a jobspec that was looked up says of a run."""
    try:
        found = json.loads(answer["jobspec"])["attributes"]["user"]["ensemble"]
    except (KeyError, TypeError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}
