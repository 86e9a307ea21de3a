"""Delivery of messages: content, sanitizing, and misbehaving servers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ensemble_core.model.decisions import Notify
from ensemble_core.model.events import Delivered, Event
from ensemble_core.runtime import notifications
from ensemble_core.runtime.notifications import Notifier, Refused, deliver, sanitize, webhook_url

SECRET = "s3cret-path"
#: Job output with mentions and control characters, which must be sanitized.
HOSTILE = "\x1b]0;x\x07@everyone @Here <!channel> <@U1>\u202e\r\nBcc: all@uni.edu\x00"


class Server:
    """Web server that gives scripted answers and records requests."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.got.append((self.path, dict(self.headers), body))
                with contextlib.suppress(OSError):
                    answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/{SECRET}?key={SECRET}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def begin(answer: Callable[[BaseHTTPRequestHandler], None]) -> Server:
        servers.append(Server(answer))
        monkeypatch.setenv("HOOK", servers[-1].url)
        return servers[-1]

    yield begin
    for each in servers:
        each.close()


def notice(message: str = "hello", *to: str, **more: Any) -> Notify:
    more = {"rule": "r", "firing": 1, "notice": "notice-1", **more}
    return Notify(message=message, to=to or ("webhook:HOOK",), **more)


def test_a_webhook_gets_json_with_the_text_the_run_the_rule_and_the_job(
    serve: Callable[..., Server],
) -> None:
    server = serve(status(204))
    deliver("webhook:HOOK", "night1", [notice("it is done", job="g.0")])
    ((path, headers, body),) = server.got
    assert path == f"/{SECRET}?key={SECRET}"
    assert headers["Content-Type"] == "application/json"
    told = {"text": "it is done", "run": "night1", "rule": "r", "job": "g.0"}
    assert json.loads(body) == told


def test_merged_messages_of_several_rules_name_none(serve: Callable[..., Server]) -> None:
    server = serve(status(200))
    deliver("webhook:HOOK", "night1", [notice("a", job="g.0"), notice("b", rule="s", job="g.0")])
    told = json.loads(server.got[0][2])
    assert told == {"text": "a\nb", "run": "night1", "rule": None, "job": "g.0"}


def test_too_many_merged_messages_are_truncated(
    serve: Callable[..., Server],
) -> None:
    server = serve(status(200))
    deliver("webhook:HOOK:text", "night1", [notice("x" * 10)] * 1000)
    lines = server.got[0][2].decode().split("\n")
    assert len(lines) == 51
    assert lines[-1] == "… and 950 more"
    deliver("webhook:HOOK:discord", "night1", [notice("x" * 5000)])
    assert len(json.loads(server.got[1][2])["content"]) <= 2000


@pytest.mark.parametrize("form", ["", ":discord", ":text"])
def test_job_output_in_messages_has_no_mentions_and_control_characters(
    serve: Callable[..., Server], form: str
) -> None:
    server = serve(status(200))
    deliver(f"webhook:HOOK{form}", "night1", [notice(HOSTILE)])
    body = server.got[0][2].decode()
    if form != ":text":
        told = json.loads(body)
        body = told["content" if form else "text"]
        if form:
            assert told["allowed_mentions"] == {"parse": []}
    lowered = body.lower()
    for many in ("@everyone", "@here", "<!", "<@"):
        assert many not in lowered
    assert not {*"\x00\x07\x1b\r\u202e"} & {*body}


def test_lone_surrogates_can_be_sent(serve: Callable[..., Server]) -> None:
    server = serve(status(200))
    deliver("webhook:HOOK:text", "night1", [notice("a\udc80b\ud800")])
    assert server.got[0][2] == b"ab"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (status(404), "HTTP 404"),
        (status(403), "HTTP 403"),
        (status(302, Location="http://elsewhere.example/"), "redirects are not followed"),
        (status(307, Location="https://elsewhere.example/"), "redirects are not followed"),
    ],
)
def test_permanent_http_errors_are_not_retried(
    serve: Callable[..., Server], answer: Callable[..., None], told: str
) -> None:
    server = serve(answer)
    with pytest.raises(Refused, match=told) as found:
        deliver("webhook:HOOK", "night1", [notice()])
    assert len(server.got) == 1
    assert SECRET not in str(found.value)


def test_a_redirect_to_the_same_server_is_not_followed(
    serve: Callable[..., Server],
) -> None:
    server = serve(status(301, Location="/again"))
    with pytest.raises(Refused):
        deliver("webhook:HOOK", "night1", [notice()])
    assert [path for path, *_ in server.got] == [f"/{SECRET}?key={SECRET}"]


