"""Metrics server on this machine, for the autoscaler of a control plane on the same machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .real import serve_tls
from .store import now

__all__ = ["GROUP", "VERSION", "MetricsServer"]

Object = dict[str, Any]
GROUP, VERSION = "metrics.k8s.io", "v1beta1"


class MetricsServer(ThreadingHTTPServer):
    """Serves ``metrics.k8s.io`` for the given pods.

    Every container uses ``cpu``; if that is ``None``, each request fails with 500.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path, pods: Callable[[], list[Object]]) -> None:
        self.pods = pods
        self.cpu: str | None = "0"
        super().__init__(("127.0.0.1", 0), type("Metrics", (_Metrics,), {"metrics": self}))
        self.port = serve_tls(self, folder)

    def found(self, labels: dict[str, str]) -> list[Object]:
        used = {"cpu": self.cpu, "memory": "1Mi"}
        return [
            {
                "metadata": {key: pod["metadata"][key] for key in ("name", "namespace")},
                "timestamp": now(),
                "window": "10s",
                "containers": [
                    {"name": each["name"], "usage": used} for each in pod["spec"]["containers"]
                ],
            }
            for pod in self.pods()
            if labels.items() <= pod["metadata"].get("labels", {}).items()
        ]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection."""


class _Metrics(BaseHTTPRequestHandler):
    metrics: MetricsServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the parent's name
        """Log nothing."""

    def do_GET(self) -> None:  # http.server's name
        parts, version = urlsplit(self.path), f"{GROUP}/{VERSION}"
        about: Object = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
        pods = {"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
        body: Object = {**about, "resources": [{**pods, "singularName": ""}]}
        if parts.path.endswith("/pods"):
            if self.metrics.cpu is None:
                self.send_error(500)
                return
            selector = parse_qs(parts.query).get("labelSelector", [""])[0]
            labels = dict(each.split("=", 1) for each in selector.split(",") if each)
            items = self.metrics.found(labels)
            body = {"kind": "PodMetricsList", "apiVersion": version, "metadata": {}, "items": items}
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
