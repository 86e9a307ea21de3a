"""Tailing: follows files while jobs write them.

The output tracker creates one :class:`Follower`. The module ``follower`` has the thread that reads
each file (module ``file``). ``change_detection`` finds files with new data, with ``inotify`` and by
polling at a ``poll_interval``.
"""

from ensemble_core.runtime.tail.follower import Follower

__all__ = ["Follower"]
