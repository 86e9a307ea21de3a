"""Interface of executors: an executor is the adapter to one queue.

The docstring of :class:`Executor` is the contract, which the suite ``ExecutorContract`` checks. The
runtime calls executors; an executor reports only through ``emit``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ensemble_core.errors import ExecutorError
from ensemble_core.model.causes import Cause
from ensemble_core.model.jobs import Job
from ensemble_core.model.value import Value

if TYPE_CHECKING:  # not needed to check a file, which must be fast
    from ensemble_core.model.decisions import WhenBusy
    from ensemble_core.model.events import Event

__all__ = [
    "Emit",
    "Executor",
    "Run",
    "VirtualExecutor",
    "check_new",
    "job_environment",
    "start_folder",
    "wrong_command",
]

#: Function that passes events to the run. Any thread may call it. It never blocks, and it keeps the
#: events of each caller in order.
Emit = Callable[["Sequence[Event]"], None]


def job_environment() -> dict[str, str]:
    """Return the initial environment of jobs: this process's environment without the service's
    token, which would let a job steer other members."""
    return {name: value for name, value in os.environ.items() if name != "ENSEMBLE_TOKEN"}


def start_folder() -> str:
    """Return the current folder, to which relative paths of jobs refer. Raises
    :class:`ExecutorError` if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ExecutorError(
            "the current folder has been removed",
            hint="change to a folder that exists and run again",
            code="no-folder",
        ) from None


def check_new(jobs: Sequence[Job], known: Collection[str]) -> set[str]:
    """Return the ids of jobs that are to be submitted. Raises :class:`ExecutorError` if an id is
    among ``known`` or occurs twice."""
    names: set[str] = set()
    for job in jobs:
        if job.id in known or job.id in names:
            raise ExecutorError(
                f"job {job.id} was submitted already",
                hint="give each job a unique id",
                code="duplicate-job",
            )
        names.add(job.id)
    return names


def wrong_command(job: Job) -> str | None:
    """Return why no queue can run a job's command, or ``None`` if the command is valid."""
    if not job.command or not job.command[0]:
        return "the command is empty"
    if any("\0" in word for word in (*job.command, *job.environment.values())):
        return "the command or the environment has a zero byte"
    return None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run(Value):
    """The run for which an executor works.

    ``tag`` is the run's unique name. An executor attaches the tag to each of its jobs in the queue,
    so that the jobs can be found again. ``folder`` receives the output of jobs that name no output
    file. ``clock`` returns the time for events, in seconds since the epoch; this time never goes
    back within a run. ``state`` is a folder that lasts as long as the run's journal. There, an
    executor may store what it needs to reattach to its jobs. ``state`` is ``None`` if the run has
    no journal, so that it cannot be resumed.
    """

    tag: str
    folder: Path
    clock: Callable[[], float]
    state: Path | None = None


