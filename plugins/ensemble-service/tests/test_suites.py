"""Tests of the executor ``remote`` with a local member: decisions, stops and crashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from ensemble_service.agent import Agent
from ensemble_service.client import open_channel
from ensemble_service.server import Settings, serving
from ensemble_service.tokens import TokenFile
from ensemble_testing import CrashSuite, DecisionSuite, StopSuite
from ensemble_testing.crash import seed_and_rounds

from ensemble_core.local.executor import LocalExecutor


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str, str]]:
    """Yield a service with one member: its port, a controller's token, and a shared folder."""
    folder = tmp_path_factory.mktemp("service")
    settings = Settings(state=folder / "service", port=0)
    tokens = TokenFile(settings.token_path)
    member, _ = tokens.add("member", "default/here")
    controller, _ = tokens.add("controller", "default")
    with serving(settings) as service:
        agent = Agent(
            "default/here",
            lambda: LocalExecutor(slots=8, grace=0.3),
            folder / "member",
            lambda: open_channel("127.0.0.1", service.port, token=member),
            "service",
        )
        agent.start()
        assert agent.wait_connected(60)
        yield service.port, controller, str(tmp_path_factory.getbasetemp())
        agent.stop()


class Remote:
    executor = "remote"
    options: Sequence[str]

    @pytest.fixture(autouse=True)
    def _service(self, service: tuple[int, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        port, token, shared = service
        self.options = ("--host", "127.0.0.1", "--port", str(port), "-o", f"shared={shared}")
        monkeypatch.setenv("ENSEMBLE_TOKEN", token)


@pytest.mark.timeout(300)
class TestRemoteDecisions(Remote, DecisionSuite): ...


class TestRemoteStops(Remote, StopSuite):
    on_stop = "keep"
    slots = 8


@pytest.mark.timeout(240 + 60 * seed_and_rounds(2)[1])
class TestRemoteCrash(Remote, CrashSuite): ...
