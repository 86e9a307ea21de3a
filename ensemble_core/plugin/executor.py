"""Interface of executors. An executor is the adapter to one queue. It may show the text that the
queue would receive (:class:`Rendered`), and have allocations in a simulation.

The docstring of :class:`Executor` is the contract. To test an executor, use the test suite
``ExecutorContract``.
"""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from ensemble_core.errors import ExecutorError
from ensemble_core.model.causes import Cause
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ensemble_core.model.decisions import WhenBusy
    from ensemble_core.model.events import Event


#: Function that passes events to the run. It may be called from any thread and never blocks. The
#: events that one thread passes stay in order.
Emit = Callable[["Sequence[Event]"], None]


#: Variables that jobs never get: with the service's token, a job could connect to the service. The
#: names of variables with the URLs of webhooks are added at the start of a run.
_WITHHELD = {"ENSEMBLE_TOKEN"}


def withhold(names: Iterable[str]) -> None:
    """Keep these variables of this process from the jobs of all its runs."""
    _WITHHELD.update(names)


def job_environment() -> dict[str, str]:
    """Return the environment in which jobs start: that of this process without the service's token,
    the URLs of webhooks, and the number of threads of a job in which this process runs.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
    # If this run is in a job of another run or of PBS, that number is the cores of the outer job.
    threads = kept.get("OMP_NUM_THREADS")
    if threads is not None and threads in (kept.get("ENSEMBLE_CORES"), kept.get("NCPUS")):
        del kept["OMP_NUM_THREADS"]
    return kept


def start_folder() -> str:
    """Return the current folder, from which relative paths of jobs start.

    Raises :class:`ExecutorError` if the folder has been removed.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ExecutorError(
            "the current folder has been removed",
            hint="change to an existing folder and repeat the command",
            code="no-folder",
        ) from None


def check_new(jobs: Sequence[Job], known: Collection[str]) -> set[str]:
    """Return the ids of jobs to submit.

    Raises :class:`ExecutorError` if an id is in ``known`` or occurs twice.
    """
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
    """Return the reason why no queue can run a job's command, or ``None`` for a valid command."""
    if not job.command or not job.command[0]:
        return "the command is empty"
    if any("\0" in word for word in (*job.command, *job.environment.values())):
        return "the command or the environment has a zero byte"
    return None


def new_run_id() -> str:
    """Return the identity of a new run: 16 random hexadecimal digits."""
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True)
class Run:
    """The run for which an executor works.

    - ``tag`` is the run's name, for people: show it in names, comments and messages. It does not
      identify the run, because runs in two state folders, or of two users, may have the same tag.
    - ``folder`` is for the output of jobs for which no output file is given.
    - ``clock`` returns the time for events, in seconds since the epoch. It never goes back.
    - ``state`` is a folder for data that the executor needs to reattach to its jobs. It is ``None``
      if the run has no journal, because such a run cannot be resumed.
    - ``id`` is the run's identity, 16 hexadecimal digits. It is made once, at random, when the run
      first starts, and every later controller of the run gets the same. Attach it to each job in
      the queue: a job with another identity is foreign, even if its tag and name are the same.
    - ``resizes`` is true if rules of the run grow or shrink its queue. An executor that would
      change the number of its nodes itself leaves that to them.
    - ``syncs_late`` is true if a power cut may cost the run's journal its last moments, because
      the executor's ``survives_power_cut`` is false. It then need not sync its own records either.
    """

    tag: str
    folder: Path
    clock: Callable[[], float]
    state: Path | None = None
    id: str = field(default_factory=new_run_id)
    resizes: bool = False
    syncs_late: bool = False


