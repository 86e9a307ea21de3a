"""Limits on who may connect to the dashboard, before a request has shown the token.

Every user of this machine can connect to a port. Without limits, another user could take all
connections or fill the disk with error messages.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["GuardedConnection", "report_errors_rarely", "uid_of_peer"]

#: Seconds until the first request must be complete.
_FIRST_REQUEST = 10.0
#: Seconds between two error messages.
_PAUSE = 60.0


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
    uid = uid_of_peer(peer[1], own[1]) if isinstance(peer, tuple) else None
    return uid is None or uid in (0, os.geteuid())


def uid_of_peer(port: int, own: int, net: Path = Path("/proc/self/net")) -> int | None:
    """Return the user id at the other end of a connection on this machine.

    ``port`` is the other end's port, and ``own`` is ours. Returns ``None`` if the system does not
    list connections, and -1 if it does not list this one, because it has been closed.
    """
    found = None
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(net / name, encoding="ascii") as lines:
            found = -1
            for line in lines:
                fields = line.split()
                here, there = fields[1].rpartition(":")[2], fields[2].rpartition(":")[2]
                if (here, there) == (f"{port:04X}", f"{own:04X}"):
                    return int(fields[7])
    return found


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
