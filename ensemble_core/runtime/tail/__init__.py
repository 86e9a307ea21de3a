"""Follows growing files: reads the output of jobs while the jobs write it.

The output tracker creates one :class:`Follower`, whose thread (``follower``) reads each followed
file (``file``). ``change_detection`` finds the files that have new data: with ``inotify``, and by
polling at the intervals in ``poll_interval``.
"""

from ensemble_core.runtime.tail.follower import Follower

__all__ = ["Follower"]
