"""Follower: the thread that reads all followed files of a run while jobs write to them.

Inotify reports writes on this machine, but not writes of other nodes to NFS or Lustre, so files are
also polled. No file stays open, so thousands can be followed.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.events import Event
from ensemble_core.plugin.observer import Observer
from ensemble_core.quick_dataclass import dataclass
from ensemble_core.runtime.tail.change_detection import ChangeDetector
from ensemble_core.runtime.tail.output_file import File
from ensemble_core.runtime.tail.overwritten_log import Place

if TYPE_CHECKING:
    import logging


class Wakeup:
    """Wakes one sleeping thread. Any thread may call ``set``, until ``close`` is called."""

    #: Seconds between checks if the process has no file descriptor left.
    _SHORT = 0.05

    def __init__(self) -> None:
        self._set = threading.Event()
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Wake the sleeping thread. If it does not sleep, end its next sleep immediately."""
        if not self._set.is_set():
            self._set.set()
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Reset the wakeup. Call this after waking up and before looking for work."""
        self._set.clear()
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):  # it was not set
                os.eventfd_read(self._fd)

    def sleep(self, until: float, ear: int | None) -> None:
        """Sleep until :meth:`set` is called, the descriptor ``ear`` is readable, or time is up.

        ``until`` is a time as in ``time.monotonic``.
        """
        poll = select.poll()
        for fd in (ear, self._fd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        while not self._set.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return
            if self._fd is None:
                left = min(left, self._SHORT)
            # Milliseconds, rounded up, so that the sleep does not end too early.
            if poll.poll(None if left == float("inf") else left * 1000 + 1):
                return

    def close(self) -> None:
        """Release the descriptor. After that, no thread may sleep or call ``set``."""
        self._set.set()
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


_BATCH = 1000
#: While files are being read, rows are emitted after at most this many seconds.
_FLUSH = 0.002
#: Pause between two rounds, in which changes are gathered: the shortest pause in seconds, the pause
#: as a multiple of the last round's duration (2 means a third of one core), and the longest pause.
_GATHER, _GATHER_PER_COST, _GATHER_LONGEST = 0.005, 2.0, 0.1
#: How many seconds a round spends on ended jobs at most, and also on files that are far behind.
_SLICE = 0.02
#: Back-pressure: with more events than this in the inbox, files that are far behind wait (first
#: number), or all files wait (second number).
_BACKLOG_BEHIND, _BACKLOG = 500, 20_000
#: How many seconds a file that is far behind waits in that case.
_BREATH = 0.005


@dataclass(slots=True, eq=False)
class _Ending:
    """A job that has ended, with those of its files that must still be read."""

    then: Callable[[], None]
    files: list[File]
    expected: bool


#: How many read positions are stored for later attempts of ended jobs at most.
_PLACES = 10_000
#: How many bytes of such files are stored at most.
_TEXTS = 64 << 20


def _index(job: str) -> str:
    """Return a job's id without the attempt: ``sim.7`` for ``sim.7-1``."""
    group, dot, number = job.rpartition(".")
    return group + dot + number.partition("-")[0]


#: At most this many kinds of warnings are reported for each group and observer.
_KINDS = 5
#: What differs between warnings of the same kind: quoted texts and numbers.
_DETAIL = late_pattern(r"'[^']*'|\"[^\"]*\"|\d+")


def _kinds(warning: str, file: File) -> list[str]:
    """Return the parts of a warning about a file, without what differs from job to job."""
    for path in (file.named, file.path, os.path.dirname(file.path)):
        warning = warning.replace(path, "")
    return _DETAIL.sub("", warning).split("; ")


