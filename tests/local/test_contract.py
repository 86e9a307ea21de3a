"""The local executor keeps the contract of executors."""

from __future__ import annotations

from ensemble_core.local.executor import LocalExecutor
from ensemble_core.plugin.executor import Executor
from ensemble_core.testing.executor import ExecutorContract


class TestLocalExecutor(ExecutorContract):
    def make_executor(self) -> Executor:
        return LocalExecutor(slots=2, grace=0.3)


class TestLocalExecutorThatCanGrow(ExecutorContract):
    def make_executor(self) -> Executor:
        return LocalExecutor(slots=2, min_slots=1, max_slots=4, gpus=2, grace=0.3)
