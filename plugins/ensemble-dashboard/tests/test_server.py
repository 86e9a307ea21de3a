"""Tests of the dashboard's server: its answers and its access checks."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from ensemble_dashboard import server
from ensemble_dashboard.command import _bound_to, _listening, _private_path
from ensemble_dashboard.documents import document
from ensemble_dashboard.server import application
from starlette.applications import Starlette

import ensemble_core
from ensemble_core import EnsembleError
from ensemble_core.cli.toolkit import Inspection

BASE = "http://127.0.0.1:4000"
TOKEN = {"Authorization": "Bearer right"}


class Client:
    """Sends requests to the server without a network.

    It repeats a request while the run is being read (202).
    """

    def __init__(self, app: Starlette) -> None:
        self._app = app

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                while True:
                    answer = await client.request(method, path, headers=headers)
                    if answer.status_code != 202:
                        return answer
                    await asyncio.sleep(0.05)

        # In a separate thread: a browser of another test may use this thread's event loop.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, send()).result()

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.request("GET", path, headers)


@pytest.fixture
def client(state: Path) -> Client:
    return Client(application(None, lambda: ["study"], "right", lambda: None))


def test_the_page_needs_no_token_and_contains_nothing_of_a_run(client: Client) -> None:
    for path in ("/", "/app.js", "/style.css", "/vendor/htm-preact.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "study" not in answer.text or path == "/app.js"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "right"},
        {"Authorization": "Bearer righ"},
        {"Cookie": "right"},
    ],
)
def test_documents_need_the_token(client: Client, headers: dict[str, str]) -> None:
    answer = client.get("/api/runs/study/overview", headers=headers)
    assert (answer.status_code, "study" in answer.text) == (401, False)


def test_a_token_in_the_request_line_is_ignored(client: Client) -> None:
    assert client.get("/api/runs?token=right").status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.1"])
def test_a_request_for_another_host_is_rejected(client: Client, host: str) -> None:
    assert client.get("/api/runs", headers={**TOKEN, "Host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:4001"])
def test_a_request_from_another_page_is_rejected(client: Client, origin: str) -> None:
    assert client.get("/api/runs", headers={**TOKEN, "Origin": origin}).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/other/overview",
        "/api/runs/..%2F..%2Fetc/overview",
        "/api/runs/study/secrets",
        "/api/runs/study/__class__",
        "/..%2F..%2Fetc%2Fpasswd",
        "/vendor/../server.py",
    ],
)
def test_other_files_cannot_be_read(client: Client, path: str) -> None:
    answer = client.get(path, headers=TOKEN)
    assert answer.status_code == 404
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "query",
    ["sort=nothing", "where=[1]", "where={", "offset=-1", "limit=1e9", 'where={"x":1}'],
)
def test_an_invalid_query_is_answered_with_an_error(client: Client, query: str) -> None:
    answer = client.get(f"/api/runs/study/jobs?{query}", headers=TOKEN)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_methods_other_than_get_are_rejected(client: Client, method: str) -> None:
    assert client.request(method, "/api/runs/study/overview", headers=TOKEN).status_code == 405


def test_jobs_are_sorted_filtered_and_paged(client: Client) -> None:
    query = 'where={"outcome":"failed"}&sort=s&descending=1&limit=2'
    page = client.get(f"/api/runs/study/jobs?{query}", headers=TOKEN).json()
    at = page["names"].index("s")
    assert (page["total"], [row[at] for row in page["rows"]]) == (3, ["<b>1</b>", "3"])


def test_only_its_owner_can_use_the_socket_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    mask = os.umask(0)
    try:
        with _private_path(".sock") as path, _bound_to(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert not path.exists()
    finally:
        os.umask(mask)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else for a moment")
def test_another_user_cannot_connect_to_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = os.umask(0)
    try:
        # Unlike pytest's folder, this one is readable for everybody.
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
            with (
                _private_path(".sock") as path,
                _bound_to(path),
                socket.socket(socket.AF_UNIX) as other,
            ):
                os.seteuid(12345)
                try:
                    assert os.listdir(folder) == ["ensemble-dashboard"]
                    with pytest.raises(PermissionError):
                        other.connect(str(path))
                finally:
                    os.seteuid(0)
    finally:
        os.umask(mask)


def test_the_token_of_an_earlier_dashboard_is_rejected(state: Path) -> None:
    later = Client(application(None, lambda: ["study"], "new", lambda: None))
    assert later.get("/api/runs", headers=TOKEN).status_code == 401


@pytest.mark.parametrize(
    "query",
    [
        "job=/etc/passwd",
        "job=../../../../etc/passwd",
        "job=sim.0/../sim.1",
        "job=sim.0&stream=../stdout",
        "job=sim.0&stream=/etc/passwd",
        "job=&path=/etc/passwd",
    ],
)
def test_a_log_is_requested_by_job_and_stream_never_by_path(client: Client, query: str) -> None:
    answer = client.get(f"/api/runs/study/log?{query}", headers=TOKEN)
    assert answer.json().get("text", "") == ""
    assert "root:" not in answer.text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder somebody else's")
def test_a_socket_folder_of_another_user_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "ensemble-dashboard"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(EnsembleError, match="cannot create a socket"), _private_path(".sock"):
        pass


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EnsembleError, match=f"port {port} is in use"):
            _listening(port)


def test_only_this_machine_can_connect() -> None:
    with _listening(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_the_previous_answer_is_given_while_a_large_run_is_read(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, asked = threading.Event(), []

    def slow(inspection: Inspection, name: str, query: Mapping[str, str]) -> Any:
        if name == "costs":
            asked.append(name)
            may_go_on.wait(30)
            inspection.seq += len(asked)  # as if events arrived meanwhile
        return document(inspection, name, query)

    monkeypatch.setattr(server, "document", slow)
    monkeypatch.setattr(server, "_REST", 0)
    app = application(None, lambda: ["study"], "right", lambda: None)

    async def ask(client: httpx.AsyncClient, name: str) -> httpx.Response:
        return await client.get(f"/api/runs/study/{name}", headers=TOKEN)

    async def until(client: httpx.AsyncClient, name: str, status: int) -> httpx.Response:
        while (answer := await ask(client, name)).status_code != status:
            await asyncio.sleep(0.02)
        return answer

    async def look() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            assert (await ask(client, "costs")).status_code == 202
            # Documents without the table of jobs are not blocked.
            assert (await until(client, "overview", 200)).json()["tag"] == "study"
            assert (await ask(client, "costs")).json() is None
            assert len(asked) == 1
            may_go_on.set()
            first = await until(client, "costs", 200)
            assert first.json()[0]["group"] == "sim"
            may_go_on.clear()
            while len(asked) < 2:
                again = await ask(client, "costs")
                assert again.json() == first.json()
            assert again.headers["retry-after"] == "1"
            may_go_on.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, look()).result()


def test_documents_contain_all_events_that_the_overview_has_counted(
    live: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    client = Client(application(str(tmp_path), lambda: ["one"], "right", lambda: None))

    def ask(name: str) -> httpx.Response:
        return client.get(f"/api/runs/one/{name}", headers=TOKEN)

    known = ask("overview").json()["events"]
    assert ask("jobs").json()["total"] == 2
    ensemble_core.open_run("one", state=tmp_path).submit("quick")
    while ask("overview").json()["events"] == known:
        ask("jobs")
    jobs = ask("jobs")
    assert jobs.json()["total"] == 3 or "retry-after" in jobs.headers
