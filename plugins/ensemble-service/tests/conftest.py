"""Fixtures of the service's tests: a temporary home folder, no user settings, a service, a world
of members and runs; and the import path of their shared modules.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_service.agent import Agent
from ensemble_service.client import open_channel
from ensemble_service.server import Service, Settings, serving
from ensemble_service.tokens import TokenFile
from ensemble_testing.isolation import isolated

from ensemble_core.local.executor import LocalExecutor

sys.path.insert(0, str(Path(__file__).parent))

from remote_world import World

__all__ = ["isolated"]


@pytest.fixture(scope="module")
def serve_member(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Return a function that starts a service and a member that runs jobs on this machine.

    The function takes options of the local executor. It returns the service's port and a
    controller's token.
    """
    with contextlib.ExitStack() as stack:

        def serve(**options: Any) -> tuple[int, str]:
            folder = tmp_path_factory.mktemp("service")
            settings = Settings(state=folder / "service", port=0)
            tokens = TokenFile(settings.token_path)
            member, _ = tokens.add("member", "default/here")
            controller, _ = tokens.add("controller", "default")
            service = stack.enter_context(serving(settings))
            agent = Agent(
                "default/here",
                lambda: LocalExecutor(**options),
                folder / "member",
                lambda: open_channel("127.0.0.1", service.port, token=member),
                "service",
            )
            agent.start()
            stack.callback(agent.stop)
            assert agent.wait_connected(60)
            return service.port, controller

        yield serve


@pytest.fixture
def full_disk() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context manager that simulates a full disk: this process's files cannot grow."""

    @contextlib.contextmanager
    def full() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, str]]]:
    """Yield a service and its tokens."""
    settings = Settings(state=tmp_path_factory.mktemp("service"), port=0, grace=1)
    file = TokenFile(settings.token_path)
    tokens = {name: file.add("member", name)[0] for name in ("a", "b")}
    tokens["controller"], _ = file.add("controller", "default")
    with serving(settings) as service:
        yield service, tokens


@pytest.fixture
def world(service: tuple[Service, dict[str, str]], tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, *service)
    try:
        yield world
    finally:
        world.close()
