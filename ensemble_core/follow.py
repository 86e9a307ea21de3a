"""Following files while jobs write them: one thread for all files of a run.

The runtime calls :meth:`Follower.watch` when a job starts and :meth:`Follower.finish` when it has
ended; what observers read comes out as :class:`~ensemble_core.events.Observed` events.

Files are looked at with ``stat``, not with inotify: jobs write on other nodes, and inotify says
nothing of what another node writes to NFS or Lustre, so looking is needed in any case. A look at a
file that has not changed costs about two microseconds, and the pause between two looks grows with
what they cost and while nothing happens. No file is held open, so thousands can be followed.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ensemble_core.events import Event, Observed
from ensemble_core.observer import Observer, Row

__all__ = ["Follower"]

_CHUNK = 256 * 1024
_BATCH = 1000
#: The bytes before our place that must still be there, or the file was written anew.
_REMEMBERED = 256
_SHORTEST = 0.1
_IDLE = 1.0
_LONGEST = 10.0
#: The pause is at least this many times as long as the looks took: at most 5 % of one core.
_PAUSE_PER_COST = 20.0
#: The kernel stamps files with a clock that may be a tick (10 ms) behind.
_TICK = 0.02
_BACKLOG = 20_000

_log = logging.getLogger(__name__)

_Seen = tuple[int, int, int, int]


@dataclass(slots=True, eq=False)
class _File:
    job: str
    name: str
    observer: Observer
    path: Path
    since: float | None
    #: Rows that an earlier controller took already.
    taken: int = 0
    #: It was begun anew, and no row was told since.
    anew: bool = False
    seen: _Seen | None = None
    stale: _Seen | None = None
    identity: tuple[int, int] | None = None
    offset: int = 0
    before: bytes = b""
    #: Where to stop, once the job has ended.
    end: int | None = None
    dropped: bool = False
    warned: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Ending:
    """A job that is over, and the files of it that are still to be read to their ends."""

    job: str
    then: Callable[[], None] | None
    files: list[_File] | None = None


def _forget(observer: Observer) -> Iterable[Row]:
    observer.truncated()
    return ()


class Follower:
    """Follows growing files and emits what their observers read.

    Parameters
    ----------
    emit:
        Takes events, batched, in the order of each file. Called from the follower's thread.
    clock:
        Gives the events' timestamps, in seconds since the epoch.
    warn:
        Is told, once for each file and cause, what went wrong: an observer that raised, a path
        that is no regular file. By default the message is logged.
    backlog:
        How many events wait to be handled, if the caller knows. Reading pauses while there are
        many, so that a file that grew by gigabytes does not become gigabytes of events.

    A file need not exist yet. One that shrinks, is replaced or is written anew is read from its
    start, after ``observer.truncated()``. What is no regular file is never opened.
    """

    def __init__(
        self,
        emit: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
        *,
        warn: Callable[[str], None] | None = None,
        backlog: Callable[[], int] | None = None,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._warn_user = warn or _log.warning
        self._backlog = backlog
        self._wake = threading.Condition()
        self._jobs: dict[str, list[_File]] = {}
        self._new: list[_File] = []
        self._ended: list[_Ending] = []
        self._closing = False
        self._abandoned = False
        self._thread: threading.Thread | None = None
        # These belong to the follower's thread.
        self._batch: list[Event] = []
        self._ending: list[_Ending] = []

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
        file = _File(job_id, observer_name, observer, path, since, taken)
        with self._wake:
            if self._closing:
                return
            self._jobs.setdefault(job_id, []).append(file)
            self._new.append(file)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="ensemble-follow", daemon=True
                )
                self._thread.start()
            self._wake.notify()

    def finish(self, job_id: str, then: Callable[[], None] | None = None) -> None:
        """The job ended: read its files to their ends, emit the last rows, then call ``then``.

        Returns at once. ``then`` is called once in every case, from the follower's thread, or from
        this one if the job has no file that is followed.
        """
        with self._wake:
            waits = job_id in self._jobs and self._thread is not None and self._thread.is_alive()
            if waits:
                self._ended.append(_Ending(job_id, then))
                self._wake.notify()
        if not waits and then is not None:
            then()

    def close(self, timeout: float = 10.0) -> None:
        """Complete what :meth:`finish` asked for, follow nothing more, and end the thread.

        After ``timeout`` seconds what is left is given up: the rows are lost, ``then`` is called.
        """
        with self._wake:
            self._closing = True
            thread = self._thread
            self._wake.notify()
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout)
        if thread.is_alive():
            self._abandoned = True
            # A reader stuck in a dead file system cannot be ended; the thread is a daemon.
            thread.join(1.0)

    # The follower's thread

    def _run(self) -> None:
        hungry: list[_File] = []
        pause, next_look = _SHORTEST, 0.0
        try:
            while not self._abandoned:
                with self._wake:
                    self._wait(bool(hungry), next_look)
                    new, self._new = self._new, []
                    self._ending += self._ended
                    self._ended = []
                    if self._closing and not self._ending:
                        return
                    ended = {ending.job for ending in self._ending}
                    for ending in self._ending:
                        if ending.files is None:
                            ending.files = self._jobs.pop(ending.job, [])
                    due = time.monotonic() >= next_look
                    followed = (
                        [file for files in self._jobs.values() for file in files] if due else []
                    )
                if due:
                    before = time.monotonic()
                    hungry = [file for file in followed if self._has_news(file)]
                    after = time.monotonic()
                    # Quick while files grow, slower while nothing happens.
                    pause = _SHORTEST if hungry else min(pause * 1.5, _IDLE)
                    pause = min(max(pause, (after - before) * _PAUSE_PER_COST), _LONGEST)
                    next_look = after + pause
                else:
                    hungry += [file for file in new if self._has_news(file)]
                hungry = [file for file in hungry if file.job not in ended and self._read(file)]
                self._end_jobs()
                self._flush()
                self._let_others_catch_up()
        finally:
            self._release()

    def _wait(self, hungry: bool, next_look: float) -> None:
        if hungry or self._ending:
            return
        if not self._jobs:
            self._wake.wait_for(lambda: self._new or self._ended or self._closing)
            return
        self._wake.wait_for(
            lambda: self._new or self._ended or self._closing,
            max(0.0, next_look - time.monotonic()),
        )

    def _let_others_catch_up(self) -> None:
        if self._backlog is None:
            return
        while self._backlog() > _BACKLOG and not self._abandoned:
            time.sleep(0.01)

    def _end_jobs(self) -> None:
        unfinished: list[_Ending] = []
        for ending in self._ending:
            left: list[_File] = []
            for file in ending.files or ():
                if self._read_to_end(file):
                    left.append(file)
                else:
                    self._observe(file, file.observer.finish)
            ending.files = left
            if left:
                unfinished.append(ending)
                continue
            self._flush()
            self._call(ending.then)
        self._ending = unfinished

    def _release(self) -> None:
        """Whatever ends the thread, nobody waits in vain for ``then``."""
        with self._wake:
            self._closing = True
            left = [*self._ending, *self._ended]
            self._ending, self._ended = [], []
            self._jobs.clear()
        self._flush()
        for ending in left:
            self._call(ending.then)

    def _call(self, then: Callable[[], None] | None) -> None:
        if then is None:
            return
        try:
            then()
        except Exception:  # whoever gave it, the other files must be followed on
            _log.exception("what should follow a job's last rows failed")

    def _flush(self) -> None:
        if not self._batch:
            return
        batch, self._batch = self._batch, []
        try:
            self._emit(batch)
        except Exception:  # as above
            _log.exception("%d rows could not be handed on", len(batch))

    # One file

    def _has_news(self, file: _File) -> bool:
        """Whether the file is there and differs from what was seen of it last."""
        if file.dropped:
            return False
        try:
            status = os.stat(file.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError) as error:
            self._warn(file, f"cannot look at {file.path}: {error}")
            return False
        if not stat.S_ISREG(status.st_mode):
            self._refuse(file)
            return False
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if file.seen is None and file.since is not None and status.st_mtime < file.since - _TICK:
            file.stale = seen
        file.seen, last = seen, file.seen
        if file.stale is not None:
            if file.stale == seen:
                return False
            file.stale = None
        return seen != last or file.offset < status.st_size

    def _read_to_end(self, file: _File) -> bool:
        """Read one chunk of a job that is over; whether there is more to read."""
        if file.end is None:
            # A last look: a short job may be over before its file was looked at once.
            self._has_news(file)
            if file.seen is None or file.stale is not None:
                return False
        return self._read(file, ended=True)

    def _read(self, file: _File, *, ended: bool = False) -> bool:
        """Read one chunk; whether there is more to read at once."""
        if file.dropped:
            return False
        try:
            more, data = self._chunk(file, ended)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            self._warn(file, f"cannot read {file.path}: {error}")
            return False
        if data:
            self._observe(file, lambda: file.observer.feed(data))
        return more and not file.dropped

    def _chunk(self, file: _File, ended: bool) -> tuple[bool, bytes]:
        # A FIFO that took the file's place meanwhile must not block us.
        fd = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self._refuse(file)
                return False, b""
            identity = (status.st_dev, status.st_ino)
            if file.identity is not None and self._began_anew(file, fd, status):
                file.offset, file.before, file.end, file.taken = 0, b"", None, 0
                self._observe(file, lambda: _forget(file.observer))
                file.anew = True
            file.identity = identity
            if ended and file.end is None:
                # Something that writes on after the job's end must not keep us here for ever.
                file.end = status.st_size
            wanted = _CHUNK if file.end is None else min(_CHUNK, file.end - file.offset)
            data = os.pread(fd, wanted, file.offset) if wanted > 0 else b""
        finally:
            os.close(fd)
        file.offset += len(data)
        file.before = (file.before + data[-_REMEMBERED:])[-_REMEMBERED:]
        end = status.st_size if file.end is None else file.end
        return bool(data) and file.offset < end, data

    @staticmethod
    def _began_anew(file: _File, fd: int, status: os.stat_result) -> bool:
        if file.identity != (status.st_dev, status.st_ino) or status.st_size < file.offset:
            return True
        # Cut and grown beyond our place between two looks, or another file with the same inode.
        length = len(file.before)
        return os.pread(fd, length, file.offset - length) != file.before

    def _observe(self, file: _File, rows: Callable[[], Iterable[Row]]) -> None:
        """Turn rows into events. An observer that raises is dropped."""
        if file.dropped:
            return
        timestamp = self._clock()
        try:
            for row in rows():
                if row.values and file.taken:
                    file.taken -= 1
                elif row.values:
                    self._batch.append(
                        Observed(timestamp, file.job, file.name, row.values, row.clock, file.anew)
                    )
                    file.anew = False
                    if len(self._batch) >= _BATCH:
                        self._flush()
        except (Exception, SystemExit) as error:  # the observer is somebody else's code
            file.dropped = True
            self._warn(
                file,
                f"the observer {file.name!r} failed and no longer reads {file.path}: "
                f"{type(error).__name__}: {error}",
            )

    def _refuse(self, file: _File) -> None:
        self._warn(file, f"{file.path} is not a regular file and cannot be followed")

    def _warn(self, file: _File, message: str) -> None:
        if message in file.warned:
            return
        file.warned.add(message)
        try:
            self._warn_user(f"job {file.job}: {message}")
        except Exception:  # whoever gave it, the other files must be followed on
            _log.exception("a warning could not be given: %s", message)