def test_an_endless_answer_is_not_read(serve: Callable[..., Server]) -> None:
    gone = threading.Event()

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 30))
        handler.end_headers()
        try:
            for _ in range(1 << 14):
                handler.wfile.write(b"x" * (1 << 16))
        except OSError:
            gone.set()

    serve(endless)
    deliver("webhook:HOOK", "night1", [notice()])
    assert gone.wait(60)


@pytest.mark.parametrize(
    "line", [b"", b"hello\r\n\r\n", b"x" * (1 << 20), b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500]
)
def test_an_answer_that_is_not_http_is_an_error(line: bytes, monkeypatch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.getsockname()[1]}/{SECRET}")

        def answer() -> None:
            with server.accept()[0] as one, contextlib.suppress(OSError):
                one.recv(1 << 16)
                one.sendall(line)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(ConnectionError) as found:
            deliver("webhook:HOOK", "night1", [notice()])
        thread.join()
    assert SECRET not in str(found.value)


@pytest.mark.parametrize("drips", [False, True], ids=["hangs", "sends a byte now and then"])
def test_a_server_that_never_answers_times_out(drips: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(notifications, "TIMEOUT", 0.3)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.getsockname()[1]}/{SECRET}")

        def answer() -> None:
            with server.accept()[0] as one, contextlib.suppress(OSError):
                while not over.wait(0.05):
                    if drips:
                        one.sendall(b"H")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises((TimeoutError, ConnectionError)) as found:
            deliver("webhook:HOOK", "night1", [notice()])
        over.set()
        thread.join()
    assert SECRET not in str(found.value)


def test_the_error_for_a_missing_server_does_not_contain_its_url(monkeypatch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{port}/{SECRET}")
    with pytest.raises(ConnectionError) as found:
        deliver("webhook:HOOK", "night1", [notice()])
    assert str(found.value) == os.strerror(errno.ECONNREFUSED)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (None, "HOOK is not set: it must contain the URL of the webhook"),
        (" ", "HOOK is not set: it must contain the URL of the webhook"),
        (f"http://example.com/{SECRET}", "must begin with https://"),
        (f"ftp://localhost/{SECRET}", "must begin with https://"),
        (f"file:///{SECRET}", "is not a valid URL"),
        (f"https:///{SECRET}", "is not a valid URL"),
        (f"https://me:{SECRET}@example.com/", "is not a valid URL"),
        (f"https://example.com:x/{SECRET}", "is not a valid URL"),
        (f"https://example.com/a b{SECRET}", "is not a valid URL"),
        (f"https://example.com/\r\nX: {SECRET}", "is not a valid URL"),
        (f"https://[::1/{SECRET}", "is not a valid URL"),
        (f"http://localhost.example.com/{SECRET}", "must begin with https://"),
    ],
)
def test_an_unsafe_url_is_rejected_and_not_shown(url: str | None, told: str) -> None:
    with pytest.raises(ValueError, match="HOOK") as found:
        webhook_url("HOOK", {} if url is None else {"HOOK": url})
    assert told in str(found.value)
    assert SECRET not in str(found.value)


@pytest.mark.parametrize(
    "url", ["https://example.com", "http://localhost:80/x", "http://[::1]:8/x", "http://127.0.0.1"]
)
def test_https_and_localhost_urls_are_accepted(url: str) -> None:
    assert webhook_url("HOOK", {"HOOK": url}) == url


# -- mail and desktop ------------------------------------------------------------------------------


def program(folder: Path, name: str, does: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_mail_goes_to_sendmail_and_job_output_adds_no_header(programs: Path) -> None:
    program(programs, "sendmail", f'echo "$@" > {programs}/words; cat > {programs}/mail')
    deliver("mail:me@uni.edu", "night1\nBcc: x@y.z", [notice(f"{HOSTILE}\n.\nGrüße")])
    assert (programs / "words").read_text() == "-i -- me@uni.edu\n"
    mail = message_from_bytes((programs / "mail").read_bytes(), policy=policy.default)
    assert mail["To"] == "me@uni.edu"
    assert mail["Bcc"] is None
    assert mail["Subject"].startswith("night1 Bcc: x@y.z: ")
    body = mail.get_content()
    assert "Bcc: all@uni.edu\n.\nGrüße" in body
    assert not {*"\x00\x07\x1b\r\u202e"} & {*body}


def test_a_sendmail_that_fails_or_hangs_is_an_error(programs: Path, monkeypatch: Any) -> None:
    program(programs, "sendmail", "exit 75")
    with pytest.raises(RuntimeError, match="exit code 75"):
        deliver("mail:me", "night1", [notice()])
    monkeypatch.setattr(notifications, "TIMEOUT", 0.2)
    program(programs, "sendmail", "exec sleep 600")
    with pytest.raises(TimeoutError, match="sendmail"):
        deliver("mail:me", "night1", [notice()])


def test_a_missing_sendmail_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications.shutil, "which", lambda *args, **more: None)
    with pytest.raises(Refused, match="sendmail not found"):
        deliver("mail:me", "night1", [notice()])


