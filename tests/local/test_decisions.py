"""Decisions do not depend on the number of cores: one or eight."""

from __future__ import annotations

from pathlib import Path

import pytest
from ensemble_testing import DecisionSuite

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("backoff", "custom-action", "failure-handling", "hello-world", "json-lines", "terminate")


@pytest.mark.timeout(300)
class TestSingleCore(DecisionSuite):
    executor = "local"
    options = ("--slots", "1")
    files = [EXAMPLES / f"{name}.yaml" for name in NAMES]  # noqa: RUF012
    timed = ("backoff.yaml",)
