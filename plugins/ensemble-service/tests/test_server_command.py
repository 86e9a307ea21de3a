"""Tests of the command ``ensemble-server``, as users and process supervisors call it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_service.commands.server import main

RESIZER = """
import time
from ensemble_core import Resized, Resizer, ResizerPlugin, hookimpl

class Nodes(Resizer):
    def __init__(self, most):
        self.most, self.now = most, 4
    def resize(self, member, delta):
        before, self.now = self.now, min(self.most, self.now + delta)
        return Resized(outcome="granted", before=before, asked=before + delta, granted=self.now)

@hookimpl
def ensemble_resizers():
    return [ResizerPlugin(
        name="nodes", summary="counts", build=lambda options: Nodes(options["most"]),
        options={"type": "object", "additionalProperties": False,
                 "properties": {"most": {"type": "integer", "default": 8}}},
    )]
"""


SERVER = [sys.executable, "-c", "from ensemble_service.commands.server import main; main()"]


def server(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def refused(*arguments: object) -> str:
    """Return the stderr of a command that fails with exit code 2."""
    done = subprocess.run(
        [*SERVER, *map(str, arguments)],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


class Started:
    """``ensemble-server start`` as a separate process."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [
                *SERVER, "start",
                "--port", "0", "--log-format", "json", *map(str, arguments),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.log: list[dict[str, object]] = []
        self.text = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = self.wait("listening")["port"]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.text += line
                if line.startswith("{"):
                    self.log.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait(self, event: str) -> dict[str, object]:
        def found() -> list[dict[str, object]]:
            return [line for line in self.log if line["event"] == event]

        with self._news:
            assert self._news.wait_for(lambda: found() or self.process.poll() is not None, 30), (
                self.text
            )
            assert found(), self.text
            return found()[0]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            code = self.process.wait(60)
        finally:
            self.process.kill()
        self._reader.join(60)
        return code


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ENSEMBLE_TOKEN", "ENSEMBLE_TOKEN_FILE", "ENSEMBLE_CA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "service"


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[Started]:
    process = Started(*arguments)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def test_the_workers_option_of_upstreams_operator_is_accepted_and_ignored(state: Path) -> None:
    with started("--state", state, "--workers", "10") as service:
        said = service.wait("--workers has no effect: the service has no worker threads")
        assert said["level"] == "warning"
    assert "--workers" in refused("start", "--workers", "0")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['ensemble-server', '--help']\n"
        "from ensemble_service.commands.server import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'grpc', 'google', 'cryptography', 'prometheus_client', 'asyncio', 'river'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in ("start", "init-tls", "token", "status"):
        assert command in done.stdout


def test_help_names_the_largest_message() -> None:
    from ensemble_service.server import MAX_REQUEST

    help_ = CliRunner().invoke(main, ["start", "--help"]).output
    assert f"[default: {MAX_REQUEST}]" in " ".join(help_.split())


def test_a_token_is_printed_once_without_other_output(state: Path) -> None:
    added = server("token", "add", "one", "--state", state)
    assert added.exit_code == 0
    token = added.stdout.strip()
    assert re.fullmatch(r"ensemble-[0-9a-f]{8}-\S{43}", token)
    listed = server("token", "list", "--state", state, "--json")
    [line] = json.loads(listed.stdout)["tokens"]
    assert (line["role"], line["member"], line["expires"]) == ("member", "default/one", None)
    assert token.split("-", 2)[2] not in listed.output
    assert "sha256" not in listed.output
    assert server("token", "remove", line["id"], "--state", state).exit_code == 0
    assert json.loads(server("token", "list", "--state", state, "--json").stdout) == {"tokens": []}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["token", "add"], "give exactly one of"),
        (["token", "add", "one", "--admin"], "give exactly one of"),
        (["token", "add", "--controller", "a/b"], "invalid namespace name"),
        (["token", "add", "A/B"], "invalid member name"),
        (["token", "add", "one", "--expires", "0"], "expires"),
        (["token", "remove", "x"], "no token"),
        (["init-tls", "--host", "a b"], "not a valid host name"),
        (["init-tls", "--renew"], "cannot read"),
        (["init-tls", "--days", "0"], "days"),
        (["start", "--host", "0.0.0.0"], "init-tls"),
        (["start", "--host", ""], "--host is empty"),
        (["start", "--metrics-host", ""], "--metrics-host is empty"),
        (["start", "--resizer", "nonesuch"], "no resizer"),
        (["start", "--option", "a=b"], "--option needs --resizer"),
        (["start", "--kubernetes", "--resizer", "other"], "cannot be combined"),
        (["start", "--legacy", "a/b/c"], "invalid member name"),
        (["start", "--tls-dir", "/nonexistent"], "no certificate"),
        (["start", "--max-message-bytes", "1"], "max-message-bytes"),
        (["stat"], "Did you mean"),
    ],
)
def test_a_wrong_command_is_rejected_with_a_hint(
    state: Path, arguments: list[str], words: str
) -> None:
    more = [] if arguments[0] == "stat" else ["--state", str(state)]
    done = server(*arguments, *more)
    told = done.output + str(done.exception or "") + str(getattr(done.exception, "hint", ""))
    assert words in told
    assert done.exit_code != 0


