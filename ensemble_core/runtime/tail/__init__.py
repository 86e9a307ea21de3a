"""Following files while jobs write them; the intake makes one :class:`Follower` for a run.

``follower`` is the thread and reads, ``lookout`` knows what there is to read: ``notices`` from the
kernel, by inotify, and looks at a certain ``pace``. A ``file`` is one that is followed.
"""

from ensemble_core.runtime.tail.follower import Follower

__all__ = ["Follower"]
