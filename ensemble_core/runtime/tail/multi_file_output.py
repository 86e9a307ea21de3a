"""Outputs that consist of several files: parts that a pattern names, and logs that are rotated.

GROMACS with ``-noappend`` continues ``md.part0001.log`` in ``md.part0002.log``; loggers rename
``app.log`` to ``app.log.1`` and begin a new ``app.log``.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Collection
from contextlib import suppress
from stat import S_ISREG

from ensemble_core.late_pattern import late_pattern
from ensemble_core.runtime.tail.file_reading import is_older

#: Parts of an output are listed at most once in so many seconds while the job runs.
_LISTED = 0.1
#: How often a folder is listed at most, until a program does not rename logs meanwhile.
LISTINGS = 50

_NUMBER = late_pattern(r"(\d+)")
#: What follows the name of a rotated log: ``.1``, ``-20250131``, ``.2025-01-31_23``.
_ROTATED = late_pattern(r"[._-]\d[\d._-]*")

#: A file: device and inode.
Identity = tuple[int, int]
#: Whether a log has the followed path, its time, its number from the newest, its name and file.
_Log = tuple[bool, int, int, str, Identity]


def is_pattern(path: str) -> bool:
    """Return True if a path names any number of files with ``*`` or ``?``."""
    return "*" in path or "?" in path


def in_order(path: str) -> tuple[object, ...]:
    """Return a key that sorts paths by their numbers: ``part9`` is before ``part10``.

    A component that is only a number may be a fraction: ``0.5/p`` is before ``10/p``.
    """
    key: list[tuple[object, ...]] = []
    for component in path.split("/"):
        with suppress(ValueError):
            if component[:1].isdigit():
                key.append((0, float(component)))
                continue
        pieces = _NUMBER.split(component)
        key.append((1, *((n % 2, int(each) if n % 2 else each) for n, each in enumerate(pieces))))
    return (*key,)


def matching(pattern: str) -> list[str]:
    """Return the regular files that match a pattern, in the order of their numbers."""
    found = glob.glob(pattern.replace("[", "[[]"))
    return sorted(filter(os.path.isfile, found), key=in_order)


class Parts:
    """The parts of an output: the files that match a pattern.

    Files that were last written before ``since`` belong to other jobs. A path that is no pattern
    has no parts.
    """

    def __init__(self, pattern: str, since: float | None) -> None:
        self._pattern = pattern if is_pattern(pattern) else None
        self._since = since
        self._listed = 0.0
        #: The part that is read now, and how much was read of those before it.
        self.current: str | None = None
        self.sizes: dict[str, int] = {}

    def are_due(self) -> bool:
        """Return True if it is time to list the parts."""
        return self._pattern is not None and time.monotonic() - self._listed >= _LISTED

    def next(self) -> str | None:
        """Return the part after the current one, or ``None``."""
        if self._pattern is None:
            return None
        self._listed = time.monotonic()
        last = None if self.current is None else in_order(self.current)
        for path in matching(self._pattern):
            with suppress(OSError):
                is_later = last is None or in_order(path) > last
                if is_later and not is_older(os.stat(path), self._since):
                    return path
        return None

    def enter(self, path: str, size: int) -> None:
        """Continue with this part, after this many bytes of the current one were read."""
        if self.current is not None:
            self.sizes[self.current] = size
        self.current = path

    def grown(self) -> str | None:
        """Return a text if a part grew after the next one was begun."""
        for path, size in self.sizes.items():
            # Parts may be removed once they are read.
            with suppress(OSError):
                if os.stat(path).st_size > size:
                    return (
                        f"{path} grew after the next part had begun, so its last rows were not "
                        "read: give files that are written at the same time an observer each"
                    )
        return None


def rotated_since(path: str, since: float) -> str | None:
    """Return a rotated log of this path that was written after this time, or ``None``."""
    folder, name = os.path.split(path)
    with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
        for entry in entries:
            rest = entry.name.removeprefix(name)
            if rest != entry.name and _ROTATED.fullmatch(rest):
                with suppress(OSError):
                    status = entry.stat()
                    if S_ISREG(status.st_mode) and not is_older(status, since):
                        return entry.path
    return None


def rotated_unread(path: str, since: float, known: Collection[Identity]) -> str | None:
    """Return a rotated log of this path that is not yet known and was written after ``since``.

    Return ``None`` if there is none.

    Only usual names are tried, because the folder may have many files.
    """
    day = time.localtime()
    dates = [time.strftime(form, day) for form in ("-%Y%m%d", ".%Y%m%d", ".%Y-%m-%d")]
    for suffix in (".1", ".0", *dates):
        for packed in ("", ".gz", ".xz", ".bz2", ".zst"):
            with suppress(OSError, ValueError):
                status = os.stat(f"{path}{suffix}{packed}")
                unread = (status.st_dev, status.st_ino) not in known
                if unread and S_ISREG(status.st_mode) and not is_older(status, since):
                    return f"{path}{suffix}{packed}"
    return None


def generations(path: str, identity: Identity) -> list[tuple[str, Identity]]:
    """Return where a renamed log is now, the rotated logs that were begun after it, in order, and
    the log that has the path now, if there is one.

    The list is empty if the log is not in its folder any more.
    """
    folder, name = os.path.split(path)
    found: list[_Log] = []
    for _ in range(LISTINGS):
        # While logs are renamed, a list may lack one, or have it twice.
        found, before = _logs(folder, name, identity), found
        if [each[3:] for each in found] == [each[3:] for each in before]:
            break
    ours = next((at for at, (*_, each) in enumerate(found) if each == identity), None)
    if ours is None or found[ours][0]:
        return []
    # The path may be a link to the newest of the logs.
    current = {each[4] for each in found if each[0]}
    found = [each for each in found[ours:] if each[0] or each[4] not in current]
    is_rotated = found[0][3].startswith(name)
    chosen = found if is_rotated else [found[0], *(each for each in found if each[0])]
    return [(os.path.join(folder, each), this) for *_, each, this in chosen]


def _logs(folder: str, name: str, identity: Identity) -> list[_Log]:
    """Return the log with this name and identity, and those that were rotated, oldest first."""
    found: list[_Log] = []
    with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
        for entry in entries:
            rest = entry.name.removeprefix(name)
            rotated = rest != entry.name and _ROTATED.fullmatch(rest) is not None
            if rest and not rotated and entry.inode() != identity[1]:
                continue
            with suppress(OSError):
                status = entry.stat()
                # Of two logs of the same time, the one with the lower number is newer.
                number = int(_NUMBER.findall(rest)[0]) if rotated else 0
                if S_ISREG(status.st_mode):
                    this = (status.st_dev, status.st_ino)
                    found.append((not rest, status.st_mtime_ns, -number, entry.name, this))
    return sorted(found)
