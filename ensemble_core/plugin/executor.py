"""The executor: the adapter to one queue.

The docstring of :class:`Executor` is the contract; the suite ``ExecutorContract``
checks it. The runtime calls executors; executors call nobody but ``emit``.
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

if TYPE_CHECKING:  # not needed to check a file, which is to be quick
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

#: Hands events to the run. Callable from any thread, never blocks, keeps the order of one caller.
Emit = Callable[["Sequence[Event]"], None]


def job_environment() -> dict[str, str]:
    """The environment that jobs start from: this process's, without the token of the service, with
    which a job could steer other members."""
    return {name: value for name, value in os.environ.items() if name != "ENSEMBLE_TOKEN"}


def start_folder() -> str:
    """The folder in which the run was started, where relative paths of jobs begin. Raises
    :class:`ExecutorError` where there is none any more."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ExecutorError(
            "the current folder has been removed",
            hint="change to a folder that exists and run again",
            code="no-folder",
        ) from None


def check_new(jobs: Sequence[Job], known: Collection[str]) -> set[str]:
    """The ids of jobs that are to be submitted. Raises :class:`ExecutorError` where one is among
    those ``known``, or is there twice."""
    names: set[str] = set()
    for job in jobs:
        if job.id in known or job.id in names:
            raise ExecutorError(
                f"job {job.id} was submitted already",
                hint="give each job an id of its own",
                code="duplicate-job",
            )
        names.add(job.id)
    return names


def wrong_command(job: Job) -> str | None:
    """Why a job's command cannot be run by any queue; ``None`` if it can."""
    if not job.command or not job.command[0]:
        return "the command is empty"
    if any("\0" in word for word in (*job.command, *job.environment.values())):
        return "the command or the environment has a zero byte"
    return None


@dataclass(frozen=True, slots=True)
class Run:
    """The run that an executor works for.

    ``tag`` names the run and is unique; an executor puts it on each of its jobs in the queue, so
    that they can be found again. ``folder`` is where the run keeps the output of jobs that say
    nothing of where it goes. ``clock`` gives the time for events, in seconds since the epoch; it
    never goes back within a run. ``state`` is a folder that lasts as long as the run's journal, in
    which an executor may keep what it needs to find its jobs again; ``None`` where the run is not
    kept, so that nobody will ever ask for them.
    """

    tag: str
    folder: Path
    clock: Callable[[], float]
    state: Path | None = None


