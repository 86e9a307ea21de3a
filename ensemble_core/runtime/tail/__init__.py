"""Tailing: follows files while jobs write them. The output tracker makes one :class:`Follower`.

``follower`` is the thread that reads, ``change_detection`` knows what there is to read: by
``inotify``, and by polling at a ``poll_interval``. A ``file`` is one that is followed.
"""

from ensemble_core.runtime.tail.follower import Follower

__all__ = ["Follower"]
