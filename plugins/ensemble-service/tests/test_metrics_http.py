"""Tests of metrics and health over HTTP, with invalid, large and slow requests."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ensemble_service import monitoring
from ensemble_service.server import Settings, serving

pytest.importorskip("prometheus_client")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with serving(Settings(state=tmp_path, port=0, grace=1, metrics_port=0)) as service:
        assert service.metrics_port
        yield service.metrics_port


def get(port: int, path: str, accept: str = "") -> tuple[int, str]:
    headers = {"Accept": accept} if accept else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=150) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_is_answered_despite_connections_that_send_a_byte_now_and_then(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(400)]
    for plug in slow[-200:]:
        plug.sendall(b"G")
    assert get(port, "/healthz") == (200, "serving\n")
    assert "ensemble_service_members_alive" in get(port, "/metrics")[1]
    for plug in slow:
        plug.close()


def test_a_request_sent_byte_by_byte_is_ended_at_its_deadline(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "_DEADLINE", 0.5)
    with socket.create_connection(("127.0.0.1", port), 5) as plug:
        end, ended = time.monotonic() + 120, False
        while not ended and time.monotonic() < end:  # no long pause between bytes
            try:
                plug.sendall(b"x")
                time.sleep(0.05)
            except ConnectionError:
                ended = True
    assert ended


def test_a_too_long_request_is_rejected_and_health_still_works(port: int) -> None:
    told = b""
    with socket.create_connection(("127.0.0.1", port), 5) as plug:
        try:
            plug.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000)
            while data := plug.recv(65_536):
                told += data
        except ConnectionError:  # rejected before all of it was sent
            pass
    assert not told or b" 431 " in told
    assert get(port, "/healthz")[0] == 200


def test_an_unknown_path_is_reported(port: int) -> None:
    assert get(port, "/x") == (404, "there are /metrics and /healthz\n")
    assert "# EOF" in get(port, "/metrics", "application/openmetrics-text; version=1.0.0")[1]
    with socket.create_connection(("127.0.0.1", port), 5) as plug:
        plug.sendall(b"POST /metrics HTTP/1.1\r\n\r\n")
        assert b" 405 " in plug.recv(1_000)
