"""Queue hooks: the methods that a plugin for a queue overrides, and their arguments.

:class:`QueueExecutor` and :class:`BatchExecutor` implement the rest; a plugin inherits one of them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ensemble_batch.command import QueueCommands
from ensemble_batch.job_script import Batch
from ensemble_core import Cause, Executor, ExecutorError, Job

__all__ = ["CannotTake", "InvalidJob", "QueueHooks", "QueueJob"]


class CannotTake(ExecutorError):
    """The queue cannot do this now. The executor retries, and reports it once.

    ``arrived`` says whether a submitted batch arrived. ``False``: it certainly did not (a limit, a
    quota), so its jobs keep waiting. ``None``: unknown (the answer was lost or cut off), so the
    batch is looked up, and resubmitted if the queue does not have it.
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
    """The queue will never accept these jobs. They fail, cause ``submit``, with this message."""

    def __init__(self, what: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, cause=cause, hint=hint, code="refused")


@dataclass(frozen=True, slots=True)
class QueueJob:
    """State of one job in the queue.

    ``note`` explains the state. For a job that is over, ``status`` is its wait status if the queue
    knows it; ``exception`` (RFC 21: ``node-failure``, ``out-of-memory``, ``cancel`` …) is why the
    queue ended it; and ``cause`` is set if it differs from what the exception implies. ``ending``
    means that the job has ended and the queue is cleaning up. ``stuck`` means that it waits for
    something that will never happen unless somebody acts; ``note`` says what to do. ``restarts``
    counts restarts by the queue. ``began`` and ``ended`` are seconds since the epoch by the queue's
    clock, and ``host`` is the node. If a wrapper claims the job, these three are ignored, and an
    end counts only if the wrapper has reported none.
    """

    id: str
    state: Literal["waiting", "running", "ending", "over", "stuck"]
    status: int | None = None
    exception: str | None = None
    note: str = ""
    began: float | None = None
    ended: float | None = None
    host: str = ""
    cause: Cause | None = None
    restarts: int = 0


