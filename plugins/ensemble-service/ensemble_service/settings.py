"""Settings of the service process: command line, gRPC, memory and open files."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from dataclasses import dataclass
from pathlib import Path

#: Maximum size of a message to read, in bytes: slightly more than members and runs send
#: (``wire.MOST_BYTES``), but no more, because each unfinished message may hold that much memory.
MAX_REQUEST = 1_114_112
#: File descriptors that are reserved for files and other uses.
_SPARE_FILES = 128
#: Window of a stream: number of bytes that may be sent before they are read. Over a link of 20 ms
#: each way, a member sends 20,000 events a second with this window, 37,000 with twice the window,
#: and 11,000 with half of it.
_AHEAD = 32_768

#: Options of glibc's ``mallopt``: block size from which blocks are mapped, and unmapped when freed
#: (M_MMAP_THRESHOLD); free bytes kept at the end of the heap (M_TRIM_THRESHOLD); number of heaps
#: for threads (M_ARENA_MAX).
_MALLOC = {-3: 65_536, -1: 1_000_000, -8: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings from the command line. Times are in seconds."""

    #: Folder of the answers to resize requests.
    state: Path
    host: str = "127.0.0.1"
    port: int = 50051
    #: File of tokens, by default in ``state``.
    tokens: Path | None = None
    #: Folder of the certificates, by default in ``state``. Without certificates: plaintext.
    tls: Path | None = None
    #: Whether plaintext to other machines is allowed.
    insecure: bool = False
    #: Members that clients of ensemble-python can resize without a token.
    legacy: tuple[str, ...] = ()
    #: In bytes.
    max_message: int = MAX_REQUEST
    #: Single requests per second and token, with bursts of twice as many. 0: no limit.
    rate: float = 100.0
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    #: Time limit of single requests.
    deadline: float = 60.0
    #: Time limit of new connections.
    handshake: float = 10.0
    #: Time limit of requests in progress when the service stops.
    grace: float = 5.0

    @property
    def tls_folder(self) -> Path:
        """The folder of the certificates, which may not exist."""
        return self.tls or self.state / "tls"

    @property
    def token_path(self) -> Path:
        """The file of tokens."""
        return self.tokens or self.state / "tokens.json"


def raise_file_limit() -> None:
    """Raise the limit on open files to what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 1_048_576)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_memory_back() -> None:
    """Set glibc's ``malloc`` so that it returns freed memory to the system.

    Otherwise, fragmentation by large messages doubles the size of the process.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for number, value in _MALLOC.items():
            mallopt(number, value)


def trim_memory() -> None:
    """Return all free memory to the system. Takes milliseconds after a flood of messages.

    Without this call, glibc returns only the free memory at the end of the heap.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def grpc_options(settings: Settings) -> list[tuple[str, int]]:
    """Return the server's gRPC options."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = 1_000_000 if files == resource.RLIM_INFINITY else files
    return [
        # A message starts with its length. Nothing more is read of a message that is too long.
        ("grpc.max_receive_message_length", settings.max_message),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.absolute_max_metadata_size", 32 * 1024),
        ("grpc.max_concurrent_streams", 128),
        # Limits on requests that wait to start, each of which holds a stream window. Above the
        # first limit, gRPC cancels some new requests; above the second, all of them. Clients retry.
        ("grpc.server.max_pending_requests", 200),
        ("grpc.server.max_pending_requests_hard_limit", 400),
        # Limit the unread data per connection. On fast connections, gRPC would use megabytes, and
        # frames of that size.
        ("grpc.http2.lookahead_bytes", _AHEAD),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.max_frame_size", 16_384),
        # Limit the time and number of connections that never authenticate.
        ("grpc.server_handshake_timeout_ms", int(settings.handshake * 1000)),
        ("grpc.max_allowed_incoming_connections", max(16, most - _SPARE_FILES)),
        ("grpc.max_connection_idle_ms", 300_000),
        # After an hour, new requests use a new connection; open streams continue.
        ("grpc.max_connection_age_ms", 3_600_000),
        # Detect dead connections.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Do not let two services share one port, and so the clients.
        ("grpc.so_reuseport", 0),
    ]
