"""Fault tests: a real Slurm behind commands that fail, hang, garble their output or omit jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from ensemble_slurm.executor import SlurmExecutor
from ensemble_testing import FaultSuite

from ensemble_core import Executor

if TYPE_CHECKING:
    from conftest import Cluster


@pytest.mark.timeout(300)
class TestSlurm(FaultSuite):
    commands: ClassVar = {
        "connect": "scontrol",
        "submit": "sbatch",
        "ask": "squeue",
        "cancel": "scancel",
    }
    away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    nothing = ""
    partial = "sed 1d"
    acts: ClassVar = {
        "suspend": "scontrol suspend {id}",
        "unsuspend": "scontrol resume {id}",
        "requeue": "scontrol requeue {id}",
    }
    restart_codes = (98, 99)  # RequeueExitHold, RequeueExit
    requeue_options: ClassVar = {"options": {"slurm": {"requeue": True}}}

    @pytest.fixture
    def queue(self, cluster: Cluster) -> None: ...

    def make_executor(self, period: float = 1.0) -> Executor:
        return SlurmExecutor(look=period, rate=50)
