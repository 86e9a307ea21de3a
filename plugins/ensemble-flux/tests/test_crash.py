"""Crash tests: controllers in a Flux instance are killed and resumed; each job runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ensemble_testing import CrashSuite
from ensemble_testing.crash import seed_and_rounds

if TYPE_CHECKING:
    from conftest import Instance


@pytest.mark.timeout(900 + 300 * seed_and_rounds(3)[1])
class TestFlux(CrashSuite):
    executor = "flux"
    rounds = 3

    @pytest.fixture(autouse=True)
    def _inside(self, instance: Instance) -> None:
        self.instance = instance

    def submitted(self) -> int:
        return len(self.instance.jobs())

    def active(self) -> int:
        return len(self.instance.active())
