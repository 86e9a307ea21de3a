"""The loop of a run on Slurm, one thread: submits, listens, polls, and tells of events.

It joins the parts that know one thing each: the submitter, the listener and the spool, the poller,
the job states made of what they bring, and the records that have each event before it is told. Made
and driven by the executor.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ensemble_batch import CommandResult, Outlet, Records, Sent, mark_of

from ensemble_core import Emit, ExecutorError, JobEvent, Run
from ensemble_slurm.commands import Commands, Then
from ensemble_slurm.event_loop import EventLoop
from ensemble_slurm.finder import Finder
from ensemble_slurm.gauges import Gauges
from ensemble_slurm.job_state import JobStates
from ensemble_slurm.jobcomp import Completions
from ensemble_slurm.listener import Listener, address_towards
from ensemble_slurm.names import Batch, format_indices
from ensemble_slurm.parse import Site
from ensemble_slurm.queue_poller import QueuePoller
from ensemble_slurm.refusals import Refusal, refusal, words
from ensemble_slurm.reports import read_report
from ensemble_slurm.script import Address, Scripts
from ensemble_slurm.spool import Spool
from ensemble_slurm.submitter import Order, Submitter

__all__ = ["PATIENCE", "SlurmLoop"]

#: Seconds to wait for what Slurm knows of jobs that are looked for again.
PATIENCE = 120.0
#: Seconds between looks into the spool, at most.
_SPOOL = 2.0
#: Ids that one ``scancel`` is given, and seconds until one that was not heard is tried again.
_CANCEL_AT_ONCE, _CANCEL_AGAIN = 200, 3.0
#: Seconds that jobs which were handed over have to reach Slurm when the run lets go.
_LEAVE = 10.0


class SlurmLoop:
    """One run's dealings with one Slurm. ``gauges`` are those of the nodes to begin with."""

    def __init__(
        self,
        run: Run,
        emit: Emit,
        site: Site,
        scripts: Scripts,
        spool: Spool,
        records: Records,
        environment: Mapping[str, str],
        *,
        listen: tuple[str, int] | None,
        look: float,
        rate: float,
        partition: str | None = None,
        jobcomp: str | None = None,
        gauges: Mapping[str, float],
    ) -> None:
        self._run = run
        self._outlet = Outlet("Slurm", run.clock, emit, spool.folder)
        self._spool = spool
        self._records = records
        self._spool_period = min(_SPOOL, look)
        #: Jobs that were handed over and are not over. Added to by whoever hands them over.
        self.ids: set[str] = set()
        self._sought = not records.resumed
        self._drained = threading.Event()
        self._leaving = False
        patience = site.kill_wait + 30
        self._states = JobStates(f"cancelled by run {run.tag}", patience)
        self._event_loop = EventLoop(self.publish, self._broken)
        self._commands = Commands(environment, rate, self._event_loop.post)
        self._submitter = Submitter(self, scripts, site)
        self._poller = QueuePoller(self, self._states, site, look)
        self._gauges = Gauges(self, partition, look, gauges)
        self._finder = Finder(self, self._poller, self._states, records, site, run.tag)
        self._completions = (
            None if jobcomp is None else Completions(jobcomp, mark_of(run.tag), os.getuid())
        )
        self._listener: Listener | None = None
        if listen is not None:
            address, port = listen
            self._listener = Listener(self._event_loop.selector, address, port, self._hear)
            hosts: tuple[str, ...] = (address,)
            if address in ("0.0.0.0", "::"):
                # That is here for whoever says it: nodes are told names that lead to this machine.
                hosts = (address_towards(site.controller), socket.gethostname())
            scripts.address = Address(self._listener.port, hosts)
        spool.announce(scripts.address)

    # -- from other threads --------------------------------------------------------------------

    def start(self) -> None:
        self._poller.begin()
        self._event_loop.after(self._spool_period, self._look_into_spool)
        self._gauges.begin()
        self._event_loop.start()

    def submit(self, orders: Sequence[Order]) -> None:
        def take() -> None:
            self._sought = True  # who has jobs to find again asks for them before
            for order in orders:
                self._states.expect(order.job.id, order.place.files)
            self._submitter.take(orders)

        self._event_loop.post(take)

    def refuse(self, job: str, kind: str, note: str) -> None:
        """A job that cannot be submitted at all."""

        def take() -> None:
            self._states.expect(job, {})
            self.refused([job], kind, note)

        self._event_loop.post(take)

    def cancel(self, jobs: Sequence[str]) -> None:
        self._event_loop.post(lambda: self._cancel(jobs))

    def forget(self, jobs: Sequence[str]) -> None:
        def forget() -> None:
            self._outlet.write(lambda: self._records.forget(jobs))

        self._event_loop.post(forget)

    def reattach(self, jobs: Mapping[str, float]) -> dict[str, bool]:
        """Which of these jobs Slurm knows; news of those follow."""
        answered = threading.Event()
        found: dict[str, bool] = {}

        def answer(known: Mapping[str, bool]) -> None:
            self._sought = True
            found.update(known)
            answered.set()

        self._event_loop.post(lambda: self._finder.find(dict(jobs), answer))
        if not answered.wait(PATIENCE):
            raise ExecutorError(
                "Slurm does not say which jobs it knows",
                cause=self._outlet.trouble_now or f"no answer within {PATIENCE:g} s",
                hint="look at it with 'squeue --me', and resume once it answers",
                code="no-answer",
                transient=True,
            )
        return found

    def close(self) -> None:
        """Let jobs that were handed over reach Slurm, then end."""

        def leave() -> None:
            self._leaving = True
            self._check_drained()

        self._event_loop.post(leave)
        self._drained.wait(_LEAVE)
        self._commands.close()
        self._event_loop.post(self._close_listener)
        self._event_loop.stop()
        if not self._states.jobs and self._run.state is None:
            self._spool.remove()
        self._records.close()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _check_drained(self) -> None:
        if self._leaving and self._submitter.idle:
            self._drained.set()

    # -- what the parts need of one another ----------------------------------------------------

    def now(self) -> float:
        return self._run.clock()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self._event_loop.after(seconds, what)

    def ask(self, words: Sequence[str], deadline: float, then: Then) -> None:
        self._commands.ask(words, deadline, then)

    def sbatch(
        self,
        words: Sequence[str],
        script: bytes,
        deadline: float,
        then: Then,
    ) -> None:
        self._commands.submit(words, script, deadline, then)

    @property
    def gauges(self) -> Mapping[str, float]:
        """The gauges of the nodes now."""
        return self._gauges.values

    def moved(self, before: Mapping[str, float], now: Mapping[str, float]) -> None:
        """Gauges of the nodes, which may have other values now."""
        self._outlet.gauges(before, now)

    def warn(self, message: str) -> None:
        """Something that the user must hear of."""
        self._outlet.warn(message)

    def trouble(self, of: str, what: str | None, hint: str | None = None) -> None:
        """slurmctld does not do what it is asked, of submits, asks or cancels; ``None``: it does
        again. Said once."""
        if what is None:
            self._outlet.answered(of)
        else:
            self._outlet.trouble(of, what if hint is None else f"{what}\n  hint: {hint}")

    def _broken(self, trace: str) -> None:
        self._outlet.warn(f"the Slurm executor made a mistake: {trace}", "error")

    # -- telling -------------------------------------------------------------------------------

    def publish(self) -> None:
        """Write down what has come, then tell it."""
        events = self._states.take()
        if events:
            self._outlet.write(lambda: self._records.tell(events))
            self._outlet.add(events)
            for event in events:
                if event.name == "clean":
                    self._over(event)
        if not self._drained.is_set():
            self._outlet.emit()
        if self._leaving:
            self._check_drained()

    def _over(self, event: JobEvent) -> None:
        self.ids.discard(event.job)
        self._submitter.room()
        self._gauges.stale()

    # -- submitting ----------------------------------------------------------------------------

    def record(self, sent: Sent) -> bool:
        return self._outlet.write(lambda: self._records.send(sent))

    def find(self, batch: Batch, then: Callable[[str | None], None]) -> None:
        self._finder.find_batch(batch, then)

    def void(self, batch: Batch) -> bool:
        return self._outlet.write(lambda: self._spool.void(f"{batch.key}.{batch.attempt}"))

    def accepted(self, batch: Batch, queue_id: str) -> None:
        self._outlet.write(lambda: self._records.accept(batch.key, [queue_id]))
        now = self.now()
        doomed = []
        for job, name in zip(batch.jobs(), batch.queue_ids(queue_id), strict=True):
            self._states.accepted(job, name, now)
            tracked = self._states.jobs.get(job)
            if tracked is not None and tracked.cancelled:
                doomed.append(job)
        if doomed:
            self._cancel(doomed)

    def refused(self, jobs: Sequence[str], kind: str, note: str) -> None:
        for job in jobs:
            tracked = self._states.jobs.get(job)
            if tracked is not None and tracked.cancelled:
                note, kind = f"cancelled by run {self._run.tag}", "cancel"
            self._states.refuse(job, kind, note, self.now())

    # -- finding again -------------------------------------------------------------------------

    def retell(self, events: Sequence[JobEvent]) -> None:
        """Events that an earlier controller has told and written down."""
        self._outlet.add(events)

    def found(self) -> None:
        """From here on, a report of a job that nobody waits for is of one that is over."""
        self._sought = True

    def cancel_again(self, jobs: Sequence[str]) -> None:
        self._cancel(jobs)

    # -- cancelling ----------------------------------------------------------------------------

    def _cancel(self, jobs: Sequence[str]) -> None:
        ours = [job for job in jobs if job in self._states.jobs]
        if not ours:
            return
        self._outlet.write(lambda: self._records.cancel(ours))
        ids = []
        for job in ours:
            queue_id = self._states.cancelling(job)
            if self._submitter.cancel(job):
                self.refused([job], "cancel", f"cancelled by run {self._run.tag}")
            elif queue_id is not None:
                ids.append(queue_id)
        self._scancel(self._short(ids))

    def _short(self, ids: Sequence[str]) -> list[str]:
        """Ids in Slurm's notation: a whole array by its own, parts of one by their tasks."""
        arrays: dict[str, list[int]] = {}
        found = []
        for queue_id in ids:
            job, line, task = queue_id.partition("_")
            if line:
                arrays.setdefault(job, []).append(int(task))
            else:
                found.append(job)
        if not arrays:
            return found
        alive: dict[str, int] = {}
        for tracked in self._states.jobs.values():
            job = (tracked.queue_id or "").partition("_")[0]
            alive[job] = alive.get(job, 0) + 1
        for job, tasks in arrays.items():
            whole = len(tasks) == alive.get(job)
            found.append(job if whole else f"{job}_[{format_indices(sorted(set(tasks)))}]")
        return found

    def _scancel(self, ids: Sequence[str]) -> None:
        for at in range(0, len(ids), _CANCEL_AT_ONCE):
            some = ids[at : at + _CANCEL_AT_ONCE]
            self.ask(("scancel", *some), 60.0, partial(self._cancelled, some))

    def _cancelled(self, ids: Sequence[str], done: CommandResult) -> None:
        if not done.good:
            if done.code is None or refusal(done.err) is Refusal.BUSY:
                self.trouble(
                    "cancel",
                    f"slurmctld does not take a cancel ({words(done.err)})",
                    "it is asked again until it does",
                )
                self.after(_CANCEL_AGAIN, lambda: self._scancel(ids))
            elif not any(word in done.err.lower() for word in ("already", "invalid job id")):
                self.warn(f"jobs could not be cancelled: {words(done.err)}")
        else:
            self.trouble("cancel", None)
        self._poller.soon()

    # -- what wrappers and the site say --------------------------------------------------------

    def _hear(self, line: bytes) -> bool:
        """A report over the network; whether it is on record."""
        report = read_report(line, self._spool.token)
        if report is None or (report.job not in self._states.jobs and not self._sought):
            return False
        self._states.report(report, self.now())
        self._after_report()
        self.publish()
        return not self._outlet.unwritten

    def _after_report(self) -> None:
        if self._states.doubles:
            doubles, self._states.doubles = sorted(self._states.doubles), set()
            self.warn(
                f"Slurm had taken a job twice that was submitted twice: {', '.join(doubles)} "
                "cancelled"
            )
            self._scancel(doubles)
        if self._states.doubtful():
            self._poller.soon()

    def read_spool(self) -> None:
        """Work in what wrappers could not tell us and wrote down."""
        if not self._sought:
            return
        for line in self._spool.reports():
            report = read_report(line, self._spool.token)
            if report is not None:
                self._states.report(report, self.now(), late=True)
        self._after_report()

    def _look_into_spool(self) -> None:
        self.read_spool()
        if self._listener is not None:
            self._listener.tidy()
        if self._completions is not None and self._completions.news():
            self._poller.soon()
        self.after(self._spool_period, self._look_into_spool)
