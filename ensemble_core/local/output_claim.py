"""Claims of output files: jobs of two runs must not write to one file at the same time.

Jobs of one run may share a file, so each run locks its own byte, far behind the file's end. A lock
belongs to the open file: it ends with the last process that has it open.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from contextlib import suppress
from zlib import crc32

#: ``struct flock`` of Linux: type, whence, start, length (0: to the end of all files), process.
_FLOCK = "hhqqi"
#: Runs lock bytes behind this one.
_FIRST = 1 << 40


def claim_output(fd: int, run: str) -> bool:
    """Claim an open file for a job of this run. Return False if a job of another run has it open.

    Returns True if the file system has no such locks.
    """
    own = _FIRST + 1 + crc32(run.encode())
    with suppress(OSError):  # another job of this run has locked it
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(own, 1))
    try:
        for start, length in ((_FIRST, own - _FIRST), (own + 1, 0)):
            found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(start, length))
            if struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK:
                return not stat.S_ISREG(os.fstat(fd).st_mode)  # not /dev/null
    except OSError:
        pass
    return True


def _lock(start: int, length: int) -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, 0, start, length, 0)
