"""Contract tests of the executor over a real Flux whose brokers the service starts and kills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ensemble_testing.executor import ExecutorContract

from ensemble_core import Executor

pytestmark = pytest.mark.checkout


class TestOverFlux(ExecutorContract):
    contains = False  # without cgroups, Flux signals a job's process groups
    many = 20

    @pytest.fixture(autouse=True)
    def _over(self, over_flux: Callable[[], tuple[Executor, Any]]) -> None:
        self.make = over_flux

    def make_executor(self) -> Executor:
        return self.make()[0]
