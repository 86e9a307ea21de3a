"""The server of the ensemble service: its settings, its start, its graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ensemble_core import EnsembleError, Resizer, UsageError
from ensemble_service.access import member_name
from ensemble_service.certificates import has_certificates, server_credentials
from ensemble_service.channel import address, is_loopback
from ensemble_service.legacy_protocol import LegacyServicer
from ensemble_service.monitoring import SERVICE_NAME, Counters, HealthService, MetricsServer
from ensemble_service.proto import ensemble_operator_pb2_grpc, ensemble_pb2_grpc
from ensemble_service.resize_requests import ResizeLog, Resizes
from ensemble_service.router import Router
from ensemble_service.rpc_guard import RpcGuard
from ensemble_service.service_log import tell
from ensemble_service.servicer import EnsembleServicer
from ensemble_service.state_folder import lock_folder
from ensemble_service.tokens import TokenFile

__all__ = ["Service", "Settings", "run", "serving"]

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

_V1 = "ensemble.v1.Ensemble"
_LEGACY = "convergedcomputing.org.grpc.v1.EnsembleOperator"
#: Seconds between checks for removed tokens and silent members.
_SWEEP = 1.0
_SOON = 30.0  # days


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


class Service:
    """The service, which runs on the current event loop from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        settings: Settings,
        resizer: Resizer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.port = 0
        self.metrics_port: int | None = None
        self.secure = False
        self.tokens = TokenFile(settings.token_path, clock)
        self.counters = Counters()
        self.router = Router(_version())
        self._resizer = resizer
        self._clock = clock
        self._serving = False
        self._closing: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Listen. Raises :class:`EnsembleError` before any connection if that is impossible."""
        settings = self.settings
        self._legacy = [member_name(name) for name in settings.legacy]
        credentials = self._credentials()
        taken = UsageError(
            f"another service uses the state folder {settings.state}",
            hint="stop it, or use another folder with --state",
            code="state-in-use",
        )
        lock = lock_folder(settings.state, taken)
        self._closing.append(lambda: os.close(lock))
        try:
            self.tokens.tokens()  # reject an unusable file now
            log = ResizeLog(settings.state / "resizes.sqlite")
            self._resizes = Resizes(self._resizer, log, self.counters, self._clock)
            self._make_server()
            self._listen(credentials)
            if settings.metrics_port is not None:
                metrics = MetricsServer(
                    settings.metrics_host,
                    settings.metrics_port,
                    self.router,
                    self.counters,
                    lambda: self._serving,
                )
                await metrics.start()
                self._closing.append(metrics.close)
                self.metrics_port = metrics.port
            await self._server.start()
        except BaseException:
            self._close()
            raise
        self._health.set(True)
        self._serving = True
        self._sweeper = asyncio.create_task(self._sweep())
        tell(
            "listening",
            host=settings.host,
            port=self.port,
            tls=self.secure,
            resizer=type(self._resizer).__name__ if self._resizer else "",
            tokens=len(self.tokens.tokens()),
            metrics_port=self.metrics_port or "",
        )

    def _credentials(self) -> Any:
        """Return the server credentials; ``None`` for plaintext, if that is allowed."""
        settings = self.settings
        for name, host in (("host", settings.host), ("metrics-host", settings.metrics_host)):
            if not host.strip("[] "):
                raise UsageError(
                    f"--{name} is empty",
                    hint="use 127.0.0.1 for this machine only, or 0.0.0.0 for all interfaces",
                    code="bad-address",
                )
        if has_certificates(settings.tls_folder):
            if settings.insecure:
                raise UsageError(
                    f"--insecure was given, but {settings.tls_folder} has certificates",
                    hint="leave out --insecure, or choose another --tls-dir",
                    code="bad-option",
                )
            credentials, days = server_credentials(settings.tls_folder)
            if days < _SOON:
                tell(
                    "certificate expires soon",
                    "warning",
                    days=round(days, 1),
                    hint="ensemble-server init-tls --renew",
                )
            self.secure = True
            return credentials
        if settings.tls is not None:
            raise UsageError(
                f"no certificate in {settings.tls}",
                hint=f"ensemble-server init-tls --tls-dir {settings.tls}",
                code="no-certificate",
            )
        if not is_loopback(settings.host) and not settings.insecure:
            raise UsageError(
                f"without TLS the service may only listen on this machine, not on {settings.host}",
                cause=f"no certificate in {settings.tls_folder}",
                hint=(
                    "create a certificate with 'ensemble-server init-tls --tls-dir "
                    f"{settings.tls_folder}'; with --insecure everyone on the network path can "
                    "read the tokens"
                ),
                code="no-certificate",
            )
        if not is_loopback(settings.host):
            tell("plaintext: everyone on the network path can read the tokens", "warning")
        return None

    def _make_server(self) -> None:
        settings, names = self.settings, (_V1, _LEGACY, SERVICE_NAME)
        servicer = EnsembleServicer(self.router, self._resizes, self._clock)
        legacy = LegacyServicer(servicer, self._resizes, self._legacy)
        self._guard = RpcGuard(
            self.tokens,
            rate=settings.rate,
            deadline=settings.deadline,
            counters=self.counters,
            # Health checks need no credential, because probes have no token.
            open_services=frozenset((SERVICE_NAME,)),
            stand_ins={
                f"/{_LEGACY}/{method}": legacy.stand_in if self._legacy else None
                for method in ("RequestStatus", "RequestAction")
            },
        )
        options = grpc_options(settings)
        self._server = grpc.aio.server(options=options, interceptors=(self._guard,))
        self._health = HealthService(("", _V1, _LEGACY))
        add: Any = ensemble_pb2_grpc.add_EnsembleServicer_to_server
        add(servicer, self._server)
        add = ensemble_operator_pb2_grpc.add_EnsembleOperatorServicer_to_server
        add(legacy, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)

    def _listen(self, credentials: Any) -> None:
        target = address(self.settings.host, self.settings.port)
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(target)
            else:
                self.port = self._server.add_secure_port(target, credentials)
        except RuntimeError as error:
            raise EnsembleError(
                f"cannot listen on {target}",
                cause=_bind_error(self.settings.host, self.settings.port) or str(error)[:300],
                hint="check whether another service uses this address, or choose another --port "
                "or --host",
                code="cannot-listen",
            ) from None

    async def _sweep(self) -> None:
        """Check long-lived connections at regular intervals."""
        while True:
            await asyncio.sleep(_SWEEP)
            try:
                self.router.sweep(self._clock())
                self._guard.end_streams_of_removed()
                trim_memory()
            except Exception as error:  # an error must not stop the checks
                tell("fault", "error", why=f"{type(error).__name__}: {error}")

    async def stop(self, grace: float | None = None) -> None:
        """Reject new requests, close the streams, wait for requests in progress, and shut down."""
        grace = self.settings.grace if grace is None else grace
        tell("stopping", grace=grace)
        self._serving = False
        self._health.set(False)
        self._sweeper.cancel()
        self.router.close()
        await self._server.stop(grace)
        await self._resizes.close(grace)
        self._close()
        tell("stopped")

    def _close(self) -> None:
        while self._closing:
            self._closing.pop()()


def run(
    settings: Settings,
    resizer: Resizer | None = None,
    ready: Callable[[Service], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. A second signal ends the server without waiting.

    The callback ``ready`` is called once the service listens.
    """
    raise_file_limit()
    give_memory_back()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        signals: asyncio.Queue[int] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, number)
        service = Service(settings, resizer)
        await service.start()
        if ready is not None:
            ready(service)
        await signals.get()
        stopping = asyncio.create_task(service.stop())
        again = asyncio.create_task(signals.get())
        await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            stopping.cancel()
            await service.stop(0)
        again.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stopping

    asyncio.run(main())


@contextlib.contextmanager
def serving(settings: Settings, resizer: Resizer | None = None) -> Iterator[Service]:
    """Run a service in its own thread until the ``with`` block ends.

    The service is not thread-safe: other threads may only read constants such as its ``port``.
    """
    started: list[Service] = []
    failed: list[BaseException] = []
    up = threading.Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def main() -> None:
        service = Service(settings, resizer)
        try:
            await service.start()
            started.append(service)
        finally:
            up.set()
        await over.wait()
        await service.stop()

    def work() -> None:
        try:
            loop.run_until_complete(main())
        except BaseException as error:  # passed to the waiting thread
            failed.append(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work, name="ensemble-service", daemon=True)
    thread.start()
    up.wait()
    try:
        if started:
            yield started[0]
    finally:
        with contextlib.suppress(RuntimeError):  # the loop ended early
            loop.call_soon_threadsafe(over.set)
        thread.join(settings.grace + 10)
    if failed:
        raise failed[0]


def _bind_error(host: str, port: int) -> str:
    """Return the system's reason for a failed bind, because gRPC reports none."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in found:
            with socket.socket(family, kind, protocol) as plug:
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                plug.bind(where)
                plug.listen()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _version() -> str:
    from ensemble_core import __version__

    return __version__


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