class Executor(ABC):
    """The adapter to one queue: it carries out decisions and emits events.

    The package ``ensemble_batch`` has base classes that implement most of this contract:
    ``BatchExecutor`` for queues that must be polled, and ``QueueExecutor`` for queues that send
    events.

    **Calls.** Only one method is called at a time, never from the engine's thread, but not always
    from the same thread. A method may block as long as a remote call takes, but not as long as a
    job runs. ``submit`` receives many jobs at once, and should cost no more than one bulk request.

    - If ``submit`` returns, each job emits events, and the last one is ``clean``. If ``submit``
      raises an error, no job was submitted, and no job emits an event.
    - If ``submit`` or ``cancel`` raises an :class:`ExecutorError` that is ``transient``, the run
      retries the call with exponential backoff for some minutes. Any other error is final: the jobs
      have failed (cause ``submit``), or could not be cancelled.
    - A problem with a single job, such as a missing command or a rejected jobspec, is never an
      error of ``submit``. The job emits an ``exception`` with ``severity`` 0, followed by
      ``clean``.
    - ``cancel`` has no effect on a job that is over or unknown. After a cancel, no process of the
      job is left.
    - ``signal`` sends a signal to the processes of running jobs. It has no effect on a job that
      waits, is over or is unknown. Transient errors are retried as those of ``cancel``. Sending a
      signal changes nothing else: the job emits no event for it, and ends as its processes do.
    - When a controller ends or stops, it waits until the cancelled jobs have ended. If none of them
      emits an event for ``limits.stop`` (5 minutes), the controller exits; a resume then finds the
      jobs with ``reattach``.
    - ``resize`` emits one ``ResizeOutcome`` for each request.
    - ``resources`` may raise an error. The run then prints a warning and continues without gauges.
    - ``open`` is called before all other methods but ``prepare``, and not again before ``close``.
      The run checks this, so the executor need not.
    - ``close`` is called once. It releases what ``open`` acquired, and nothing is emitted
      afterwards. It does not cancel jobs; if that is necessary, the run does it before. The run
      waits for ``close`` for at most two minutes.
    - If a method or a thread of the executor raises an exception other than :class:`EnsembleError`,
      it is reported as a defect of the executor. If a thread of the executor dies, the run ends,
      because it could miss events of its jobs.

    **Events.** ``emit`` takes one or more events. It may be called from any thread, also within a
    method. It never blocks and never raises an error. The events of one job take effect in the
    order in which they were emitted; events of different jobs may be interleaved. Emitting several
    events in one call makes no difference except for speed.

    - The time of an event (seconds since the epoch) is when the event happened according to the
      queue, so it may be in the past. Each event of a job is at least a microsecond later than the
      job's previous event. No event is later than ``Run.clock``. If an event is emitted again after
      a crash, it has the same time.
    - Each job emits these events, in this order: ``submit``; ``validate``, ``depend``, ``priority``
      and ``alloc`` if the queue has them; ``start`` and ``finish`` if the job ran; and always,
      exactly once, ``clean``.
    - If the queue suspends a job, the job emits ``suspend``, and ``unsuspend`` when it runs again.
      If the queue takes the job's resources and lets it wait again (preemption, failure of a node,
      ``scontrol requeue``), the job emits ``requeue``; when it runs again, it emits ``alloc`` and
      ``start`` once more. The context of these three events may have a ``note``. A fatal
      ``exception`` or a ``finish`` ends the attempt, so no ``requeue`` follows. If the job is
      already in the new state, the event has no effect.
    - A cancelled job emits an ``exception`` of type ``cancel`` before its ``finish`` or ``clean``.
      If a job has several fatal exceptions, the first one says why the job ended. The same holds
      for a job that others cancel in the queue; the field ``by`` of the context is then the name of
      the user, if known. The run knows itself which cancels it asked for.
    - The context of ``submit`` may have ``queue_id``. The context of ``start`` may have
      ``workdir``, ``stdout`` and ``stderr`` (absolute paths, for observers). The context of
      ``finish`` has ``status``, a wait status; without it, the job counts as failed with the cause
      ``unknown``.
    - Breaches of these rules are reported as a defect of the executor, once for each kind of
      breach: an event that is more than 10 s in the future or older than the previous event; a
      missing or late ``submit``, ``start`` or ``finish``; a ``suspend`` or ``requeue`` after the
      job's ``finish``; an event of a job that the run never submitted. Some breaches are also
      corrected: times are set to now or moved after the previous event, a missing ``submit`` is
      added, and the events in one call are sorted.
    - A job that ends because its queue or allocation ends emits an ``exception`` of type
      ``interrupted``. The run submits it again, and no rule sees a failure.
    - ``ExecutorLost`` means that the queue is permanently lost. The run then ends with exit code 1
      and cancels nothing; it can be resumed. If the queue is only unreachable, emit one ``Problem``
      instead. With ``drained``, the queue has ended in order, and the run stops (exit code 143).

    **Fields of a job.** The executor either implements each of the fields ``command``, ``workdir``,
    ``environment``, ``stdout``, ``stderr``, ``duration``, ``nodes``, ``tasks``, ``cores_per_task``,
    ``gpus_per_task``, ``memory_per_task``, ``warn`` and ``avoid``, or it rejects the job with an
    ``exception`` of type ``jobspec``, ``alloc`` or ``submit`` whose note says what to do. It never
    silently ignores one of them.

    - ``grace`` is the number of seconds from SIGTERM to SIGKILL, or ``None`` for the executor's
      default. If it can have no effect, set ``grace`` of the plugin's record.
    - ``warn`` is empty, or has the name of a ``signal`` and how many seconds ``before`` the time
      limit the job's processes get it. If it can have no effect, set ``warn`` of the plugin's
      record.
    - ``avoid`` has names of nodes, as in the field ``host`` of the context of ``start``. The job
      never runs on one of them: it waits, or is rejected, if no other node exists.
    - ``memory_per_task`` is in bytes, and 0 if the job requests none. If it can have no effect, set
      ``memory`` of the plugin's record.
    - Each task should find ``cores_per_task`` in its variable ``ENSEMBLE_CORES`` and, unless it is
      set already or the executor binds the task to one core, in ``OMP_NUM_THREADS``.
    - ``urgency`` (0 to 31) is a priority, which is used as far as the queue supports priorities. A
      job with urgency 0 is held until it is cancelled.
    - ``options[NAME]`` has the options for this executor, checked against ``job_options``.
    - ``workdir`` and the folders of ``stdout`` and ``stderr`` are created on the machine where the
      job runs, if they are missing.
    - ``stdout`` and ``stderr`` may be the same file. When the run first uses an output file, the
      file is truncated; after that, output is appended. If no file is given, output goes to
      ``JOB.out`` and ``JOB.err`` in ``Run.folder``.
    - ``id`` is the job's name everywhere: ``GROUP.INDEX`` or ``GROUP.INDEX-ATTEMPT``.
    - All other fields are ignored.

    **Capabilities.** The class and the plugin's record both list them:

    - ``submit``, ``cancel``, ``resize``, ``signal``: the methods with these names work.
    - ``avoid``: the executor implements a job's field ``avoid``. Without it, files with the key
      ``avoid`` or the action ``avoid`` are rejected.
    - ``reattach``: a later controller can find the jobs again, even after a crash.
    - ``detach``: jobs may outlive the run. Without this capability, a run that ends with ``cancel:
      false`` waits for its jobs.

    The check of an ensemble file rejects rules that need a capability which the executor lacks.

    If the attribute ``shared`` is true, other users also use the queue, so its gauges can change
    independently of the run. A run in which a rule waits for such a gauge does not end just because
    nothing else can happen.

    **Power cuts.** Before a decision is carried out, it is at least as durable as its effect. If
    the attribute ``survives_power_cut`` is true, which is the default, the journal is synced before
    each call that submits, cancels or signals. Set it to false, at the latest in :meth:`open`, only
    if neither a job nor a record of it can survive a power cut of the controller's machine.
    Decisions then survive the death of any process, but the journal is synced up to 0.2 seconds
    later. After a power cut, it may not know the newest jobs: the run may submit them again, with
    the same ids and other fields. The executor then does not start a job that its own records show
    as started.
    """

    #: Capabilities of the executor: ``submit``, ``cancel``, ``avoid``, ``resize``, ``signal``,
    #: ``reattach``, ``detach``.
    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel"})
    #: The causes (see ``CAUSES``) that the executor can distinguish. A cause that follows neither
    #: from the type of an ``exception`` nor from the wait status is in the field ``cause`` of the
    #: event's context.
    causes: ClassVar[frozenset[Cause]] = frozenset({"exit", "timeout", "cancelled"})
    #: Whether others use the same queue, so that its gauges change independently of the run.
    shared: ClassVar[bool] = False
    #: Whether the output files of jobs without observers grow while the jobs run. Otherwise
    #: ``limits.output`` has no effect on such jobs.
    live_output: ClassVar[bool] = True

    def prepare(self, tag: str, state: Path | None, run_id: str) -> None:
        """Start slow preparations without waiting for them.

        The method :meth:`open` may follow, for a new run with this tag, state and identity. It then
        reports the errors of the preparations.
        """

    @abstractmethod
    def open(self, run: Run, emit: Emit) -> None:
        """Connect to the queue. Raises :class:`ExecutorError` with a hint if that fails."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> None:
        """Submit jobs to the queue, in bulk."""

    @abstractmethod
    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel the jobs with these ids (our ids, not the queue's)."""

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        """Send a signal, such as ``"USR1"``, to all processes of these jobs (our ids).

        A shell script that the executor itself runs around a job must survive the signal.
        """
        raise ExecutorError("this executor cannot send signals to jobs", code="cannot-signal")

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        """Request ``delta`` more nodes (fewer if negative), and emit a ``ResizeOutcome``.

        ``when_busy`` says what to do with nodes that should be released while jobs run on them:
        release them once they are idle (``wait``), keep them (``skip``), or release them at once
        (``force``) if the queue can do that. With ``skip``, the request is granted in part, or
        denied if no node is idle.

        The same ``request`` may arrive again, after a ``transient`` :class:`ExecutorError` or after
        a controller has died without the answer. The method must be idempotent: it emits the
        outcome again, but does not resize twice.
        """
        raise ExecutorError("this executor cannot change its number of nodes", code="cannot-resize")

    def resources(self) -> Mapping[str, float]:
        """Return the queue's current gauges by metric path (``nodes.up``, ``cores.free`` …).

        This may raise an error. If ``nodes.up``, ``cores.up`` or ``gpus.up`` is included, so is the
        corresponding gauge ``nodes.free``, ``cores.free`` or ``gpus.free``.
        """
        return {}

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        """Reattach to jobs that an earlier executor submitted for the same run.

        The run's jobs are those with its identity (:attr:`Run.id`). Never find a job by the run's
        tag or by the job's id alone: another run may have both.

        ``jobs`` maps our ids to the time of the job's latest known event (seconds since the epoch;
        0 if it had none). Return for each job whether the queue knows it. For each known job, emit
        all events after that time, even if the job is over by now.
        """
        raise ExecutorError(
            "this executor cannot find the jobs of an earlier controller", code="cannot-reattach"
        )

    @property
    def queue_is_new(self) -> bool:
        """True if the queue that an earlier executor of the run used no longer exists.

        In that case, jobs that :meth:`reattach` does not find cannot be running. The run submits
        those again that had not started; the others have failed together with their node.
        """
        return False

    def forget(self, jobs: Sequence[str]) -> None:
        """Drop all data about these jobs, if the executor keeps a ledger.

        The jobs are over, and their last events are in the journal, if the run has one. They will
        not be passed to :meth:`reattach` again. Each ended job is passed within a few seconds, and
        the last ones before :meth:`close`. If the controller is killed in between, they are not
        passed again.
        """

    @property
    def sees_foreign_jobs(self) -> bool:
        """True if the executor emits events of foreign jobs after :meth:`open`.

        If not, a run that has rules with ``scope: queue`` prints a warning.
        """
        return True

    @property
    def on_stop(self) -> Literal["keep", "cancel"]:
        """The effect of a stop on the jobs (keep or cancel), if the file does not define it.

        By default, jobs are kept if the executor can ``detach`` and ``reattach``; otherwise, they
        are cancelled.
        """
        return "keep" if {"detach", "reattach"} <= self.capabilities else "cancel"

    @property
    def survives_power_cut(self) -> bool:
        """True if a job, or the queue's record of it, can survive a power cut of this machine."""
        return True

    @property
    def drains(self) -> bool:
        """True if the queue ends with this process, because both run in the same allocation.

        Then SIGTERM means that the allocation ends, and the run calls :meth:`drain` instead of
        cancelling or keeping the jobs.
        """
        return False

    def drain(self) -> None:
        """Let the queue end in order. Does not wait for that.

        No job starts any more. Running jobs get SIGTERM and their grace; those that do not succeed
        emit an ``exception`` of type ``interrupted``. Waiting jobs stay on record for a later
        :meth:`reattach`. The last event is ``ExecutorLost`` with ``drained``.
        """

    @property
    def handle(self) -> object:
        """The ``handle`` that custom functions receive: the queue's native handle, or ``None``.

        The property is read on the thread that runs the function. Several threads may read it at
        the same time, so an executor can give each thread a separate handle.
        """
        return None

    def journal_record(self, queue_id: str, event: str) -> Mapping[str, Any]:
        """Return more fields of the queue's own record of a job's event, for custom functions.

        The keys are those in Flux's journal: ``id`` is the queue's name of the job. If the queue
        stores them, there are also ``jobspec`` for the event ``submit`` and ``R`` for the event
        ``alloc``. Like ``handle``, this is called on the thread that runs the function.
        """
        return {"id": queue_id}

    @abstractmethod
    def close(self) -> None:
        """Release what :meth:`open` has acquired. Emit nothing afterwards.

        A :class:`Problem` that is emitted meanwhile is shown to the user.
        """


