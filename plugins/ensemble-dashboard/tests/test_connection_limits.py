"""Limits on callers without a token: other users, idle connections, floods of errors."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from ensemble_dashboard import command, server
from ensemble_dashboard.server import report_errors_rarely, uid_of_peer

CONNECT = """
import socket, sys, os
os.setuid(int(sys.argv[2]))  # after this, it may not be able to import anything
connection = socket.socket()
connection.connect(("127.0.0.1", int(sys.argv[1])))
connection.settimeout(60)
try:
    connection.sendall(b"GET / HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
    print(connection.recv(12).decode() or "closed")
except (BrokenPipeError, ConnectionResetError):
    print("closed")
"""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A dashboard in a thread, which serves until the test ends."""
    import threading

    listener = command._listening(0)
    port: int = listener.getsockname()[1]
    monkeypatch.setattr(server.sys, "setswitchinterval", lambda seconds: None)
    thread = threading.Thread(
        target=server.serve, args=(listener, None, list, "token"), daemon=True
    )
    thread.start()
    return port


def get(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return connection.recv(12).decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_another_user_cannot_connect_to_the_port(port: int) -> None:
    def seen(uid: int) -> str:
        words = [sys.executable, "-c", CONNECT, str(port), str(uid)]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    assert seen(os.geteuid()) == "HTTP/1.1 200"
    assert seen(12345) == "closed"


def test_owner_of_a_connection_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = server.getsockname()
        with socket.create_connection(own) as connection:
            peer = connection.getsockname()
            assert uid_of_peer(peer, own) == os.geteuid()
            assert uid_of_peer(("::ffff:127.0.0.1", peer[1], 0, 0), own) == os.geteuid()
        assert uid_of_peer(peer, ("127.0.0.1", own[1] + 1)) == -1
    assert uid_of_peer(peer, own, Path("/nowhere")) is None


@pytest.mark.skipif(sys.byteorder == "big", reason="the table is of a little-endian machine")
def test_a_connection_with_the_same_ports_and_other_addresses_is_another_one(
    tmp_path: Path,
) -> None:
    mapped = "0000000000000000FFFF0000"
    row = "0: {} {} 01 00000000:00000000 00:00000000 00000000 {} 0 1 1\n"
    (tmp_path / "tcp").write_text(
        "title line of the table\n" + row.format("0100007F:C350", "0200007F:1F90", 6666)
    )
    (tmp_path / "tcp6").write_text(
        row.format(f"{mapped}0100007F:C350", f"{mapped}0100007F:1F90", 1000)
    )
    peer, own = ("127.0.0.1", 50000), ("127.0.0.1", 8080)
    assert uid_of_peer(peer, own, tmp_path) == 1000
    assert uid_of_peer(peer, ("127.0.0.2", 8080), tmp_path) == 6666
    assert uid_of_peer(("127.0.0.3", 50000), own, tmp_path) == -1


def test_idle_connections_are_dropped_and_block_nobody(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_most_connections", lambda: 20)
    monkeypatch.setattr(server, "_FIRST_REQUEST", 0.5)
    with ExitStack() as held:
        idle = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(30)
        ]
        for connection in idle:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert get(port) == "HTTP/1.1 200"


def test_errors_of_the_server_are_printed_once_in_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop = asyncio.new_event_loop()
    try:
        report_errors_rarely(loop)
        for _ in range(1000):
            loop.call_exception_handler({"message": "accept", "exception": OSError("no room")})
    finally:
        loop.close()
    assert capsys.readouterr().err.count("\n") == 1


def test_browsers_command_line_has_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with command._private_page("http://127.0.0.1:8/#token=secret") as page:
        assert page.stat().st_mode & 0o777 == 0o600
        assert "secret" in page.read_text()
        assert "secret" not in str(page)
    assert not page.exists()
