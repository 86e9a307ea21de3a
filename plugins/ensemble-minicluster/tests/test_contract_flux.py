"""Contract tests over a real Flux whose brokers come and go as the service decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ensemble_testing.executor import ExecutorContract

from ensemble_core import Executor

pytestmark = pytest.mark.checkout


class TestOverFlux(ExecutorContract):
    """Brokers that come and go as the service decides."""

    contains = False  # without cgroups, Flux signals a job's process groups
    many = 20

    @pytest.fixture(autouse=True)
    def _over(self, over_flux: Callable[[], tuple[Executor, Any]]) -> None:
        self.make = over_flux

    def make_executor(self) -> Executor:
        return self.make()[0]
