"""The executor suites pass on a queue that runs one job at a time."""

from __future__ import annotations

import pytest
from ensemble_testing import CrashSuite, StopSuite


@pytest.mark.timeout(300)
class TestCrashes(CrashSuite):
    executor = "local"
    options = ("--slots", "1")
    rounds = 1


class TestStops(StopSuite):
    executor = "local"
    options = ("--slots", "1")
    on_stop = "cancel"
