"""Ports for servers that a test starts later, or again."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

#: Linux gives higher ports to connections, which could take one before the server starts.
_PORTS = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return different ports on which nobody listens."""
    chance = random.SystemRandom()  # other tests may have the same seed
    found: set[int] = set()
    while len(found) < count:
        port = chance.choice(_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return [*found]
