"""Opens followed files without blocking on FIFOs or stale NFS caches; keeps read positions."""

from __future__ import annotations

import math
import os
import stat
import zlib
from contextlib import suppress

from ensemble_core.quick_dataclass import dataclass

#: By how many seconds the kernel's clock for files may be behind (a tick is 10 ms).
_TICK = 0.02


def open_to_read(path: str) -> int:
    """Open a file, and return its descriptor."""
    # O_NONBLOCK is needed because a FIFO may have replaced the file.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def status_of(path: str, *, cached: bool) -> os.stat_result:
    """Return the state of a file. If its file system has ``cached`` states, open the file."""
    status = os.stat(path)
    if not cached or not stat.S_ISREG(status.st_mode):
        return status
    try:
        fd = open_to_read(path)
    except PermissionError:  # reported when the file is read
        return status
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def list_folder(path: str) -> None:
    """List the folder of a file.

    This makes NFS ask the server again. Otherwise, it may remember for some time that the file is
    missing.
    """
    # If the folder cannot be listed, the file does not exist either.
    with suppress(OSError, ValueError), os.scandir(os.path.dirname(path)) as entries:
        next(entries, None)


def is_older(status: os.stat_result, since: float | None) -> bool:
    """Return True if a file was last written before this time, in seconds since the epoch."""
    if since is None:
        return False
    # Some file systems, such as Lustre, store whole seconds only.
    exact = status.st_mtime_ns % 10**9
    return status.st_mtime < (since - _TICK if exact else math.floor(since - _TICK))


#: How many bytes before the read position are stored for comparison. If they change, the file was
#: rewritten.
REMEMBERED = 256
#: Up to this size, a file is read again to find out whether lines were overwritten; up to the
#: second size also to find out whether a new file begins with what was read.
_MOST_COMPARED, _MOST_COMPARED_AT_ONCE = 256 << 20, 16 << 20

Identity = tuple[int, int]


@dataclass(slots=True)
class ReadPosition:
    """The position up to which a file was read, and a checksum of what was read."""

    #: Device and inode of the file, or ``None`` before the first read.
    identity: Identity | None = None
    offset: int = 0
    #: The last bytes before the position.
    before: bytes = b""
    #: Where reading began, and the checksum of the bytes from there to the position.
    first: int = 0
    checksum: int = 0

    def advance(self, data: bytes) -> None:
        """Note that these bytes were read."""
        self.offset += len(data)
        self.before = (self.before + data[-REMEMBERED:])[-REMEMBERED:]
        self.checksum = zlib.crc32(data, self.checksum)

    def is_begun_by(self, fd: int, size: int) -> bool:
        """Return True if a file begins with everything that was read of another one."""
        if not 0 < self.offset <= min(size, _MOST_COMPARED_AT_ONCE):
            return False
        return self._checksum_of(fd) == self.checksum

    def is_in(self, fd: int) -> bool:
        """Return True if a file has the bytes before the position. Inodes are used again."""
        start = self.offset - len(self.before)
        return os.pread(fd, len(self.before), start) == self.before

    def is_overwritten_in(self, path: str) -> bool:
        """Return True if the bytes that were read differ from those that are in the file now."""
        if self.offset - self.first > _MOST_COMPARED:
            return False
        with suppress(OSError, ValueError), open(path, "rb", buffering=0) as file:
            return self._checksum_of(file.fileno()) not in (None, self.checksum)
        return False

    def _checksum_of(self, fd: int) -> int | None:
        at, checksum = self.first, 0
        while at < self.offset:
            data = os.pread(fd, min(self.offset - at, 1 << 20), at)
            if not data:
                return None
            checksum, at = zlib.crc32(data, checksum), at + len(data)
        return checksum
