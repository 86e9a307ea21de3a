"""Notifications: delivers messages of a run to the terminal, the desktop, by mail and to webhooks.

Each address has its own thread, so an address that hangs does not delay the others. Messages to the
same address within ``MERGED`` seconds are merged. A failed delivery is retried.

A message can contain output of jobs, so control characters and mentions of whole channels
(``@everyone``) are removed. The URLs of webhooks are in environment variables and never in files.
Errors never contain a URL, because the journal stores them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ensemble_core.model.decisions import Notify
from ensemble_core.model.events import Delivered, Event
from ensemble_core.model.notification_addresses import webhook_of

if TYPE_CHECKING:
    from http.client import HTTPConnection

#: For how many seconds after a message further messages to the same address are collected.
MERGED = 30.0
#: Backoff in seconds before the second and the third attempt. At the end of the run, it is skipped.
_WAITS = (1.0, 4.0)


#: Timeout of one attempt in seconds.
TIMEOUT = 10.0
#: Maximum length of a message. Discord accepts 2,000 characters.
_LONGEST = {"discord": 1900}
_USUAL, _LONGEST_SUBJECT = 20_000, 150
#: Maximum number of lines in a merged message.
_SHOWN = 50
#: Mentions of many people: in Discord and Mattermost, and in Slack (``<!channel>``, ``<@ID>``).
_MENTION = re.compile(r"(?<=@)(?=everyone|here|all|channel)|(?<=<)(?=[!@#])", re.IGNORECASE)
#: Hosts to which plain http is safe.
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


class Notifier:
    """Delivers messages, and calls ``put`` with an event ``Delivered`` for each delivery."""

    def __init__(
        self, run: str, put: Callable[[Sequence[Event]], None], clock: Callable[[], float]
    ) -> None:
        self._run = run
        self._put = put
        self._clock = clock
        self._queues: dict[str, queue.SimpleQueue[Notify | None]] = {}
        self._lock = threading.Lock()
        self._hurry = threading.Event()

    def send(self, notice: Notify) -> None:
        """Deliver a message to its addresses. Returns immediately; safe from any thread."""
        with self._lock:
            for address in notice.to:
                if address not in self._queues:
                    own: queue.SimpleQueue[Notify | None] = queue.SimpleQueue()
                    try:
                        threading.Thread(
                            target=self._work, args=(address, own), name="notify", daemon=True
                        ).start()
                    except RuntimeError as error:  # the system cannot start more threads
                        self._report_delivery([notice], address, str(error))
                        continue
                    self._queues[address] = own
                self._queues[address].put(notice)

    def send_now(self) -> None:
        """Send collected messages now, without backoff. Called at the end of the run."""
        self._hurry.set()
        with self._lock:
            for each in self._queues.values():
                each.put(None)

    def _work(self, address: str, notices: queue.SimpleQueue[Notify | None]) -> None:
        """Send the messages for one address, until the process ends."""
        earliest = 0.0
        while True:
            found = [notices.get()]
            while not self._hurry.is_set() and (left := earliest - time.monotonic()) > 0:
                try:
                    found.append(notices.get(timeout=left))
                except queue.Empty:
                    break
            while not notices.empty():
                found.append(notices.get())
            sent = [each for each in found if each is not None]
            if sent:
                self._report_delivery(sent, address, self._deliver(address, sent))
                earliest = time.monotonic() + MERGED

    def _deliver(self, address: str, notices: Sequence[Notify]) -> str:
        """Deliver messages, with up to three attempts. Return an empty text, or why this failed."""

        failed = ""
        for wait in (0.0, *_WAITS):
            if failed:
                self._hurry.wait(wait)
            try:
                deliver(address, self._run, notices)
                return ""
            except Refused as error:
                return str(error)
            except Exception as error:  # an error in a library must not end the run
                failed = str(error) or type(error).__name__
        return f"{failed} (3 tries)"

    def _report_delivery(self, notices: Sequence[Notify], address: str, error: str) -> None:
        names = tuple(each.notice for each in notices)
        self._put((Delivered(self._clock(), names, address, error),))


class Refused(Exception):
    """Error: the delivery failed, and a retry would not help."""


def sanitize(text: str) -> str:
    """Return the text without control characters, bidirectional marks and lone surrogates.

    Line ends are kept.

    >>> sanitize("a\\x1b[31mb\\r\\nc\\u202e")
    'a[31mb\\nc'
    """
    lines = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(each for each in lines if each == "\n" or unicodedata.category(each)[0] != "C")


def deliver(address: str, run: str, notices: Sequence[Notify]) -> None:
    """Deliver several notifications as one message.

    Raise an error with the reason if that fails.
    """
    lines = [sanitize(each.message) for each in notices[:_SHOWN]]
    if len(notices) > _SHOWN:
        lines.append(f"… and {len(notices) - _SHOWN} more")
    text, run = "\n".join(lines)[:_USUAL], sanitize(run)
    hook = webhook_of(address)
    if hook is not None:
        _webhook(*hook, text, run, notices)
    elif address.startswith("mail:"):
        _mail(address.removeprefix("mail:"), text, run)
    elif address == "bell" or not _on_desktop(text, run):
        _ring(address)


def _ring(address: str) -> None:
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        lacks = "no terminal" if address == "bell" else "neither notify-send nor a terminal"
        raise Refused(f"unavailable: {lacks}") from None
    try:
        os.write(terminal, b"\a")
    finally:
        os.close(terminal)


def _on_desktop(text: str, run: str) -> bool:
    """Show a notification on the desktop. Return False if there is no desktop."""
    program = shutil.which("notify-send")
    if program is None:
        return False
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # notify-send reads markup
        text = text.replace(sign, name)
    from subprocess import TimeoutExpired

    try:
        return not _run([program, "--app-name=ensemble", "--", run, text[:2000]])
    except (OSError, TimeoutExpired):
        return False


def _run(command: Sequence[str], given: bytes = b"") -> int:
    import subprocess

    return subprocess.run(
        command,
        input=given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=TIMEOUT,
        check=False,
    ).returncode


def _mail(to: str, text: str, run: str) -> None:
    from email.message import EmailMessage
    from subprocess import TimeoutExpired

    folders = [*os.get_exec_path(), "/usr/sbin", "/usr/lib"]
    program = shutil.which("sendmail", path=os.pathsep.join(folders))
    if program is None:
        raise Refused("sendmail not found")
    mail = EmailMessage()
    first = text.partition("\n")[0]
    mail["Subject"] = " ".join(f"{run}: {first}".split())[:_LONGEST_SUBJECT]
    mail["To"] = to
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text + "\n")
    try:
        code = _run([program, "-i", "--", to], mail.as_bytes())
    except TimeoutExpired:
        raise TimeoutError(f"sendmail took more than {TIMEOUT:g} s") from None
    except OSError as error:
        raise Refused(f"sendmail: {error.strerror}") from None
    if code:
        raise RuntimeError(f"sendmail ended with exit code {code}")


def _webhook(name: str, form: str, text: str, run: str, notices: Sequence[Notify]) -> None:
    try:
        url = webhook_url(name, os.environ)
    except ValueError as error:
        raise Refused(str(error)) from None
    text = _MENTION.sub("\u200b", text)[: _LONGEST.get(form, _USUAL)]
    kind, body = "application/json", text
    if form == "text":
        kind = "text/plain; charset=utf-8"
    elif form == "discord":
        body = json.dumps({"content": text, "allowed_mentions": {"parse": []}})
    else:
        about: dict[str, str | None] = {"run": run}
        for field in ("rule", "job"):
            values = {getattr(each, field) for each in notices}
            about[field] = values.pop() if len(values) == 1 else None
        body = json.dumps({"text": text, **about})
    status = _post(url, body.encode(), kind)
    if 300 <= status < 400:
        raise Refused(f"HTTP {status}: redirects are not followed")
    if status >= 500 or status in (408, 429):
        raise RuntimeError(f"HTTP {status}")
    if not 200 <= status < 300:
        raise Refused(f"HTTP {status}")


def _post(url: str, body: bytes, kind: str) -> int:
    """Post to a URL and return the status. The body of the response is not read."""
    from http.client import HTTPException

    parts = urlsplit(url)
    connection = _connection(parts.scheme, parts.hostname or "", parts.port)
    late = threading.Event()

    def hang_up() -> None:
        late.set()
        if connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(2)

    # A timeout of the socket is not enough, because the response may arrive byte by byte.
    timer = threading.Timer(TIMEOUT, hang_up)
    timer.daemon = True
    timer.start()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", path, body, {"Content-Type": kind, "User-Agent": "ensemble"})
        return connection.getresponse().status
    except (OSError, HTTPException, ValueError) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise TimeoutError(f"no answer within {TIMEOUT:g} s") from None
        raise ConnectionError(_failure_reason(error)) from None
    finally:
        timer.cancel()
        connection.close()


def _connection(scheme: str, host: str, port: int | None) -> HTTPConnection:
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.request import getproxies, proxy_bypass

    if scheme == "http":
        return HTTPConnection(host, port, timeout=TIMEOUT)
    proxy = getproxies().get("https")
    if not proxy or proxy_bypass(host):
        return HTTPSConnection(host, port, timeout=TIMEOUT)
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = HTTPSConnection(via.hostname or "", via.port or 80, timeout=TIMEOUT)
    headers = {}
    if via.username is not None:
        from base64 import b64encode

        user = f"{unquote(via.username)}:{unquote(via.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + b64encode(user.encode()).decode()
    connection.set_tunnel(host, port or 443, headers)
    return connection


def _failure_reason(error: Exception) -> str:
    """Return the reason why a connection failed, without any part of the URL."""
    import socket
    import ssl

    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'the handshake failed'}"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return f"not an HTTP answer ({type(error).__name__})"


def webhook_url(name: str, environment: Mapping[str, str]) -> str:
    """Return the URL of a webhook from the environment variable ``name``.

    Raises ``ValueError`` if the variable is not set or its URL is not safe. The message does not
    contain the URL.
    """
    url = environment.get(name, "").strip()
    if not url:
        raise ValueError(f"{name} is not set: it must contain the URL of the webhook")
    try:
        parts = urlsplit(url)
        host, sound = parts.hostname, parts.port != 0 and parts.username is None
    except ValueError:
        host, sound = None, False
    if not host or not sound or not (url.isascii() and url.isprintable() and " " not in url):
        raise ValueError(f"the value of {name} is not a valid URL of a webhook")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _HERE):
        raise ValueError(f"the URL in {name} must begin with https:// (http only to localhost)")
    return url
