"""Contract tests of the executor ``remote``, with a member that runs jobs on this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ensemble_service.remote_executor import RemoteExecutor
from ensemble_testing.executor import ExecutorContract, Session, wait_until

from ensemble_core import Executor


@pytest.fixture(scope="module")
def where(serve_member: Callable[..., tuple[int, str]]) -> tuple[int, str]:
    return serve_member(slots=2, min_slots=1, max_slots=8, grace=0.3)


class TestRemoteContract(ExecutorContract):
    many = 8

    @pytest.fixture(autouse=True)
    def _where(self, where: tuple[int, str], tmp_path: Path) -> None:
        self.port, token = where
        self.token = tmp_path / "token"
        self.token.write_text(token)

    def make_executor(self) -> Executor:
        return RemoteExecutor(host="127.0.0.1", port=self.port, token_file=str(self.token))

    def test_close_releases_threads_and_descriptors(self, tmp_path: Path) -> None:
        """Wait: the service and the member run in this process too, and close a moment later."""

        def held() -> tuple[int, int]:
            return threading.active_count(), len(os.listdir("/proc/self/fd"))

        for count in range(3):
            if count == 1:
                time.sleep(0.5)
                before = held()
            with Session(self.make_executor(), tmp_path, self.timeout) as session:
                session.run(session.job(*self.succeeding), session.job(*self.missing))
        wait_until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))