class Executor(ABC):
    """The adapter to one queue: performs decisions, emits events.

    ``ensemble_batch`` has most of it already: ``BatchExecutor`` for queues that are asked,
    ``QueueExecutor`` for queues that tell. The suite ``ExecutorContract`` tests each sentence here.

    **Calls.** Methods are called never from the engine's thread and never two at once, though not
    always from the same thread. They may block for the time of a remote call, not for the life of
    a job, and ``submit`` takes jobs in bulk: its cost is that of a bulk, not of each job.

    - ``submit``: *returned* means that news of each job will arrive as events, and that the last of
      them is ``clean``. *Raised* means that nothing was submitted and that no event will come.
    - ``submit`` and ``cancel`` may raise an :class:`ExecutorError` that is ``transient``: the run
      asks again, after a growing pause, for some minutes. Any other is final: the jobs have failed,
      cause ``submit``, or could not be cancelled.
    - What goes wrong with one job (a missing command, a rejected jobspec) is that job's
      ``exception`` event with ``severity`` 0, followed by ``clean``: never an error of ``submit``.
    - ``cancel`` of a job that is already over, or unknown, does nothing. Cancelling leaves no
      process of the job behind. A controller that ends or stops waits for the ends of cancelled
      jobs, but leaves once nothing was reported about any of them for ``limits.stop`` (5 minutes);
      a resume asks for them by ``reattach``.
    - ``resize`` answers with one ``ResizeOutcome`` for the request.
    - ``resources`` may raise: the run then goes on without the gauges, and says so.
    - ``close`` is called once, after which nothing is emitted. It gives back what ``open`` took. It
      does not cancel jobs: the run does that first, if it wants to. One that does not return is
      left behind after two minutes.
    - What a method raises that is no :class:`EnsembleError`, and what ends a thread of the
      executor, is told as a defect of it. The latter ends the run, for nobody would hear of its
      jobs any more.

    **Events.** ``emit`` may be called from any thread, also from within a method, with one event or
    many. It never blocks and never raises. Of one job, events count in the order in which they were
    emitted; those of different jobs may be mixed as they come. A sequence is one bulk for speed,
    and nothing more.

    - Times (seconds since the epoch) are when something happened, as the queue knows it: they may
      lie in the past. Of one job each is later than the one before, by a microsecond at least, and
      not in the future of ``Run.clock``. Told again after a crash, an event has the same time.
    - Each job emits, in order, ``submit``, then what the queue knows of ``validate``, ``depend``,
      ``priority``, ``alloc``, then ``start`` and ``finish`` if it ran, and in any case ``clean``,
      exactly once. A job that is cancelled emits ``exception`` of type ``cancel`` before the rest;
      of several fatal exceptions the first says why the job ended.
    - The context of ``submit`` may have ``queue_id``, that of ``start`` ``workdir``, ``stdout`` and
      ``stderr`` (absolute paths, for observers), that of ``finish`` has ``status``, a wait status.
      A ``finish`` without one counts as a failure of cause ``unknown``.
    - What does not keep this (an event of the future by more than 10 s, or older than the one
      before; a ``submit``, ``start`` or ``finish`` that is missing or late; a job that the run
      never submitted) is reported once of each kind as a defect of the executor, and corrected
      where that cannot change how the job ended: times are cut to now or moved behind the event
      before, a missing ``submit`` is implied, what came in one bulk is put in order.
    - ``ExecutorLost`` says that the queue is gone for good: the run ends with exit code 1, cancels
      nothing, and may be resumed. A queue that is merely away is a ``Problem``, told once.

    **Fields of a job.** ``command``, ``workdir``, ``environment``, ``stdout``, ``stderr``,
    ``duration``, ``nodes``, ``tasks``, ``cores_per_task`` and ``gpus_per_task`` are honoured, or
    the job is refused: an ``exception`` of type ``jobspec``, ``alloc`` or ``submit`` with a note
    that says what to do. None is passed over. ``urgency`` (0 to 31) orders jobs as well as the
    queue can; 0 holds one until it is cancelled. ``options[NAME]`` are this executor's, checked
    against ``job_options``; what else a job has is for others. The executor makes a ``workdir`` and
    the folders of ``stdout`` and ``stderr`` that are missing, where the job runs. A named file is
    emptied when the run first uses it and appended to after that; both may be the same one. Output
    that no file is named for goes to ``Run.folder``, as ``JOB.out`` and ``JOB.err``. ``id`` is the
    job's name everywhere: ``GROUP.INDEX``, or ``GROUP.INDEX-ATTEMPT``.

    **Capabilities**, of the class and of the plugin's record: ``submit``, ``cancel``, ``resize``,
    ``reattach`` (a later controller can find jobs again, also after this one was killed), and
    ``detach`` (jobs may outlive the run; where they cannot, a run that ends with ``cancel: false``
    waits for them). Rules that need what is not there are refused when the file is checked.
    ``shared``: others use the queue as well, so that a gauge may move without us, and a run that
    waits for one does not end for want of events.
    """

    #: What the executor can do: ``submit``, ``cancel``, ``resize``, ``reattach``, ``detach``.
    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel"})
    #: The causes (``CAUSES``) that it tells apart. Where one does not follow from the type of the
    #: ``exception`` or the wait status of the ``finish``, that event's context has it as ``cause``.
    causes: ClassVar[frozenset[Cause]] = frozenset({"exit", "timeout", "cancelled"})
    #: Whether others use the same queue, so that its gauges move without us.
    shared: ClassVar[bool] = False

    def prepare(self, tag: str, state: Path | None) -> None:
        """Start what takes long, without waiting for it: :meth:`open` follows, with a new run of
        this ``tag`` and ``state``, or nothing at all. What goes wrong here, ``open`` tells."""

    @abstractmethod
    def open(self, run: Run, emit: Emit) -> None:
        """Connect to the queue. Raises :class:`ExecutorError` with a hint when that fails."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> None:
        """Hand jobs to the queue, in bulk."""

    @abstractmethod
    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs by our ids."""

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        """Ask for ``delta`` more nodes (fewer when negative); answer with a ResizeOutcome.

        ``when_busy`` says what becomes of nodes that are to be given back while jobs run on them:
        they go when they are idle (``wait``), stay (``skip``: it is granted in part, or denied
        where none is idle), or go at once (``force``) where the queue can do that.

        A request may come again, under the same name: after it was not delivered (an
        :class:`ExecutorError` that is ``transient``), or after its controller was gone before it
        knew the answer. One that was carried out is answered again, not carried out twice.
        """
        raise ExecutorError("this executor cannot resize", code="cannot-resize")

    def resources(self) -> Mapping[str, float]:
        """The queue's gauges now, by metric path (``nodes.up``, ``cores.free`` …). May raise.

        ``nodes.up``, ``cores.up`` and ``gpus.up`` each come with ``.free``, or not at all.
        """
        return {}

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        """Find jobs again that an earlier executor submitted for the same run (its tag).

        ``jobs`` has our ids, each with the time (seconds since the epoch) of the newest event of
        the job that is known already, 0 for none. The answer says of each whether the queue knows
        the job. Of those that it knows, all events after that time follow, also of one that is
        over meanwhile.
        """
        raise ExecutorError("this executor cannot find jobs again", code="cannot-reattach")

    @property
    def queue_is_new(self) -> bool:
        """True if the queue that an earlier executor of the run submitted to is gone with all of
        its jobs, so that those that :meth:`reattach` does not find neither run nor ever will. Those
        that had not started are then submitted again, and the others failed with their node."""
        return False

    def forget(self, jobs: Sequence[str]) -> None:
        """These jobs are over and their last events are on record: :meth:`reattach` will not ask
        for them. For executors that themselves remember what became of jobs."""

    @property
    def sees_strangers(self) -> bool:
        """True if events of jobs that are not the run's own are told, once it is open. Where they
        are not, a run whose rules have ``scope: queue`` warns of it."""
        return True

    @property
    def on_stop(self) -> Literal["keep", "cancel"]:
        """The fate of jobs when the run is stopped and its file does not say: they are left to the
        queue where that keeps them (``detach``) and can be asked for them (``reattach``)."""
        return "keep" if {"detach", "reattach"} <= self.capabilities else "cancel"

    @property
    def handle(self) -> object:
        """The ``handle`` for custom functions: the queue's own handle, or ``None``.

        Asked for in the thread that runs the function, perhaps several at once, so that a queue
        whose handles belong to one thread can give each its own.
        """
        return None

    def journal_record(self, queue_id: str, event: str) -> Mapping[str, Any]:
        """The fields that the queue's own record of a job's event has besides the event, for custom
        functions.

        The keys are those of Flux's journal: ``id``, what the queue calls the job, and, where the
        queue keeps them, ``jobspec`` of a ``submit`` and ``R`` of an ``alloc``. Asked for in the
        thread that runs the function, like ``handle``.
        """
        return {"id": queue_id}

    @abstractmethod
    def close(self) -> None:
        """Give back what :meth:`open` took; emit nothing afterwards."""


class VirtualExecutor(Executor):
    """An executor without processes, whose queue plays on a virtual clock.

    ``run.clock`` of :meth:`open` is that clock; it stands still but for :meth:`advance`. Everything
    is called from one thread, so ``emit`` does nothing but take the events.
    """

    @abstractmethod
    def due(self) -> float | None:
        """The earliest time at which something happens in the queue, in seconds since the epoch;
        ``None`` if nothing will."""

    @abstractmethod
    def advance(self, now: float) -> None:
        """Emit what has happened up to this time, in order."""
