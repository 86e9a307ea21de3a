"""A stop and a resume of a run whose jobs are processes of this machine."""

from __future__ import annotations

from ensemble_testing import StopSuite


class TestLocal(StopSuite):
    executor = "local"
    options = ("--slots", "3")
    slots = 3
    ways = ("SIGTERM", "SIGHUP", "SIGINT", "stop", "wall")
    on_stop = "cancel"  # who interrupts a run here wants the processors back
