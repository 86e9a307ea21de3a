"""Lines of the ledger: their checksums, and the state of a job that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from ensemble_core.local.protocol import line_job, line_time


class LedgerJob:
    """A job that is not over, as its lines in the ledger describe it."""

    __slots__ = (
        *("data", "draining", "fatal", "gpus", "launched", "names", "newest", "pids", "started"),
        "up",
    )

    def __init__(self) -> None:
        self.data: Mapping[str, Any] | None = None
        self.names: set[str] = set()
        self.fatal = False
        #: Whether the supervisor has ended the job because its allocation ended.
        self.draining = False
        self.gpus: tuple[str, ...] = ()
        #: Whether the job's processes were spawned, or were about to be.
        self.launched = False
        #: Process ids of the job's tasks.
        self.pids: tuple[int, ...] = ()
        self.started = 0.0
        #: The time of the job's last event.
        self.newest = 0.0
        #: Uptime of the machine when ``pids`` was written. A later process can have the same id.
        self.up = 0.0

    def take(self, message: list[Any]) -> None:
        name, context = message[3], message[4]
        self.names.add(name)
        self.newest = message[2]
        if name == "submit":
            self.data = message[5] if len(message) > 5 else None
        elif name == "alloc":
            self.gpus = tuple(context.get("gpus", ()))
            self.launched = True
        elif name == "start":
            self.started = message[2]
            if len(message) > 6 and message[6]:
                self.up, self.pids = message[5], tuple(message[6])
        elif name == "exception":
            self.fatal = self.fatal or context.get("severity") == 0


def with_checksum(text: bytes) -> bytes:
    """Return a line with its checksum, as in the file."""
    return b"%08x %b" % (crc32(text), text)


def strip_checksum(raw: bytes) -> bytes:
    """Return a line of the file without its checksum. Raises ``ValueError`` if it is damaged."""
    text = raw[9:]
    if raw[:9] == b"%08x " % crc32(text):
        return text
    if raw.startswith(b'["v",'):
        return raw
    raise ValueError("a line does not match its checksum")


def is_newer(raw: bytes, wanted: Mapping[str, float]) -> bool:
    """Return True if a line is an event of a job in ``wanted``, later than ``wanted[job]``."""
    try:
        text = raw.decode("ascii")
        name = line_job(text)
        return name is not None and name in wanted and line_time(text) > wanted[name]
    except ValueError:
        return False  # a damaged line
