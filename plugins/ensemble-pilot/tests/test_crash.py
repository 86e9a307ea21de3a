"""Runs in pilots whose controllers are killed, stopped and compared with local runs."""

from __future__ import annotations

from pathlib import Path

from ensemble_testing import CrashSuite, DecisionSuite, StopSuite

OPTIONS = (
    *("-o", 'options={"slots": 4, "pool": "none"}', "-o", "cores=2", "-o", "most=2"),
    *("-o", "idle=2", "-o", "orphan=2", "-o", "grace=0.3"),
)


class TestCrash(CrashSuite):
    executor = "pilot"
    options = OPTIONS
    slots = 4


class TestStops(StopSuite):
    executor = "pilot"
    options = OPTIONS
    on_stop = "keep"
    slots = 4
    ends_with_allocation = True


class TestDecisions(DecisionSuite):
    executor = "pilot"
    options = OPTIONS
    files = (Path(__file__).parents[3] / "examples" / "hello-world.yaml",)
