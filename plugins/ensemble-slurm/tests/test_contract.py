"""The contract of executors, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from ensemble_slurm.executor import SlurmExecutor

from ensemble_core import Executor, Problem
from ensemble_core.testing.executor import ExecutorContract, Session


@pytest.mark.usefixtures("cluster")
class TestSlurm(ExecutorContract):
    contains = False  # without cgroups, Slurm follows parents
    many: ClassVar[int] = 20

    @pytest.fixture(autouse=True)
    def _inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    @pytest.fixture
    def session(self, tmp_path: Path) -> Iterator[Session]:
        with Session(self.make_executor(), tmp_path, self.timeout, tidy=True) as session:
            yield session
        assert [event for event in session.events if isinstance(event, Problem)] == []

    def make_executor(self) -> Executor:
        return SlurmExecutor(look=1.0, rate=50)
