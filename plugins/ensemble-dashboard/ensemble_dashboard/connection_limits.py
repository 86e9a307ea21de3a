"""Limits on who may connect to the dashboard, before a request has shown the token.

Every user of this machine can connect to a port. Without limits, another user could take all
connections or fill the disk with error messages.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import resource
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds until the first request must be complete.
_FIRST_REQUEST = 10.0
#: Seconds between two error messages.
_PAUSE = 60.0
#: How ``/proc/net/tcp6`` begins an IPv4 address (``::ffff:``).
_MAPPED = "0" * 16 + f"{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"


def _most_connections() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 256 if limit == resource.RLIM_INFINITY else min(256, limit // 4)


class GuardedConnection(H11Protocol):
    """A connection from this user or root, of which there are at most 256."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Drop the connection of another user, and one too many."""
        super().connection_made(transport)
        if len(self.connections) > _most_connections() or not _is_ours(transport):
            transport.abort()
        else:
            self.loop.call_later(_FIRST_REQUEST, self._expire)

    def _expire(self) -> None:
        if getattr(self, "cycle", None) is None:  # no complete request so far
            self.transport.abort()


def _is_ours(transport: asyncio.Transport) -> bool:
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not isinstance(own, tuple):
        return True  # a Unix socket, which only this user can open
    uid = uid_of_peer(peer, own) if isinstance(peer, tuple) else None
    return uid is None or uid in (0, os.geteuid())


def uid_of_peer(
    peer: tuple[Any, ...], own: tuple[Any, ...], net: Path = Path("/proc/self/net")
) -> int | None:
    """Return the user id at the other end of a connection on this machine.

    ``peer`` and ``own`` are the addresses and ports of its two ends: other addresses have the same
    ports. Returns ``None`` if the system does not list connections, and -1 if it does not list this
    one, because it has been closed.
    """
    ends = [_end(*peer[:2]), _end(*own[:2])]
    found = None
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(net / name, encoding="ascii") as lines:
            found = -1
            for line in lines:
                fields = line.split()
                if [field.removeprefix(_MAPPED) for field in fields[1:3]] == ends:
                    return int(fields[7])
    return found


def _end(address: str, port: int) -> str:
    """Return one end of a connection as ``/proc/net/tcp`` writes it, in words of the machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    words = (ip.packed[at : at + 4] for at in range(0, len(ip.packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


def report_errors_rarely(loop: asyncio.AbstractEventLoop) -> None:
    """Print unexpected errors of the server in one line, at most one in a minute."""
    last = -_PAUSE

    def report(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PAUSE:
            last = now
            error = context.get("exception")
            what = f"{context['message']}{f': {error}' if error else ''}"
            print(f"warning: {what} (further errors of this minute are not shown)", file=sys.stderr)

    loop.set_exception_handler(report)
