"""One followed file: what has been read, its observer, and how long a failed read is retried."""

from __future__ import annotations

import errno
import math
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ensemble_core.errors import raised_at, written_at
from ensemble_core.model.events import Event, Observed
from ensemble_core.plugin.observer import UNREADABLE, Observer, Row
from ensemble_core.runtime.tail.earlier_text import LONGEST, EarlierText
from ensemble_core.runtime.tail.poll_interval import PollInterval
from ensemble_core.runtime.tail.rewritten_lines import is_rewritten, newest_updates

__all__ = ["File", "Place"]

#: How many bytes are read at a time, so that a fast-growing file does not delay the others.
_CHUNK = 64 * 1024
#: If a job has run for at least this many seconds and has at least this many rows, all of them at
#: its end, it has probably buffered its output.
_LATE, _LATE_ROWS = 30.0, 10
#: How many bytes before the read position are stored for comparison. If they change, the file was
#: rewritten.
_REMEMBERED = 256
#: How many of these bytes are stored for a later attempt of the job.
_REMEMBERED_OF_OTHERS = 32
#: By how many seconds the kernel's clock for files may be behind (a tick is 10 ms).
_TICK = 0.02
#: Up to this size, a file is read again to find out whether lines were overwritten.
_MOST_COMPARED = 256 << 20
#: An observer that is behind by more bytes than ``MOST_BEHIND`` and would need more than
#: ``_LONGEST_CATCH_UP`` seconds of CPU time for them continues with the last ``_NEWEST`` bytes.
MOST_BEHIND, _LONGEST_CATCH_UP, _NEWEST = 64 << 20, 5.0, 1 << 20
#: A progress bar is read at most once in so many seconds while its job runs.
_UPDATE = 0.1
#: Transient errors: no descriptors, no memory, a busy file server. After the end of a job, reading
#: is retried for ``_PATIENCE`` seconds, every ``_PAUSE`` seconds.
_TRANSIENT = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}
)
_PATIENCE, _PAUSE = 5.0, 0.01

_Seen = tuple[int, int, int, int]


@dataclass(slots=True)
class Place:
    """The position up to which a file was read, for a later attempt of the job."""

    identity: tuple[int, int]
    offset: int
    #: The bytes before this position; if the job failed, the earlier text as well.
    before: bytes
    text: EarlierText | None = None


class _InvalidRow(Exception):
    """Error: an observer returned something that is not a row."""


def _check(row: object) -> None:
    """Raise :class:`_InvalidRow` if an observer has returned something that is not a row."""
    if not isinstance(row, Row):
        raise _InvalidRow(f"returned {_shown(row)}, not a Row")
    values: Mapping[str, object] = row.values
    for name, value in values.items():
        if not isinstance(value, (float, int)):
            raise _InvalidRow(f"returned a Row in which {name!r} is {_shown(value)}, not a float")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