class VirtualExecutor(Executor):
    """An executor that starts no processes and simulates its queue on a virtual clock.

    :meth:`open` receives this clock as ``run.clock``; only :meth:`advance` moves it. All methods
    are called on one thread, so ``emit`` only collects the events.
    """

    @abstractmethod
    def due(self) -> float | None:
        """Return the time of the queue's next event, in seconds since the epoch.

        Return ``None`` if nothing more will happen.
        """

    @abstractmethod
    def advance(self, now: float) -> None:
        """Emit all events up to the time ``now``, in order."""


class VirtualAnswer(NamedTuple):
    """Answer to a request for more or fewer nodes, as a ``ResizeOutcome`` without its time."""

    request: str
    outcome: str
    size: int
    reason: str


class VirtualTurn(NamedTuple):
    """Changes at one moment.

    - ``lost``: jobs that end because their allocation ends
    - ``started``: jobs that start, each with the number of its allocation
    - ``answers``: answers to requests for more or fewer nodes
    - ``said``: lines for the run's output, such as that an allocation is ready
    """

    lost: Sequence[str]
    started: Sequence[tuple[str, int]]
    answers: Sequence[VirtualAnswer]
    said: Sequence[str] = ()


class VirtualPilots(Protocol):
    """Allocations that an executor requests for the jobs of a run. Times are in seconds.

    Each change at a time takes effect in the next :meth:`advance` with that time.
    """

    def never(self, job: Job) -> str | None:
        """Return why this job can never run, or ``None``."""

    def add(self, job: Job) -> None:
        """Add a waiting job."""

    def remove(self, job: str) -> None:
        """Remove a waiting job."""

    def ended(self, job: str, now: float) -> None:
        """Record the end of a job that had started."""

    def resize(self, request: str, delta: int, when_busy: WhenBusy) -> None:
        """Request more or fewer nodes. The answer is in a later turn."""

    def due(self, now: float) -> float | None:
        """Return the next time at which something changes by itself."""

    def advance(self, now: float) -> VirtualTurn:
        """Let everything happen that is due."""

    def gauges(self, now: float) -> Mapping[str, float]:
        """Return the gauges, with ``cores.up`` and ``cores.free``."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text that a queue would receive for a job."""

    text: str
    media_type: str = "text/x-shellscript"  #: ``application/json``, ``text/x-shellscript`` …


def shell_line(job: Job, launcher: str = "") -> str:
    """Return a job as a shell command line, with its folder, environment, command and output files.

    >>> shell_line(Job(id="a.0", group="a", index=0, command=("echo", "a b"), stdout="out.txt"))
    "echo 'a b' >>out.txt"
    """
    words = [f"cd {shlex.quote(job.workdir)} &&"] if job.workdir else []
    if job.environment:
        changes = (f"{name}={value}" for name, value in job.environment.items())
        words.append(shlex.join(["env", *changes]))
    if launcher:
        words.append(launcher)
    words.append(shlex.join(job.command))
    if job.stdout is not None:
        words.append(f">>{shlex.quote(job.stdout)}")
    if job.stderr is not None:
        same = job.stderr == job.stdout
        words.append("2>&1" if same else f"2>>{shlex.quote(job.stderr)}")
    return " ".join(words)
