"""PolledExecutor: a base for executors of queues that are asked rather than tell.

One thread asks the queue and hands jobs in, another reads what jobs' wrappers have written. See
:class:`PolledExecutor`; ``docs/executor-tutorial.md`` writes one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from ensemble_core.errors import ExecutorError, raised_at
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, Problem, Resources
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Emit, Run, job_environment
from ensemble_core.plugin.polled.command import QueueCommands
from ensemble_core.plugin.polled.hooks import QueueHooks, QueueJob
from ensemble_core.plugin.polled.job_life import JobLife
from ensemble_core.plugin.polled.job_script import Batch, Place, Spool, script_of
from ensemble_core.plugin.polled.output_files import OutputFiles
from ensemble_core.plugin.polled.records import Records, Sent

__all__ = ["PolledExecutor"]

#: Seconds in which jobs gather before the first of them is handed in.
_GATHER = 0.02
#: Seconds between looks at what wrappers wrote: while there is news, and when there is none.
_READ, _READ_LATER = 0.1, 1.0
#: Seconds until the queue is asked again: of a job in doubt, first and later; one that is away.
_SOON, _SOON_AGAIN, _AWAY = 0.3, 2.0, 10.0
#: Seconds until a full queue is tried again; until a batch that nobody has seen is handed in again;
#: until a cancel is repeated that the queue does not follow.
_FULL, _SETTLE, _HEEDS = 15.0, 10.0, 20.0
#: Answers in a row that lack a job until it is given up.
_MISSES = 3
#: Seconds that jobs have to come to the queue when the run lets go, and a queue to be asked for
#: jobs of an earlier controller.
_LEAVE, _PATIENCE = 10.0, 120.0

_T = TypeVar("_T")


@dataclass(slots=True)
class _Going:
    """A batch that is handed in, or was and nobody knows whether it arrived."""

    key: str
    orders: list[tuple[Job, Place]]
    attempt: int = 0
    since: float = 0.0
    due: float = 0.0
    sent: Sent | None = None


@dataclass(slots=True)
class _Work:
    """What the asking thread has to do."""

    orders: dict[str, tuple[Job, Place]] = field(default_factory=dict)
    unsure: list[_Going] = field(default_factory=list)
    cancels: dict[str, float] = field(default_factory=dict)
    ask_at: float = 0.0
    hand_in_at: float = 0.0
    gauges_at: float = 0.0


class PolledExecutor(QueueHooks):
    """A base for executors of queues that are asked: a plugin says how, and has the rest from here.

    To be overridden: :meth:`submit_batch`, :meth:`ask`, :meth:`find_batch`, :meth:`end_jobs`; where
    it helps :meth:`connect`, :meth:`wrong`, :meth:`shape`, :meth:`nodes` and :meth:`account`. These
    are called one at a time, not from the engine's thread, and may block; :meth:`command` runs a
    command for them. Each may raise an :class:`ExecutorError`: one that is ``transient`` says that
    the queue is away, slow or garbled for now, and is tried again for as long as it takes, told
    once; one with the code ``full`` that it takes no more jobs for now; any other is final.

    From here: jobs gathered into batches of one :meth:`shape`, as few calls as may be; a script
    with a wrapper that makes folders, starts the tasks, keeps the time limit and writes start and
    end into the run's folder, which nodes must see; one question for all jobs each ``poll``
    seconds, and soon where a job is in doubt; events in order, each once; jobs found again by a
    later controller. A job runs at most once whatever the queue does, since its wrapper claims it:
    so a submit whose answer is lost is simply made again. A job that the queue forgets and that
    has left no word is told as ``lost``.
    """

    # -- opening and closing -------------------------------------------------------------------

    def open(self, run: Run, emit: Emit) -> None:
        if getattr(self, "_run", None) is not None:
            raise ExecutorError(f"the executor {self.name} is open already", code="already-open")
        self._commands = QueueCommands()
        try:
            here = os.getcwd()
        except FileNotFoundError:
            raise ExecutorError(
                "the current folder has been removed",
                hint="change to a folder that exists and run again",
                code="no-folder",
            ) from None
        self.connect()
        self._mark = hashlib.sha256(run.tag.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        folder = os.path.abspath(run.folder)
        if run.state is not None:
            place = os.path.join(os.path.realpath(run.state), self.name)
        else:
            place = os.path.join(folder, f".{self.name}-{self._mark}")
        environment = {
            name: value
            for name, value in job_environment().items()
            if not (self.own_variables and name.startswith(self.own_variables))
        }
        try:
            self._spool = Spool(place, environment)
            self._records = Records(place if run.state is not None else None)
        except OSError as error:
            raise ExecutorError(
                f"the folder that jobs report to cannot be made: {place}",
                cause=error.strerror or str(error),
                hint="choose a folder that this machine and the nodes can write (--state)",
                code="no-folder",
            ) from None
        self._output = OutputFiles(folder, here, self._records.was_emptied, self._records.empty)
        self._emit_ = emit
        self._lock = threading.Condition()
        self._calling = threading.RLock()
        self._events: list[JobEvent] = []
        self._others: list[Event] = []
        self._lives: dict[str, JobLife] = {}
        self._work = _Work()
        self._ids: set[str] = set()
        self._sent: dict[str, Sent] = dict(self._records.sent)
        self._left: dict[str, int] = {}
        self._told: set[str] = set()
        self._away = ""
        self._unwritten = False
        self._gauges: Mapping[str, float] = {}
        self._closing = self._closed = False
        self._run = run
        try:
            self._gauges = dict(self._call(self.nodes))
        except ExecutorError as error:
            if not error.transient:
                self._run = None  # type: ignore[assignment]  # not open
                raise
        self._threads = [
            threading.Thread(target=self._guarded, args=(what,), name=f"{self.name} {name}")
            for name, what in (("asks", self._asking), ("reads", self._reading))
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def close(self) -> None:
        """Let the queue go. Jobs in it go on; those on their way to it arrive first."""
        if getattr(self, "_run", None) is None:
            return
        with self._lock:
            self._closing = True
            self._lock.notify_all()
            self._lock.wait_for(lambda: not self._work.orders or self._closed, _LEAVE)
            self._closed = True
            self._lock.notify_all()
        self._commands.kill()
        for thread in self._threads:
            thread.join()
        if not self._lives and self._run.state is None:
            self._spool.remove()
        self._records.close()
        self._run = None  # type: ignore[assignment]  # not open

    def _guarded(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:  # of a plugin, most likely: nobody would know
            reason = f"its thread died of {error!r} ({raised_at(error)})"
            hint = "that is a defect of the plugin; jobs go on: 'ensemble resume'"
            lost = ExecutorLost(self._run.clock(), self.name, reason, hint)
            with self._lock:
                self._closed = True
                self._lock.notify_all()
            self._emit_((lost,))

    def _call(self, what: Callable[[], _T]) -> _T:
        """Ask the plugin, one thread at a time."""
        with self._calling:
            return what()

    # -- what the run asks for -----------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            names = [job.id for job in jobs]
            twice = sorted(self._ids.intersection(names))
            if twice or len(set(names)) != len(names):
                raise ExecutorError(
                    f"job {twice[0]} was submitted already" if twice else "a job is there twice",
                    hint="give each job an id of its own",
                    code="duplicate-job",
                )
            self._ids.update(names)
            for job in jobs:
                self._take_in(job)
            self._work.hand_in_at = max(self._work.hand_in_at, time.monotonic() + _GATHER)
            self._publish()
            self._lock.notify_all()

    def _take_in(self, job: Job) -> None:
        now = self._run.clock()
        life = JobLife(job.id, {}, self._events)
        self._lives[job.id] = life
        wrong = _wrong(job) or self.wrong(job)
        if wrong is not None:
            life.refused("jobspec", wrong, now)
            return
        try:
            place = self._output.place(job)
        except (OSError, ValueError) as error:
            what = getattr(error, "filename", None) or job.stdout or job.stderr
            why = getattr(error, "strerror", None) or str(error)
            life.refused("output", f"the output file {what} cannot be used: {why}", now)
            return
        life.files = {"workdir": place.workdir, "stdout": place.out, "stderr": place.err}
        self._work.orders[job.id] = (job, place)

    def cancel(self, jobs: Sequence[str]) -> None:
        with self._lock:
            ours = [job for job in jobs if job in self._lives]
            if ours:
                self._write(lambda: self._records.cancel(ours))
            for job in ours:
                self._cancel(self._lives[job])
            self._publish()
            self._lock.notify_all()

    def _cancel(self, life: JobLife) -> None:
        life.cancelled = True
        if self._work.orders.pop(life.job, None) is not None:
            life.refused("cancel", self._note, self._run.clock())
            return
        if life.queue_id is not None:
            self._work.cancels.setdefault(life.queue_id, 0.0)
        # Whoever makes the claim decides: a job that has not begun is over now, wherever it waits.
        if "start" not in life.told and life.key and self._spool.claim(life.job, life.key):
            life.refused("cancel", self._note, self._run.clock())

    @property
    def _note(self) -> str:
        return f"cancelled by run {self._run.tag}"

    def resources(self) -> Mapping[str, float]:
        return dict(self._gauges) if getattr(self, "_run", None) is not None else {}

    @property
    def sees_strangers(self) -> bool:
        """Never: everybody's jobs are more than a queue should be asked for."""
        return False

    def forget(self, jobs: Sequence[str]) -> None:
        with self._lock:
            self._write(lambda: self._records.forget(jobs))

    # -- finding jobs again --------------------------------------------------------------------

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        batch_of = {job: sent for sent in self._sent.values() for job in sent.jobs}
        wanted = {id(batch_of[job]): batch_of[job] for job in jobs if job in batch_of}
        unsure = {key: sent for key, sent in wanted.items() if sent.ids is None}
        for sent in unsure.values():
            self._look_for(sent)
        found: dict[str, bool] = {}
        with self._lock:
            for job, since in jobs.items():
                found[job] = self._restore(job, since, batch_of.get(job))
            self._records.told.clear()
            self._ids |= {job for job, known in found.items() if known}
            self._read()
            for life in list(self._lives.values()):
                if life.cancelled and not life.over:
                    self._cancel(life)
            self._work.ask_at = time.monotonic() + _SOON
            self._publish()
            self._lock.notify_all()
        return found

    def _restore(self, job: str, since: float, sent: Sent | None) -> bool:
        told = self._records.told.get(job, [])
        life = JobLife(job, {} if sent is None else sent.jobs[job], self._events)
        life.restore(told, since)
        if life.over:
            return True
        if sent is None:
            return bool(told)
        life.key = sent.key
        if sent.ids is not None:
            life.queue_id = sent.ids[list(sent.jobs).index(job)]
        elif not told and self._spool.claim(job, sent.key):
            return False  # not there, and if it should come yet, it does not run
        life.cancelled = job in self._records.cancelled
        self._lives[job] = life
        self._left[sent.key] = self._left.get(sent.key, 0) + 1
        life.arrived(self._run.clock())
        return True

    def _look_for(self, sent: Sent) -> None:
        """Whether a batch of an earlier controller arrived; asked until the queue answers."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                for name in sent.names:
                    ids = self._call(lambda name=name: self.find_batch(name, len(sent.jobs)))  # type: ignore[misc]  # mypy cannot infer a bound default
                    if ids is not None:
                        self._records.accept(sent, ids)
                        return
                return
            except ExecutorError as error:
                if not error.transient or time.monotonic() > end:
                    raise
                time.sleep(_SOON_AGAIN)

    # -- the thread that asks ------------------------------------------------------------------

    def _asking(self) -> None:
        while True:
            with self._lock:
                act, wait = self._next()
                if act is None:
                    if self._closed:
                        return
                    self._lock.wait(wait)
                    continue
            act()
            with self._lock:
                self._publish()
                self._lock.notify_all()

    def _next(self) -> tuple[Callable[[], None] | None, float]:
        """What is to be done now, or how long there is nothing."""
        work, now = self._work, time.monotonic()
        if self._closed:
            return None, 0.0
        due = sorted(id_ for id_, at in work.cancels.items() if at <= now)
        if due:
            return lambda: self._end(due), 0.0
        dues = list(work.cancels.values())
        if work.orders:
            if work.hand_in_at <= now:
                orders = self._chosen()
                return lambda: self._hand_in(_Going(secrets.token_hex(5), orders)), 0.0
            dues.append(work.hand_in_at)
        for going in work.unsure:
            if going.due <= now:
                work.unsure.remove(going)
                return partial(self._look, going), 0.0
            dues.append(going.due)
        if any(life.queue_id is not None for life in self._lives.values()):
            if work.ask_at <= now:
                return self._ask_all, 0.0
            dues.append(work.ask_at)
            if work.gauges_at <= now:
                work.gauges_at = now + max(self.poll, 10.0)
                return self._look_at_nodes, 0.0
        return None, max(0.0, min(dues, default=now + 60.0) - now)

    def _chosen(self) -> list[tuple[Job, Place]]:
        """The next batch: the most urgent job, and those like it."""
        orders = self._work.orders
        first = max(orders.values(), key=lambda order: order[0].urgency)
        shape = self.shape(first[0])
        alike = [order for order in orders.values() if self.shape(order[0]) == shape]
        chosen = alike[: max(1, self.most_jobs)]
        for job, _ in chosen:
            del orders[job.id]
        return chosen

    def _hand_in(self, going: _Going) -> None:
        jobs = tuple(job for job, _ in going.orders)
        going.attempt += 1
        name = f"ens_{self._mark}_{going.key}_{going.attempt}"
        text = script_of(
            going.key,
            going.orders,
            tag=self._run.tag,
            folder=self._spool.folder,
            place=self.task_place,
            queue_id=self.task_id,
            grace=self.grace,
        )
        try:
            script = self._spool.script(going.key, text)
            with self._lock:
                files = {job.id: self._lives[job.id].files for job in jobs if job.id in self._lives}
                known = {job.id: files.get(job.id, {}) for job in jobs}
                going.sent = self._records.send(going.key, name, known)
                self._sent[going.key] = going.sent
                self._can_write(True)
                if going.attempt == 1:
                    self._left[going.key] = len(jobs)
                    for job in jobs:
                        if job.id in self._lives:
                            self._lives[job.id].key = going.key
        except OSError as error:
            with self._lock:
                self._can_write(False, error)
                going.attempt -= 1
                self._work.orders = {job.id: (job, place) for job, place in going.orders}
                self._work.hand_in_at = time.monotonic() + _SOON_AGAIN
            return
        try:
            ids = self._call(lambda: self.submit_batch(Batch(name, jobs, script)))
        except ExecutorError as error:
            with self._lock:
                self._not_handed_in(going, error)
            return
        with self._lock:
            self._answered()
            self._accept(going, ids)

    def _not_handed_in(self, going: _Going, error: ExecutorError) -> None:
        if error.code == "full":
            for job, place in going.orders:
                life = self._lives.get(job.id)
                if life is not None and not life.over:
                    life.key = ""
                    self._work.orders[job.id] = (job, place)
            self._left.pop(going.key, None)
            self._work.hand_in_at = time.monotonic() + _FULL
            self._trouble(
                f"{self.name} takes no more jobs for now: {len(self._work.orders)} wait here\n"
                f"  {error}"
            )
        elif error.transient:
            going.since = time.monotonic()
            going.due = going.since + _SOON_AGAIN
            self._work.unsure.append(going)
            self._trouble(
                f"{self.name} does not answer: it is asked again until it does\n  {error}"
            )
        else:
            for job, _ in going.orders:
                life = self._lives.get(job.id)
                if life is not None:
                    life.refused("submit", str(error), self._run.clock())

    def _accept(self, going: _Going, ids: Sequence[str]) -> None:
        assert going.sent is not None
        sent = going.sent
        self._write(lambda: self._records.accept(sent, ids))
        now = self._run.clock()
        for (job, _), id_ in zip(going.orders, ids, strict=True):
            life = self._lives.get(job.id)
            if life is None or life.over or life.cancelled:
                self._work.cancels.setdefault(id_, 0.0)
            if life is not None and not life.over:
                life.queue_id = life.queue_id or id_
                life.arrived(now)
        self._work.ask_at = max(self._work.ask_at, time.monotonic() + self.poll)

    def _look(self, going: _Going) -> None:
        """Nobody knows whether a batch arrived: look for it, and hand it in again where it is not
        there. What should arrive yet finds its jobs claimed."""
        assert going.sent is not None
        try:
            for name in reversed(going.sent.names):
                ids = self._call(lambda name=name: self.find_batch(name, len(going.orders)))  # type: ignore[misc]  # mypy cannot infer a bound default
                if ids is not None:
                    with self._lock:
                        self._answered()
                        self._accept(going, ids)
                    return
        except ExecutorError as error:
            with self._lock:
                self._trouble(f"{self.name} does not answer: it is asked again\n  {error}")
                going.due = time.monotonic() + _AWAY
                self._work.unsure.append(going)
            return
        with self._lock:
            self._answered()
            lives = [self._lives.get(job.id) for job, _ in going.orders]
            if all(life is None or life.over or life.queue_id for life in lives):
                return  # each has spoken for itself
            if time.monotonic() - going.since < _SETTLE:
                going.due = time.monotonic() + _SOON_AGAIN
                self._work.unsure.append(going)
                return
        self._hand_in(going)

    def _end(self, ids: Sequence[str]) -> None:
        try:
            self._call(lambda: self.end_jobs(ids))
        except ExecutorError as error:
            with self._lock:
                self._trouble(f"{self.name} does not take a cancel: it is asked again\n  {error}")
                self._work.cancels.update(dict.fromkeys(ids, time.monotonic() + _SOON_AGAIN))
            return
        with self._lock:
            self._answered()
            running = {life.queue_id for life in self._lives.values() if life.cancelled}
            for id_ in ids:
                del self._work.cancels[id_]
                if id_ in running:
                    self._work.cancels[id_] = time.monotonic() + _HEEDS
            self._work.ask_at = min(self._work.ask_at, time.monotonic() + _SOON)

    def _ask_all(self) -> None:
        with self._lock:
            lives = {
                life.queue_id: life for life in self._lives.values() if life.queue_id is not None
            }
            self._work.ask_at = time.monotonic() + self.poll
        try:
            rows = {row.id: row for row in self._call(lambda: list(self.ask(list(lives))))}
            missing = [
                id_
                for id_, life in lives.items()
                if (id_ not in rows or rows[id_].state == "over") and life.misses >= _MISSES - 1
            ]
            if missing:
                rows |= {row.id: row for row in self._call(lambda: list(self.account(missing)))}
        except ExecutorError as error:
            with self._lock:
                self._trouble(
                    f"{self.name} does not say how jobs stand: it is asked again\n  {error}"
                )
                self._work.ask_at = time.monotonic() + min(self.poll, _AWAY)
            return
        with self._lock:
            self._answered()
            self._read()  # what was written before the queue called them over
            for id_, life in lives.items():
                if not life.over:
                    self._see(life, rows.get(id_))
            if any(life.misses or life.cancelled for life in self._lives.values()):
                again = (
                    _SOON if any(0 < life.misses < 2 for life in lives.values()) else _SOON_AGAIN
                )
                self._work.ask_at = min(self._work.ask_at, time.monotonic() + again)

    def _see(self, life: JobLife, row: QueueJob | None) -> None:
        if row is not None and row.state in ("waiting", "running", "stuck"):
            life.misses = 0
            key = f"{life.key} {row.note}"
            if row.state == "stuck" and key not in self._told:
                self._told.add(key)
                self._warn(f"{life.job} waits in {self.name}: {row.note}")
            return
        life.misses += 1
        if life.misses < _MISSES:
            return
        now = self._run.clock()
        if life.cancelled:
            life.gone("cancel", self._note, None, now)
        elif row is not None and (row.exception is not None or row.status is not None):
            life.gone(row.exception, row.note, row.status, now)
        else:
            note = f"{self.name} does not know this job any more, and it has left no word"
            life.gone("lost", note, None, now)

    def _look_at_nodes(self) -> None:
        try:
            values = dict(self._call(self.nodes))
        except ExecutorError:
            return  # it is asked of jobs, too, and what is wrong is told there
        with self._lock:
            changed = {path: v for path, v in values.items() if self._gauges.get(path) != v}
            self._gauges = values
            if changed:
                self._others.append(Resources(self._run.clock(), changed))

    # -- the thread that reads -----------------------------------------------------------------

    def _reading(self) -> None:
        wait = _READ
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or self._lives, 60.0)
                if self._closed:
                    return
                wait = _READ if self._read() else min(_READ_LATER, wait * 1.5)
                self._publish()
                self._lock.wait_for(lambda: self._closed, wait)

    def _read(self) -> bool:
        """Work in what wrappers have written; whether there was anything new."""
        lives = {f"{life.job}@{life.key}": life for life in self._lives.values() if life.key}
        if not lives:
            return False
        try:
            names = set(self._spool.names())
        except OSError:
            return False
        now, news = self._run.clock(), False
        for report, life in lives.items():
            if report not in names or life.over:
                continue
            if "start" not in life.told:
                began = self._spool.start(report)
                if began is None:
                    continue
                life.queue_id = life.queue_id or (None if began[2] == "-" else began[2])
                life.started(began[0], began[1], now)
                news = True
            if f"{report}.end" in names and (end := self._spool.end(f"{report}.end")) is not None:
                life.ended(end, now, self._note)
                news = True
        return news

    # -- telling -------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Write down what has happened, then tell it. With the lock."""
        events = self._events[:]
        self._events.clear()
        if events:
            self._write(lambda: self._records.tell(events))
        others, self._others = self._others, []
        if (events or others) and not self._closed:
            self._emit_([*others, *events])
        for event in events:
            life = self._lives.get(event.job) if event.name == "clean" else None
            if life is not None:
                self._drop(life)

    def _drop(self, life: JobLife) -> None:
        """A job is over."""
        del self._lives[life.job]
        self._ids.discard(life.job)
        if life.queue_id is not None and not life.cancelled:
            self._work.cancels.pop(life.queue_id, None)
        sent = self._sent.get(life.key)
        if sent is None:
            return
        sure = sent.ids is not None and len(sent.names) == 1 and not life.cancelled
        self._spool.drop(life.job, life.key, claim=sure)
        self._left[life.key] = self._left.get(life.key, 1) - 1
        if self._left[life.key] <= 0 and sent.ids is not None:
            self._spool.drop_script(life.key)
            del self._left[life.key], self._sent[life.key]

    def _warn(self, message: str) -> None:
        self._others.append(Problem(self._run.clock(), message))

    def _trouble(self, message: str) -> None:
        """The queue does not do what it is asked: said once, until it does again."""
        if not self._away:
            self._away = message
            self._warn(message)

    def _answered(self) -> None:
        if self._away:
            self._away = ""
            self._warn(f"{self.name} does again what it is asked: the run goes on")

    def _write(self, what: Callable[[], None]) -> None:
        try:
            what()
        except OSError as error:
            self._can_write(False, error)
        else:
            self._can_write(True)

    def _can_write(self, good: bool, error: OSError | None = None) -> None:
        if good == self._unwritten:
            self._unwritten = not good
            why = "" if error is None else f" ({error.strerror})"
            self._warn(
                f"{self._spool.folder} can be written again: jobs are submitted again"
                if good
                else f"{self._spool.folder} cannot be written{why}: no job is submitted until then"
            )


def _wrong(job: Job) -> str | None:
    """Why a job cannot even be submitted."""
    if not job.command or not job.command[0]:
        return "the command is empty"
    if any("\0" in word for word in (*job.command, *job.environment.values())):
        return "the command or the environment has a zero byte"
    return None
