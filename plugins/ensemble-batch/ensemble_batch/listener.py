"""TCP port where wrapper scripts report that their jobs have started or ended.

Anyone on the network may connect. So each connection is limited to some seconds and one short line.
"""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from ensemble_batch.reports import LONGEST
from ensemble_core import UsageError

#: Maximum number of connections, and seconds for each.
_MOST, _SECONDS = 1024, 10.0


def address_towards(host: str) -> str:
    """Return this machine's address on the network route to ``host``. Sends nothing."""
    for name in (host, socket.gethostname()):
        with suppress(OSError, UnicodeError):
            for family, kind, _, _, address in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM):
                with suppress(OSError), socket.socket(family, kind) as probe:
                    probe.connect(address)
                    return str(probe.getsockname()[0])
    return "127.0.0.1"


def address_option(text: str) -> tuple[str, int] | None:
    """Parse the option ``listen``: an address (empty: find one) and a port (0: any), or ``None``.

    Raises :class:`UsageError`.

    >>> address_option("10.0.0.7:9000"), address_option("auto"), address_option("none")
    (('10.0.0.7', 9000), ('', 0), None)
    """
    if text == "none":
        return None
    if text == "auto":
        return "", 0
    address, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in address and not address.endswith("]")):
        return text.strip("[]"), 0  # just a name, or an IPv6 address
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"listen={text}: {port!r} is not a port",
            hint="use -o listen=ADDRESS or -o listen=ADDRESS:PORT",
            code="bad-option",
        )
    return address.strip("[]"), int(port)


class _Connection:
    __slots__ = ("began", "data", "socket")

    def __init__(self, connected: socket.socket, began: float) -> None:
        self.socket = connected
        self.began = began
        self.data = b""


class Listener:
    """Listens on ``address`` and ``port`` (0: any) for one-line reports.

    The callback ``take`` is called with each line and returns whether the report was recorded.
    Raises :class:`OSError` if the address cannot be used.
    """

    def __init__(self, address: str, port: int, take: Callable[[bytes], bool]) -> None:
        self._take = take
        self._connections: dict[int, _Connection] = {}
        # Reserve file descriptors for the run's files and the queue's commands.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._room = _MOST if limit == resource.RLIM_INFINITY else limit // 4
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address, port))
            self._socket.listen(1024)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept)
        self._ended, self._end = socket.socketpair()
        self._selector.register(self._ended, selectors.EVENT_READ, lambda: None)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:  # no connection, or no free descriptor: it stays in the backlog
                return
            now = time.monotonic()
            most = min(_MOST, self._room)
            if len(self._connections) >= most:
                self._expire(now)
            if len(self._connections) >= most:
                connected.close()
                continue
            connected.setblocking(False)
            connection = _Connection(connected, now)
            self._connections[connected.fileno()] = connection
            self._selector.register(
                connected, selectors.EVENT_READ, lambda each=connection: self._read(each)
            )

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(LONGEST)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        connection.data += data
        line, end, _ = connection.data.partition(b"\n")
        if end:
            # A wrapper that receives no ``ok`` writes its report to a file.
            known = len(line) <= LONGEST and self._take(line)
            with suppress(OSError):
                connection.socket.send(b"ok\n" if known else b"no\n")
        if end or not data or len(connection.data) > LONGEST:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _expire(self, now: float) -> None:
        for connection in list(self._connections.values()):
            if now - connection.began > _SECONDS:
                self._drop(connection)

    def listen(self) -> None:
        """Accept reports until another thread calls :meth:`close`."""
        ended, tidy_at = False, 0.0
        while not ended:
            for key, _ in self._selector.select(_SECONDS):
                ended = ended or key.fileobj is self._ended
                key.data()
            if (now := time.monotonic()) > tidy_at:
                self._expire(now)
                tidy_at = now + 1.0
        for connection in list(self._connections.values()):
            self._drop(connection)
        for each in (self._socket, self._ended, self._selector):
            each.close()

    def close(self) -> None:
        """End :meth:`listen` and release the port."""
        self._end.close()
