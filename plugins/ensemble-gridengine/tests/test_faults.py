"""A Grid Engine that is away, slow, garbled or forgetful: a real one behind commands that are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from ensemble_gridengine.executor import GridEngineExecutor

from ensemble_core import Executor
from ensemble_core.testing import FaultSuite

if TYPE_CHECKING:
    from conftest import Cluster


@pytest.mark.timeout(300)
class TestGridEngine(FaultSuite):
    commands: ClassVar = {"connect": "qconf", "submit": "qsub", "ask": "qstat", "cancel": "qdel"}
    away = "error: commlib error: got select error (Connection refused)"
    nothing = "<job_info><queue_info/><job_info/></job_info>"

    @pytest.fixture
    def queue(self, cluster: Cluster) -> None: ...

    def make_executor(self, period: float = 1.0) -> Executor:
        return GridEngineExecutor(poll=period)
