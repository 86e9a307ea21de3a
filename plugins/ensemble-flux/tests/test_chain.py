"""Test of the example ``chain/flux.sh``: one study in a chain of Flux allocations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import ChainSuite


class TestFlux(ChainSuite):
    example = Path(__file__).resolve().parents[3] / "examples" / "chain"

    @pytest.fixture(autouse=True)
    def _queue(self, instance: Any) -> None:
        self.instance = instance

    def submit(self, wall: str) -> str:
        job = self.output_of("flux", "batch", f"--env=WALL={wall}", "flux.sh")
        return self.output_of("flux", "job", "id", "--to=f58", job)

    def wait_over(self, job: str) -> None:
        self.instance.flux("job", "wait-event", f"--timeout={self.timeout}", job, "clean")

    def warn(self, job: str) -> None:
        self.instance.flux("job", "kill", "--signal=SIGTERM", job)
