"""Crash tests on a real Slurm: controllers are killed and resumed, and each job runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ensemble_testing import CrashSuite
from ensemble_testing.crash import seed_and_rounds

if TYPE_CHECKING:
    from conftest import Cluster


@pytest.mark.timeout(900 + 300 * seed_and_rounds(2)[1])
class TestSlurm(CrashSuite):
    executor = "slurm"
    options = ("-o", "look=1", "-o", "rate=50")

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: Cluster) -> None:
        self.cluster = cluster
        #: Jobs seen so far. After MinJobAge, Slurm forgets jobs of earlier tests.
        self.seen: set[str] = set()

    def submitted(self) -> int:
        self.cluster.wait_idle()
        self.seen.update(id_ for id_, _, _ in self.cluster.jobs())
        return len(self.seen)

    def active(self) -> int:
        self.cluster.wait_idle()
        return len(self.cluster.active())
