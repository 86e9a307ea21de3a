"""Settings of the service, and the gRPC options they imply. Made by the command line."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MAX_REQUEST",
    "Settings",
    "give_memory_back",
    "grpc_options",
    "raise_file_limit",
    "trim_memory",
]

#: Bytes of a message that is read: a little more than members and runs put into one
#: (``wire.MOST_BYTES``), for as much may be held of each that does not end.
MAX_REQUEST = 1_114_112
#: Connections that are kept for files and other things than callers.
_SPARE_FILES = 128
#: Bytes of a stream that may be sent before they are read. Over a link of 20 ms each way a member
#: sends 20,000 events a second with it, with twice as much 37,000, with half of it 11,000.
_AHEAD = 32_768

#: Options of glibc's ``mallopt``: blocks of so many bytes are mapped, and unmapped once they are
#: freed (M_MMAP_THRESHOLD); so many free bytes are kept at the end of the heap (M_TRIM_THRESHOLD);
#: heaps of threads (M_ARENA_MAX).
_MALLOC = {-3: 65_536, -1: 1_000_000, -8: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the service. Times are in seconds.

    ``state`` is the folder of what was answered, ``tokens`` the file of tokens (else there) and
    ``tls`` the folder of the certificates (else below it). Without certificates it speaks
    plaintext, which has to be to this machine only, or ``insecure``. ``legacy`` are members whose
    requests of the first implementation need no token. ``rate`` is how many single requests a
    second one token may make (twice that at once), 0 for any number. ``deadline`` is for each
    single request, ``handshake`` for each new connection, and
    ``grace`` for what is under way when the service stops.
    """

    state: Path
    host: str = "127.0.0.1"
    port: int = 50051
    tokens: Path | None = None
    tls: Path | None = None
    insecure: bool = False
    legacy: tuple[str, ...] = ()
    max_message: int = MAX_REQUEST
    rate: float = 100.0
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    deadline: float = 60.0
    handshake: float = 10.0
    grace: float = 5.0

    @property
    def tls_folder(self) -> Path:
        """Where the certificates are, or would be."""
        return self.tls or self.state / "tls"

    @property
    def token_path(self) -> Path:
        """The file of tokens."""
        return self.tokens or self.state / "tokens.json"


def raise_file_limit() -> None:
    """Let the service have as many connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 1_048_576)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_memory_back() -> None:
    """Have memory that is not used any more given back to the system (glibc). Else what a large
    message had stays with this process, between what is still used: twice as much as is used."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for number, value in _MALLOC.items():
            mallopt(number, value)


def trim_memory() -> None:
    """Give what is free between what is used back to the system as well (glibc), some milliseconds
    after a flood: of itself only the end of the heap goes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def grpc_options(settings: Settings) -> list[tuple[str, int]]:
    """The gRPC options of the server."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = 1_000_000 if files == resource.RLIM_INFINITY else files
    return [
        # The length is told first: of what is larger, nothing more is read.
        ("grpc.max_receive_message_length", settings.max_message),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.absolute_max_metadata_size", 32 * 1024),
        ("grpc.max_concurrent_streams", 128),
        # Requests that have come and were not begun with, each with what a stream may be sent: from
        # so many on some are cancelled, from so many all. Clients ask again.
        ("grpc.server.max_pending_requests", 200),
        ("grpc.server.max_pending_requests_hard_limit", 400),
        # What is sent before it is read waits in memory, for each connection: not the megabytes
        # that gRPC makes room for where a connection is fast, and no frame of as many.
        ("grpc.http2.lookahead_bytes", _AHEAD),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.max_frame_size", 16_384),
        # Connections that never say who they are: not for long, and never all there can be.
        ("grpc.server_handshake_timeout_ms", int(settings.handshake * 1000)),
        ("grpc.max_allowed_incoming_connections", max(16, most - _SPARE_FILES)),
        ("grpc.max_connection_idle_ms", 300_000),
        # New requests go on a new connection after an hour; streams that are open go on.
        ("grpc.max_connection_age_ms", 3_600_000),
        # A caller that is gone without a word is noticed.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Two services on one port would share the callers between them.
        ("grpc.so_reuseport", 0),
    ]
