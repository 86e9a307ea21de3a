"""Test of the example ``chain/slurm.sh``: one study in a chain of Slurm allocations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import ChainSuite, wait_until


class TestSlurm(ChainSuite):
    example = Path(__file__).resolve().parents[3] / "examples" / "chain"

    @pytest.fixture(autouse=True)
    def _queue(self, cluster: Any) -> None:
        self.cluster = cluster

    def submit(self, wall: str) -> str:
        words = ["sbatch", "--parsable", f"--export=ALL,WALL={wall}", "slurm.sh"]
        return self.output_of(*words)

    def wait_over(self, job: str) -> None:
        wait_until(lambda: job not in {each[0] for each in self.cluster.active()}, self.timeout)

    def warn(self, job: str) -> None:
        self.cluster.run("scancel", "--batch", "--signal=TERM", job)
