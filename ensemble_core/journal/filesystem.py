"""Detects network file systems, and safely reads small files in untrusted folders."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: Maximum size of a small file in bytes. More is not read.
_MOST = 65_536

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


def read_note(path: Path, most: int = _MOST) -> bytes:
    """Return up to ``most`` bytes of a small file.

    Raises :class:`OSError` if the file cannot be read or is not a regular file. Named pipes and
    devices are not read, because that could block or never end. Links are not followed, and in
    another user's folder the calling user's own files are not read: its owner has put them there to
    have them shown.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() != path.parent.stat().st_uid:
            raise PermissionError(errno.EACCES, "not read in another user's folder", str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.read(descriptor, min(found.st_size, most))
    finally:
        os.close(descriptor)
