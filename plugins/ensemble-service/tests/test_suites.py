"""Tests of the executor ``remote`` with a local member: decisions, stops and crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from ensemble_testing import CrashSuite, DecisionSuite, StopSuite
from ensemble_testing.crash import seed_and_rounds


@pytest.fixture(scope="module")
def service(serve_member: Callable[..., tuple[int, str]]) -> tuple[int, str]:
    return serve_member(slots=8, grace=0.3)


class Remote:
    executor = "remote"
    options: Sequence[str]

    @pytest.fixture(autouse=True)
    def _service(
        self,
        service: tuple[int, str],
        tmp_path_factory: pytest.TempPathFactory,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        port, token = service
        shared = tmp_path_factory.getbasetemp()
        self.options = ("--host", "127.0.0.1", "--port", str(port), "-o", f"shared={shared}")
        monkeypatch.setenv("ENSEMBLE_TOKEN", token)


@pytest.mark.timeout(300)
class TestRemoteDecisions(Remote, DecisionSuite): ...


class TestRemoteStops(Remote, StopSuite):
    on_stop = "keep"
    slots = 8


@pytest.mark.timeout(900 + 300 * seed_and_rounds(2)[1])
class TestRemoteCrash(Remote, CrashSuite): ...
