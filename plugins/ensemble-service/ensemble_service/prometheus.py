"""The service's metrics for Prometheus, and whether it serves, over HTTP.

``/metrics`` reads what the service counts when it is asked, so that counting costs next to nothing;
``/healthz`` answers 200 while the service takes requests and 503 when it is stopping, for probes
that do not speak TLS. Started by the server where ``--metrics-port`` is given.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ensemble_core import EnsembleError, UsageError
from ensemble_service.router import Hub
from ensemble_service.rpc_guard import Tally

__all__ = ["MetricsServer"]

#: Seconds that who asks has to say what.
_PATIENCE = 5.0
#: Who may be answered at a time; more are turned away.
_MOST = 16


class MetricsServer:
    """Listens on ``host:port`` until it is closed. ``port`` 0 takes any: see :attr:`port`."""

    def __init__(
        self, host: str, port: int, hub: Hub, tally: Tally, healthy: Callable[[], bool]
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry, generate_latest
            from prometheus_client.exposition import CONTENT_TYPE_LATEST
        except ImportError as error:
            raise UsageError(
                "metrics need the package 'prometheus-client'",
                cause=str(error),
                hint="pip install 'ensemble-core[service]>=1.0'",
                code="no-prometheus",
            ) from None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(hub, tally))
        turns = threading.BoundedSemaphore(_MOST)

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE
            server_version = "ensemble"
            sys_version = ""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                elif path in ("/healthz", "/readyz"):
                    well = healthy()
                    words = b"serving\n" if well else b"stopping\n"
                    self._answer(200 if well else 503, "text/plain", words)
                else:
                    self._answer(404, "text/plain", b"there are /metrics and /healthz\n")

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the base's name
                """Scrapes are not news."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def process_request(self, request: Any, client_address: Any) -> None:
                if not turns.acquire(blocking=False):
                    self.shutdown_request(request)
                    return
                try:
                    super().process_request(request, client_address)
                except BaseException:  # no thread to be had: nobody else gives the turn back
                    turns.release()
                    raise

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    turns.release()

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Who asked went away; that is no fault of ours."""

        try:
            self._server = Server((host, port), Handler)
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

    def __init__(self, hub: Hub, tally: Tally) -> None:
        self._hub, self._tally = hub, tally

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily(
            "ensemble_service_requests", "Calls that are over", labels=("method", "code")
        )
        # Copied: the event loop goes on counting meanwhile.
        for (method, code), count in self._tally.requests.copy().items():
            requests.add_metric((method, code), count)
        yield requests
        resizes = CounterMetricFamily(
            "ensemble_service_resizes", "Requests for another size", labels=("outcome",)
        )
        counted = self._tally.resizes.copy()
        for outcome in ("granted", "partial", "denied"):
            resizes.add_metric((outcome,), counted[outcome])
        yield resizes
        states = list(self._hub.members.values())
        yield GaugeMetricFamily(
            "ensemble_service_members_alive",
            "Members that are connected",
            sum(state.alive for state in states),
        )
        yield GaugeMetricFamily(
            "ensemble_service_members_known", "Members that were ever connected", len(states)
        )
        yield GaugeMetricFamily(
            "ensemble_service_runs", "Runs that are connected", len(self._hub.runs)
        )
        yield CounterMetricFamily(
            "ensemble_service_events_relayed", "Events handed to runs", self._hub.relayed
        )
        yield CounterMetricFamily(
            "ensemble_service_events_dropped",
            "Events whose run was not connected; the member keeps them",
            self._hub.dropped,
        )