class QueueHooks(Executor):
    """Methods that a plugin for a queue overrides.

    Attributes
    ----------
    name:
        Name of the queue in messages, and the key of its options in a job group.
    poll:
        Seconds until an end is noticed that no wrapper reports; that takes at least 6 s. While it
        has jobs, the queue is asked slightly more often (every 12 s if ``poll`` is 15), and again
        after 0.3 s and 2 s if a job is missing.
    grace:
        Seconds from SIGTERM to SIGKILL.
    settle:
        Seconds within which a batch whose answer was lost may still arrive; at least 10.
    patience:
        Seconds to wait for the queue's reason for an end, if it ``explains`` ends; ten times as
        long while it cleans up after the job.
    most_jobs:
        Largest number of jobs in a batch; 1 if the queue has no arrays. ``connect`` may set it.
    rate:
        Maximum number of commands per second, after a burst of ten.
    lanes:
        2 if the queue may be asked while a batch is being submitted, else 1.
    explains:
        Whether the queue soon reports why it ended a job. An end by SIGTERM or SIGKILL waits for
        that, and a cancelled job is over when its last process has ended.
    claims:
        Whether a job's first copy claims it in the run's folder, which nodes must see. Then it runs
        at most once, whatever the queue does. Otherwise the queue must not restart jobs unasked,
        must report their ``restarts``, and jobs report over the network too.
    listen:
        Where to listen for reports without ``claims``: an address of this machine (empty: find one)
        and a port (0: any). ``None``: reports come only by files.
    task_place, task_id, task_restarts:
        Shell expressions that expand within a job's script to its place in the batch (from 1), its
        id as :meth:`submit_batch` returns it, and the number of restarts by the queue. Do not add
        shell quotes: ``task_place = "$SGE_TASK_ID"``, or ``"$1"`` if the script's first argument is
        the place. With ``task_id``, a job whose submission got no answer reports its own id;
        ``"-"``: a job does not know it.
    own_variables:
        Prefixes of variables that the queue sets for its jobs. Those of an outer job never replace
        them.
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
    listen: tuple[str, int] | None = None
    rate: float = math.inf
    settle: float = 0.0
    patience: float = 60.0
    own_variables: ClassVar[tuple[str, ...]] = ()
    poll: float = 15.0
    grace: float = 5.0
    _commands: QueueCommands

    def connect(self) -> None:
        """Check that the queue is there.

        If it is unreachable now, raise :class:`CannotTake` with a hint: the run does not start, but
        the start can be retried. If it can never be reached, because its commands are not
        installed, raise :class:`ExecutorError` with a hint.
        """

    def disconnect(self) -> None:
        """Close what :meth:`connect` opened, and end a blocked :meth:`watch` in another thread.

        Called once, after the last call of any other method.
        """

    def watch(self, told: Callable[[Iterable[QueueJob]], None]) -> None:
        """Block, and pass on the queue's reports of its jobs, until :meth:`disconnect` is called.

        Runs in its own thread, concurrently with the other methods. ``told`` accepts many jobs,
        including other users', each with its newest state. Call it once with ``()`` when reports
        begin: the executor then asks for what it missed before. If the queue stops reporting,
        return or raise :class:`CannotTake`; the executor calls this again.
        """

    @abstractmethod
    def submit_batch(self, batch: Batch) -> Sequence[str]:
        """Submit a batch; return the queue's ids of its jobs, in order.

        Raises :class:`CannotTake` or :class:`InvalidJob`. Check that the answer has ids before you
        return it: a queue may print anything.
        """

    @abstractmethod
    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """Return the queue's answer about these jobs, from one request.

        Other jobs in the answer are ignored. A missing job is one that the queue does not know.
        Raises :class:`CannotTake` if there is no answer or only part of one. So check that an
        answer without jobs is really the queue's, for example by its first line.
        """

    @abstractmethod
    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        """Return the ids of the batch with this name and size, or ``None`` if the queue does not
        have it.

        Called after :class:`CannotTake` of :meth:`submit_batch`. A batch need not be visible at
        once: it is looked for during ``settle`` seconds, at least 10, before it is submitted again.
        """

    @abstractmethod
    def end_jobs(self, ids: Collection[str]) -> None:
        """Cancel jobs; running ones with a signal that can be caught, such as SIGTERM, if possible.

        Ids that the queue does not know are not an error. Each task of a wrapper script has its own
        process group. The script passes SIGTERM on to its tasks, and kills them after ``grace``
        seconds. It cannot pass on SIGKILL: without cgroups, its tasks then stay alive.
        """

    def wrong(self, job: Job) -> str | None:
        """Return why this job can never run here, and what to do; ``None`` if it can."""
        return None

    def shape(self, job: Job) -> object:
        """Return the properties that all jobs of a batch must share: everything requested of the
        queue.
        """
        return (
            *(job.group, job.nodes, job.tasks, job.cores_per_task, job.gpus_per_task),
            *(job.duration, job.urgency, repr(job.options.get(self.name))),
        )

    def fits(self, jobs: Sequence[Job], tag: str) -> bool:
        """Return whether one batch may have all of these jobs. They have the same :meth:`shape`."""
        return True

    def launcher(self, job: Job) -> Sequence[str]:
        """Return the command prefix that starts the job's tasks (only without ``claims``)."""
        return ()

    def may_restart(self, job: Job) -> bool:
        """Return whether the queue may restart this job (only without ``claims``)."""
        return False

    def faces(self) -> Iterable[str]:
        """Return hosts to find this machine's address by, if ``listen`` names none.

        The queue's server first, then some nodes.
        """
        return ()

    def find_jobs(self, tag: str, age: float) -> Mapping[str, str]:
        """Return the queue's ids of a run's jobs by our ids, read from names or comments in the
        queue.

        ``age`` limits the search to the last so many seconds. A later controller calls this if
        records are missing.
        """
        return {}

    def nodes(self) -> Mapping[str, float]:
        """Return the queue's current gauges."""
        return {}

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """Return the queue's records of jobs that are over, for jobs of which nothing else is
        known.
        """
        return ()

    def command(
        self,
        words: Sequence[str],
        given: bytes = b"",
        *,
        environment: Mapping[str, str] | None = None,
        deadline: float = 60.0,
    ) -> tuple[int, str, str]:
        """Run a command of the queue; return its exit code, output and errors.

        ``given`` is its standard input. The default ``environment`` is that of jobs, with
        untranslated messages. The command gets its own session, so that Ctrl-C does not reach it.
        After ``deadline`` seconds, or when the run closes, it is killed with its process group;
        only a child that has started another session survives. After a normal end nothing is
        killed, but a child that keeps the command's output open delays that end.

        Raises an error like :class:`CannotTake` after the deadline, and a final
        :class:`ExecutorError` if the program does not exist. Any exit code is returned.
        """
        return self._commands.run(words, given, environment=environment, deadline=deadline)