@pytest.mark.parametrize(
    ("option", "words"),
    [("mots=3", "resizer 'nodes' has no option"), ("most=x", "invalid options")],
)
def test_a_wrong_option_of_a_resizer_is_rejected(
    state: Path, tmp_path: Path, option: str, words: str
) -> None:
    plugin = tmp_path / "nodes.py"
    plugin.write_text(RESIZER)
    words_ = ("--plugin", plugin, "--resizer", "nodes", "--option", option)
    done = server("start", "--state", state, *words_)
    told = done.output + str(done.exception)
    assert words in told
    assert "executor" not in told


def test_certificates_are_only_overwritten_with_force(state: Path) -> None:
    def made() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (state / "tls").iterdir()}

    assert server("init-tls", "--state", state, "--host", "ensemble.lab").exit_code == 0
    before = made()
    again = server("init-tls", "--state", state)
    assert again.exit_code != 0
    assert "--force" in again.output
    assert made() == before
    assert server("init-tls", "--state", state, "--force").exit_code == 0
    assert made()["ca.crt"] != before["ca.crt"]


def test_from_certificates_to_an_answer_and_a_graceful_stop(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ensemble_service.client import ServiceClient

    plugin = tmp_path / "nodes.py"
    plugin.write_text(RESIZER)
    server("init-tls", "--state", state)
    with started(
        "--state", state, "--plugin", plugin, "--resizer", "nodes", "--option", "most=6"
    ) as service:
        # A running service accepts a token that was created after its start.
        token = server("token", "add", "lab/one", "--state", state).stdout.strip()
        monkeypatch.setenv("ENSEMBLE_TOKEN", token)
        port = int(str(service.port))
        shown = server("status", "--port", port, "--state", state, "--json")
        assert json.loads(shown.stdout) == {"members": []}, shown.output
        with ServiceClient("localhost", port, ca=state / "tls" / "ca.crt") as client:
            assert client.resize("lab/one", "a", 5).granted == 6
        shown = server("status", "--port", port, "--state", state, "lab/one")
        assert "lab/one  away   never" in shown.stdout
        assert " of 6 " in shown.stdout
        assert service.stop() == 0
    assert service.log[-1]["event"] == "stopped"
    assert token not in service.text
    assert token.split("-", 2)[2] not in service.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_exit_code_0(state: Path, number: int) -> None:
    with started("--state", state) as service:
        assert service.stop(number) == 0


def test_silent_connections_leave_room_for_others(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent connections are closed in time, whatever the limit on open files."""
    with started("--state", state, "--grace", 0.2) as service, contextlib.ExitStack() as stack:
        token = server("token", "add", "--viewer", "lab", "--state", state).stdout.strip()
        monkeypatch.setenv("ENSEMBLE_TOKEN", token)
        port = int(str(service.port))
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        assert server("status", "--port", port, "--state", state).exit_code == 0
        assert service.stop() == 0


def test_without_the_extra_it_says_what_to_install(state: Path) -> None:
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        f"sys.argv = ['ensemble-server', 'start', '--state', {str(state)!r}]\n"
        "from ensemble_service.commands.server import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ},
    )
    assert done.returncode == 2
    assert "needs gRPC" in done.stderr
    assert "pip install 'ensemble-core[service]>=1.0'" in done.stderr


def test_a_port_in_use_is_reported_with_the_systems_message(state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*SERVER, "start", "--port", str(port), "--state", str(state)],
            capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[:2] == [
        f"error: cannot listen on 127.0.0.1:{port}",
        "  because: Address already in use",
    ]
