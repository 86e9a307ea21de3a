"""Test of the example ``chain/gridengine.sh``: one study in a chain of Grid Engine allocations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_testing import ChainSuite, wait_until

if TYPE_CHECKING:
    from conftest import Cluster


class TestGridEngine(ChainSuite):
    example = Path(__file__).resolve().parents[3] / "examples" / "chain"

    @pytest.fixture(autouse=True)
    def _queue(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def submit(self, wall: str) -> str:
        return self.output_of("qsub", "-terse", "-v", f"WALL={wall},PATH,GATES", "gridengine.sh")

    def wait_over(self, job: str) -> None:
        wait_until(
            lambda: job not in {line.split()[0] for line in self.cluster.jobs()}, self.timeout
        )

    def warn(self, job: str) -> None:
        self.cluster.run("qdel", job)
