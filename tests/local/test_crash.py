"""Local runs whose controller is killed with SIGKILL and resumed: each job runs once.

The supervisor survives the controllers and leaves nothing behind.
"""

from __future__ import annotations

import pytest
from ensemble_testing import CrashSuite
from ensemble_testing.crash import seed_and_rounds


@pytest.mark.timeout(240 + 30 * seed_and_rounds(4)[1])
class TestLocal(CrashSuite):
    executor = "local"
    options = ("--slots", "8")
    rounds = 4
