"""Tests of the executor with the real ensemble service, over a socket."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_minicluster import ensemble_executors
from ensemble_service import MemberStatus, ServiceClient
from ensemble_testing.executor import Session, wait_until

from ensemble_core import Event, ExecutorError, Problem, Run, UsageError

pytest.importorskip("grpc", reason="no gRPC: pip install 'ensemble-core[service]'")

#: Resizer of a simulated cluster: a file to which each new size is appended.
PAPER = """
import os
from pathlib import Path
from ensemble_core import Resized, Resizer, ResizerPlugin, hookimpl

FILE = Path(os.environ["PAPER"])

class Paper(Resizer):
    def size(self, member):
        return int(FILE.read_text().split()[-1])

    def resize(self, member, delta):
        before, asked = self.size(member), self.size(member) + delta
        granted = min(max(asked, 1), 4)
        if granted == before:
            sizes = {"before": before, "asked": asked, "granted": before}
            return Resized(outcome="denied", reason="1 to 4", code="at-bound", **sizes)
        with FILE.open("a") as file:
            file.write(f"{granted}\\n")
        outcome = "granted" if granted == asked else "partial"
        return Resized(outcome=outcome, before=before, asked=asked, granted=granted)

@hookimpl
def ensemble_resizers():
    return [ResizerPlugin(name="paper", summary="on paper", build=lambda options: Paper())]
