"""Delivers a message to one address: the terminal bell, the desktop, sendmail, or a webhook.

A message can contain output of jobs, so control characters and mentions of whole channels
(``@everyone``) are removed. Errors never contain a URL, because the journal stores them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import unicodedata
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from ensemble_core.model.decisions import Notify
from ensemble_core.model.notification_addresses import webhook_of
from ensemble_core.runtime.webhook_url import webhook_url

#: Timeout of one attempt in seconds.
TIMEOUT = 10.0
#: Maximum length of a message. Discord accepts 2,000 characters.
_LONGEST = {"discord": 1900}
_USUAL, _LONGEST_SUBJECT = 20_000, 150
#: Maximum number of lines in a merged message.
_SHOWN = 50
#: Mentions of many people: in Discord and Mattermost, and in Slack (``<!channel>``, ``<@ID>``).
_MENTION = re.compile(r"(?<=@)(?=everyone|here|all|channel)|(?<=<)(?=[!@#])", re.IGNORECASE)


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
    try:
        return not _run([program, "--app-name=ensemble", "--", run, text[:2000]])
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run(command: Sequence[str], given: bytes = b"") -> int:
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
    except subprocess.TimeoutExpired:
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
