"""The contract of executors: with the queue of this machine composed, and with a real Flux."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ensemble_minicluster.cluster import Patience
from ensemble_minicluster.executor import MiniCluster, Part

from ensemble_core import Executor, executor_record
from ensemble_core.testing.executor import ExecutorContract


class TestOverLocal(ExecutorContract):
    """A queue with no nodes that come and go: what is granted does not come."""

    many = 20

    @pytest.fixture(autouse=True)
    def _service(self, cloud: type[Any]) -> None:
        self.cloud = cloud

    def make_executor(self) -> Executor:
        part = Part("local", lambda: executor_record("local").build({"slots": 2, "grace": 1.0}))
        return MiniCluster(part, lambda: self.cloud(2), Patience(arrival=0.5, drain=0.5, settle=0))

    def test_it_says_what_it_can_do(self) -> None:
        assert self.make_executor().capabilities == {
            *("submit", "cancel", "resize", "reattach", "detach")
        }


class TestOverFlux(ExecutorContract):
    """Brokers that come and go as the service says."""

    contains = False  # without cgroups, Flux signals a job's process groups
    many = 20

    @pytest.fixture(autouse=True)
    def _over(self, over_flux: Callable[[], tuple[Executor, Any]]) -> None:
        self.make = over_flux

    def make_executor(self) -> Executor:
        return self.make()[0]
