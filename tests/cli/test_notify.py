"""Tests of a run's notifications: they never fail the run, survive a kill, and store no URL."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main
from ensemble_core.runtime import controller

FILE = """
name: study
jobs: [{name: g, command: "true"}]
rules:
  - {trigger: start, action: {name: submit, label: g}}
  - {trigger: TRIGGER, action: {name: notify, to: {webhook: HOOK}, message: "{run} was heard"}}
"""
SECRET = "s3cret-path"


class Hook:
    """Webhook server.

    ``kills``: kill the sender at the first message. ``hangs``: an event that delays the answer.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.kills = False
        self.victims: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self.hangs: threading.Event | None = None
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.texts.append(json.loads(body)["text"])
                if hook.kills:
                    hook.kills = False
                    victim = hook.victims.get(timeout=60)
                    victim.kill()
                    victim.wait()
                    return
                if hook.hangs is not None:
                    hook.hangs.wait(60)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/{SECRET}"


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.chdir(tmp_path)
    found = Hook()
    monkeypatch.setenv("HOOK", found.url)
    yield found
    if found.hangs is not None:
        found.hangs.set()
    found.http.shutdown()
    found.http.server_close()


def write(trigger: str) -> None:
    Path("e.yaml").write_text(FILE.replace("TRIGGER", trigger))


def ensemble(*words: str) -> Result:
    result = CliRunner().invoke(main, [*words, "--state", "state"])
    assert result.exit_code != 70, result.output
    return result


def run(*more: str) -> Result:
    return ensemble("run", "e.yaml", "--executor", "local", "--tag", "study", *more)


def kill_at_the_first_message(hook: Hook) -> None:
    """Start a run, and kill its controller before the delivery of a message is confirmed."""
    words = ["run", "e.yaml", "--executor", "local", "--tag", "study", "--state", "state"]
    hook.kills = True
    with subprocess.Popen(
        [sys.executable, "-m", "ensemble_core.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as victim:
        hook.victims.put(victim)
    assert victim.returncode == -signal.SIGKILL


def test_message_at_the_end_arrives_and_its_url_is_not_stored(hook: Hook) -> None:
    write("end")
    result = run("--json")
    assert result.exit_code == 0, result.output
    assert hook.texts == ["study was heard"]
    assert SECRET not in result.output
    kept = [path for path in Path("state").rglob("*") if path.is_file()]
    assert "journal.db" in {path.name for path in kept}
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []
    types = [json.loads(line).get("type") for line in result.stdout.splitlines()]
    assert types[-2:] == ["delivered", "summary"]
    assert ensemble("replay", "study").exit_code == 0
    assert hook.texts == ["study was heard"]  # a replay sends nothing


def test_rejected_message_is_one_warning_and_exit_code_0(hook: Hook) -> None:
    write("end")
    hook.http.shutdown()
    hook.http.server_close()
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stderr.count("warning") == 1
    assert "cannot deliver a message to webhook:HOOK: Connection refused" in result.stderr
    assert SECRET not in result.output


def test_hanging_webhook_does_not_block_the_end(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("end")
    hook.hangs = threading.Event()
    monkeypatch.setattr(controller, "_DELIVERY_GRACE", 0.5)
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stderr.count("warning") == 1
    assert (
        "cannot deliver a message to webhook:HOOK: it took more than 0.5 s at the end of the run"
        in result.stderr
    )
    assert ensemble("replay", "study").exit_code == 0


def test_jobs_do_not_inherit_the_url_of_a_webhook(hook: Hook) -> None:
    write("end")
    text = Path("e.yaml").read_text()
    Path("e.yaml").write_text(
        text.replace('"true"', "[sh, -c, 'printf %s \"${HOOK-none}\" > told']")
    )
    assert run().exit_code == 0
    assert Path("told").read_text() == "none"
    Path("e.yaml").write_text(text.replace('"true"', '"true", environment_from: [HOOK]'))
    result = ensemble("run", "e.yaml", "--executor", "local", "--tag", "second")
    assert result.exit_code == 2
    assert "e.yaml:6:5: HOOK contains the URL of a webhook, so jobs cannot" in result.stderr
    assert SECRET not in result.output


def test_run_without_a_journal_sends_messages(hook: Hook) -> None:
    write("end")
    result = ensemble("run", "e.yaml", "--executor", "local", "--no-journal")
    assert result.exit_code == 0, result.output
    (text,) = hook.texts
    assert text.endswith("was heard")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "HOOK is not set: it must contain the URL of the webhook"),
        (f"http://example.com/{SECRET}", "the URL in HOOK must begin with https://"),
    ],
)
def test_run_does_not_start_without_a_safe_webhook_url(
    hook: Hook, monkeypatch: pytest.MonkeyPatch, value: str | None, words: str
) -> None:
    write("end")
    if value is None:
        monkeypatch.delenv("HOOK")
    else:
        monkeypatch.setenv("HOOK", value)
    result = run()
    assert result.exit_code == 2
    assert f"e.yaml:6:5: {words}" in result.stderr
    assert "export HOOK=https://" in result.stderr
    assert SECRET not in result.output
    assert not Path("state").exists()
    assert CliRunner().invoke(main, ["validate", "e.yaml"]).exit_code == 0


@pytest.mark.parametrize("trigger", ["start", "end"])
def test_resume_repeats_a_message_that_was_not_confirmed(hook: Hook, trigger: str) -> None:
    write(trigger)
    kill_at_the_first_message(hook)
    result = ensemble("resume", "study")
    assert result.exit_code == 0, result.output
    assert hook.texts == ["study was heard"] * 2
    assert ensemble("replay", "study").exit_code == 0
    assert ensemble("resume", "study").exit_code == 2  # the run has ended: no messages
    assert len(hook.texts) == 2


def test_resume_with_an_unset_webhook_warns_and_continues(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("end")
    kill_at_the_first_message(hook)
    monkeypatch.delenv("HOOK")
    result = ensemble("resume", "study")
    assert result.exit_code == 0, result.output
    assert "HOOK is not set: it must contain the URL of the webhook" in result.stderr
    assert "cannot deliver a message to webhook:HOOK: HOOK is not set" in result.stderr
    assert ensemble("replay", "study").exit_code == 0
