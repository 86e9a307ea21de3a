"""Contract suites and fakes for plugin authors; needs pytest.

Inherit the suite of your kind of plugin in your own tests, say what your plugin is and what comes
out, and pytest runs every law of it::

    from ensemble_core.testing import StatisticContract

    class TestGeometricMean(StatisticContract):
        plugin = geometric_mean
        expected = [([2.0, 8.0], 4.0)]
"""

from __future__ import annotations

import pytest

# Their asserts are to explain themselves in the author's own tests.
pytest.register_assert_rewrite(
    *(
        f"ensemble_core.testing.{name}"
        for name in (
            "action",
            "crash",
            "decisions",
            "executor",
            "executor_fields",
            "executor_knobs",
            "executor_leaving",
            "observer",
            "options",
            "session",
            "statistic",
            "story",
            "trigger",
        )
    )
)

from ensemble_core.testing.action import ActionContract  # noqa: E402  # after the line above
from ensemble_core.testing.crash import CrashSuite  # noqa: E402
from ensemble_core.testing.decisions import DecisionSuite  # noqa: E402
from ensemble_core.testing.executor import ExecutorContract, ExecutorSuite  # noqa: E402
from ensemble_core.testing.fakes import FakeExecutor, FakeFiring  # noqa: E402
from ensemble_core.testing.observer import ObserverContract  # noqa: E402
from ensemble_core.testing.session import Session, wait_until  # noqa: E402
from ensemble_core.testing.statistic import StatisticContract  # noqa: E402
from ensemble_core.testing.story import Story  # noqa: E402
from ensemble_core.testing.trigger import TriggerContract  # noqa: E402

__all__ = [
    "ActionContract",
    "CrashSuite",
    "DecisionSuite",
    "ExecutorContract",
    "ExecutorSuite",
    "FakeExecutor",
    "FakeFiring",
    "ObserverContract",
    "Session",
    "StatisticContract",
    "Story",
    "TriggerContract",
    "wait_until",
]