def test_desktop_notifications_have_no_markup_and_no_options(programs: Path) -> None:
    program(programs, "notify-send", f'printf "%s|" "$@" > {programs}/words')
    deliver("desktop", "-t", [notice("<b>x</b> & \x1b[1m")])
    words = (programs / "words").read_text()
    assert words == "--app-name=ensemble|--|-t|&lt;b&gt;x&lt;/b&gt; &amp; [1m|"


def test_without_a_desktop_the_bell_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications.shutil, "which", lambda *args, **more: None)
    rung: list[str] = []
    monkeypatch.setattr(notifications, "_ring", rung.append)
    deliver("desktop", "night1", [notice()])
    deliver("bell", "night1", [notice()])
    assert rung == ["desktop", "bell"]


def test_harmless_text_keeps_its_lines_and_letters() -> None:
    assert sanitize("T = 2.3 ± 0.1\n\tγ\r\nend") == "T = 2.3 ± 0.1\n    γ\nend"


# -- the notifier ----------------------------------------------------------------------------------


class Sent:
    """Recorder of the deliveries and events of a notifier; both can be awaited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *fails: Exception) -> None:
        self.sent: queue.SimpleQueue[tuple[str, list[str]]] = queue.SimpleQueue()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._fails = list(fails)
        monkeypatch.setattr(notifications, "deliver", self._deliver)
        self.notifier = Notifier("night1", self._take, float)

    def _take(self, events: Sequence[Event]) -> None:
        for each in events:
            self.events.put(each)

    def _deliver(self, address: str, run: str, notices: list[Notify]) -> None:
        self.sent.put((address, [each.message for each in notices]))
        if self._fails:
            raise self._fails.pop(0)

    def told(self) -> Delivered:
        event = self.events.get(timeout=60)
        assert isinstance(event, Delivered)
        return event


def test_messages_to_one_address_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "MERGED", 3600.0)
    test = Sent(monkeypatch)
    test.notifier.send(notice("a", "bell", notice="n1"))
    assert test.told() == Delivered(0.0, ("n1",), "bell")
    test.notifier.send(notice("b", "bell", notice="n2"))
    test.notifier.send(notice("c", "bell", "mail:me", notice="n3"))
    assert test.told() == Delivered(0.0, ("n3",), "mail:me")  # another address does not wait
    assert test.events.empty()
    test.notifier.send_now()
    assert test.told() == Delivered(0.0, ("n2", "n3"), "bell")
    told = [test.sent.get(timeout=60) for _ in range(3)]
    assert told == [("bell", ["a"]), ("mail:me", ["c"]), ("bell", ["b", "c"])]


def test_an_address_that_hangs_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    test, over = Sent(monkeypatch), threading.Event()

    def hangs(address: str, run: str, notices: list[Notify]) -> None:
        if address == "mail:me":
            over.wait(60)

    monkeypatch.setattr(notifications, "deliver", hangs)
    test.notifier.send(notice("a", "mail:me", "bell"))
    assert test.told().to == "bell"
    over.set()
    assert test.told().to == "mail:me"


def test_delivery_fails_after_three_attempts_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test = Sent(monkeypatch, *(OSError("HTTP 500") for _ in range(3)))
    test.notifier.send_now()
    test.notifier.send(notice("a", "bell"))
    assert test.told() == Delivered(0.0, ("notice-1",), "bell", "HTTP 500 (3 tries)")
    assert [test.sent.get(timeout=60)[1] for _ in range(3)] == [["a"]] * 3
    test.notifier.send(notice("b", "bell", notice="n2"))
    assert test.told() == Delivered(0.0, ("n2",), "bell")


def test_permanent_failures_are_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    test = Sent(monkeypatch, Refused("HTTP 404"))
    test.notifier.send(notice("a", "bell"))
    assert test.told().error == "HTTP 404"
    assert test.sent.get(timeout=60) == ("bell", ["a"])
    assert test.sent.empty()