class File:
    """A file of a job, and the observer that reads it.

    - ``tell`` receives the rows as events. ``clock`` returns the events' time.
    - ``warn`` is called once for each problem; ``fail`` is called with an error of the observer.
    - ``elsewhere`` returns, if nothing was found, the end of a complaint: where rows are instead.
    - ``taken`` is the number of rows to skip, because an earlier controller has handled them.
    - ``since`` is the time of the job's submit. A file that was last written before this time is
      the output of another job, and is not read until it changes.
    """

    def __init__(
        self,
        job: str,
        name: str,
        observer: Observer,
        path: Path,
        *,
        since: float | None,
        taken: int,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        warn: Callable[[str], None],
        fail: Callable[[str], None],
        elsewhere: Callable[[], str] = lambda: "",
    ) -> None:
        self.job = job
        self.name = name
        self.path = str(path)
        self.dropped = False
        #: Device and inode at the last check, or ``None`` if the file did not exist.
        self.identity: tuple[int, int] | None = None
        #: True if the file system caches the state of a file until the file is opened.
        self.cached = False
        # State of the change detector: the file's device, its polling interval, the device and
        # inode that inotify watches, and whether its job is over.
        self.device: int | None = None
        self.pace: PollInterval[File] | None = None
        self.watched: tuple[int, int] | None = None
        self.over = False
        self._observer = observer
        self._elsewhere = elsewhere
        self._since = since
        #: How many rows to skip, because an earlier controller has handled them.
        self._taken = taken
        #: True after the file was truncated or replaced, until the next row.
        self._anew = False
        self._tell = tell
        self._clock = clock
        self._warn_user = warn
        self._fail = fail
        self._warned: set[str] = set()
        self._seen: _Seen | None = None
        self._stale: _Seen | None = None
        self._read_of: tuple[int, int] | None = None
        self._offset = 0
        self._before = b""
        #: What an earlier attempt has written, if this one continues it.
        self._earlier: EarlierText | None = None
        #: The checksum of the bytes from ``_first`` to the read position, and whether the file has
        #: changed without growing: then, lines may have been overwritten.
        self._first = self._checksum = 0
        self._suspect = False
        #: The CPU time of the observer in seconds, for how many bytes, and how many were skipped.
        self._cost, self._fed, self._skipped = 0.0, 0, 0
        self._piece_size = _CHUNK
        #: Time before which the file need not be read again, because it has a progress bar.
        self.not_before = 0.0
        #: Whether the last bytes that this attempt has written are no whole line.
        self._in_line = False
        #: The position at which to stop reading, once the job has ended.
        self._end: int | None = None
        self._began = clock()
        #: Number of rows before and after the end of the job.
        self._rows = [0, 0]
        #: The time at which to give up retries of reading to the end.
        self._give_up: float | None = None

    @property
    def place(self) -> Place | None:
        """The position at which reading stopped, for a later attempt of the job, or ``None``."""
        if self._read_of is None:
            return None
        return Place(self._read_of, self._offset, self._before[-_REMEMBERED_OF_OTHERS:])

    def earlier_text(self) -> EarlierText | None:
        """Return what was read of the file, for an attempt that continues this one."""
        start = max(0, self._offset - LONGEST)
        # Without the text, the attempt reads what is after the position.
        with suppress(OSError, ValueError), open(self.path, "rb") as file:
            file.seek(start)
            text = file.read(self._offset - start)
            if len(text) == self._offset - start:
                return EarlierText(start, text)
        return None

    def resume(self, place: Place, *, continues: bool) -> None:
        """Start reading at this position, unless the file has been replaced or truncated.

        If the attempt ``continues`` the earlier one, lines that it overwrites are read, too.
        """
        self._read_of, self._offset, self._before = place.identity, place.offset, place.before
        self._first = place.offset
        if continues:
            self._earlier = place.text

    def look(self) -> bool:
        """Return True if the file exists and has changed since the last check."""
        if self.dropped:
            return False
        self.identity = None
        try:
            status = self._status()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._warn(f"cannot access {self.path}: {error}")
            return False
        except ValueError as error:  # an impossible path
            self.dropped = True
            self._warn(f"cannot access {self.path!r}: {error}")
            return False
        if not stat.S_ISREG(status.st_mode):
            self._refuse()
            return False
        self.identity = (status.st_dev, status.st_ino)
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen is None and self._since is not None:
            # Some file systems, such as Lustre, store whole seconds only.
            exact = status.st_mtime_ns % 10**9
            since = self._since - _TICK if exact else math.floor(self._since - _TICK)
            if status.st_mtime < since:
                self._stale = seen
        last = self._seen
        self._seen = seen
        self._suspect = self._suspect or (
            last is not None and last != seen and last[:3] == seen[:3]
        )
        if self._stale is not None:
            if self._stale == seen:
                return False
            self._stale = None
        return seen != last or self._offset < status.st_size

    def read(self, *, ended: bool = False) -> bool:
        """Read one piece of the file. Return True if there is more to read."""
        if self.dropped:
            return False
        try:
            more, data = self._piece(ended)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            self._warn(f"cannot read {self.path}: {error}")
            return ended and isinstance(error, OSError) and self._may_retry(error)
        self._give_up = None
        if data:
            self._fed += len(data)
            self._observe(lambda: self._observer.feed(data), "feed")
        return more and not self.dropped

    def read_to_end(self) -> bool:
        """Read one piece, after the job is over. Return True if there is more to read."""
        if self._end is None:
            # A short job may be over before its file is checked for the first time.
            self.look()
            if self.identity is None and self.cached:
                self._list_folder()
                self.look()
            if self._seen is None or self._stale is not None:
                return False
        return self.read(ended=True)

    def finish(self, *, whole: bool = True) -> str | None:
        """Handle the rows that are complete at the end of the file.

        Without ``whole``, the job may have been killed while it wrote its last line. Return a text
        that says what was therefore not read, or ``None``.
        """
        dropped: list[str | None] = []

        def interrupted() -> Iterable[Row]:
            dropped.append(self._observer.interrupted())
            return ()

        if not whole:
            self._observe(interrupted, "interrupted")
        if self._earlier is not None and not self.dropped:
            # The file may be gone by now.
            with suppress(OSError, ValueError), open(self.path, "rb", buffering=0) as file:
                if self._in_line and whole:
                    self._observe(lambda: self._observer.feed(b"\n"), "feed")
                status = os.fstat(file.fileno())
                if status.st_size >= self._offset:
                    self._read_overwritten(file.fileno(), status, self._earlier, final=True)
        self._observe(self._observer.finish, "finish")
        return dropped[0] if dropped else None

    def unread(self) -> str | None:
        """Explain why nothing was read: the file does not exist, or the job has not written to
        it.
        """
        if self.dropped or self._warned:
            return None
        if self._seen is None:
            return (
                f"{self.path} does not exist: the observer {self.name!r} read nothing"
                f"{self._elsewhere()}"
            )
        if self._stale is not None:
            return (
                f"{self.path} is older than the job, which did not write to it, or its file "
                f"server's clock is slow: the observer {self.name!r} read nothing"
            )
        return None

    def complaint(self) -> str | None:
        """Describe what the observer could not parse, or why rows came late; otherwise return
        ``None``.
        """
        if self.dropped or self._seen is None or self._stale is not None:
            return None
        try:
            why = self._observer.complaint()
        except Exception:  # errors of the plugin no longer matter
            return None
        if why is None and self._skipped:
            skipped = f"{self._skipped / 1e6:.0f} MB of {self.path} were skipped"
            return (
                f"{skipped}, because it grew faster than the observer {self.name!r} could read it"
            )
        if why is None and self._suspect and self._is_overwritten():
            return (
                f"lines of {self.path} that the observer {self.name!r} had read were overwritten: "
                "their new values are unknown"
            )
        if why is not None:
            elsewhere = "" if any(self._rows) else self._elsewhere()
            return f"the observer {self.name!r} did not understand {self.path}: {why}{elsewhere}"
        ran = self._clock() - self._began
        early, late = self._rows
        if not early and late >= _LATE_ROWS and ran >= _LATE:
            return (
                f"all {late} rows of {self.path} came at its end, after {ran:.0f} s: programs "
                "buffer output that is not a terminal; use 'python -u' or 'stdbuf -oL'"
            )
        return None

    def _is_overwritten(self) -> bool:
        """Return True if the bytes that were read differ from those that are in the file now."""
        left, checksum = self._offset - self._first, 0
        if left > _MOST_COMPARED:
            return False
        with suppress(OSError, ValueError), open(self.path, "rb") as file:
            file.seek(self._first)
            while left > 0 and (data := file.read(min(left, 1 << 20))):
                checksum = zlib.crc32(data, checksum)
                left -= len(data)
            return left == 0 and checksum != self._checksum
        return False

    def _may_retry(self, error: OSError) -> bool:
        if error.errno not in _TRANSIENT:
            return False
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + _PATIENCE
        time.sleep(_PAUSE)
        return now < self._give_up

    def _status(self) -> os.stat_result:
        status = os.stat(self.path)
        if not self.cached or not stat.S_ISREG(status.st_mode):
            return status
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except PermissionError:  # reported when the file is read
            return status
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def _list_folder(self) -> None:
        """List the folder of the file.

        This makes NFS ask the server again. Otherwise, it may remember for some time that the file
        is missing.
        """
        # If the folder cannot be listed, the file does not exist either.
        with suppress(OSError, ValueError), os.scandir(os.path.dirname(self.path)) as entries:
            next(entries, None)

    def _piece(self, ended: bool) -> tuple[bool, bytes]:
        # O_NONBLOCK is needed because a FIFO may have replaced the file.
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self._refuse()
                return False, b""
            if self._earlier is not None:
                self._read_overwritten(fd, status, self._earlier)
            behind = (status.st_size if self._end is None else self._end) - self._offset
            if behind > MOST_BEHIND and self._is_too_slow(behind):
                self._skip(fd, behind)
            # Read old and new bytes in one call, because every call waits for other threads.
            kept = len(self._before)
            data = os.pread(fd, kept + self._piece_size, self._offset - kept)
            identity = (status.st_dev, status.st_ino)
            if self._read_of is not None and (
                self._read_of != identity
                or status.st_size < self._offset
                # The file was truncated and has grown again between two checks, or a new file has
                # this inode.
                or not data.startswith(self._before)
            ):
                self._offset, self._before, self._end, self._taken = 0, b"", None, 0
                self._first = self._checksum = 0
                self._observe(self._forget, "truncated")
                self._anew = True
                kept, data = 0, os.pread(fd, _CHUNK, 0)
            self._read_of = identity
            if ended and self._end is None:
                # Stop at this size, because a process that outlives the job could write forever.
                self._end = status.st_size
            data = data[kept : None if self._end is None else kept + self._end - self._offset]
        finally:
            os.close(fd)
        got = len(data)
        if self._end is None and self._offset + got >= status.st_size:
            # Zero bytes at the end are preallocated space, or data from another node that has not
            # arrived yet.
            data = data.rstrip(b"\0")
        more, result = len(data) == got, data
        if self._observer.rewrites and not self._taken and b"\r" in data:
            in_line = not self._before.endswith((b"\n", b"\r"))
            result, used = newest_updates(
                data, in_line=in_line and bool(self._before), final=self._end is not None
            )
            self._piece_size = _CHUNK
            if is_rewritten(data):  # pass over as many updates as possible at a time
                self.not_before, self._piece_size = time.monotonic() + _UPDATE, 16 * _CHUNK
            data = data[:used]
        end = status.st_size if self._end is None else self._end
        more = bool(data) and more and self._offset + got < end
        self._offset += len(data)
        self._before = (self._before + data[-_REMEMBERED:])[-_REMEMBERED:]
        if data:
            self._checksum = zlib.crc32(data, self._checksum)
            self._in_line = not data.endswith(b"\n")
        return more, result

    def _is_too_slow(self, behind: int) -> bool:
        """Return True if the observer would need too much CPU time for this number of bytes."""
        if self._taken or self._fed < _CHUNK:
            return False
        return behind * self._cost / self._fed > _LONGEST_CATCH_UP

    def _skip(self, fd: int, behind: int) -> None:
        """Continue near the end of the file, at the beginning of a line."""
        target = self._offset + behind - _NEWEST
        end = os.pread(fd, _NEWEST, target).find(b"\n") + 1
        skipped = target + end - self._offset
        self._offset, self._before, self._in_line = target + end, b"", False
        self._first, self._checksum = self._offset, 0
        self._observe(self._discard_line, "interrupted")
        first, self._skipped = not self._skipped, self._skipped + skipped
        if first:
            self._warn(
                f"{self.path} grows faster than the observer {self.name!r} can read it: "
                f"{skipped / 1e6:.0f} MB were skipped, so statistics lack their rows"
            )

    def _read_overwritten(
        self, fd: int, status: os.stat_result, earlier: EarlierText, *, final: bool = False
    ) -> None:
        """Read the lines of an earlier attempt's text that this attempt has overwritten.

        If it has truncated or replaced the file, continue after the lines that are still the same.
        """
        now = os.pread(fd, len(earlier.text), earlier.start)
        if status.st_size < self._offset or self._read_of != (status.st_dev, status.st_ino):
            same = earlier.common_lines(now)
            self._earlier = None
            if same > earlier.start:
                self._read_of = status.st_dev, status.st_ino
                self._offset, self._end = same, None
                self._first, self._checksum = same, 0
                self._before = now[: same - earlier.start][-_REMEMBERED:]
                self._observe(self._forget, "truncated")
            return
        if now == earlier.text or (self._in_line and not final):
            return
        lines = earlier.changed_lines(now, final=final)
        if self._offset == earlier.end:
            self._before = now[-len(self._before) :] if self._before else b""
        if lines:
            self._observe(lambda: self._observer.feed(lines), "feed")

    def _discard_line(self) -> Iterable[Row]:
        self._observer.interrupted()
        return ()

    def _forget(self) -> Iterable[Row]:
        self._observer.truncated()
        return ()

    def _observe(self, rows: Callable[[], Iterable[Row]], method: str) -> None:
        """Turn rows into events. Drop an observer that raises an error or returns other objects."""
        if self.dropped:
            return
        timestamp, began = self._clock(), time.thread_time()
        try:
            given = rows()
            if given is None:
                raise _InvalidRow("returned None and not a list of Row")
            for row in given:
                _check(row)
                self._rows[self._end is not None] += 1
                if row.values and self._taken:
                    self._taken -= 1
                elif row.values:
                    values, anew, self._anew = row.values, self._anew, False
                    unread = [name for name, value in values.items() if value is UNREADABLE]
                    self._tell(
                        Observed(
                            timestamp, self.job, self.name, values, row.clock, anew, (*unread,)
                        )
                    )
            self._cost += time.thread_time() - began
        except (Exception, SystemExit) as error:  # an error in a plugin's code
            self.dropped = True
            if isinstance(error, _InvalidRow):
                written = written_at(getattr(type(self._observer), method))
                what = f"its {method} {error} ({written})"
            else:
                what = f"{type(error).__name__}: {error} ({raised_at(error)})"
            self._fail(
                f"job {self.job}: the observer {self.name!r} failed and no longer reads "
                f"{self.path}, so rules that wait for it will not fire: {what}"
            )

    def _refuse(self) -> None:
        self._warn(f"{self.path} is not a regular file and cannot be followed")

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._warn_user(f"job {self.job}: {message}")
