"""One thread that follows all files of a run while jobs write them.

The runtime calls :meth:`Follower.watch` when a job starts and :meth:`Follower.finish` when it has
ended; what observers read comes out as :class:`~ensemble_core.model.events.Observed` events.

The kernel says by inotify when a file on this machine is written. It says nothing of what another
node writes to NFS or Lustre, so files there are looked at every few seconds, and files here from
time to time as well, for what it leaves out. No file is held open, so thousands can be followed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_core.model.events import Event
from ensemble_core.plugin.observer import Observer
from ensemble_core.runtime.tail.change_detection import ChangeDetector
from ensemble_core.runtime.tail.file import File, Place
from ensemble_core.runtime.tail.wakeup import Wakeup

if TYPE_CHECKING:
    import logging

__all__ = ["Follower"]

_BATCH = 1000
#: Rows are handed on at least so often while files are read, in seconds.
_FLUSH = 0.002
#: What happens within this time is worked in at once; at least so many times as long as that took,
#: for a third of one core, unless a tenth of a second is not enough for that.
_GATHER, _GATHER_PER_COST, _GATHER_LONGEST = 0.005, 2.0, 0.1
#: Ends, and files that are far behind, keep the others waiting no longer than this, in seconds.
_SLICE = 0.02
#: Events that may wait to be handled: for what is far behind, and for all.
_BACKLOG_BEHIND, _BACKLOG = 500, 20_000
#: How long what is far behind waits while there are more, in seconds.
_BREATH = 0.005


@dataclass(slots=True, eq=False)
class _Ending:
    """A job that is over, and the files of it that are still to be read to their ends."""

    then: Callable[[], None]
    files: list[File]
    expected: bool


#: Files of jobs that are over of which it is known how far they were read, the latest.
_PLACES = 10_000


def _index(job: str) -> str:
    """The job without the number of its attempt: ``sim.7`` of ``sim.7-1``."""
    group, dot, number = job.rpartition(".")
    return group + dot + number.partition("-")[0]


class Follower:
    """Follows growing files and emits what their observers read.

    Parameters
    ----------
    emit:
        Takes events, batched, in the order of each file. Called from the follower's thread.
    clock:
        Gives the events' timestamps, in seconds since the epoch.
    warn:
        Is told, once for each file and cause, what went wrong, such as a path that is no regular
        file; and once for each kind, which file systems are looked at every few
        seconds only. By default the message is logged.
    miss:
        Is told, once for each group and observer, of a job that should have written what its
        observer reads, and did not; with the job. By default ``warn`` is told.
    fail:
        Is told of an observer that raised, or gave what are no rows; it is given nothing more. By
        default ``warn`` is.
    backlog:
        How many events wait to be handled, if the caller knows. Reading pauses while there are
        many, so that a file that grew by gigabytes does not become gigabytes of events; a file
        that grows faster than it is worked in waits before the others do.
    inotify:
        Whether to use it where there is any.

    A file need not exist yet. One that shrinks, is replaced or is written anew is read from its
    start, after ``observer.truncated()``. What is no regular file is never opened.
    """

    def __init__(
        self,
        emit: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
        *,
        warn: Callable[[str], None] | None = None,
        fail: Callable[[str], None] | None = None,
        miss: Callable[[str, str], None] | None = None,
        backlog: Callable[[], int] | None = None,
        inotify: bool = True,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._warn_user = warn or _log().warning
        self._fail_user = fail or self._warn_user
        self._miss_user = miss or (lambda message, job: self._warn_user(message))
        self._backlog = backlog
        self._lock = threading.Lock()
        self._jobs: dict[str, list[File]] = {}
        #: How far the files of jobs that are over were read, by index, observer and path.
        self._places: dict[tuple[str, str, str], Place] = {}
        self._new: list[File] = []
        self._ended: list[_Ending] = []
        self._closing = False
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._wakeup: Wakeup | None = None
        # These belong to the follower's thread.
        self._changes = ChangeDetector(self._warn, inotify=inotify)
        #: Files that have more to read than was read at once.
        self._behind: deque[File] = deque()
        self._ending: deque[_Ending] = deque()
        self._batch: list[Event] = []
        self._flushed = 0.0
        #: Observers and groups whose files did not come, which was told.
        self._missed: set[tuple[str, str]] = set()

    def watch(
        self,
        job_id: str,
        observer_name: str,
        observer: Observer,
        path: Path,
        *,
        since: float | None = None,
        taken: int = 0,
    ) -> None:
        """Follow this file of this job from its start. Returns at once.

        ``since`` is a time (seconds since the epoch) before which the job cannot have written, such
        as that of its submission: a file last written before it was left by somebody else, and is
        not read until it changes. ``None`` reads whatever is there. The first ``taken`` rows are
        read and not told: an earlier controller has told them.
        """
        file = File(
            job_id, observer_name, observer, path, since=since, taken=taken,
            tell=self._tell, clock=self._clock, warn=self._warn, fail=self._fail,
        )  # fmt: skip
        with self._lock:
            if self._closing:
                return
            earlier = self._places.get((_index(job_id), observer_name, file.path))
            if earlier is not None:
                file.resume(earlier)
            self._jobs.setdefault(job_id, []).append(file)
            self._new.append(file)
            if self._wakeup is None:
                self._wakeup = Wakeup()
                self._thread = threading.Thread(
                    target=self._run, args=(self._wakeup,), name="ensemble-follow", daemon=True
                )
                self._thread.start()
            self._wakeup.set()

    def finish(
        self, job_id: str, then: Callable[[], None] = lambda: None, *, expected: bool = False
    ) -> None:
        """The job ended: read its files to their ends, emit the last rows, then call ``then``.

        ``expected`` is whether it should have written them, as a job that succeeded: a file that
        is not there is then warned of, once for each group and observer.
        Returns at once. ``then`` is called once in every case, from the follower's thread, or from
        this one if the job has no file that is followed.
        """
        with self._lock:
            files = self._jobs.pop(job_id, None)
            if files is not None:
                self._ended.append(_Ending(then, files, expected))
                if self._wakeup is not None:
                    self._wakeup.set()
        if files is None:
            then()

    def close(self, timeout: float = 10.0) -> None:
        """Complete what :meth:`finish` asked for, follow nothing more, and end the thread.

        After ``timeout`` seconds what is left is given up: the rows are lost, ``then`` is called.
        """
        with self._lock:
            self._closing = True
            thread = self._thread
            if self._wakeup is not None:
                self._wakeup.set()
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout)
        if thread.is_alive():
            self._abandoned = True
            # A reader stuck in a dead file system cannot be ended; the thread is a daemon.
            thread.join(1.0)

    # The follower's thread

    def _run(self, wakeup: Wakeup) -> None:
        gathered = 0.0
        try:
            self._changes.open()
            while not self._abandoned:
                wakeup.sleep(min(gathered, self._next()), None)
                wakeup.sleep(self._next(), self._changes.fileno())
                wakeup.clear()
                began = self._flushed = time.monotonic()
                with self._lock:
                    new, self._new = self._new, []
                    ended, self._ended = self._ended, []
                    if self._closing and not ended and not self._ending:
                        return
                self._changes.add(new)
                for ending in ended:
                    for file in ending.files:
                        self._changes.remove(file)
                self._ending += ended
                self._read(self._changes.news())
                self._end_jobs()
                self._flush()
                after = time.monotonic()
                cost = (after - began) * _GATHER_PER_COST
                gathered = after + min(max(_GATHER, cost), _GATHER_LONGEST)
                self._wait_for_backlog()
        except Exception as error:  # a rule that waits for rows must not wait without a word
            _log().exception("the thread that follows files has ended")
            self._warn(
                "jobs' output is no longer read, so rules that wait for it will not fire: "
                f"{type(error).__name__}: {error}"
            )
        finally:
            self._release(wakeup)

    def _next(self) -> float:
        """When there is something to do that nobody calls for."""
        if self._ending or self._closing:
            return 0.0
        due = self._changes.due()
        if self._behind:
            due = min(due, time.monotonic() + _BREATH if self._too_many(_BACKLOG_BEHIND) else 0.0)
        return due

    def _too_many(self, limit: int) -> bool:
        return self._backlog is not None and self._backlog() > limit

    def _wait_for_backlog(self) -> None:
        while self._too_many(_BACKLOG) and not self._abandoned:
            time.sleep(0.01)

    def _end_jobs(self) -> None:
        began = time.monotonic()
        for _ in range(len(self._ending)):
            ending = self._ending[0]
            left: list[File] = []
            for file in ending.files:
                if file.read_to_end():
                    left.append(file)
                else:
                    file.finish()
                    self._keep_place(file)
                    if ending.expected:
                        self._miss(file)
            ending.files = left
            self._ending.popleft()
            if left:
                self._ending.append(ending)
            else:
                self._flush()
                self._call(ending.then)
            if time.monotonic() - began > _SLICE:
                return

    def _keep_place(self, file: File) -> None:
        """Another attempt of the job may write on in its file."""
        place = file.place
        if place is None:
            return
        with self._lock:
            self._places[_index(file.job), file.name, file.path] = place
            if len(self._places) > _PLACES:
                del self._places[next(iter(self._places))]

    def _miss(self, file: File) -> None:
        whose = (file.job.rpartition(".")[0], file.name)
        why = None if whose in self._missed else file.unread() or file.complaint()
        if why is not None:
            self._missed.add(whose)
            with _logged("a warning could not be given"):
                self._miss_user(f"job {file.job} succeeded, but {why}", file.job)

    def _release(self, wakeup: Wakeup) -> None:
        """Whatever ends the thread, nobody waits in vain for ``then``."""
        with self._lock:
            self._closing = True
            left = [*self._ending, *self._ended]
            self._ended = []
            self._jobs.clear()
            self._wakeup = None
            wakeup.close()
        self._ending.clear()
        self._changes.close()
        self._flush()
        for ending in left:
            self._call(ending.then)

    def _call(self, then: Callable[[], None]) -> None:
        with _logged("what should follow a job's last rows failed"):
            then()

    # Reading

    def _read(self, news: Iterable[File]) -> None:
        behind = len(self._behind)
        known = set(self._behind)
        for file in news:
            if file not in known and file.read():
                self._behind.append(file)
            self._flush_in_time()
        began = time.monotonic()
        for _ in range(behind):
            if self._too_many(_BACKLOG_BEHIND):
                return
            file = self._behind.popleft()
            if not file.over and file.read():
                self._behind.append(file)
            self._flush()
            if time.monotonic() - began > _SLICE:
                return

    def _tell(self, event: Event) -> None:
        self._batch.append(event)
        if len(self._batch) >= _BATCH:
            self._flush()

    def _flush_in_time(self) -> None:
        if time.monotonic() - self._flushed > _FLUSH:
            self._flush()

    def _flush(self) -> None:
        if not self._batch:
            return
        self._flushed = time.monotonic()
        batch, self._batch = self._batch, []
        with _logged("%d rows could not be handed on", len(batch)):
            self._emit(batch)

    def _warn(self, message: str) -> None:
        with _logged("a warning could not be given: %s", message):
            self._warn_user(message)

    def _fail(self, message: str) -> None:
        # The rows that came before it are told before it.
        self._flush()
        with _logged("an error could not be told of: %s", message):
            self._fail_user(message)


@contextmanager
def _logged(message: str, *args: object) -> Iterator[None]:
    """Log what somebody else's function raises: the other files must be followed on."""
    try:
        yield
    except Exception:
        _log().exception(message, *args)


def _log() -> logging.Logger:
    import logging

    return logging.getLogger(__name__)
