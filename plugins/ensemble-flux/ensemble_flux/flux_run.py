"""A run in its Flux instance: submits and cancels jobs, and reports their events."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from signal import SIGKILL, SIGTERM
from typing import Any

from ensemble_core import (
    Emit,
    Event,
    ExecutorError,
    ExecutorLost,
    JobEvent,
    Problem,
    Resources,
    Run,
)
from ensemble_flux.bindings import connect
from ensemble_flux.event_streams import EventlogWatcher, JournalStream
from ensemble_flux.event_translation import EventTranslation
from ensemble_flux.idle_queue import IdleQueue
from ensemble_flux.ids_and_hostlists import f58
from ensemble_flux.instance import Instance, ends_with, read_instance, survives_power_cut
from ensemble_flux.instance_gauges import Gauges
from ensemble_flux.interrupted_jobs import INTERRUPTED, DrainRecord, InterruptedJobs
from ensemble_flux.job_output import Fetcher, files, remove_empty
from ensemble_flux.jobspec import Jobspecs, files_of, tag_of
from ensemble_flux.node_usage import Nodes
from ensemble_flux.reactor import Reactor, error_text
from ensemble_flux.submitter import WINDOW, Order, Submitter

#: Seconds to wait for the instance's first message, and for a reply to ``reattach``.
PATIENCE = 120.0
#: Seconds between checks whether submissions are still being accepted, and until a check whether
#: a job is held.
_AGAIN = 0.5
#: Seconds that a checked job may take to reach the job manager.
_BATCHED = 0.25
#: Seconds from SIGTERM to SIGKILL at the end of the allocation, as Flux's default, and from then to
#: the end of the drain, if Flux does not report the ends of the jobs.
_GRACE, _UNREPORTED = 5.0, 5.0


class FluxRun:
    """One run's connection to one Flux instance.

    - ``events``: the source of job events. ``journal`` is one stream for all jobs, which only the
      instance's owner may read; ``eventlogs`` is one stream per job; ``auto`` prefers the journal.
    - ``window``: the maximum number of submissions that wait for Flux's reply
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
        self._uri = uri
        self._run = run
        self._emit = emit
        self._events = events
        nodes = Nodes()
        self._journal = EventTranslation(run.id, nodes, foreign=True, begun=run.clock())
        #: What the next controller must know if the instance ends.
        self.record = DrainRecord(run.state)
        self._reactor = Reactor(
            flux, uri, opened=self._on_open, idle=self._flush, lost=self._report_lost
        )
        self._end = InterruptedJobs(self._reactor, self._tell)
        self._fetcher = Fetcher(flux, self._reactor, self._add_events, self._problem)
        self._gauges = Gauges(self._reactor, nodes, self._journal, self._problem)
        self._idle_queue = IdleQueue(self._reactor, self._journal, nodes, self._problem)
        self._submitter = Submitter(
            flux,
            self._reactor,
            jobspecs,
            accepted=self._accepted,
            failed=self._fail,
            problem=self._problem,
            window=window,
        )
        self._watcher = EventlogWatcher(
            flux,
            self._reactor,
            self._journal,
            run.id,
            tell=self._add_unless_held,
            found=self._found,
            lost=self._lose,
            moved=self._gauges.moved,
            problem=self._problem,
        )
        self._kept: dict[str, tuple[str, ...]] = {}
        #: Cancelled jobs that are not over yet.
        self._cancelled: set[str] = set()
        #: Groups with a held job that was reported.
        self._warned: set[str] = set()
        self._out: list[Event] = []
        #: Jobs of an earlier controller that are searched for, each with the time of its last known
        #: event.
        self._sought: dict[str, float] = {}
        self._stream = JournalStream(
            self._reactor,
            self._journal,
            run.id,
            self._sought,
            tell=self._add_unless_held,
            found=self._found,
            lost=self._lose,
            complete=self._gauges.count_inactive,
            problem=self._problem,
            failed=self._report_lost,
        )
        #: Whether the instance belongs to another user.
        self.guest = False
        #: Hosts of the instance's brokers, and its version. Known once the instance is open.
        self.hosts: tuple[str, ...] = ()
        self.version = ""
        #: The instance. Known once it is open.
        self.instance = Instance()
        #: Whether its jobs or its records can survive a power cut of this machine.
        self.survives_power_cut = True
        #: Whether the instance ends together with this process.
        self.ends_here = False
        #: Current gauges. The mapping is replaced, never changed.
        self.gauges: Mapping[str, float] = {}
        #: Submitted jobs that are not over. The submitting thread adds jobs.
        self.ids: set[str] = set()
        #: Why no more events will arrive; ``None`` while the instance is connected.
        self.lost: str | None = None
        #: The jobs to drain, once that is requested.
        self._to_drain: frozenset[str] | None = None
        self._draining = self.drained = False
        #: Events that the run may not have received, by job, if the instance can end.
        self._recent: dict[str, list[JobEvent]] = {}

    # -- from other threads --------------------------------------------------------------------

    def start(self) -> None:
        """Connect. Raises :class:`OSError` or :class:`ExecutorError`."""
        self._reactor.start()

    def close(self) -> None:
        self._reactor.stop()
        self._fetcher.close()

    def submit(self, orders: Sequence[Order]) -> None:
        self._reactor.post(partial(self._handle_orders, orders))

    def cancel(self, jobs: Sequence[str]) -> None:
        self._reactor.post(partial(self._cancel_jobs, tuple(jobs)))

    def drain(self) -> None:
        self._to_drain = frozenset(self.ids)
        self._reactor.post(self._drain)

    def forget(self, jobs: Sequence[str]) -> None:
        """The run has received the last events of these jobs."""
        self._reactor.post(partial(self._forget, tuple(jobs)))

    def _forget(self, jobs: Sequence[str]) -> None:
        for name in jobs:
            self._recent.pop(name, None)

    def tell_again(self, events: Sequence[JobEvent]) -> None:
        """Report events from the record."""
        self._reactor.post(partial(self._tell, events))

    def signal(self, jobs: Sequence[str], number: int) -> None:
        """Send a signal to those of these jobs that run."""
        errors: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reactor.post(partial(self._signal_jobs, tuple(jobs), number, errors))
        try:
            error = errors.get(timeout=PATIENCE)
        except queue.Empty:
            error = self.lost or f"no answer within {PATIENCE:g} s"
        if error:
            raise ExecutorError(
                "the Flux instance did not send the signal",
                cause=error,
                hint="check it with 'flux jobs -a'",
                code="no-answer",
                transient=self.lost is None,
            )

    def _signal_jobs(
        self, jobs: Sequence[str], number: int, errors: queue.SimpleQueue[str]
    ) -> None:
        left = 1
        wrong: list[str] = []

        def answered(name: str, future: Any) -> None:
            nonlocal left
            try:
                if future is not None:
                    future.get()
            except OSError as error:
                # A job that has not started, or is over, has no processes.
                if self._journal.waits_for(name) and error.errno not in (
                    errno.ENOENT,
                    errno.EINVAL,
                ):
                    wrong.append(f"{name}: {error_text(error)}")
            left -= 1
            if not left:
                errors.put("; ".join(wrong[:3]))

        for name in jobs:
            left += self._kill(name, number, partial(answered, name))
        answered("", None)

    def _kill(self, name: str, number: int, answered: Callable[[Any], None]) -> bool:
        queue_id = self._journal.queue_id(name)
        if queue_id is None:
            return False
        future = self._flux.job.kill_async(self._reactor.handle, queue_id, number)
        self._reactor.then(future, answered)
        return True

    def reattach(self, jobs: Mapping[str, float]) -> dict[str, bool]:
        """Return for each job whether the instance knows it. Events of known jobs follow."""
        self._await_submits()
        answered = threading.Event()
        met: set[str] = set()

        def answer(known: set[str]) -> None:
            met.update(known)
            answered.set()

        self._reactor.post(partial(self._find, dict(jobs), answer))
        if not answered.wait(PATIENCE) or self.lost is not None:
            raise ExecutorError(
                "the Flux instance did not list its jobs",
                cause=self.lost or f"no answer within {PATIENCE:g} s",
                hint="check it with 'flux jobs -a'",
                code="no-answer",
                transient=True,
            )
        return {job: job in met for job in jobs}

    def _await_submits(self) -> None:
        """Wait for jobs that an earlier controller sent and that the instance is still accepting.

        Otherwise these jobs would be submitted twice.
        """
        handle = connect(self._flux, self._uri)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                stages = handle.rpc("job-ingest.stats-get", {}).get()["pipeline"].values()
                busy = sum(stage["running"] + stage["backlog"] for stage in stages)
            except (OSError, LookupError, TypeError, AttributeError):
                break  # the format of another version, or no permission
            if not busy:
                break
            time.sleep(_AGAIN)
        # Checked jobs are passed on in batches, every few milliseconds.
        time.sleep(_BATCHED)

    # -- opening -------------------------------------------------------------------------------

    def _on_open(self) -> None:
        handle = self._reactor.handle
        self.version = handle.attr_get("version")
        self.hosts = _hosts(handle)
        self.instance = read_instance(handle)
        self.survives_power_cut = survives_power_cut(handle, self.hosts)
        self._end.temporary = self.instance.temporary
        self.ends_here = self.instance.temporary and ends_with(handle, self.instance)
        self._gauges.read_nodes()
        if self._events != "eventlogs":
            self._stream.open(full=False)
            self._wait(lambda: self._stream.is_open or self._stream.refused is not None)
            refused = self._stream.refused
            if refused is not None and (self._events == "journal" or refused.errno != errno.EPERM):
                raise ExecutorError(
                    "cannot read the journal of job events of this Flux instance",
                    cause=error_text(refused),
                    hint="remove the option events=journal"
                    if refused.errno == errno.EPERM
                    else "check with 'flux module list' that its job manager is loaded",
                    code="no-journal",
                )
        if self._stream.is_open:
            self._gauges.follow()
            self._wait(lambda: self._gauges.complete)
        else:
            self.guest = True
            self._journal.no_backlog()
            self._gauges.follow_as_guest()
            self._wait(lambda: self._gauges.complete)
        self._gauges.changed()
        self.gauges = self._gauges.values()
        self._stream.opening = False

    def _wait(self, done: Callable[[], bool]) -> None:
        if not self._reactor.wait(done, PATIENCE):
            raise ExecutorError(
                "the Flux instance does not answer",
                cause=f"no message about its jobs within {PATIENCE:g} s",
                hint="check it with 'flux jobs -a' and 'flux dmesg'",
                code="no-answer",
            )

    # -- events --------------------------------------------------------------------------------

    def _add_unless_held(self, events: Sequence[JobEvent]) -> None:
        self._add_events(self._fetcher.pass_on(events))

    def _add_events(self, events: Sequence[JobEvent]) -> None:
        self._tell(self._end.pass_on(events))

    def _tell(self, events: Sequence[JobEvent]) -> None:
        if self._draining:
            self.record.add(events)
        elif self.ends_here:
            self._keep(events)
        self._out += events
        for event in events:
            if event.name == "urgency" and event.ours:
                # Events of the past follow one another at once, also those of a release.
                self._reactor.after(_AGAIN, partial(self._warn_if_held, event.job))
            if event.name == "clean" and event.ours:
                self._remove_kept_output(event.job)
                self._cancelled.discard(event.job)
                self.ids.discard(event.job)
        # Events of waiting jobs are dropped, and may nevertheless be what the drain waits for.
        if self._draining and self._end.drained:
            self._end_drain()

    def _warn_if_held(self, job: str) -> None:
        group = job.rpartition(".")[0]
        why = self._journal.held(job)
        if why and group not in self._warned:
            self._warned.add(group)
            self._problem(f"{job} waits in Flux: {why}")

    def _keep(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            if event.ours:
                kept = self._recent.setdefault(event.job, [])
                if kept and kept[-1].name == "clean":  # the job was submitted again
                    kept.clear()
                kept.append(event)

    def _remove_kept_output(self, job: str) -> None:
        kept = self._kept.pop(job, None)
        if kept is not None:
            remove_empty(kept)

    def _problem(self, message: str) -> None:
        self._out.append(Problem(self._run.clock(), message))

    def _flush(self) -> None:
        """Pass on all events and gauges that have arrived."""
        if self.drained:  # the last event has been reported
            return
        if self._out:  # events first, because rules wait for them
            events, self._out = self._out, []
            self._emit(events)
        changed = self._gauges.changed()
        if changed:
            self.gauges = self._gauges.values()
            self._emit((Resources(self._run.clock(), changed),))

    def _report_lost(self, reason: str) -> None:
        if self._to_drain is not None and self.lost is None and not self._draining:
            self._begin_drain(self._to_drain)
        if self.lost is not None:
            return
        self.lost = reason
        self._stream.give_up()
        now = self._run.clock()
        ends = self._end.lost(now)
        if self._draining:
            self._tell(ends)
            return
        self._tell(ends)
        over = [job for job, kept in self._recent.items() if kept[-1].name == "clean"]
        self._record(over, now)
        hint = "running jobs may continue: see 'flux jobs -a' once the instance is back"
        self._emit_last(ExecutorLost(now, "flux", reason, hint))

    def _emit_last(self, last: ExecutorLost) -> None:
        events, self._out = self._out, []
        self._emit([*events, last])

    # -- the end of the allocation ---------------------------------------------------------------

    def _drain(self) -> None:
        if self._draining or self.lost is not None or self._to_drain is None:
            return
        running, waiting = self._begin_drain(self._to_drain)
        for name in waiting:
            queue_id = self._journal.queue_id(name)
            if queue_id is not None:
                self._raise_cancel(name, queue_id)
        self._kill_all(running, SIGTERM)
        self._reactor.after(_GRACE, lambda: self._kill_all(running, SIGKILL))
        self._reactor.after(_GRACE + _UNREPORTED, self._give_up)

    def _begin_drain(self, jobs: Collection[str]) -> tuple[set[str], set[str]]:
        """Submit no more. Return the jobs that run and those that wait in Flux."""
        waiting = self._submitter.stop()
        running = set()
        for name in set(jobs) - waiting:
            if not self._journal.waits(name):
                running.add(name)
            elif self._journal.queue_id(name) is not None:
                waiting.add(name)
        self._draining = True
        self._record(running | (self._recent.keys() - waiting), self._run.clock())
        self._tell(self._end.drain(running, waiting))
        return running, waiting

    def _record(self, jobs: Collection[str], now: float) -> None:
        self.record.begin(jobs, now)
        self.record.add([event for job in jobs for event in self._recent.get(job, ())])

    def _kill_all(self, jobs: Iterable[str], number: int) -> None:
        for name in jobs:
            self._kill(name, number, _ignore_error)

    def _give_up(self) -> None:
        if not self.drained:
            self._problem("Flux has not reported the ends of all jobs before the instance's end")
            self._tell(self._end.lost(self._run.clock()))

    def _end_drain(self) -> None:
        if not self.drained:
            self.drained = True
            self.lost = self.lost or "this process got SIGTERM"
            self._emit_last(ExecutorLost(self._run.clock(), "flux", self.lost, drained=True))

    # -- the run's jobs --------------------------------------------------------------------------

    def _handle_orders(self, orders: Sequence[Order]) -> None:
        if self._draining:
            return  # they wait on record
        for order in orders:
            self._journal.expect(order.job.id, order.job.nodes, order.extra)
            if order.kept:
                self._kept[order.job.id] = order.kept
        self._submitter.take(orders)

    def _accepted(self, order: Order, queue_id: int) -> None:
        name = order.job.id
        self._journal.accepted(name, queue_id)
        self._idle_queue.expect()
        if order.fetch and self._journal.waits_for(name):
            self._fetcher.expect(name, queue_id, order.fetch)
        if self.guest:
            self._watcher.watch(name, queue_id)
        if self._submitter.cancelled_on_the_way(name) or self._draining:
            self._raise_cancel(name, queue_id)

    def _lose(self, name: str) -> None:
        self._fail(name, "lost", "the Flux instance no longer knows this job")

    def _fail(self, name: str, kind: str, note: str) -> None:
        """End a job that Flux has not reported as over."""
        if not self._journal.waits_for(name):
            return
        now = self._run.clock()
        events = [] if self._journal.submitted(name) else [JobEvent(now, name, "submit")]
        context = {"type": kind, "severity": 0, "note": note}
        events += [JobEvent(now, name, "exception", context), JobEvent(now, name, "clean")]
        self._journal.forget(name)
        self._add_unless_held(events)

    def _cancel_jobs(self, jobs: Sequence[str]) -> None:
        if self._draining:
            return  # all jobs end now
        self._end.cancel(jobs)
        for name in jobs:
            queue_id = self._journal.queue_id(name)
            if queue_id is not None:
                self._raise_cancel(name, queue_id)
            else:
                self._submitter.cancel(name)

    def _raise_cancel(self, name: str, queue_id: int) -> None:
        if name in self._cancelled:
            return
        self._cancelled.add(name)

        def answered(future: Any) -> None:
            try:
                future.get()
            except OSError as error:
                self._cancelled.discard(name)
                # A finished or forgotten job cannot be cancelled.
                if self._journal.waits_for(name) and error.errno != errno.ENOENT:
                    self._problem(
                        f"cannot cancel job {name} ({f58(queue_id)}): {error_text(error)}"
                    )

        note = INTERRUPTED["note"] if self._draining else f"cancelled by run {self._run.tag}"
        future = self._flux.job.cancel_async(self._reactor.handle, queue_id, note)
        self._reactor.then(future, answered)

    # -- reattaching --------------------------------------------------------------------------

    def _find(self, jobs: Mapping[str, float], answer: Callable[[set[str]], None]) -> None:
        for name, since in jobs.items():
            self._journal.expect(name, since=since)
        self._sought.update(jobs)

        def known(met: set[str]) -> None:
            self._sought.clear()
            for name in jobs.keys() - met:
                self._journal.forget(name)
            answer(met)

        if self.guest:
            self._watcher.find(jobs, known)
        else:
            self._stream.find(known)

    def _found(
        self,
        name: str,
        queue_id: int,
        jobspec: Mapping[str, Any],
        entries: Sequence[Mapping[str, Any]],
    ) -> None:
        """Take up a job of an earlier controller, and the copy of its output.

        Output of a job whose end is known is complete.
        """
        since = self._sought.pop(name, None)
        if since is None:
            return
        self._idle_queue.expect()
        paths = files(str(self._run.folder.absolute()), name, tag_of(jobspec).get("copied", ()))
        self._journal.place(name, {**files_of(jobspec), **paths})
        known = {entry["name"] for entry in entries if entry["timestamp"] <= since}
        if paths and "finish" not in known:
            self._kept[name] = tuple(paths.values())
            self._fetcher.expect(name, queue_id, paths)
            if "start" in known:
                self._fetcher.continue_copy(name)


def _ignore_error(future: Any) -> None:
    with suppress(OSError):  # the job may be over, and others follow SIGTERM
        future.get()


def _hosts(handle: Any) -> tuple[str, ...]:
    hostlist = import_module("flux.hostlist").Hostlist
    return tuple(hostlist(handle.attr_get("hostlist")))
