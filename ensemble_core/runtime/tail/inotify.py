"""Inotify watches of followed files; the only module that uses the library.

A file that is there has a watch of its own, so what else is written in its folder costs nothing;
for one that is not, the nearest folder that is there is watched for the name that must come next.
Nothing here is to be relied upon: inotify is silent on what other nodes write, on memory that is
written through a mapping, and on links that are set anew. The follower looks for itself as well.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Hashable
from typing import Generic, TypeVar

from inotify_simple import INotify, flags

__all__ = ["InotifyWatches"]

T = TypeVar("T", bound=Hashable)

_FILE = flags.MODIFY | flags.ATTRIB | flags.MOVE_SELF | flags.DELETE_SELF
_FOLDER = flags.CREATE | flags.MOVED_TO | flags.MOVE_SELF | flags.DELETE_SELF | flags.ONLYDIR
_GONE = flags.MOVE_SELF | flags.DELETE_SELF | flags.UNMOUNT | flags.IGNORED
_FORGOTTEN = flags.IGNORED
_LOST = flags.Q_OVERFLOW
#: What says that this user may watch no more: watches, or the kernel's memory for them.
_LIMITS = frozenset({errno.ENOSPC, errno.ENOMEM})


def _nearest(path: str) -> tuple[str, str]:
    """The nearest folder above a path that is there, and what must come into being in it.

    Links are followed: where one points to nothing, what must come is where it points.
    """
    folder, name = os.path.split(os.path.realpath(path))
    while name and not os.path.isdir(folder):
        folder, name = os.path.split(folder)
    return folder, name


class InotifyWatches(Generic[T]):
    """The watches of one follower; each ``T`` has one at a time.

    Raises ``OSError`` where there is no inotify, or this user may have no more instances.
    """

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)
        #: Who wants to hear of a watch: by the name in it that it waits for, or of the file itself.
        self._listeners: dict[int, dict[str | None, set[T]]] = {}
        self._places: dict[T, tuple[int, str | None]] = {}

    def __len__(self) -> int:
        """How many watches there are."""
        return len(self._listeners)

    def fileno(self) -> int:
        """A descriptor that becomes readable when there are events."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        """Hear nothing more."""
        self._inotify.close()

    def __contains__(self, who: T) -> bool:
        """True if something is heard for this one."""
        return who in self._places

    def watch(self, who: T, path: str) -> bool:
        """Hear of this file, which is there; whether that is so only from now on. Raises
        ``OSError`` where this user may watch no more."""
        return self._add(who, path, _FILE, None)

    def expect(self, who: T, path: str) -> bool:
        """Hear when this file, or the next folder on the way to it, comes into being; whether that
        is so only from now on. Raises as :meth:`watch`."""
        folder, name = _nearest(path)
        return bool(name) and self._add(who, folder, _FOLDER, name)

    def drop(self, who: T) -> None:
        """Hear nothing more for this one."""
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
        """Of whom something was said since, without waiting; and whether something was lost.

        Who hears that a watch has come to nothing has none from then on.
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
        except OSError:  # the kernel was quicker: what was watched is gone
            return

    def _add(self, who: T, path: str, mask: int, name: str | None) -> bool:
        try:
            wd = self._inotify.add_watch(path, mask)
        except OSError as error:
            self.drop(who)
            if error.errno in _LIMITS:
                raise
            return False
        except ValueError:  # a path that no file can have
            self.drop(who)
            return False
        place = (wd, name)
        if self._places.get(who) == place:
            return False
        # The old one goes after that: it may be the only other one at the same watch.
        self._listeners.setdefault(wd, {}).setdefault(name, set()).add(who)
        self.drop(who)
        self._places[who] = place
        return True
