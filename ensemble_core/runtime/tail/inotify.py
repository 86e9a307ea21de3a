"""Inotify watches for followed files.

Inotify alone is not reliable: it misses writes of other nodes, writes through memory mappings, and
changes of symbolic links.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Hashable
from typing import Generic, TypeVar

from inotify_simple import INotify, flags

T = TypeVar("T", bound=Hashable)

_FILE = flags.MODIFY | flags.ATTRIB | flags.MOVE_SELF | flags.DELETE_SELF
_FOLDER = flags.CREATE | flags.MOVED_TO | flags.MOVE_SELF | flags.DELETE_SELF | flags.ONLYDIR
_GONE = flags.MOVE_SELF | flags.DELETE_SELF | flags.UNMOUNT | flags.IGNORED
_FORGOTTEN = flags.IGNORED
_LOST = flags.Q_OVERFLOW
#: Errors if the user's limit on watches or the kernel's memory for watches is exhausted.
_LIMITS = frozenset({errno.ENOSPC, errno.ENOMEM})


def _nearest(path: str) -> tuple[str, str]:
    """Return the nearest existing folder above a path, and the next name on the path."""
    # For a broken symbolic link, the name is that of its missing target.
    folder, name = os.path.split(os.path.realpath(path))
    while name and not os.path.isdir(folder):
        folder, name = os.path.split(folder)
    return folder, name


class InotifyWatches(Generic[T]):
    """The watches of one follower. Each of its files (type ``T``) has at most one watch.

    If a file does not exist, the nearest existing folder above it is watched until the next name in
    the path is created.

    Raises ``OSError`` if inotify is not available or the user's limit on instances is reached.
    """

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)
        #: The files to report, by watch and expected name (``None``: the watched file itself).
        self._listeners: dict[int, dict[str | None, set[T]]] = {}
        self._places: dict[T, tuple[int, str | None]] = {}

    def __len__(self) -> int:
        """Return the number of watches."""
        return len(self._listeners)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there are events."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        """Remove all watches."""
        self._inotify.close()

    def __contains__(self, who: T) -> bool:
        """Return True if ``who`` has a watch."""
        return who in self._places

    def watch(self, who: T, path: str) -> bool:
        """Watch an existing file. Return True if it was not watched before.

        Raises ``OSError`` if the user's limit on watches is reached.
        """
        return self._add(who, path, _FILE, None)

    def expect(self, who: T, path: str) -> bool:
        """Watch for the creation of a file, or of the next folder in its path.

        The result and errors are those of :meth:`watch`.
        """
        folder, name = _nearest(path)
        return bool(name) and self._add(who, folder, _FOLDER, name)

    def drop(self, who: T) -> None:
        """Remove the watch of ``who``."""
        place = self._places.pop(who, None)
        if place is None:
            return
        wd, name = place
        names = self._listeners[wd]
        names[name].discard(who)
        if not names[name]:
            del names[name]
        if not names:
            del self._listeners[wd]
            self._remove(wd)

    def changed(self) -> tuple[set[T], bool]:
        """Return the owners of changed files, and whether events were lost. Never waits.

        If a watched file or folder no longer exists, its watch is removed.
        """
        told: set[T] = set()
        lost = False
        for wd, mask, _, name in self._inotify.read(timeout=0):
            if mask & _LOST:
                lost = True
            names = self._listeners.get(wd)
            if names is None:
                continue
            if None in names:
                told |= names[None]
            if name in names:
                told |= names[name]
            if mask & _GONE:
                for listeners in names.values():
                    told |= listeners
                    for who in listeners:
                        del self._places[who]
                del self._listeners[wd]
                if not mask & _FORGOTTEN:
                    self._remove(wd)
        return told, lost

    def _remove(self, wd: int) -> None:
        try:
            self._inotify.rm_watch(wd)
        except OSError:  # the kernel has removed the watch already
            return

    def _add(self, who: T, path: str, mask: int, name: str | None) -> bool:
        try:
            wd = self._inotify.add_watch(path, mask)
        except OSError as error:
            self.drop(who)
            if error.errno in _LIMITS:
                raise
            return False
        except ValueError:  # an impossible path
            self.drop(who)
            return False
        place = (wd, name)
        if self._places.get(who) == place:
            return False
        # Drop the old position last: if both positions use the same watch, it must stay.
        self._listeners.setdefault(wd, {}).setdefault(name, set()).add(who)
        self.drop(who)
        self._places[who] = place
        return True