"""


class Service:
    """``ensemble-server start`` as a separate process, on a fixed port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paper = folder / "paper"
        self.paper.write_text("2\n")
        (folder / "resizer.py").write_text(PAPER)
        self.environment = {**os.environ, "PAPER": str(self.paper)}
        for name in ("ENSEMBLE_TOKEN", "ENSEMBLE_TOKEN_FILE", "ENSEMBLE_CA"):
            self.environment.pop(name, None)
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.tokens = {name: self._token(name) for name in ("default/ensemble", "default/other")}
        self.start()

    def command(self, *words: str) -> list[str]:
        script = "from ensemble_service.commands.server import main; main()"
        return [sys.executable, "-c", script, *words, "--state", str(self.folder / "state")]

    def _token(self, member: str) -> Path:
        done = subprocess.run(
            self.command("token", "add", member),
            capture_output=True,
            text=True,
            timeout=150,
            env=self.environment,
        )
        assert done.returncode == 0, done.stderr
        file = self.folder / f"token-{member.replace('/', '-')}"
        file.write_text(done.stdout.splitlines()[-1])
        return file

    def start(self) -> None:
        options = ("--resizer", "paper", "--plugin", str(self.folder / "resizer.py"))
        self.process = subprocess.Popen(
            self.command("start", "--port", str(self.port), *options),
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = re.search(r"listening .*port=(\d+)", line)
            if found:
                self.port = int(found[1])
                return
        pytest.fail("the service did not start")

    def stop(self, number: int = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(120)
            assert process.stderr is not None
            process.stderr.close()

    def sizes(self) -> list[int]:
        """Return all sizes so far."""
        return [int(line) for line in self.paper.read_text().split()]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.stop()


@pytest.fixture
def joined(
    service: Service, played: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Yield a function that creates a simulated Flux whose executor asks the service."""
    for name in ("ENSEMBLE_TOKEN", "ENSEMBLE_TOKEN_FILE", "ENSEMBLE_CA"):
        monkeypatch.delenv(name, raising=False)

    def make(token: Path, name: str = "ensemble") -> Any:
        (record,) = ensemble_executors()
        built: Any = record.build(
            {"name": name, "port": service.port, "token_file": str(token), "compose": "local"}
        )
        cluster = played(2)
        cluster.close()  # it was opened with the simulated service
        cluster.flux.closed = False
        executor = cluster.session.executor
        executor._make_service = built._make_service
        tag = cluster.session.tag
        cluster.session = Session(executor, cluster.session.folder)
        cluster.session.tag = f"{tag}-{name.replace('/', '-')}"
        cluster.session.__enter__()
        return cluster

    return make


def test_grow_and_shrink_through_the_service(service: Service, joined: Callable[..., Any]) -> None:
    cluster = joined(service.tokens["default/ensemble"])
    cluster.session.executor.resize("resize-1", 9)
    wait_until(lambda: service.sizes()[-1] == 4)
    cluster.instance.online |= {2, 3}
    cluster.flux.tell_up(4)
    outcome = cluster.answer("resize-1")
    assert (outcome.outcome, outcome.size) == ("granted", 4)
    assert outcome.reason.startswith("2 of 9 nodes")
    denied = cluster.resize("resize-2", 1)
    assert (denied.outcome, denied.size, denied.reason) == ("denied", 4, "1 to 4")
    cluster.session.executor.resize("resize-3", -2)
    wait_until(lambda: service.sizes()[-1] == 2)
    assert set(cluster.instance.drained) == {2, 3}
    cluster.instance.online -= {2, 3}
    assert cluster.answer("resize-3").size == 2


def test_a_killed_service_is_asked_again_and_carries_out_once(
    service: Service, joined: Callable[..., Any]
) -> None:
    cluster = joined(service.tokens["default/ensemble"])
    cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: service.sizes()[-1] == 3)
    cluster.instance.online.add(2)
    cluster.flux.tell_up(3)
    cluster.answer("resize-1")
    before = service.sizes()
    service.stop(signal.SIGKILL)
    cluster.session.executor._resizing._cluster.service._client.timeout = 1.0
    away = cluster.resize("resize-2", -1)
    assert away.outcome == "undelivered"
    assert "cannot be reached" in away.reason
    service.start()
    # A channel without a listener waits a little before it retries.
    cluster.session.executor._resizing._cluster.service._client.timeout = 60.0
    cluster.session.executor.resize("resize-2", -1)
    wait_until(lambda: service.sizes()[-1] == 2)
    cluster.instance.online.discard(2)
    assert cluster.answer("resize-2", 2).outcome == "granted"
    assert service.sizes() == [*before, 2]
    # The service still knows its answers from before the kill.
    client = cluster.session.executor._resizing._cluster.service
    assert client.resize(f"{cluster.run}/resize-1", 1).granted == 3
    assert service.sizes() == [*before, 2]


def test_another_members_token_is_rejected(service: Service, joined: Callable[..., Any]) -> None:
    cluster = joined(service.tokens["default/other"])
    before = service.sizes()
    outcome = cluster.resize("resize-1", 1)
    assert outcome.outcome == "denied"
    assert "default/ensemble" in outcome.reason
    assert service.sizes() == before
    assert cluster.resize("resize-2", -1).outcome == "denied"
    assert cluster.instance.drained == {}


def opened(tmp_path: Path, **options: object) -> list[str]:
    """Open and close the executor; return its warnings."""
    (record,) = ensemble_executors()
    executor = record.build({"name": "ensemble", "compose": "local", **options})
    warnings: list[str] = []

    def emit(events: Sequence[Event]) -> None:
        warnings.extend(event.message for event in events if isinstance(event, Problem))

    executor.open(Run("run", tmp_path, time.time), emit)
    executor.close()
    return warnings


def test_a_run_whose_service_would_reject_every_request_does_not_start(
    service: Service, tmp_path: Path
) -> None:
    where = {"port": service.port, "token_file": str(service.tokens["default/ensemble"])}
    assert opened(tmp_path, **where) == []
    other = {**where, "token_file": str(service.tokens["default/other"])}
    with pytest.raises(ExecutorError, match="does not allow this with your credential"):
        opened(tmp_path, **other)
    authority = tmp_path / "tls"
    done = subprocess.run(service.command("init-tls", "--tls-dir", str(authority)), timeout=150)
    assert done.returncode == 0
    with pytest.raises(ExecutorError, match="cannot be reached") as caught:
        opened(tmp_path, **where, ca=str(authority / "ca.crt"))
    assert "does not speak TLS" in str(caught.value.cause)


def test_an_empty_token_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(UsageError, match="cannot read the token") as caught:
        opened(tmp_path, token_file=str(tmp_path / "token"))
    assert caught.value.cause == "it is empty"


def test_a_run_starts_with_a_warning_if_its_service_is_away(tmp_path: Path) -> None:
    (warning,) = opened(tmp_path, port=1, host="127.0.0.1")
    assert "cannot be reached" in warning
    assert "retried until it answers" in warning


FILE = """\
jobs: [{name: sim, command: "sh -c 'until [ -e GO ]; do sleep 0.1; done'", count: 3}]
rules: [{trigger: start, action: {name: submit, label: sim}}]
"""


def test_a_run_reports_its_queues_state_to_the_service(service: Service, tmp_path: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "e.yaml").write_text(FILE.replace("GO", str(go)))
    token = service.tokens["default/other"]
    words = ["run", "--executor", "minicluster", "--name", "default/other", "--port", service.port]
    words += ["--token-file", token, "--option", "compose=local", "--no-progress"]
    words += ["--state", tmp_path / "state", tmp_path / "e.yaml"]
    script = "from ensemble_core.cli.main import main; main()"
    command = [sys.executable, "-c", script, *map(str, words)]

    def stands() -> MemberStatus:
        with ServiceClient("localhost", service.port, token=token.read_text()) as client:
            (status,) = client.status("default/other")
        return status

    with subprocess.Popen(command, env=service.environment, cwd=tmp_path) as run:
        wait_until(lambda: [each.running > 0 for each in stands().groups] == [True])
        status = stands()
        assert status.alive
        assert status.executor == "minicluster"
        assert status.groups[0].name == "sim"
        assert status.gauges["nodes.up"] > 0
        assert status.gauges["queue.run"] > 0
        go.touch()
        assert run.wait(150) == 0
    assert not stands().alive
    assert [(each.success, each.running) for each in stands().groups] == [(3, 0)]


def test_a_run_with_another_members_token_reports_once_it_has_its_own(
    service: Service, tmp_path: Path
) -> None:
    """The reporter continues after a rejected token, for example an expired one."""
    from ensemble_service import Reporter

    refused: list[str] = []
    token = tmp_path / "token"
    shutil.copy(service.tokens["default/other"], token)
    reporter = Reporter(
        "default/ensemble",
        "localhost",
        service.port,
        token_file=str(token),
        refused=lambda error: refused.append(error.code),
    )

    def alive() -> bool:
        known = service.tokens["default/ensemble"].read_text()
        with ServiceClient("localhost", service.port, token=known) as client:
            return any(each.alive for each in client.status("default/ensemble"))

    reporter.start()
    try:
        wait_until(lambda: refused)
        assert not alive()
        shutil.copy(service.tokens["default/ensemble"], token)
        wait_until(alive)
    finally:
        reporter.stop()
    assert refused == ["permission-denied"], "told once, and not with each attempt"
