"""Stop and resume of runs with local jobs."""

from __future__ import annotations

from ensemble_testing import StopSuite


class TestLocal(StopSuite):
    executor = "local"
    options = ("--slots", "3")
    slots = 3
    ways = ("SIGTERM", "SIGHUP", "SIGINT", "stop", "wall")
    on_stop = "cancel"  # the user wants the machine's cores back
