"""Monitoring of the service: the gRPC health service, and ``/metrics`` and ``/healthz`` over HTTP.

``/healthz`` returns 200 while the service accepts requests, and 503 while it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from http import HTTPStatus
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from ensemble_core import EnsembleError, UsageError
from ensemble_service.call_errors import Refused
from ensemble_service.router import Router

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_LONGEST_NAME = 200
_STATUS = health_pb2.HealthCheckResponse


# Probes have no token, so nothing that a caller sends may be stored.
class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no types
    """Reports whether the server's gRPC services accept requests."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._serving = False
        self._changed = asyncio.Event()

    def set(self, serving: bool) -> None:
        """Set whether the services accept requests."""
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def _now(self, name: str) -> Any:
        if len(name) > _LONGEST_NAME:
            message = f"a service name has at most {_LONGEST_NAME} characters"
            raise Refused("INVALID_ARGUMENT", message)
        if name not in self._names:
            return _STATUS.SERVICE_UNKNOWN
        return _STATUS.SERVING if self._serving else _STATUS.NOT_SERVING

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Report whether a service accepts requests (gRPC's health check)."""
        status = self._now(request.service)
        if status == _STATUS.SERVICE_UNKNOWN:
            raise Refused("NOT_FOUND", "no service of this name")
        return _STATUS(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Report the state now and on each change (gRPC's health watch)."""
        told, name = None, request.service
        while True:
            changed, status = self._changed, self._now(name)
            if status != told:
                told = status
                yield _STATUS(status=status)
            await changed.wait()


class Counters:
    """Counts finished RPCs by method and status, and finished resizes by outcome."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.resizes: Counter[str] = Counter()


#: Time limit of a request in seconds, from the connection to the last byte of the reply.
_DEADLINE = 5.0
#: Maximum number of connections (if there are more, the oldest is closed), and maximum size of a
#: request's head in bytes.
_MOST, _HEAD = 256, 8 * 1024


class MetricsServer:
    """HTTP server on ``host:port``. Port 0 means any free port."""

    def __init__(
        self, host: str, port: int, router: Router, counters: Counters, healthy: Callable[[], bool]
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise UsageError(
                "metrics need the package 'prometheus-client'",
                cause=str(error),
                hint="pip install 'ensemble-core[service]>=1.0'",
                code="no-prometheus",
            ) from None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(router, counters))
        self._healthy = healthy
        self._host, self.port = host, port
        #: Open connections, oldest first.
        self._asking: dict[asyncio.Task[Any], None] = {}

    async def start(self) -> None:
        """Listen. Raises :class:`EnsembleError`."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._server = await asyncio.start_server(
                self._handle_connection,
                self._host.strip("[]"),
                self.port,
                family=family,
                limit=_HEAD,
            )
        except OSError as error:
            raise EnsembleError(
                f"cannot listen on {self._host}:{self.port} for metrics",
                cause=error.strerror or str(error),
                hint="choose another port with --metrics-port",
                code="cannot-listen",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        for task in self._asking:
            task.cancel()

    async def _handle_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._asking) >= _MOST:
            oldest = next(iter(self._asking))
            del self._asking[oldest]
            oldest.cancel()
        self._asking[task] = None
        # The client disconnected, or does not speak HTTP: not our fault.
        with contextlib.suppress(OSError, ValueError, asyncio.CancelledError, asyncio.TimeoutError):
            try:
                await asyncio.wait_for(self._serve(reader, writer), _DEADLINE)
            finally:
                self._asking.pop(task, None)
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            status, kind, body = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "text/plain", b""
        else:
            status, kind, body = self._answer(head)
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        bare = "\r\n".join(lines) + "\r\n\r\n"
        writer.write(bare.encode("latin-1") + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _answer(self, head: str) -> tuple[HTTPStatus, str, bytes]:
        request, *lines = head.split("\r\n")
        method, _, target = request.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        plain = "text/plain; charset=utf-8"
        if method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, plain, b"only GET is answered\n"
        if path in ("/healthz", "/readyz"):
            if self._healthy():
                return HTTPStatus.OK, plain, b"serving\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, plain, b"stopping\n"
        if path != "/metrics":
            return HTTPStatus.NOT_FOUND, plain, b"there are /metrics and /healthz\n"
        from prometheus_client.exposition import choose_encoder

        accepted = [line[7:].strip() for line in lines if line.lower().startswith("accept:")]
        encode, kind = choose_encoder(", ".join(accepted))
        return HTTPStatus.OK, kind, encode(self._registry)


class _Collector:
    """Collects the service's metrics on each scrape."""

    def __init__(self, router: Router, counters: Counters) -> None:
        self._router, self._counters = router, counters

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily(
            "ensemble_service_requests", "Finished calls", labels=("method", "code")
        )
        # Copy the counters, because the event loop keeps counting.
        for (method, code), count in self._counters.requests.copy().items():
            requests.add_metric((method, code), count)
        yield requests
        resizes = CounterMetricFamily(
            "ensemble_service_resizes", "Resize requests", labels=("outcome",)
        )
        counted = self._counters.resizes.copy()
        for outcome in ("granted", "partial", "denied"):
            resizes.add_metric((outcome,), counted[outcome])
        yield resizes
        states = list(self._router.members.values())
        yield GaugeMetricFamily(
            "ensemble_service_members_alive",
            "Connected members",
            sum(state.alive for state in states),
        )
        yield GaugeMetricFamily(
            "ensemble_service_members_known", "Members that ever connected", len(states)
        )
        gauges = GaugeMetricFamily(
            "ensemble_member_gauge",
            "Gauges of a connected member's queue, by path",
            labels=("member", "path"),
        )
        for state in states:
            for path, value in state.gauges.items() if state.alive else ():
                gauges.add_metric((state.name, path), value)
        yield gauges
        yield GaugeMetricFamily("ensemble_service_runs", "Connected runs", len(self._router.runs))
        yield CounterMetricFamily(
            "ensemble_service_events_relayed", "Events handed to runs", self._router.relayed
        )
        yield CounterMetricFamily(
            "ensemble_service_events_dropped",
            "Events whose run was not connected; the member keeps them",
            self._router.dropped,
        )
