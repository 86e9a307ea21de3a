"""Follows growing files: reads the output of jobs while the jobs write it."""

from ensemble_core.runtime.tail.follower import Follower

__all__ = ["Follower"]
