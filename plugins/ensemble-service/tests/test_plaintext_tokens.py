"""Tests of plaintext tokens: they are sent only to local listeners of this user or root."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ensemble_service import channel
from ensemble_service.channel import foreign_owner, is_port_free
from ensemble_service.client import ServiceClient
from ensemble_service.remote_executor import RemoteExecutor
from ensemble_service.server import Settings, serving
from ensemble_service.tokens import TokenFile

from ensemble_core import EnsembleError, Run, UsageError

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux says who listens")

_NOBODY = 65_534


@pytest.fixture
def another_users_port() -> Iterator[subprocess.Popen[str]]:
    """Yield a process of another user. It prints its port, then the received data."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    code = (
        "import os, socket\n"
        f"os.setgid({_NOBODY}); os.setuid({_NOBODY})\n"
        "plug = socket.create_server(('127.0.0.1', 0))\n"
        "print(plug.getsockname()[1], flush=True)\n"
        "while True:\n"
        "    print(plug.accept()[0].recv(65536).hex(), flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        yield other
        other.kill()


def test_the_owner_of_a_listening_socket_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plug:
        port = plug.getsockname()[1]
        assert foreign_owner("localhost", port) is None
        assert not is_port_free("127.0.0.1", port)
        assert is_port_free("127.0.0.2", port)
    assert is_port_free("localhost", port)


@pytest.mark.parametrize(
    ("host", "address", "found"),
    [
        ("localhost", "0100007F", True),
        ("127.0.0.1", "00000000", True),
        ("127.0.0.1", "0200007F", False),
        ("::1", "00000000000000000000000001000000", True),
        ("[::1]", "00000000000000000000000000000000", True),
        ("localhost", "00000000000000000000000001000000", True),
        ("127.0.0.1", "0000000000000000FFFF00000100007F", True),
        ("127.0.0.1", "00000000000000000000000001000000", False),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the table is in the machine's order")
def test_every_address_that_a_connection_may_use_is_checked(
    host: str, address: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tcp"
    other = os.geteuid() + 1
    row = f" 0: {address}:C383 00000000:0000 0A 00000000:00000000 00:00000000 0 {other} 0 1 1"
    table.write_text(f"  sl  local_address\n{row}\n")
    monkeypatch.setattr(channel, "_TABLES", (table,))
    told = foreign_owner(host, 50_051)
    assert (told is not None) == found
    if told:
        assert f"user {other} listens" in told
    if found:
        with (
            ServiceClient(host, 50_051, token="secret-token") as client,
            pytest.raises(UsageError) as refused,
        ):
            client.status()
        assert refused.value.code == "foreign-listener"
        assert "--insecure" in str(refused.value)


def test_a_listener_of_another_user_gets_no_token(
    another_users_port: subprocess.Popen[str], tmp_path: Path
) -> None:
    process = another_users_port
    assert process.stdout is not None
    port = int(process.stdout.readline())
    with (
        ServiceClient(port=port, token="secret-token") as client,
        pytest.raises(EnsembleError) as refused,
    ):
        client.status()
    assert refused.value.code == "foreign-listener"
    token = tmp_path / "token"
    token.write_text("secret-token")
    run = RemoteExecutor(host="127.0.0.1", port=port, default="a", token_file=str(token))
    with pytest.raises(EnsembleError) as refused:
        run.open(Run("r", tmp_path / "out", time.time), lambda events: None)
    assert refused.value.code == "foreign-listener"
    process.kill()
    assert b"secret-token".hex() not in process.stdout.read()


def test_the_same_user_and_insecure_are_accepted(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path, port=0, grace=1)
    token, _ = TokenFile(settings.token_path).add("admin")
    with serving(settings) as service:
        for insecure in (False, True):
            with ServiceClient(port=service.port, token=token, insecure=insecure) as client:
                assert client.status() == []


def test_a_service_that_is_not_running_yet_is_reported_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plug:
        port = plug.getsockname()[1]
    with (
        ServiceClient(port=port, token="secret-token", timeout=0.5) as client,
        pytest.raises(EnsembleError) as refused,
    ):
        client.status()
    assert refused.value.code == "unavailable"
    assert refused.value.transient
