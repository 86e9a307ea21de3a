"""HTTP endpoints of the service: metrics for Prometheus, and health.

``/metrics`` reads what the service counts when it is asked, so that counting costs next to nothing;
``/healthz`` answers 200 while the service takes requests and 503 when it is stopping, for probes
that do not speak TLS. Started by the server where ``--metrics-port`` is given.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ensemble_core import EnsembleError, UsageError
from ensemble_service.counters import Counters
from ensemble_service.router import Router

__all__ = ["MetricsServer"]

#: Seconds that who asks has to say what.
_PATIENCE = 5.0
#: Who may be answered at a time; more are turned away.
_MOST = 16


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE
    server_version, sys_version = "ensemble", ""

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the base's name
        """Scrapes are not news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, where: Any, handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        self._turns = threading.BoundedSemaphore(_MOST)
        super().__init__(where, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._turns.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread to be had: nobody else gives the turn back
            self._turns.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._turns.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked went away; that is no fault of ours."""


class MetricsServer:
    """Listens on ``host:port`` until it is closed. ``port`` 0 takes any: see :attr:`port`."""

    def __init__(
        self, host: str, port: int, router: Router, counters: Counters, healthy: Callable[[], bool]
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError as error:
            raise UsageError(
                "metrics need the package 'prometheus-client'",
                cause=str(error),
                hint="pip install 'ensemble-core[service]>=1.0'",
                code="no-prometheus",
            ) from None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(router, counters))
        metrics = make_wsgi_app(registry)

        def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if path == "/metrics":
                answer: Iterable[bytes] = metrics(environ, start)
                return answer
            status, body = "404 Not Found", b"there are /metrics and /healthz\n"
            if path in ("/healthz", "/readyz"):
                well = healthy()
                body = b"serving\n" if well else b"stopping\n"
                status = "200 OK" if well else "503 Service Unavailable"
            start(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
            return [body]

        try:
            self._server = make_server(host, port, app, _Server, _Handler)
        except OSError as error:
            raise EnsembleError(
                f"cannot listen on {host}:{port} for metrics",
                cause=error.strerror or str(error),
                hint="--metrics-port chooses another",
                code="cannot-listen",
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="ensemble-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_PATIENCE)


class _Collector:
    """What Prometheus is told, made when it asks."""

    def __init__(self, router: Router, counters: Counters) -> None:
        self._router, self._counters = router, counters

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily(
            "ensemble_service_requests", "Calls that are over", labels=("method", "code")
        )
        # Copied: the event loop goes on counting meanwhile.
        for (method, code), count in self._counters.requests.copy().items():
            requests.add_metric((method, code), count)
        yield requests
        resizes = CounterMetricFamily(
            "ensemble_service_resizes", "Requests for another size", labels=("outcome",)
        )
        counted = self._counters.resizes.copy()
        for outcome in ("granted", "partial", "denied"):
            resizes.add_metric((outcome,), counted[outcome])
        yield resizes
        states = list(self._router.members.values())
        yield GaugeMetricFamily(
            "ensemble_service_members_alive",
            "Members that are connected",
            sum(state.alive for state in states),
        )
        yield GaugeMetricFamily(
            "ensemble_service_members_known", "Members that were ever connected", len(states)
        )
        yield GaugeMetricFamily(
            "ensemble_service_runs", "Runs that are connected", len(self._router.runs)
        )
        yield CounterMetricFamily(
            "ensemble_service_events_relayed", "Events handed to runs", self._router.relayed
        )
        yield CounterMetricFamily(
            "ensemble_service_events_dropped",
            "Events whose run was not connected; the member keeps them",
            self._router.dropped,
        )
