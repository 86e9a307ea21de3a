"""Stop test: a study on a remote member whose controllers are stopped and killed at random.

It has the tables of an undisturbed one. (``make soak`` plays a thousand rounds on this machine.)
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from ensemble_service.agent import Agent
from ensemble_service.client import open_channel
from ensemble_service.server import Settings, serving
from ensemble_service.tokens import TokenFile

from ensemble_core.local.executor import LocalExecutor

STOPS = Path(__file__).resolve().parents[3] / "tests" / "journal" / "crash" / "stops.py"
MEMBER = "default/one"


@pytest.mark.checkout
@pytest.mark.timeout(550)
def test_a_randomly_stopped_run_has_the_tables_of_an_undisturbed_one(tmp_path: Path) -> None:
    """In one round the stops cancel jobs, in the other they leave them."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    tokens = TokenFile(tmp_path / "service" / "tokens.json")
    controller, _ = tokens.add("controller", "default")
    member, _ = tokens.add("member", "one")
    agent = Agent(
        MEMBER,
        lambda: LocalExecutor(slots=4, grace=0.5),
        tmp_path / "members" / MEMBER,
        partial(open_channel, "127.0.0.1", port, token=member),
        "service",
    )
    words = [sys.executable, str(STOPS), "--rounds", "2", "--on", "remote"]
    words += ["--base", str(tmp_path / "rounds"), "--", "--host", "127.0.0.1", "--port", str(port)]
    with serving(Settings(state=tmp_path / "service", port=port)):
        agent.start()
        try:
            assert agent.wait_connected(60)
            done = subprocess.run(
                words,
                env={**os.environ, "ENSEMBLE_TOKEN": controller},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            agent.stop()
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["good"] for each in found] == [True, True], done.stdout + done.stderr
