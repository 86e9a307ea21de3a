"""Tests of ``ensemble dashboard``: where it listens, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from ensemble_dashboard import command, server


@contextmanager
def dashboard(*words: str, **environment: str) -> Iterator[tuple[str, list[str]]]:
    """Start a dashboard; yield its address and its output lines."""
    known = {name: os.environ[name] for name in os.environ if name not in ("DISPLAY", "BROWSER")}
    called = [sys.executable, "-m", "ensemble_core.cli", "dashboard", *words]
    with subprocess.Popen(
        called, stdout=subprocess.PIPE, text=True, env={**known, **environment}
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Dashboard: "):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        try:
            yield lines[-1].split()[1], lines
        finally:
            process.terminate()


def tags(client: httpx.Client, address: str) -> object:
    """Return the runs that the dashboard lists for the token in its address."""
    base, _, token = address.partition("#token=")
    headers = {"Authorization": f"Bearer {token}"}
    answer = client.get(f"{base}api/runs", headers=headers)
    return answer.json()


def test_in_an_ssh_session_it_uses_a_socket_and_prints_the_ssh_command(
    state: Path, tmp_path: Path
) -> None:
    remote = {"SSH_CONNECTION": "10.0.0.1 2 10.0.0.2 22", "XDG_RUNTIME_DIR": str(tmp_path)}
    with dashboard("study", **remote) as (address, lines):
        found = re.search(r"ssh -N -L 8123:(\S+\.sock) \S+@\S+", lines[0])
        assert found, lines
        assert Path(found[1]).parent == tmp_path / "ensemble-dashboard"
        assert address.startswith("http://localhost:8123/#token=")
        with httpx.Client(transport=httpx.HTTPTransport(uds=found[1])) as client:
            assert tags(client, address) == ["study"]


def test_without_a_browser_it_prints_the_ssh_command(state: Path) -> None:
    with dashboard("study") as (address, lines):
        port = httpx.URL(address).port
        assert f"ssh -N -L 8123:127.0.0.1:{port} " in lines[0]
        with httpx.Client() as client:
            assert tags(client, address) == ["study"]


def test_in_an_ssh_session_it_can_use_a_port(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 2 10.0.0.2 22")
    monkeypatch.delenv("ENSEMBLE_STATE")
    served: list[str | None] = []
    monkeypatch.setattr(server, "serve", lambda _, place, *rest: served.append(place))
    words = ["study", "--no-socket", "--no-open", "--state", str(state)]
    found = CliRunner().invoke(command.dashboard, words)
    assert "Dashboard: http://127.0.0.1:" in found.output
    assert served == [str(state)]


@pytest.mark.parametrize("words", [["--port", "80000"], ["--socket", "--port", "8123"], ["none"]])
def test_invalid_arguments_are_rejected(state: Path, words: list[str]) -> None:
    called = [sys.executable, "-m", "ensemble_core.cli", "dashboard", *words]
    found = subprocess.run(called, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert "Error" in found.stderr or "error" in found.stderr


def test_a_dashboard_without_viewers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HOURS", 0.5 / 3600)
    interval = sys.getswitchinterval()
    with command._listening(0) as listener:
        served = threading.Thread(
            target=server.serve, args=(listener, None, list, "right"), daemon=True
        )
        served.start()
        served.join(120)
        assert not served.is_alive()
    sys.setswitchinterval(interval)
