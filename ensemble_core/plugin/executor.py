"""Interface of executors: an executor is the adapter to one queue.

The docstring of :class:`Executor` is the contract; the suite ``ExecutorContract`` checks it. The
runtime calls executors; they report through ``emit`` only.
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
#: order of each caller's events.
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
    """Return the ids of jobs to submit. Raises :class:`ExecutorError` if an id is among ``known``
    or occurs twice."""
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
    """Return why no queue can run a job's command, or ``None`` if one could."""
    if not job.command or not job.command[0]:
        return "the command is empty"
    if any("\0" in word for word in (*job.command, *job.environment.values())):
        return "the command or the environment has a zero byte"
    return None


@dataclass(frozen=True, slots=True)
class Run:
    """The run that an executor works for.

    ``tag`` is the run's unique name; an executor attaches it to each of its jobs in the queue, so
    that they can be found again. ``folder`` receives the output of jobs that name no output file.
    ``clock`` returns the time for events, in seconds since the epoch; it never goes back within a
    run. ``state`` is a folder that lasts as long as the run's journal; an executor may store there
    what it needs to reattach to its jobs. It is ``None`` if the run has no journal, and so cannot
    be resumed.
    """

    tag: str
    folder: Path
    clock: Callable[[], float]
    state: Path | None = None


