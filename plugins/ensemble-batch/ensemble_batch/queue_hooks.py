"""Methods that a queue plugin overrides, with their arguments and errors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ensemble_batch.command import QueueCommands
from ensemble_batch.job_script import Batch
from ensemble_batch.output_files import Place
from ensemble_core import Cause, Executor, ExecutorError, Job


class CannotTake(ExecutorError):
    """Raised if the queue cannot carry out a request now. The executor repeats the request.

    For a submission, ``arrived`` says whether the batch reached the queue:

    - ``False``: certainly not (a limit, a quota). Its jobs keep waiting. If the batch was larger
      than all accepted ones, the executor soon tries half as many jobs. Otherwise it retries when
      one of the run's jobs ends, or after 15 s.
    - ``None``: unknown (the reply was lost or truncated). The executor looks for the batch, and
      resubmits it if the queue does not have it.
    """

    def __init__(
        self,
        what: str,
        *,
        arrived: Literal[False] | None = None,
        cause: str | None = None,
        hint: str | None = None,
    ) -> None:
        code = "no-answer" if arrived is None else "full"
        super().__init__(what, cause=cause, hint=hint, code=code, transient=True)


class InvalidJob(ExecutorError):
    """Error of a batch that the queue will never accept. Its jobs fail with cause ``submit``."""

    def __init__(self, what: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, cause=cause, hint=hint, code="refused")


@dataclass(frozen=True, slots=True)
class QueueJob:
    """State of one job in the queue."""

    id: str
    #: - ``suspended``: the job has started and stands still.
    #: - ``ending``: the job has ended, and the queue is cleaning up.
    #: - ``stuck``: the job waits until somebody acts.
    #: - ``held``: the job waits until somebody releases it. This is reported, unless the run itself
    #:   has submitted the job with urgency 0.
    #: - ``unknown``: the queue was asked about this job, and does not know it (only from
    #:   ``account``). Set ``exception="cancel"`` if the queue has not lost its records: a job that
    #:   has not started was then deleted by others.
    #: - ``absent``: the queue has not lost its records, and does not know this job. If the job has
    #:   not started, others have deleted it. Otherwise, the report of its end may still come.
    state: Literal[
        "waiting", "running", "suspended", "ending", "over", "stuck", "held", "unknown", "absent"
    ]
    #: Wait status of a job that is over, if the queue knows it. If wrappers claim jobs, it counts
    #: only if the wrapper has reported no end; and 0 only if the wrapper has reported the start.
    status: int | None = None
    #: Why the queue ended the job (RFC 21: ``node-failure``, ``out-of-memory``, ``cancel`` …).
    exception: str | None = None
    #: Explanation of the state; for a stuck or held job, also what to do. A waiting job with a
    #: note is reported if it does not start within five minutes and no other job of the run is
    #: running.
    note: str = ""
    #: With the exception ``cancel``: the user who cancelled the job, if known.
    by: str = field(default="", kw_only=True)
    #: Start and end in seconds since the epoch by the queue's clock, and the node. These three
    #: fields are ignored if wrappers claim jobs.
    began: float | None = None
    ended: float | None = None
    host: str = ""
    #: Set only if it differs from the cause that ``exception`` implies.
    cause: Cause | None = None
    #: How often the queue has requeued the job, and when last by the queue's clock, if known.
    restarts: int = 0
    requeued: float | None = None
    #: Name under which the job was submitted, or the path of its script; empty if the queue
    #: reports neither. If users or sites can rename jobs, use the path. A job is foreign (the
    #: queue has assigned the id again) if this is neither a name of its batch nor a path that ends
    #: with the file name of the script. The folder in the path does not matter.
    batch: str = ""


def reshaped(ids: Collection[str], rows: Iterable[QueueJob], mark: str) -> Iterator[QueueJob]:
    """Yield a report for each id whose number now belongs to an array, or no longer to one.

    Only a queue that lost its state assigns a number again. A cancel of ``7`` ends all tasks of an
    array 7, and a cancel of ``7.1`` may end a job 7. The argument ``mark`` separates the number.

    >>> [job.batch for job in reshaped(["7", "8.1"], [QueueJob("7.1", "running")], ".")]
    ['7.1']
    """
    listed = {row.id for row in rows}
    numbers = {id_.partition(mark)[0]: id_ for id_ in listed}
    for id_ in ids:
        other = numbers.get(id_.partition(mark)[0])
        if other is not None and id_ not in listed and (mark in id_) != (mark in other):
            yield QueueJob(id_, "unknown", batch=other)


class QueueHooks(Executor):
    """Methods that a plugin for a queue overrides.

    Attributes
    ----------
    name:
        Name of the queue in messages, and the key of its options in a job group.
    poll:
        Seconds within which the executor notices that a job has ended, if its wrapper does not
        report it. If ``poll`` is below 6, it takes at most 6 s.
    grace:
        Seconds from SIGTERM to SIGKILL, for jobs without a ``grace``.
    lost_after:
        Seconds for which the queue's replies must omit a job, although they list other jobs, until
        the job counts as lost. If :meth:`account` says more about the job, that counts at once.
    settle:
        Seconds within which a batch whose submission got no reply may still arrive; at least 10.
    patience:
        With ``explains``: seconds to wait for the reason; ten times as long while the queue cleans
        up after the job.
    most_jobs:
        Largest number of jobs in a batch; 1 if the queue has no arrays. ``connect`` may set it.
    rate:
        Maximum number of commands per second, after a burst of ten.
    lanes:
        2 if the queue may be queried while a batch is being submitted, else 1.
    explains:
        Whether the queue soon reports why it ended a job. If so, the executor waits for that reason
        before it reports an end by SIGTERM or SIGKILL. Without ``claims``, this includes jobs that
        the run cancelled: they are over when the queue reports that their last process has ended.
    claims:
        Whether the first copy of a job claims the job in the run's folder, which nodes must see. If
        so, the job runs at most once, whatever the queue does. Otherwise the queue may restart
        only jobs for which :meth:`may_restart` is true, and must report their ``restarts``.
    knows_ended:
        Whether :meth:`find_ended_batch` finds jobs that the queue no longer lists. Otherwise, a
        batch that is submitted again may run twice if nodes do not see the run's folder; a warning
        says so. ``connect`` may set it.
    listen:
        Without ``claims``, where to listen for reports: an address of this machine (empty: find
        one) and a port (0: any). With ``None``, jobs report only through files.
    task_place, task_id, task_restarts:
        Shell expressions that are expanded in a job's script. They give the job's place in the
        batch (from 1), its id as :meth:`submit_batch` returns it, and the number of restarts by the
        queue. Do not add shell quotes: ``task_place = "$SGE_TASK_ID"``, or ``"$1"`` if the script's
        first argument is the place. With ``task_id``, a job whose submission got no reply reports
        its own id; use ``"-"`` if jobs do not know their ids.
    task_cgroup:
        Without ``claims``: a shell expression for the part of the path of a job's control group
        that names the job, with slashes at both ends. If the kernel kills a process of the job for
        lack of memory, the job has failed, even if its command succeeds.
    suspend_notice:
        With ``claims``: the signal (``USR1``) by which the queue announces that it will stop a job.
        Set it if the queue then stops and continues only the wrapper: the wrapper stops and
        continues the tasks. Otherwise the queue must stop all processes of a job.
    relay:
        Without ``claims``: a shell command that sends the signal ``$1`` to the tasks that the
        :meth:`launcher` has started for the job ``$_ens_id``.
    warns:
        Whether jobs get the signal of ``job.warn`` before their time limit. Otherwise, jobs with
        this field are rejected. The wrappers of ``BatchExecutor`` send it.
    restart_codes:
        Exit codes of a script at which the queue starts the job again, or holds it. The wrapper of
        a job with such a code ends with another one, unless :meth:`may_restart` allows a restart.
        ``connect`` may set them.
    own_variables:
        Prefixes of variables that the queue sets for its jobs. If the run itself is in a job, its
        variables with these prefixes are not passed on.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel", "reattach", "detach"})
    causes: ClassVar[frozenset[Cause]] = frozenset(
        {"exit", "signal", "timeout", "cancelled", "submit"}
    )
    shared: ClassVar[bool] = True
    name: ClassVar[str] = "queue"
    most_jobs: int = 1
    task_place: ClassVar[str] = "1"
    task_id: ClassVar[str] = "-"
    task_restarts: ClassVar[str] = "0"
    lanes: ClassVar[Literal[1, 2]] = 1
    explains: ClassVar[bool] = False
    claims: ClassVar[bool] = True
    knows_ended: bool = False
    listen: tuple[str, int] | None = None
    rate: float = math.inf
    lost_after: float = 600.0
    settle: float = 0.0
    patience: float = 60.0
    task_cgroup: ClassVar[str] = ""
    suspend_notice: ClassVar[str] = ""
    relay: ClassVar[str] = ""
    warns: ClassVar[bool] = False
    restart_codes: frozenset[int] = frozenset()
    own_variables: ClassVar[tuple[str, ...]] = ()
    poll: float = 15.0
    grace: float = 5.0
    _commands: QueueCommands

    def connect(self) -> None:
        """Check that the queue is reachable.

        If the queue is unreachable now, raise :class:`CannotTake` with a hint: the run does not
        start, but the start can be retried. If the queue can never be reached, for example because
        its commands are not installed, raise :class:`ExecutorError` with a hint.
        """

    def disconnect(self) -> None:
        """Close what :meth:`connect` opened, and end a blocked :meth:`watch` in another thread.

        Called once, after the last call of any other method.
        """

    def watch(self, told: Callable[[Iterable[QueueJob]], None]) -> None:
        """Block, and pass on the queue's reports of its jobs, until :meth:`disconnect` is called.

        Runs in its own thread, concurrently with the other methods. The callback ``told`` accepts
        many jobs, including other users', each with its newest state. Call ``told`` once with
        ``()`` when reports begin: the executor then queries what it has missed. If the queue stops
        reporting, return or raise :class:`CannotTake`; the executor then calls this method again.
        """

    @abstractmethod
    def submit_batch(self, batch: Batch) -> Sequence[str]:
        """Submit a batch; return the queue's ids of its jobs, in order.

        Raises :class:`CannotTake` or :class:`InvalidJob`. After any other :class:`ExecutorError`
        the jobs fail with cause ``submit`` too, unless the error is ``transient``: it then counts
        as :class:`CannotTake`. Check that the reply contains ids before you return them: a queue
        may print anything.
        """

    @abstractmethod
    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """Return the states of these jobs, from one query of the queue.

        Return other jobs of the reply as well: they show that the queue is not blind. A missing job
        is not taken for lost, because queues in maintenance or fail-over list no jobs or only some:
        see :meth:`account` and ``lost_after``. Raises :class:`CannotTake` if the reply is missing
        or incomplete. So check that a reply without jobs really comes from the queue, for example
        by its first line. The query is repeated after any :class:`ExecutorError`. Jobs are asked
        about before each cancel, too: they may belong to others since the queue lost its state.
        """

    @abstractmethod
    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        """Return the ids of a batch, or ``None`` if the queue does not have it.

        The argument ``size`` is the number of jobs. Called after :meth:`submit_batch` has raised
        :class:`CannotTake`. A batch need not be visible at once: the executor keeps looking for
        ``settle`` seconds, at least 10, before it resubmits the batch.
        """

    def find_ended_batch(self, name: str, size: int, age: float) -> Sequence[str] | None:
        """Return the ids of a batch from the queue's accounting, or ``None`` if it is not there.

        Used only without ``claims``, before a batch that :meth:`find_batch` does not find is
        submitted again: its jobs may have ended so long ago that the queue has forgotten them. The
        batch was submitted ``age`` seconds ago. Raises :class:`CannotTake` if the accounting gives
        no answer; the batch then waits.
        """
        return None

    @abstractmethod
    def end_jobs(self, ids: Collection[str]) -> None:
        """Cancel jobs.

        If possible, end running jobs with a signal that can be caught, such as SIGTERM. Ids that
        the queue does not know are not an error. The cancel is repeated after any
        :class:`ExecutorError`.

        A wrapper script gives each task its own process group, so a signal to the wrapper's group
        does not reach the tasks. It passes SIGTERM on to its tasks, and kills them after ``grace``
        seconds. It cannot pass on SIGKILL: without cgroups, the tasks of a killed wrapper stay
        alive.
        """

    def signal_jobs(self, ids: Collection[str], signal: str) -> None:
        """Send a signal (``"USR1"``) to running jobs, for the capability ``signal``.

        Ids that the queue does not know are not an error. With ``claims``, this is not called: the
        wrappers look for signals in the run's folder. Without, the wrapper needs the realtime
        signal ``SIGRTMIN`` plus the signal's number, and nothing else in the job may get it.
        """
        raise ExecutorError(f"{self.name} cannot send signals to jobs", code="cannot-signal")

    def wrong(self, job: Job) -> str | None:
        """Return why this job can never run here, and what to do about that.

        Return ``None`` if the job can run.
        """
        return None

    def shape(self, job: Job) -> object:
        """Return all requests of a job to the queue. Jobs of a batch have the same shape."""
        return (
            *(job.group, job.nodes, job.tasks, job.cores_per_task, job.gpus_per_task),
            job.memory_per_task,
            *(
                job.duration,
                job.grace,
                repr(job.warn),
                job.avoid,
                job.urgency,
                repr(job.options.get(self.name)),
            ),
        )

    def grace_of(self, job: Job) -> float:
        """Return the seconds from SIGTERM to SIGKILL for a job."""
        return self.grace if job.grace is None else job.grace

    def fits(self, jobs: Sequence[Job], tag: str) -> bool:
        """Return whether these jobs, all of the same :meth:`shape`, fit into one batch."""
        return True

    def launcher(self, job: Job) -> Sequence[str]:
        """Return the command prefix that starts the job's tasks. Used only without ``claims``."""
        return ()

    def messages_file(self, places: Sequence[Place]) -> str:
        """Return the path, with ``$_ens_id`` for a job's id, of the script's standard error.

        Some queues write there why they end a job. The argument ``places`` has the jobs' output
        files. The wrapper writes nothing to the file, and removes it if it is empty. Return an
        empty string if there is no such file. Used only without ``claims``.
        """
        return ""

    def may_restart(self, job: Job) -> bool:
        """Return whether the queue may restart this job. Used only without ``claims``."""
        return False

    def faces(self) -> Iterable[str]:
        """Return hosts from which this machine must be reachable: the queue's server, then some
        nodes.

        They determine this machine's address if ``listen`` has none.
        """
        return ()

    def find_jobs(self, run_id: str, age: float) -> Mapping[str, str]:
        """Return a mapping from our ids of a run's jobs to the queue's ids.

        The ids are read from names or comments in the queue, which must contain the run's identity
        (``batch.run_id``): jobs with the same tag may belong to another run. A later controller
        calls this if records are missing. The argument ``age`` limits the search to that many past
        seconds.
        """
        return {}

    def nodes(self) -> Mapping[str, float]:
        """Return the queue's current gauges."""
        return {}

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """Return what the queue knows about each of these jobs, which :meth:`ask` has omitted.

        Ask about each job by its id, or read the queue's accounting. If the queue says that it has
        no such job, return the state ``unknown``: only then, or after ``lost_after``, is the job
        lost. Omit jobs about which nothing is known. The ids are in random order, so a query may
        concern only the first ones.
        """
        return ()

    def command(
        self,
        words: Sequence[str],
        given: bytes = b"",
        *,
        environment: Mapping[str, str] | None = None,
        deadline: float = 60.0,
        kill_on: bytes = b"",
    ) -> tuple[int, str, str]:
        """Run a command of the queue; return its exit code, output and errors.

        The argument ``given`` is the command's standard input. If the standard error contains
        ``kill_on``, the command is killed. The default ``environment`` is that of jobs, with
        untranslated messages. The command gets its own session, so that Ctrl-C does not reach it.
        After ``deadline`` seconds, or when the run closes, the command is killed with its process
        group; only a child that has started another session survives. After a normal end nothing is
        killed, but the call lasts until every child has closed the command's output.

        Raises an error like :class:`CannotTake` after the deadline, and a final
        :class:`ExecutorError` if the program does not exist. Any exit code is returned.
        """
        return self._commands.run(
            words, given, environment=environment, deadline=deadline, kill_on=kill_on
        )