class Follower:
    """Follows growing files in a thread, and emits the rows that their observers read.

    - ``emit`` receives batches of events, on the follower's thread.
    - ``clock`` returns the timestamps of events, in seconds since the epoch.
    - ``warn`` receives warnings, once for each file and cause. The default logs them.
    - ``miss`` receives a warning and a job's id if a job succeeded but its observer found nothing,
      or if the last line of a failed job was not read. It is called once for each group, observer
      and kind of warning. The default calls ``warn``.
    - ``fail`` receives an error of an observer, which is not called again. The default calls
      ``warn``.
    - ``backlog`` returns the number of events in the inbox. Reading pauses while this number is
      large.
    - ``inotify``: whether to use inotify if it is available.

    A file need not exist yet. If it is truncated, replaced or rewritten, it is read from its start,
    after a call of ``observer.truncated()``. Only regular files are opened.
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
        #: Read positions in the files of ended jobs, by index, observer and path.
        self._places: dict[tuple[str, str, str], Place] = {}
        self._texts = 0
        self._new: list[File] = []
        self._ended: list[_Ending] = []
        self._closing = False
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._wakeup: Wakeup | None = None
        # Only the follower's thread uses the attributes below.
        self._changes = ChangeDetector(self._warn, inotify=inotify)
        #: Files that have more to read.
        self._behind: deque[File] = deque()
        #: Files with a progress bar or a rate, which are read again after a pause.
        self._paused: dict[File, None] = {}
        self._ending: deque[_Ending] = deque()
        self._batch: list[Event] = []
        self._flushed = 0.0
        #: Groups and observers for which missing output has been reported.
        #: The warnings of each group and observer, by their kinds.
        self._missed: dict[tuple[str, str], dict[str, str]] = {}
        #: The last job that has read a file, by device and inode.
        self._readers: dict[tuple[int, int], File] = {}

    def watch(
        self,
        job_id: str,
        observer_name: str,
        observer: Observer,
        path: Path,
        *,
        since: float | None = None,
        taken: int = 0,
        continues: bool = False,
        elsewhere: Callable[[], str] = lambda: "",
    ) -> None:
        """Follow this file of this job from its start. Returns immediately.

        ``since`` is a time (seconds since the epoch) before which the job cannot have written, such
        as its submission. A file that was last written before that time belongs to another job and
        is not read until it changes. With ``None``, any file is read. The first ``taken`` rows are
        skipped, because an earlier controller has handled them. If the job ``continues`` an earlier
        attempt, lines of its file that the job overwrites are read, too. ``elsewhere`` returns the
        end of a complaint: where rows are if this file has none.
        """
        file = File(
            job_id, observer_name, observer, path, since=since, taken=taken,
            tell=self._add_event, clock=self._clock, warn=self._warn, fail=self._fail,
            elsewhere=elsewhere,
        )  # fmt: skip
        with self._lock:
            if self._closing:
                return
            earlier = self._places.get((_index(job_id), observer_name, file.named))
            if earlier is not None:
                file.resume(earlier, continues=continues)
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
        """Read the files of an ended job to their ends, emit the last rows, then call ``then``.

        Returns immediately. ``then`` is always called exactly once, on the follower's thread, or on
        this thread if no file of the job is followed. With ``expected``, the job was successful, so
        its files should exist; a missing file causes a warning, once for each group and observer.
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
        """Complete all calls of :meth:`finish`, stop following files, and end the thread.

        After ``timeout`` seconds, the remaining rows are lost, and each ``then`` is called.
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
            # A thread that hangs in a dead file system cannot be ended, but it is a daemon.
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
        except Exception as error:  # rules may wait for rows
            _log().exception("the thread that follows files has ended")
            self._warn(
                "jobs' output is no longer read, so rules that wait for it will not fire: "
                f"{type(error).__name__}: {error}"
            )
        finally:
            self._release(wakeup)

    def _next(self) -> float:
        """Return the time of the next round, unless something wakes the thread before."""
        if self._ending or self._closing:
            return 0.0
        due = min([self._changes.due(), *(file.not_before for file in self._paused)])
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
                    dropped = file.finish(whole=ending.expected)
                    self._forget_reader(file)
                    self._store_position(file, failed=not ending.expected)
                    if ending.expected:
                        self._miss(file)
                    elif dropped is not None:
                        message = f"job {file.job}: {dropped} ({file.path})"
                        self._tell_once(file, "interrupted", message)
            ending.files = left
            self._ending.popleft()
            if left:
                self._ending.append(ending)
            else:
                self._flush()
                self._call(ending.then)
            if time.monotonic() - began > _SLICE:
                return

    def _store_position(self, file: File, *, failed: bool) -> None:
        """Store the read position in a file, because another attempt of the job may append to
        it.
        """
        place = file.place
        if place is None:
            return
        if failed:
            place.text = file.earlier_text()
        key = _index(file.job), file.name, file.named
        with self._lock:
            self._remove_place(key)
            self._places[key] = place
            self._texts += 0 if place.text is None else place.text.size
            while len(self._places) > _PLACES or (self._texts > _TEXTS and len(self._places) > 1):
                self._remove_place(next(iter(self._places)))

    def _remove_place(self, key: tuple[str, str, str]) -> None:
        place = self._places.pop(key, None)
        if place is not None and place.text is not None:
            self._texts -= place.text.size

    def _miss(self, file: File) -> None:
        why = file.unread() or file.complaint()
        if why is not None:
            for what in _kinds(why, file):
                self._tell_once(file, what, f"job {file.job} succeeded, but {why}")

    def _tell_once(self, file: File, what: str, message: str) -> None:
        """Report what was not read, once for each group, observer and kind of warning."""
        kinds = self._missed.setdefault((file.job.rpartition(".")[0], file.name), {})
        if what in kinds or len(kinds) >= _KINDS:
            return
        known = message in kinds.values()
        kinds[what] = message
        if not known:
            with _log_exceptions("a warning could not be reported"):
                self._miss_user(message, file.job)

    def _release(self, wakeup: Wakeup) -> None:
        """Call every remaining ``then`` and release all resources, when the thread ends."""
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
        with _log_exceptions("a callback after a job's last rows failed"):
            then()

    # Reading

    def _read(self, news: Iterable[File]) -> None:
        behind = len(self._behind)
        known = set(self._behind)
        now = time.monotonic()
        again = [file for file in self._paused if file.not_before <= now]
        for file in dict.fromkeys((*news, *again)):
            self._paused.pop(file, None)
            if file.not_before > now and not file.over:
                self._paused[file] = None
            elif file not in known and not file.over:
                self._note_reader(file)
                self._read_piece(file)
            self._flush_in_time()
        began = time.monotonic()
        for _ in range(behind):
            if self._too_many(_BACKLOG_BEHIND):
                return
            file = self._behind.popleft()
            if not file.over:
                self._read_piece(file)
            self._flush()
            if time.monotonic() - began > _SLICE:
                return

    def _read_piece(self, file: File) -> None:
        if file.read():
            self._behind.append(file)
        elif file.holds_row:
            self._paused[file] = None

    def _note_reader(self, file: File) -> None:
        """Report that two running jobs have the same file."""
        if file.identity is None:
            return
        other = self._readers.setdefault(file.identity, file)
        if other.job != file.job and not other.over:
            self._tell_once(
                file,
                "shared",
                f"{other.job} and {file.job} read the same file, {file.path}: if both write to it, "
                "each has the rows of both\n  hint: give each job a folder or a file: "
                "workdir: runs/{run}/{group}/{index}",
            )
        elif other.over:
            self._readers[file.identity] = file

    def _forget_reader(self, file: File) -> None:
        if file.identity is not None and self._readers.get(file.identity) is file:
            del self._readers[file.identity]

    def _add_event(self, event: Event) -> None:
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
        with _log_exceptions("%d rows could not be emitted", len(batch)):
            self._emit(batch)

    def _warn(self, message: str) -> None:
        with _log_exceptions("a warning could not be reported: %s", message):
            self._warn_user(message)

    def _fail(self, message: str) -> None:
        self._flush()  # emit earlier rows first
        with _log_exceptions("an error could not be reported: %s", message):
            self._fail_user(message)


@contextlib.contextmanager
def _log_exceptions(message: str, *args: object) -> Iterator[None]:
    """Log exceptions of the caller's functions, so that other files are still followed."""
    try:
        yield
    except Exception:
        _log().exception(message, *args)


def _log() -> logging.Logger:
    import logging

    return logging.getLogger(__name__)
