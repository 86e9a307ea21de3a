"""Queue hooks: what a plugin says of its queue, and what it is asked. :class:`QueueExecutor` and
:class:`BatchExecutor` have the rest; a plugin inherits one of them.
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
    """The queue cannot do this now; the executor tries again, and says so once.

    ``arrived`` is what is known of a submit: ``False`` where the queue surely has none of the batch
    (a limit, a quota): its jobs wait in line. ``None`` where nobody knows (an answer that was lost
    or cut): the batch is looked for, and handed in again if the queue does not have it.
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
    """The queue will never take these jobs: they fail, cause ``submit``, with this message."""

    def __init__(self, what: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, cause=cause, hint=hint, code="refused")


@dataclass(frozen=True, slots=True)
class QueueJob:
    """One job's state in the queue: it waits, runs, or is over.

    Of one that is over, ``status`` is its wait status where the queue knows it, and ``exception``
    (RFC 21: ``node-failure``, ``out-of-memory``, ``cancel`` …) with ``note`` why the queue ended
    it, and ``cause`` if that is another one than follows from the exception. One that is ``ending``
    has ended, and the queue cleans up after it. One that is ``stuck`` waits for what will not come
    by itself: ``note`` says so, and what to do. ``restarts`` counts how often the queue has started
    it again. ``began`` and ``ended`` are seconds since the epoch by the queue's clock, ``host`` is
    where it runs. Where a wrapper claims the job, these three are not used, and the end only
    without a report.
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
    """The methods that a plugin for a queue overrides.

    Attributes
    ----------
    name:
        What the queue is called in messages, and the key of its options in a job group.
    poll:
        Seconds within which an end is known that no wrapper tells of, or 6 s where that is less.
        The queue is asked a little more often while it has jobs: at 15 every 12 s, and twice more,
        0.3 s and 2 s later, where one is missing.
    grace:
        Seconds from SIGTERM to SIGKILL.
    settle:
        Seconds in which a submit whose answer was lost may arrive yet, if these are more than 10.
    patience:
        Seconds that the queue has to say why a job was ended, where it ``explains``; ten times as
        long while it cleans up after the job.
    most_jobs:
        Jobs in one batch, at most; 1 where the queue has no arrays. ``connect`` may learn it.
    rate:
        Commands a second, at most, after a burst of ten.
    lanes:
        2 where the queue may be asked while a batch is handed in, else 1.
    explains:
        Whether the queue says soon why it ended a job. An end by SIGTERM or SIGKILL waits for that,
        and a cancelled job is over when nothing is left of it.
    claims:
        Whether a job's first copy claims it in the run's folder, which nodes must see: it runs at
        most once whatever the queue does. Else the queue must not start jobs again unasked, tells
        their ``restarts``, and jobs report over the network, too.
    listen:
        Where reports are awaited without ``claims``: address (empty: to be found) and port (0: any)
        of this machine; ``None``: reports come by files only.
    task_place, task_id, task_restarts:
        What a shell expands, within a job, to its place in its batch (from 1), to its id, and to
        how often the queue has started it again.
    own_variables:
        Beginnings of variables that the queue gives its jobs, and that no outer job's replace.
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
        """See that the queue is there. Raises :class:`ExecutorError` with a hint where not."""

    def disconnect(self) -> None:
        """Close what :meth:`connect` opened, and end a :meth:`watch` that blocks, which runs in
        another thread. Called once, after the last call of any other method."""

    def watch(self, told: Callable[[Iterable[QueueJob]], None]) -> None:
        """Block, and pass on what the queue tells of its jobs, until :meth:`disconnect` is called.

        Runs in a thread of its own beside the other methods. ``told`` may be called with many jobs,
        also with those of others; each call with the newest state of a job. Call it once with
        ``()`` when the queue has begun to tell: what was missed before is then asked for. Return,
        or raise :class:`CannotTake`, if the queue stops telling: it is called again.
        """

    @abstractmethod
    def submit_batch(self, batch: Batch) -> Sequence[str]:
        """Hand a batch in; the queue's ids of its jobs, in their order. Raises :class:`CannotTake`
        or :class:`InvalidJob`."""

    @abstractmethod
    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """The queue's answer about these jobs, by one request. Others are passed over; one that is
        missing is one that the queue does not know. Raises :class:`CannotTake` where the answer did
        not come, or not whole."""

    @abstractmethod
    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        """The ids of a batch of this name and size, ``None`` where the queue has none."""

    @abstractmethod
    def end_jobs(self, ids: Collection[str]) -> None:
        """Cancel jobs, those that run with SIGTERM or another signal that can be caught, if that
        can be had. Ids that the queue does not know are no error."""

    def wrong(self, job: Job) -> str | None:
        """Why this job can never be had here, and what to do; ``None`` if it can."""
        return None

    def shape(self, job: Job) -> object:
        """The properties that jobs must share to be one batch: all that the queue is asked for."""
        return (
            *(job.group, job.nodes, job.tasks, job.cores_per_task, job.gpus_per_task),
            *(job.duration, job.urgency, repr(job.options.get(self.name))),
        )

    def fits(self, jobs: Sequence[Job], tag: str) -> bool:
        """True if one batch may have all of these jobs, which have one :meth:`shape`."""
        return True

    def launcher(self, job: Job) -> Sequence[str]:
        """The command before a job's own that starts its tasks, without ``claims``."""
        return ()

    def may_restart(self, job: Job) -> bool:
        """True if the queue may start this job again, without ``claims``."""
        return False

    def faces(self) -> Iterable[str]:
        """Hosts towards which this machine's address is looked for, if ``listen`` names none: the
        queue's server first, then a few nodes."""
        return ()

    def find_jobs(self, tag: str, age: float) -> Mapping[str, str]:
        """The queue's ids of a run's jobs by ours, as far as names or comments tell, of the last
        ``age`` seconds: asked for by a later controller if records are missing."""
        return {}

    def nodes(self) -> Mapping[str, float]:
        """The queue's gauges now."""
        return {}

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """The queue's records of jobs that are over and of which nothing else is known."""
        return ()

    def command(
        self,
        words: Sequence[str],
        given: bytes = b"",
        *,
        environment: Mapping[str, str] | None = None,
        deadline: float = 60.0,
    ) -> tuple[int, str, str]:
        """Run a command of the queue: its exit code, output and errors. ``environment`` is that of
        jobs, with plain messages, if it is not given."""
        return self._commands.run(words, given, environment=environment, deadline=deadline)
