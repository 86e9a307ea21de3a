"""Contract suites and fakes for plugin authors, and rule tests for ensemble files.

In your own tests, inherit from the suite for your kind of plugin and set its attributes. Pytest
then checks every rule of the contract::

    from ensemble_testing import StatisticContract

    class TestGeometricMean(StatisticContract):
        plugin = geometric_mean
        expected = [([2.0, 8.0], 4.0)]
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if "pytest" in sys.modules:  # ``ensemble test`` works without pytest
    import pytest

    # pytest must rewrite the suites' asserts, so that failures in an author's tests are explained.
    pytest.register_assert_rewrite(
        *(
            f"{__name__}.{name}"
            for name in (
                "action",
                "algorithm",
                "allocation_chain",
                "crash",
                "decisions",
                "environment",
                "executor",
                "executor_jobs",
                "executor_reattach",
                "executor_settings",
                "faults",
                "generator",
                "observer",
                "plugin_record",
                "program",
                "readme",
                "run_process",
                "session",
                "statistic",
                "stops",
                "story",
                "trigger",
            )
        )
    )

if TYPE_CHECKING:
    from ensemble_testing.action import ActionContract
    from ensemble_testing.algorithm import AlgorithmContract
    from ensemble_testing.allocation_chain import ChainSuite
    from ensemble_testing.crash import CrashSuite
    from ensemble_testing.decisions import DecisionSuite
    from ensemble_testing.environment import EnvironmentContract
    from ensemble_testing.executor import ExecutorContract, ExecutorSuite
    from ensemble_testing.fakes import FakeExecutor, FakeFiring
    from ensemble_testing.faults import FaultSuite
    from ensemble_testing.generator import GeneratorContract, PlayedGenerator, build_generator
    from ensemble_testing.observer import ObserverContract
    from ensemble_testing.program import ProgramContract
    from ensemble_testing.readme import ReadmeContract, StudyContract
    from ensemble_testing.run_process import Running
    from ensemble_testing.session import Session, wait_until
    from ensemble_testing.statistic import StatisticContract
    from ensemble_testing.stops import StopSuite
    from ensemble_testing.story import Story
    from ensemble_testing.trigger import TriggerContract
else:
    # Imported on first use, because pytest imports this package wherever Ensemble is installed (see
    # ``pytest_plugin``).
    _HOMES = {
        "ActionContract": "action",
        "AlgorithmContract": "algorithm",
        "ChainSuite": "allocation_chain",
        "CrashSuite": "crash",
        "DecisionSuite": "decisions",
        "EnvironmentContract": "environment",
        "ExecutorContract": "executor",
        "ExecutorSuite": "executor",
        "FakeExecutor": "fakes",
        "FakeFiring": "fakes",
        "FaultSuite": "faults",
        "GeneratorContract": "generator",
        "ObserverContract": "observer",
        "PlayedGenerator": "generator",
        "ProgramContract": "program",
        "ReadmeContract": "readme",
        "Running": "run_process",
        "Session": "session",
        "StatisticContract": "statistic",
        "StopSuite": "stops",
        "Story": "story",
        "StudyContract": "readme",
        "TriggerContract": "trigger",
        "build_generator": "generator",
        "wait_until": "session",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


__all__ = [
    "ActionContract",
    "AlgorithmContract",
    "ChainSuite",
    "CrashSuite",
    "DecisionSuite",
    "EnvironmentContract",
    "ExecutorContract",
    "ExecutorSuite",
    "FakeExecutor",
    "FakeFiring",
    "FaultSuite",
    "GeneratorContract",
    "ObserverContract",
    "PlayedGenerator",
    "ProgramContract",
    "ReadmeContract",
    "Running",
    "Session",
    "StatisticContract",
    "StopSuite",
    "Story",
    "StudyContract",
    "TriggerContract",
    "build_generator",
    "wait_until",
]