class Executor(ABC):
    """The adapter to one queue: performs decisions, emits events.

    ``ensemble_batch`` implements most of it: ``BatchExecutor`` for queues that must be polled,
    ``QueueExecutor`` for queues that send events. The suite ``ExecutorContract`` tests each
    sentence here.

    **Calls.** Methods are never called from the engine's thread and never two at once, though not
    always from the same thread. They may block for the time of a remote call, not for the life of
    a job. ``submit`` takes jobs in bulk, and its cost should be that of one bulk request.

    - If ``submit`` returns, events of each job will follow, and the last of them is ``clean``. If
      it raises, nothing was submitted and no event will follow.
    - ``submit`` and ``cancel`` may raise an :class:`ExecutorError` that is ``transient``: the run
      retries with exponential backoff for some minutes. Any other error is final: the jobs have
      failed (cause ``submit``) or could not be cancelled.
    - A problem of a single job (a missing command, a rejected jobspec) is that job's ``exception``
      event with ``severity`` 0, followed by ``clean``; never an error of ``submit``.
    - ``cancel`` of a job that is over or unknown does nothing. Cancelling leaves no process of the
      job behind. A controller that ends or stops waits for the ends of cancelled jobs, but gives up
      once nothing was reported about any of them for ``limits.stop`` (5 minutes); a resume finds
      them with ``reattach``.
    - ``resize`` emits one ``ResizeOutcome`` for the request.
    - ``resources`` may raise: the run then continues without the gauges, with a warning.
    - ``close`` is called once; nothing is emitted afterwards. It releases what ``open`` acquired.
      It does not cancel jobs: the run does that before, if needed. After two minutes the run no
      longer waits for it.
    - An exception other than :class:`EnsembleError` in a method or in a thread of the executor is
      reported as a defect of the executor. If a thread dies, the run ends, because it would hear
      nothing more about its jobs.

    **Events.** ``emit`` may be called from any thread, also within a method, with one event or
    many. It never blocks and never raises. The events of one job take effect in the order in which
    they were emitted; those of different jobs may be interleaved. Bulks only save time.

    - An event's time (seconds since the epoch) is when it happened, as the queue knows it, so it
      may be in the past. Each event of a job is at least a microsecond later than the one before,
      and none is in the future of ``Run.clock``. If an event is emitted again after a crash, it has
      the same time.
    - Each job emits, in order, ``submit``, then ``validate``, ``depend``, ``priority`` and
      ``alloc`` as far as the queue has them, then ``start`` and ``finish`` if it ran, and always
      ``clean``, exactly once. A cancelled job first emits an ``exception`` of type ``cancel``. If
      there are several fatal exceptions, the first one says why the job ended.
    - The context of ``submit`` may have ``queue_id``; that of ``start``, ``workdir``, ``stdout``
      and ``stderr`` (absolute paths, for observers). That of ``finish`` has ``status``, a wait
      status; without it, the job counts as failed with cause ``unknown``.
    - A breach of these rules (an event more than 10 s in the future, or older than the one before;
      a missing or late ``submit``, ``start`` or ``finish``; a job that the run never submitted) is
      reported once per kind as a defect of the executor. It is corrected if that cannot change how
      the job ended: times are clamped to now or moved after the previous event, a missing
      ``submit`` is implied, the events of one bulk are sorted.
    - ``ExecutorLost`` means that the queue is gone for good: the run ends with exit code 1, cancels
      nothing, and can be resumed. If the queue is only unreachable, emit one ``Problem``.

    **Fields of a job.** ``command``, ``workdir``, ``environment``, ``stdout``, ``stderr``,
    ``duration``, ``nodes``, ``tasks``, ``cores_per_task`` and ``gpus_per_task`` are honoured, or
    the job is rejected: an ``exception`` of type ``jobspec``, ``alloc`` or ``submit`` with a note
    that says what to do. None is silently ignored. ``urgency`` (0 to 31) orders jobs as well as the
    queue can; 0 holds a job until it is cancelled. ``options[NAME]`` are this executor's, checked
    against ``job_options``; ignore all other fields. The executor creates a missing ``workdir`` and
    missing folders of ``stdout`` and ``stderr`` where the job runs. An output file is truncated
    when the run first uses it and appended to after that; ``stdout`` and ``stderr`` may be the same
    file. Without a file, output goes to ``Run.folder``, as ``JOB.out`` and ``JOB.err``. ``id`` is
    the job's name everywhere: ``GROUP.INDEX``, or ``GROUP.INDEX-ATTEMPT``.

    **Capabilities**, of the class and of the plugin's record: ``submit``, ``cancel``, ``resize``,
    ``reattach`` (a later controller can find the jobs again, also after a crash), and ``detach``
    (jobs may outlive the run; without it, a run that ends with ``cancel: false`` waits for its
    jobs). The check of the file rejects rules that need a missing capability. ``shared``: others
    use the queue too, so a gauge can change without our doing, and a run that waits for one does
    not end for lack of events.
    """

    #: What the executor can do: ``submit``, ``cancel``, ``resize``, ``reattach``, ``detach``.
    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel"})
    #: The causes (``CAUSES``) that it distinguishes. If neither the type of the ``exception`` nor
    #: the wait status of the ``finish`` implies the cause, the event's context has it as ``cause``.
    causes: ClassVar[frozenset[Cause]] = frozenset({"exit", "timeout", "cancelled"})
    #: Whether others use the same queue, so that its gauges change without our doing.
    shared: ClassVar[bool] = False

    def prepare(self, tag: str, state: Path | None) -> None:
        """Start slow preparations without waiting for them. :meth:`open` may follow, with a new run
        of this ``tag`` and ``state``; it reports what went wrong here."""

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
        """Request ``delta`` more nodes (fewer if negative); emit a ResizeOutcome.

        ``when_busy`` decides about nodes to release while jobs run on them: they are released once
        idle (``wait``), kept (``skip``: the request is granted in part, or denied if no node is
        idle), or released at once (``force``) if the queue can do that.

        A request may be repeated under the same name, after a ``transient`` :class:`ExecutorError`
        or if the controller died before it knew the answer. The method must be idempotent: answer
        again, but do not resize twice.
        """
        raise ExecutorError("this executor cannot resize", code="cannot-resize")

    def resources(self) -> Mapping[str, float]:
        """Return the queue's current gauges, by metric path (``nodes.up``, ``cores.free`` …). May
        raise.

        If ``nodes.up``, ``cores.up`` or ``gpus.up`` is present, so is its ``.free``.
        """
        return {}

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        """Reattach to jobs that an earlier executor submitted for the same run (same tag).

        ``jobs`` maps our ids to the time (seconds since the epoch) of the job's newest known event,
        or 0. Return for each job whether the queue knows it. For those that it knows, emit all
        events after that time, even if the job is over by now.
        """
        raise ExecutorError("this executor cannot find jobs again", code="cannot-reattach")

    @property
    def queue_is_new(self) -> bool:
        """True if the queue that an earlier executor of the run used is gone with all its jobs.

        Jobs that :meth:`reattach` does not find then cannot be running. The run resubmits those
        that had not started; the others have failed with their node.
        """
        return False

    def forget(self, jobs: Sequence[str]) -> None:
        """Drop records of these jobs: they are over, their last events are in the journal, and
        :meth:`reattach` will not ask for them. For executors with a ledger."""

    @property
    def sees_strangers(self) -> bool:
        """True if the open executor emits events of foreign jobs. If not, a run with rules of
        ``scope: queue`` prints a warning."""
        return True

    @property
    def on_stop(self) -> Literal["keep", "cancel"]:
        """Fate of the jobs of a stopped run whose file does not say: they are kept if
        the executor can ``detach`` and ``reattach``, and cancelled otherwise."""
        return "keep" if {"detach", "reattach"} <= self.capabilities else "cancel"

    @property
    def handle(self) -> object:
        """The ``handle`` for custom functions: the queue's native handle, or ``None``.

        Read in the thread that runs the function, and possibly by several threads at once, so an
        executor can give each thread a separate handle.
        """
        return None

    def journal_record(self, queue_id: str, event: str) -> Mapping[str, Any]:
        """Return further fields of the queue's record of a job's event, for custom functions.

        The keys are those of Flux's journal: ``id``, the queue's name of the job, and, if the queue
        keeps them, ``jobspec`` for a ``submit`` and ``R`` for an ``alloc``. Called in the thread
        that runs the function, like ``handle``.
        """
        return {"id": queue_id}

    @abstractmethod
    def close(self) -> None:
        """Release what :meth:`open` acquired; emit nothing afterwards."""


class VirtualExecutor(Executor):
    """An executor without processes, whose queue is simulated on a virtual clock.

    ``run.clock`` of :meth:`open` is that clock; only :meth:`advance` moves it. Everything is called
    from one thread, so ``emit`` only collects the events.
    """

    @abstractmethod
    def due(self) -> float | None:
        """Return the time of the queue's next event, in seconds since the epoch, or ``None`` if
        nothing more will happen."""

    @abstractmethod
    def advance(self, now: float) -> None:
        """Emit all events up to this time, in order."""
