"""The operating system: locks, durable and private folders, network file systems, and the identity
of this boot and container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path


def lock_within(seconds: float, descriptor: int) -> None:
    """Lock a file exclusively. Wait this long for a process that is about to release the lock.

    Raises :class:`BlockingIOError` if another process still holds it then, and another
    :class:`OSError` if the file system has no locks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Sync a folder, if the file system supports it, so that new names in it survive a power
    cut.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def private_folder(folder: Path) -> None:
    """Create a folder and its missing parents. Other users cannot enter them, whatever the umask.

    Existing folders keep their modes. Raises :class:`OSError` if a folder cannot be created.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def boot_id() -> str:
    """Return the boot id of this machine, new at each boot, or an empty text if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Return the PID namespace, which distinguishes containers on the same machine."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


#: Types of file systems that several machines can share.
_NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "daos", "dvs", "gpfs", "lustre", "ncpfs", "nfs",
        "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vast", "virtiofs", "wekafs",
    }
)  # fmt: skip


def filesystem(path: str | os.PathLike[str], mounts: str = "/proc/self/mounts") -> str:
    """Return the type of the file system that contains a path, or an empty text if unknown."""
    path = os.path.realpath(path)
    best, kind = "", ""
    try:
        lines = Path(mounts).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def shared_storage(path: str | os.PathLike[str]) -> str | None:
    """Return the type of file system if a path is on a network file system, otherwise ``None``.

    User-space file systems (``fuse.…``) count as network file systems, because they are less
    reliable than a disk.
    """
    kind = filesystem(path)
    return kind if kind in _NETWORK or kind.startswith("fuse.") else None
