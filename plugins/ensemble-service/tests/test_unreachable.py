"""Tests of members, runs and clients that cannot reach the service: all get the same reason.

They use real sockets, real TLS, and certificates with the mistakes that users make.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import queue
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from ensemble_service import certificates, server
from ensemble_service.agent import Agent
from ensemble_service.call_errors import diagnose, is_absence, is_answer
from ensemble_service.channel import load_grpc, open_channel, own_authority
from ensemble_service.client import ServiceClient
from ensemble_service.remote_executor import RemoteExecutor
from ensemble_service.server import Settings, serving
from ensemble_service.tokens import TokenFile
from ensemble_testing import wait_until
from ensemble_testing.processes import free_ports

from ensemble_core import EnsembleError, ExecutorError, Run, UsageError
from ensemble_core.cli.main import main
from ensemble_core.local.executor import LocalExecutor

NOW = dt.datetime.now(dt.timezone.utc)


class Folders(NamedTuple):
    right: Path
    other: Path
    expired: Path
    elsewhere: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    base = tmp_path_factory.mktemp("certificates")
    made = Folders(*(base / name for name in Folders._fields))
    certificates.init(made.right)
    certificates.init(made.other)
    certificates.init(made.expired, days=10, now=NOW - dt.timedelta(days=11))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "certificate_names", lambda hosts: ["elsewhere.example"])
        certificates.init(made.elsewhere)
    return made


@pytest.fixture(autouse=True)
def _no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENSEMBLE_TOKEN", "ENSEMBLE_TOKEN_FILE", "ENSEMBLE_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))


def told_to_an_agent(folder: Path, port: int, token: str, **way: Any) -> EnsembleError:
    """Return the error of an agent that gives up before its first connection."""
    told: queue.SimpleQueue[EnsembleError] = queue.SimpleQueue()
    agent = Agent(
        "default/left",
        lambda: LocalExecutor(slots=1),
        folder,
        partial(open_channel, "localhost", port, token=token, **way),
        f"localhost:{port}",
        away=partial(diagnose, "localhost", port, **way),
        gave_up=told.put,
    )
    agent.start()
    try:
        return told.get(timeout=150)
    finally:
        agent.stop()


def told_to_a_run(folder: Path, port: int, token: str, **way: Any) -> EnsembleError:
    file = folder.with_suffix(".token")
    file.write_text(token)
    executor = RemoteExecutor(host="localhost", port=port, token_file=str(file), **way)
    run = Run("run", folder, time.time)
    with pytest.raises(EnsembleError) as caught:
        executor.open(run, lambda _events: None)
    return caught.value


def told_to_a_client(port: int, token: str, **way: Any) -> EnsembleError:
    with (
        ServiceClient("localhost", port, token=token, **way) as client,
        pytest.raises(ExecutorError) as caught,
    ):
        client.status()
    return caught.value


CASES: dict[str, tuple[str | None, dict[str, object], str, str, str]] = {
    "another authority": ("right", {"ca": "other"}, "untrusted", "not trusted", "ca.crt"),
    "an expired certificate": ("expired", {"ca": "expired"}, "untrusted", "expired", "--renew"),
    "another name": ("elsewhere", {"ca": "elsewhere"}, "untrusted", "'localhost'", "--host NAME"),
    "plaintext to TLS": ("right", {"insecure": True}, "speaks-tls", "it speaks TLS", "--ca"),
    "TLS to plaintext": (None, {"ca": "right"}, "no-tls", "does not speak TLS", "leave out --ca"),
}


@pytest.mark.parametrize("case", CASES)
def test_members_runs_and_clients_get_the_same_reason(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    speaks, given, code, cause, hint = CASES[case]
    way = {
        key: str(getattr(folders, value) / "ca.crt") if isinstance(value, str) else value
        for key, value in given.items()
    }
    real = certificates.server_credentials
    earlier = NOW - dt.timedelta(days=5)  # the certificate was valid when the service started
    monkeypatch.setattr(server, "server_credentials", lambda folder: real(folder, earlier))
    folder = None if speaks is None else getattr(folders, speaks)
    tokens = TokenFile(tmp_path / "service" / "tokens.json")
    member, _ = tokens.add("member", "left")
    controller, _ = tokens.add("controller", "default")
    with serving(Settings(state=tmp_path / "service", port=0, tls=folder, grace=0.2)) as service:
        began = time.monotonic()
        errors = [
            told_to_an_agent(tmp_path / "agent", service.port, member, **way),
            told_to_a_run(tmp_path / "run", service.port, controller, **way),
            told_to_a_client(service.port, controller, **way),
        ]
        assert time.monotonic() - began < 60
    assert [error.code for error in errors] == [code] * 3
    assert len({str(error) for error in errors}) == 1
    assert cause in str(errors[0].cause)
    assert hint in str(errors[0].hint)
    assert errors[0].exit_code == 1


def test_an_agent_with_a_wrong_token_exits_with_an_error(tmp_path: Path) -> None:
    member, _ = TokenFile(tmp_path / "service" / "tokens.json").add("member", "right")
    with serving(Settings(state=tmp_path / "service", port=0, grace=0.2)) as service:
        wrong = f"{member[:-1]}{'A' if member[-1] != 'A' else 'B'}"
        error = told_to_an_agent(tmp_path / "agent", service.port, wrong)
        assert error.code == "unauthenticated"
        error = told_to_an_agent(tmp_path / "agent", service.port, member)
        assert error.code == "permission-denied"
        assert "default/left" in str(error.cause)


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def test_a_disconnected_agent_reports_the_reason_once_and_keeps_trying(
    tmp_path: Path, folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    token, _ = TokenFile(tmp_path / "service" / "tokens.json").add("member", "left")
    ca = folders.right / "ca.crt"
    attempts: list[float] = []
    given_up: list[EnsembleError] = []

    def channel() -> Any:
        attempts.append(time.monotonic())
        return open_channel("localhost", port, token=token, ca=ca)

    agent = Agent(
        "default/left",
        lambda: LocalExecutor(slots=1),
        tmp_path / "agent",
        channel,
        f"localhost:{port}",
        away=partial(diagnose, "localhost", port, ca=ca),
        gave_up=given_up.append,
    )

    def settings(folder: Path) -> Settings:
        return Settings(state=tmp_path / "service", port=port, tls=folder, grace=0.2)

    with caplog.at_level(logging.INFO, "ensemble.member"):
        try:
            with serving(settings(folders.right)):
                agent.start()
                assert agent.wait_connected(60)
            with serving(settings(folders.other)):
                before = len(attempts)
                wait_until(lambda: len(attempts) >= before + 3)
            with serving(settings(folders.right)):
                assert agent.wait_connected(60)
        finally:
            agent.stop()
    said = [record.getMessage() for record in caplog.records]
    assert sum("not trusted" in line for line in said) == 1, said
    assert sum("is connected to the service" in line for line in said) == 2, said
    assert not given_up


def test_an_agent_waits_for_a_service_that_is_not_running_yet(tmp_path: Path) -> None:
    port = free_port()
    token, _ = TokenFile(tmp_path / "service" / "tokens.json").add("member", "left")
    given_up: list[EnsembleError] = []
    attempts: list[float] = []

    def channel() -> Any:
        attempts.append(time.monotonic())
        return open_channel("localhost", port, token=token)

    agent = Agent(
        "default/left",
        lambda: LocalExecutor(slots=1),
        tmp_path / "agent",
        channel,
        f"localhost:{port}",
        away=partial(diagnose, "localhost", port),
        gave_up=given_up.append,
    )
    agent.start()
    try:
        wait_until(lambda: len(attempts) >= 2)
        with serving(Settings(state=tmp_path / "service", port=port, grace=0.2)):
            assert agent.wait_connected(60)
    finally:
        agent.stop()
    assert not given_up


def test_the_authority_of_a_local_service_is_found_automatically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state" / "service"
    certificates.init(state / "tls")
    assert own_authority("localhost") == state / "tls" / "ca.crt"
    assert own_authority("service.example") is None
    token, _ = TokenFile(state / "tokens.json").add("admin")
    with serving(Settings(state=state, port=0, grace=0.2)) as service:
        assert service.secure
        with ServiceClient("localhost", service.port, token=token) as client:
            assert client.status() == []
        # An explicit option takes precedence, and the hint names the file that was found.
        assert told_to_a_client(service.port, token, insecure=True).code == "speaks-tls"
    with serving(Settings(state=tmp_path / "plain", port=0, grace=0.2)) as plain:
        error = told_to_a_client(plain.port, token)
        assert error.code == "no-tls"
        assert str(state / "tls" / "ca.crt") in str(error.hint)
        assert "--insecure" in str(error.hint)


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_file_without_a_certificate_is_a_usage_error_for_a_run_too(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(text)
    error = told_to_a_run(tmp_path / "run", 50051, "ensemble-1", ca=str(file))
    assert isinstance(error, UsageError)
    assert "no usable certificate" in error.what
    assert "ca.crt" in str(error.hint)


@pytest.mark.parametrize("text", ["", " \n", "one\ntwo", "\u00fc"])
def test_a_file_without_a_token_is_a_usage_error_and_no_other_token_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ENSEMBLE_TOKEN", "another")
    error = told_to_a_run(tmp_path / "run", 50051, text)
    assert isinstance(error, UsageError)
    assert "token" in error.what


def test_an_authority_in_a_commented_bundle_is_found(tmp_path: Path, folders: Folders) -> None:
    texts = ["# Größter Aussteller\n", (folders.other / "ca.crt").read_text(), "# der andere\n"]
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("".join([*texts, (folders.right / "ca.crt").read_text()]), "utf-8")
    token, _ = TokenFile(tmp_path / "s" / "tokens.json").add("admin")
    with (
        serving(Settings(state=tmp_path / "s", port=0, tls=folders.right, grace=0.2)) as service,
        ServiceClient("localhost", service.port, token=token, ca=bundle) as client,
    ):
        assert client.status() == []


def test_grpc_logs_nothing_and_jobs_do_not_inherit_its_settings(
    tmp_path: Path, folders: Folders
) -> None:
    load_grpc()
    assert "GRPC_VERBOSITY" not in os.environ
    with serving(Settings(state=tmp_path / "s", port=0, tls=folders.right, grace=0.2)) as service:
        way = f"'localhost', {service.port}, ca={str(folders.other / 'ca.crt')!r}"
        code = (
            f"from ensemble_service import ServiceClient\nclient = ServiceClient({way})\n"
            "try:\n    client.status()\nexcept Exception as error:\n    print(error.code)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True
        )
    assert (done.stdout, done.stderr) == ("untrusted\n", "")


def test_the_systems_message_about_a_broken_connection_is_not_taken_for_the_services() -> None:
    assert not is_answer("recvmsg:Transport endpoint is not connected")
    assert not is_absence("Socket is not connected")
    assert is_absence("member default/left is not connected")
    assert is_answer("the service stops")
    assert not is_absence("the service stops")


@pytest.mark.parametrize("option", ["--ca", "--token-file"])
@pytest.mark.parametrize(
    "command", [["member", "start", "--name", "left", "--executor", "local"], ["resume", "last"]]
)
def test_an_empty_file_name_is_a_usage_error_without_a_fallback(
    command: list[str], option: str
) -> None:
    ended = CliRunner().invoke(main, [*command, option, ""])
    assert ended.exit_code == 2
    assert f"'{option}': the file name is empty" in ended.stderr
