"""One followed file: what is read of it, when, and what the user must know about it."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ensemble_core.model.events import Event
from ensemble_core.plugin.observer import Observer
from ensemble_core.runtime.tail.file_reading import (
    ReadPosition,
    is_older,
    list_folder,
    open_to_read,
    status_of,
)
from ensemble_core.runtime.tail.multi_file_output import (
    LISTINGS,
    Parts,
    generations,
    is_pattern,
    rotated_since,
    rotated_unread,
)
from ensemble_core.runtime.tail.observer_feed import ObserverFeed
from ensemble_core.runtime.tail.overwritten_log import LONGEST, EarlierText, Place
from ensemble_core.runtime.tail.progress_bars import is_rewritten, newest_updates
from ensemble_core.runtime.tail.row_warnings import RowWarnings, lateness

#: How many bytes are read at a time, so that a fast-growing file does not delay the others.
_CHUNK = 64 * 1024
#: An observer that is behind by more bytes than ``MOST_BEHIND`` and is too slow for them continues
#: with the last ``_NEWEST`` bytes.
MOST_BEHIND, _NEWEST = 64 << 20, 1 << 20
#: Transient errors: no descriptors, no memory, a busy file server. After the end of a job, reading
#: is retried for ``_PATIENCE`` seconds, every ``_PAUSE`` seconds.
_TRANSIENT = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}
)
_PATIENCE, _PAUSE = 5.0, 0.01

_Seen = tuple[int, int, int, int]


class File:
    """A file of a job, and the observer that reads it.

    - ``path`` may be a pattern: the files that match it are parts of one output.
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
        #: The path or pattern, and the path of the current part.
        self.named = self.path = str(path)
        #: Device and inode at the last check, or ``None`` if the file did not exist.
        self.identity: tuple[int, int] | None = None
        #: True if the file system caches the state of a file until the file is opened.
        self.cached = False
        # State of the change detector: the file's device, its polling interval, the device and
        # inode that inotify watches, and whether its job is over.
        self.device: int | None = None
        self.watched: tuple[int, int] | None = None
        self.over = False
        #: Time before which the file need not be read again, because of its progress bar or rate.
        self.not_before = 0.0
        self._feed = ObserverFeed(
            job, name, observer, self.path, skip=taken, tell=tell, clock=clock, fail=fail
        )
        self._elsewhere = elsewhere
        self._since = since
        self._clock = clock
        self._warn_user = warn
        self._warned: set[str] = set()
        #: Why the file cannot be read.
        self._blocked: str | None = None
        self._impossible = False
        self._seen: _Seen | None = None
        self._stale: _Seen | None = None
        self._position = ReadPosition()
        #: Whether this attempt has read anything of the current file, and all files that were read.
        self._own = False
        self._files: set[tuple[int, int]] = set()
        #: What an earlier attempt has written, if this one continues it.
        self._earlier: EarlierText | None = None
        self._warnings = RowWarnings()
        # The rows that an earlier controller has handled are counted from the start of the file.
        if taken and since is not None and (old := rotated_since(self.path, since)):
            self._warnings.lost = f"may have been renamed to {old} before the resume"
        self._piece_size = _CHUNK
        self._parts = Parts(self.named, since)
        #: A log that was renamed while it was read, and logs that were begun and renamed after it.
        self._renamed: list[tuple[str, tuple[int, int]]] = []
        #: The position at which to stop reading, once the file is complete.
        self._end: int | None = None
        self._began = clock()
        #: The time at which to give up retries of reading to the end.
        self._give_up: float | None = None

    @property
    def dropped(self) -> bool:
        """True if the file is no longer read."""
        return self._impossible or self._feed.failed

    @property
    def is_moving(self) -> bool:
        """True if the output may continue in another file, so that watching this one is not
        enough.
        """
        return is_pattern(self.named) or bool(self._renamed)

    @property
    def holds_row(self) -> bool:
        """True if the file must be read at ``not_before``, because a row waits for that time."""
        return self._feed.due is not None

    @property
    def place(self) -> Place | None:
        """The position at which reading stopped, for a later attempt of the job, or ``None``."""
        return Place.of(self._position, self.path)

    def earlier_text(self) -> EarlierText | None:
        """Return what was read of the file, for an attempt that continues this one."""
        start = max(0, self._position.offset - LONGEST)
        # Without the text, the attempt reads what is after the position.
        with suppress(OSError, ValueError), open(self.path, "rb") as file:
            file.seek(start)
            text = file.read(self._position.offset - start)
            if len(text) == self._position.offset - start:
                return EarlierText(start, text)
        return None

    def resume(self, place: Place, *, continues: bool) -> None:
        """Start reading at this position, unless the file has been replaced or truncated.

        If the attempt ``continues`` the earlier one, lines that it overwrites are read, too. If it
        does not, it writes all parts of its output again.
        """
        if is_pattern(self.named):
            if not continues:
                return
            self._parts.current = self.path = self._feed.path = place.path
        self._position = ReadPosition(place.identity, place.offset, place.before, place.offset)
        if continues:
            self._earlier = place.text

    # -- looking -------------------------------------------------------------------------------

    def look(self) -> bool:
        """Return True if the file exists and has changed since the last check."""
        if self.dropped:
            return False
        if self.over or self._parts.are_due():
            self._go_to_next_part()
        self.identity = None
        try:
            status = status_of(self.path, cached=self.cached)
        except (FileNotFoundError, NotADirectoryError):
            return bool(self._renamed)
        except OSError as error:
            self._block(f"cannot access {self.path}: {error}")
            return False
        except ValueError as error:  # an impossible path
            self._impossible = True
            self._block(f"cannot access {self.path!r}: {error}")
            return False
        if not stat.S_ISREG(status.st_mode):
            self._refuse()
            return False
        self.identity = (status.st_dev, status.st_ino)
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen is None and is_older(status, self._since):
            self._stale = seen
        last = self._seen
        self._seen = seen
        if last is not None and last != seen and last[:3] == seen[:3]:
            self._warnings.suspect = True
        if self._stale is not None:
            if self._stale == seen:
                return False
            self._stale = None
        return seen != last or self._position.offset < status.st_size or bool(self._renamed)

    def _go_to_next_part(self) -> bool:
        """Continue with the next part, if there is one and this one was read to its end."""
        following = self._parts.next()
        if following is None:
            return False
        if self._parts.current is not None:
            with suppress(OSError):
                if self._stale is None and self._has_rest(self.path):
                    return False
            self._finish_overwritten(whole=True)
            self._feed.end_line()
        self._parts.enter(following, self._position.offset)
        self.path = self._feed.path = following
        self._seen = self._stale = None
        self._begin_file()
        return True

    def _has_rest(self, path: str) -> bool:
        """Return True if a file that its job has completed is not read to its end."""
        size = os.stat(path).st_size
        if size <= self._position.offset:
            return False
        self._end = size
        return True

    def _begin_file(self, identity: tuple[int, int] | None = None) -> None:
        """Continue at the start of another file, which may be known to have this identity."""
        self._position = ReadPosition(identity)
        self._end, self._earlier, self._warnings.suspect = None, None, False
        self._own = identity is not None

    # -- reading -------------------------------------------------------------------------------

    def read(self, *, ended: bool = False) -> bool:
        """Read one piece of the file. Return True if there is more to read."""
        if self.dropped:
            return False
        if self.not_before:
            self._feed.release()
        try:
            more, data = self._piece(ended)
        except FileNotFoundError:
            return self._find_renamed(ended)
        except (OSError, ValueError) as error:
            self._block(f"cannot read {self.path}: {error}")
            return ended and isinstance(error, OSError) and self._may_retry(error)
        self._give_up = None
        if data:
            self._blocked = None
            self._own = True
            if self._position.identity is not None:
                self._files.add(self._position.identity)
            self._feed.feed(data)
        if not more and self._renamed:
            more = self._leave_renamed(ended)
        if not more and self._feed.due is not None:
            self.not_before = max(self.not_before, self._feed.due)
        return more and not self.dropped

    def read_to_end(self) -> bool:
        """Read one piece, after the job is over. Return True if there is more to read."""
        if not self._feed.ended:
            # A short job may be over before its file is checked for the first time.
            self.look()
            if self.identity is None and self.cached:
                list_folder(self.path)
                self.look()
            self._feed.ended = True
            self._end = None
        readable = self._seen is not None and self._stale is None
        more = readable and self.read(ended=True)
        if not more and not self.dropped and self._go_to_next_part():
            self.look()
            return True
        return more

    def finish(self, *, whole: bool = True) -> str | None:
        """Handle the rows that are complete at the end of the file.

        Without ``whole``, the job may have been killed while it wrote its last line. Return a text
        that says what was therefore not read, or ``None``.
        """
        dropped = None if whole else self._feed.interrupted()
        self._finish_overwritten(whole=whole)
        self._feed.finish()
        return dropped

    def _piece(self, ended: bool) -> tuple[bool, bytes]:
        fd = open_to_read(self._renamed[0][0] if self._renamed else self.path)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self._refuse()
                return False, b""
            if self._earlier is not None:
                self._read_overwritten(fd)
            position, identity = self._position, (status.st_dev, status.st_ino)
            if self._renamed and self._renamed[0][1] != identity:
                raise FileNotFoundError  # it was renamed again
            if self._own and position.identity != identity:
                if position.is_begun_by(fd, status.st_size):  # it was written again, as a whole
                    position.identity = identity
                elif self._find_renamed(ended):
                    return True, b""
            behind = (status.st_size if self._end is None else self._end) - position.offset
            if behind > MOST_BEHIND and self._feed.is_too_slow(behind):
                position = self._skip(fd, behind)
            # Read old and new bytes in one call, because every call waits for other threads.
            kept = len(position.before)
            data = os.pread(fd, kept + self._piece_size, position.offset - kept)
            if position.identity is not None and (
                position.identity != identity
                or status.st_size < position.offset
                # The file was truncated and has grown again between two checks, or a new file has
                # this inode.
                or not data.startswith(position.before)
            ):
                self._begin_again()
                position, kept, data = self._position, 0, os.pread(fd, _CHUNK, 0)
            position.identity = identity
            if ended and self._end is None:
                # Stop at this size, because a process that outlives the job could write forever.
                self._end = status.st_size
            data = data[kept : None if self._end is None else kept + self._end - position.offset]
        finally:
            os.close(fd)
        return self._cut(data, status.st_size)

    def _cut(self, data: bytes, size: int) -> tuple[bool, bytes]:
        """Return whether there is more to read, and the bytes for the observer."""
        position, got = self._position, len(data)
        if self._end is None and position.offset + got >= size:
            # Zero bytes at the end are preallocated space, or data from another node that has not
            # arrived yet.
            data = data.rstrip(b"\0")
        more, result = len(data) == got, data
        if b"\r" in data and self._feed.rewrites:
            in_line = bool(position.before) and not position.before.endswith((b"\n", b"\r"))
            result, used = newest_updates(data, in_line=in_line, final=self._end is not None)
            self._piece_size = _CHUNK
            if is_rewritten(data):  # pass over as many updates as possible at a time
                self.not_before, self._piece_size = (
                    time.monotonic() + self._feed.update_pause,
                    16 * _CHUNK,
                )
            data = data[:used]
        end = size if self._end is None else self._end
        more = bool(data) and more and position.offset + got < end
        if data:
            position.advance(data)
        return more, result

    def _begin_again(self) -> None:
        """Read the file from its start, because it was truncated, replaced or written again."""
        if self._own:
            self._warnings.lost = "was truncated or replaced while it was read"
        self._begin_file()
        self._feed.skip = 0
        self._feed.truncated()

    def _skip(self, fd: int, behind: int) -> ReadPosition:
        """Continue near the end of the file, at the beginning of a line. Return where."""
        target = self._position.offset + behind - _NEWEST
        end = os.pread(fd, _NEWEST, target).find(b"\n") + 1
        skipped = target + end - self._position.offset
        identity, offset = self._position.identity, target + end
        self._position = ReadPosition(identity, offset, first=offset)
        self._feed.interrupted()
        first = not self._warnings.skipped
        self._warnings.skipped += skipped
        if first:
            self._warn(
                f"{self.path} grows faster than the observer {self.name!r} can read it: "
                f"{skipped / 1e6:.0f} MB were skipped, so statistics lack their rows"
            )
        return self._position

    def _may_retry(self, error: OSError) -> bool:
        if error.errno not in _TRANSIENT:
            return False
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + _PATIENCE
        time.sleep(_PAUSE)
        return now < self._give_up

    # -- renamed and overwritten files ---------------------------------------------------------

    def _find_renamed(self, ended: bool) -> bool:
        """Find the log that was read, because its path is missing or has another file.

        Return True if there is more to read: the renamed log comes before the new one.
        """
        reads_renamed = bool(self._renamed)
        wanted = self._position.identity if self._own else None
        if reads_renamed:
            wanted = self._renamed[0][1]
        self._renamed = [] if wanted is None else self._search(wanted)
        had_text = self._own or (self._seen is not None and self._seen[2] > 0)
        if not self._renamed and (reads_renamed or (ended and had_text)):
            self._warnings.lost = "was deleted while it was read"
        if not self._renamed and reads_renamed:
            self._begin_file()
        return reads_renamed or bool(self._renamed)

    def _search(self, wanted: tuple[int, int]) -> list[tuple[str, tuple[int, int]]]:
        """Return where the log that was read is, and the logs after it; nothing if it is gone."""
        for _ in range(LISTINGS):
            found = generations(self.path, wanted)
            if not found or not self._own:
                return found
            with suppress(OSError):
                fd = open_to_read(found[0][0])
                try:
                    status = os.fstat(fd)
                    if (status.st_dev, status.st_ino) == wanted:
                        return found if self._position.is_in(fd) else []
                finally:
                    os.close(fd)
            # It was renamed again.
        return []

    def _leave_renamed(self, ended: bool) -> bool:
        """Continue with the next log, if there is one. Return True if there is more to read."""
        path, identity = self._renamed[0]
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) != identity:
                return True  # it was renamed again, and must be found
            if len(self._renamed) == 1:  # there was no new log
                self._renamed = generations(self.path, identity) or self._renamed
                if len(self._renamed) == 1:
                    return False
            # A program may write to the old log for some time after its new log was created.
            following = os.stat(self._renamed[1][0])
            if not ended and (not following.st_size or self._has_rest(path)):
                return self._end is not None
        except OSError:  # one of them was renamed again
            known = self._renamed
            self._renamed = generations(self.path, identity) or known
            return self._renamed != known
        self._feed.end_line()
        self._renamed.pop(0)
        if self._renamed[0][0] == self.path:
            # If another log has this path by now, the expected one has been renamed.
            self._begin_file(self._renamed.pop()[1])
        else:
            self._begin_file()
        return True

    def _read_overwritten(self, fd: int, *, final: bool = False) -> None:
        """Read the lines of an earlier attempt's text that this attempt has overwritten."""
        assert self._earlier is not None
        before = self._position
        position = self._earlier.read_overwritten(fd, os.fstat(fd), before, self._feed, final=final)
        if position is not before:
            self._earlier = None
            if position is not None:
                self._position, self._end = position, None

    def _finish_overwritten(self, *, whole: bool) -> None:
        if self._earlier is None or self.dropped:
            return
        # The file may be gone by now.
        with suppress(OSError, ValueError), open(self.path, "rb", buffering=0) as file:
            if whole:
                self._feed.end_line()
            if os.fstat(file.fileno()).st_size >= self._position.offset:
                self._read_overwritten(file.fileno(), final=True)

    # -- what the user must know ---------------------------------------------------------------

    def unread(self) -> str | None:
        """Explain why nothing was read: the file does not exist, or the job has not written to
        it.
        """
        if self.dropped:
            return None
        nothing = f"the observer {self.name!r} read nothing"
        if self._blocked is not None and not any(self._feed.rows):
            return f"{self._blocked}: {nothing}"
        if self._seen is None:
            missing = f"{self.path} does not exist"
            if is_pattern(self.named):
                missing = f"no file that the job has written matches {self.named}"
            return f"{missing}: {nothing}{self._elsewhere()}"
        if self._stale is not None and not self._parts.sizes:
            return (
                f"{self.path} is older than the job, which did not write to it, or its file "
                f"server's clock is slow: {nothing}"
            )
        return None

    def complaint(self) -> str | None:
        """Describe what the observer could not parse, what may be missing, or why rows came late;
        otherwise return ``None``.
        """
        if (
            self.dropped
            or self._seen is None
            or (self._stale is not None and not self._parts.sizes)
        ):
            return None
        why = self._feed.complaint()
        if why is not None:
            elsewhere = "" if any(self._feed.rows) else self._elsewhere()
            why = f"the observer {self.name!r} did not understand {self.named}: {why}{elsewhere}"
        if not self._warnings.lost and self._since is not None and not is_pattern(self.named):
            old = rotated_unread(self.path, self._since, self._files)
            if old is not None:
                self._warnings.lost = f"may have been renamed to {old} before it was read"
        warnings = self._warnings.texts(self.path, self._position, self._feed)
        said = "; ".join(filter(None, (why, *warnings, self._parts.grown())))
        return said or lateness(self.path, self._feed, self._clock() - self._began)

    def _refuse(self) -> None:
        self._block(f"{self.path} is not a regular file and cannot be followed")

    def _block(self, message: str) -> None:
        self._blocked = message
        self._warn(message)

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._warn_user(f"job {self.job}: {message}")
