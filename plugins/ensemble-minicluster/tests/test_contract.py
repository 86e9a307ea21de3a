"""Contract tests of the executor over ``local``."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_minicluster.cluster import Patience
from ensemble_minicluster.executor import MiniCluster, Part
from ensemble_testing.executor import ExecutorContract

from ensemble_core import Executor, executor_record


class TestOverLocal(ExecutorContract):
    """Queue with a fixed number of nodes: granted nodes never arrive."""

    many = 20

    @pytest.fixture(autouse=True)
    def _service(self, cloud: type[Any]) -> None:
        self.cloud = cloud

    def make_executor(self) -> Executor:
        part = Part("local", lambda: executor_record("local").build({"slots": 2, "grace": 1.0}))
        return MiniCluster(part, lambda: self.cloud(2), Patience(arrival=0.5, drain=0.5, settle=0))

    def test_capabilities_are_declared(self) -> None:
        assert self.make_executor().capabilities == {
            *("submit", "cancel", "avoid", "resize", "reattach", "detach", "signal")
        }
