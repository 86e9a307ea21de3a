"""Tailing: follows files while jobs write them. The output tracker makes one :class:`Follower`.

``follower`` is the thread that reads each ``file``. ``change_detection`` finds files with new data,
by ``inotify`` and by polling at a ``poll_interval``.
"""

from ensemble_core.runtime.tail.follower import Follower

__all__ = ["Follower"]
