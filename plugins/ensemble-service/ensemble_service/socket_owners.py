"""Owners of listening sockets on this machine: checks who would receive a token in plaintext."""

from __future__ import annotations

import os
import struct
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

#: The kernel's tables of sockets, and the state number of a listening socket in them.
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


# Any user may listen on a free loopback port and wait for tokens. On Linux, the kernel reports the
# owner of a listening socket (/proc/net/tcp, tcp6).
def foreign_owner(host: str, port: int) -> str | None:
    """Return an error text if another user (except root) listens on this loopback address.

    Returns ``None`` otherwise.
    """
    for address, owner in _listeners(host, port):
        if owner not in (os.geteuid(), 0):
            return f"user {owner} listens on {address}, port {port}"
    return None


def is_port_free(host: str, port: int) -> bool:
    """Return whether no process listens on the port (yet); ``False`` if unknown."""
    return not _listeners(host, port) and any(table.exists() for table in _TABLES)


def _listeners(host: str, port: int) -> list[tuple[IPv4Address | IPv6Address, int]]:
    """Return the listening addresses, each with the owner of its socket."""
    wanted = _addresses(host)
    found = []
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            where, _, number = fields[1].partition(":")
            if fields[3] == _LISTENS and int(number, 16) == port:
                address = _parse_address(where)
                if address in wanted or not int(address):
                    found.append((address, int(fields[7])))
    return found


def _addresses(host: str) -> set[IPv4Address | IPv6Address]:
    """Return the addresses that a connection to this host may use."""
    bare = host.strip("[]").partition("%")[0]
    found: set[IPv4Address | IPv6Address] = set()
    for kind in (IPv4Address, IPv6Address):
        try:
            found.add(kind(bare))
        except ValueError:
            continue
    found = found or {IPv4Address("127.0.0.1"), IPv6Address("::1")}
    return found | {IPv6Address(f"::ffff:{each}") for each in found if each.version == 4}


def _parse_address(where: str) -> IPv4Address | IPv6Address:
    """Parse an address in the kernel's format: four-byte words in native byte order."""
    words = [int(where[at : at + 8], 16) for at in range(0, len(where), 8)]
    data = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return IPv4Address(data)
    return IPv6Address(data)
