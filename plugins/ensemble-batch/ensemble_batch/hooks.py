"""Queue hooks: what a plugin says of its queue, and what it is asked. :class:`QueueExecutor` and
:class:`BatchExecutor` have the rest; a plugin inherits one of them.
"""

from __future__ import annotations

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
    it. One that is ``stuck`` waits for what will not come by itself: ``note`` says so, and what to
    do. ``began`` and ``ended`` are seconds since the epoch by the queue's clock, ``host`` is where
    it runs. Where a wrapper reports, these three are not used, and the end only without a report.
    """

    id: str
    state: Literal["waiting", "running", "over", "stuck"]
    status: int | None = None
    exception: str | None = None
    note: str = ""
    began: float | None = None
    ended: float | None = None
    host: str = ""


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
    most_jobs:
        Jobs in one batch, at most; 1 where the queue has no arrays. ``connect`` may learn it.
    task_place, task_id:
        What a shell expands, within a job, to its place in its batch (from 1) and to its id.
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

    def nodes(self) -> Mapping[str, float]:
        """The queue's gauges now."""
        return {}

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """The queue's records of jobs that are over and of which nothing else is known."""
        return ()

    def command(self, words: Sequence[str], given: bytes = b"") -> tuple[int, str, str]:
        """Run a command of the queue: its exit code, output and errors."""
        return self._commands.run(words, given)
