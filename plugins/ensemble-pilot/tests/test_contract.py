"""Contract of executors for pilots that are jobs of the executor ``local``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_testing import ExecutorContract, Session
from ensemble_testing.executor import wait_until

from ensemble_core import Executor
from ensemble_core.model.causes import Cause

OPTIONS: Mapping[str, Any] = {
    "options": {"slots": 4, "pool": "none"},
    "cores": 2,
    "most": 2,
    "idle": 60,
    "orphan": 5,
    "grace": 0.3,
}


class TestPilot(ExecutorContract):
    (plugin,) = ensemble_executors()
    build_options: ClassVar[Mapping[str, Any]] = OPTIONS
    slots = 4
    many = 20

    @pytest.fixture(autouse=True)
    def _inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def end_by_memory(self, session: Session) -> Cause:
        """Run a job that uses more memory than it requests."""
        much = "import time; all = bytearray(200_000_000); time.sleep(1000)"
        job = session.job(sys.executable, "-c", much, memory_per_task=20 << 20)
        session.run(job)
        return session.cause(job)

    def end_by_preempted(self, session: Session) -> Cause:
        """Kill a pilot's supervisor: what it has started ends, and the pilot with it."""
        parent = session.folder / "parent"
        job = session.job(
            "sh", "-c", "echo $PPID > parent; sleep 1000", workdir=str(session.folder)
        )
        session.submit(job)
        wait_until(lambda: parent.exists() and parent.read_text() != "", self.timeout)
        os.kill(int(parent.read_text()), signal.SIGKILL)
        session.wait_clean(job)
        return session.cause(job)

    def make_executor(self) -> Executor:
        return self.plugin.build(OPTIONS)