class Executor(ABC):
    """The adapter to one queue, which carries out decisions and emits events.

    The package ``ensemble_batch`` has base classes that implement most of this contract:
    ``BatchExecutor`` for queues that must be polled, and ``QueueExecutor`` for queues that send
    events. The suite ``ExecutorContract`` tests each sentence here.

    **Calls.** Methods are never called from the engine's thread, and never two at a time, but not
    always from the same thread. A method may block for the time of a remote call, but not for the
    life of a job. ``submit`` takes jobs in bulk, and should cost no more than one bulk request.

    - If ``submit`` returns, events of each job follow, and the last of them is ``clean``. If
      ``submit`` raises an error, nothing was submitted and no event follows.
    - If ``submit`` or ``cancel`` raises an :class:`ExecutorError` that is ``transient``, the run
      retries the call with exponential backoff for some minutes. Any other error is final: the jobs
      have failed (cause ``submit``) or could not be cancelled.
    - A problem of a single job (a missing command, a rejected jobspec) is reported as an
      ``exception`` event of that job with ``severity`` 0, followed by ``clean``. It is never an
      error of ``submit``.
    - ``cancel`` has no effect on a job that is over or unknown. Cancelling leaves no process of the
      job behind. A controller that ends or stops waits until cancelled jobs have ended. It gives up
      if nothing was reported about any of them for ``limits.stop`` (5 minutes); a resume finds
      these jobs with ``reattach``.
    - ``resize`` emits one ``ResizeOutcome`` for the request.
    - ``resources`` may raise an error. The run then continues without gauges and prints a warning.
    - ``close`` is called once. It releases what ``open`` acquired. Nothing is emitted afterwards.
      It does not cancel jobs; if needed, the run does that before. After two minutes, the run no
      longer waits for ``close``.
    - An exception other than :class:`EnsembleError` in a method or in a thread of the executor is
      reported as a defect of the executor. If a thread dies, the run ends, because it would get no
      further reports about its jobs.

    **Events.** ``emit`` may be called from any thread, also within a method, with one event or
    many. It never blocks and never raises an error. The events of one job take effect in the order
    in which they were emitted; events of different jobs may be interleaved. Emitting many events at
    once only saves time.

    - The time of an event (seconds since the epoch) is when it happened according to the queue, so
      it may be in the past. Each event of a job is at least a microsecond later than the previous
      event, and no event is later than ``Run.clock``. If an event is emitted again after a crash,
      it has the same time.
    - Each job emits, in order, ``submit``, then ``validate``, ``depend``, ``priority`` and
      ``alloc`` if the queue has these events, then ``start`` and ``finish`` if the job ran, and
      always, exactly once, ``clean``. A cancelled job first emits an ``exception`` of type
      ``cancel``. If there are several fatal exceptions, the first one says why the job ended.
    - The context of ``submit`` may have ``queue_id``. The context of ``start`` may have
      ``workdir``, ``stdout`` and ``stderr`` (absolute paths, for observers). The context of
      ``finish`` has ``status``, a wait status; without it, the job counts as failed with cause
      ``unknown``.
    - A breach of these rules (an event more than 10 s in the future, or older than the previous
      event; a missing or late ``submit``, ``start`` or ``finish``; a job that the run never
      submitted) is reported once per kind as a defect of the executor. The breach is corrected if
      that cannot change how the job ended: times are set to now or moved after the previous event,
      a missing ``submit`` is added, and the events of one bulk are sorted.
    - ``ExecutorLost`` means that the queue is permanently lost: the run ends with exit code 1,
      cancels nothing, and can be resumed. If the queue is only unreachable, emit one ``Problem``.

    **Fields of a job.** The executor honours ``command``, ``workdir``, ``environment``, ``stdout``,
    ``stderr``, ``duration``, ``nodes``, ``tasks``, ``cores_per_task`` and ``gpus_per_task``, or it
    rejects the job with an ``exception`` of type ``jobspec``, ``alloc`` or ``submit`` and a note
    that says what to do. It silently ignores none of them. ``urgency`` (0 to 31) orders jobs as
    well as the queue can; 0 holds a job until it is cancelled. ``options[NAME]`` has the options
    for this executor, checked against ``job_options``. Ignore all other fields. The executor
    creates a missing ``workdir``, and missing folders of ``stdout`` and ``stderr``, where the job
    runs. When the run first uses an output file, the file is truncated; after that, output is
    appended. ``stdout`` and ``stderr`` may be the same file. Without a file, output goes to
    ``Run.folder``, as ``JOB.out`` and ``JOB.err``. ``id`` is the job's name everywhere:
    ``GROUP.INDEX``, or ``GROUP.INDEX-ATTEMPT``.

    **Capabilities.** Both the class and the plugin's record list them: ``submit``, ``cancel``,
    ``resize``, ``reattach`` (a later controller can find the jobs again, also after a crash), and
    ``detach`` (jobs may outlive the run). Without ``detach``, a run that ends with ``cancel:
    false`` waits for its jobs. The check of the file rejects rules that need a missing capability.
    If the attribute ``shared`` is true, others also use the queue, so its gauges can change
    independently of the run. A run that waits for such a gauge does not end for lack of events.
    """

    #: Capabilities of the executor: ``submit``, ``cancel``, ``resize``, ``reattach``, ``detach``.
    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel"})
    #: The causes (``CAUSES``) that the executor distinguishes. If neither the type of the
    #: ``exception`` nor the wait status of the ``finish`` implies the cause, the event's context
    #: has the field ``cause``.
    causes: ClassVar[frozenset[Cause]] = frozenset({"exit", "timeout", "cancelled"})
    #: Whether others use the same queue, so that its gauges change independently of the run.
    shared: ClassVar[bool] = False

    def prepare(self, tag: str, state: Path | None) -> None:
        """Start slow preparations without waiting for them.

        :meth:`open` may follow, for a new run with this ``tag`` and ``state``. It reports errors of
        the preparations.
        """

    @abstractmethod
    def open(self, run: Run, emit: Emit) -> None:
        """Connect to the queue. Raises :class:`ExecutorError` with a hint if that fails."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> None:
        """Submit jobs to the queue, in bulk."""

    @abstractmethod
    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs, given by our ids."""

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        """Request ``delta`` more nodes (fewer if negative), and emit a ``ResizeOutcome``.

        ``when_busy`` says what to do with nodes that are to be released while jobs run on them:
        release them once they are idle (``wait``), keep them (``skip``), or release them at once
        (``force``) if the queue can do that. With ``skip``, the request is granted in part, or
        denied if no node is idle.

        A request may be repeated under the same name, after a ``transient`` :class:`ExecutorError`,
        or if the controller died before it got the answer. The method must be idempotent: answer
        again, but do not resize twice.
        """
        raise ExecutorError("this executor cannot resize", code="cannot-resize")

    def resources(self) -> Mapping[str, float]:
        """Return the queue's current gauges by metric path (``nodes.up``, ``cores.free`` …).

        This may raise an error. If ``nodes.up``, ``cores.up`` or ``gpus.up`` is present, the
        corresponding gauge ``.free`` is present too.
        """
        return {}

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        """Reattach to jobs that an earlier executor submitted for the same run (same tag).

        ``jobs`` maps our ids to the time (seconds since the epoch) of the job's newest known event,
        or 0. Return for each job whether the queue knows it. For each known job, emit all events
        after that time, even if the job is over by now.
        """
        raise ExecutorError("this executor cannot find jobs again", code="cannot-reattach")

    @property
    def queue_is_new(self) -> bool:
        """True if the queue that an earlier executor of the run used no longer exists.

        Jobs that :meth:`reattach` does not find then cannot be running. The run resubmits the jobs
        that had not started; the others have failed with their node.
        """
        return False

    def forget(self, jobs: Sequence[str]) -> None:
        """Drop the records of these jobs, if the executor keeps a ledger.

        The jobs are over, their last events are in the journal, and :meth:`reattach` will not ask
        for them.
        """

    @property
    def sees_foreign_jobs(self) -> bool:
        """True if the open executor emits events of foreign jobs. If not, a run with rules of
        ``scope: queue`` prints a warning."""
        return True

    @property
    def on_stop(self) -> Literal["keep", "cancel"]:
        """The effect of a stop on the jobs if the file does not specify it.

        By default, jobs are kept if the executor can ``detach`` and ``reattach``; otherwise, they
        are cancelled.
        """
        return "keep" if {"detach", "reattach"} <= self.capabilities else "cancel"

    @property
    def handle(self) -> object:
        """The ``handle`` for custom functions: the queue's native handle, or ``None``.

        The property is read in the thread that runs the function, and possibly by several threads
        at once, so an executor can give each thread a separate handle.
        """
        return None

    def journal_record(self, queue_id: str, event: str) -> Mapping[str, Any]:
        """Return further fields of the queue's record of a job's event, for custom functions.

        The keys are those of Flux's journal: ``id`` is the queue's name of the job. If the queue
        keeps them, there are also ``jobspec`` for a ``submit`` and ``R`` for an ``alloc``. This is
        called in the thread that runs the function, like ``handle``.
        """
        return {"id": queue_id}

    @abstractmethod
    def close(self) -> None:
        """Release what :meth:`open` acquired. Emit nothing afterwards."""


class VirtualExecutor(Executor):
    """An executor without processes, whose queue is simulated on a virtual clock.

    The ``run.clock`` that :meth:`open` gets is that clock; only :meth:`advance` moves it. All
    methods are called from one thread, so ``emit`` only collects the events.
    """

    @abstractmethod
    def due(self) -> float | None:
        """Return the time of the queue's next event, in seconds since the epoch, or ``None`` if
        nothing more will happen."""

    @abstractmethod
    def advance(self, now: float) -> None:
        """Emit all events up to this time, in order."""
