"""The stand-in over HTTP: real sockets, a thread for each connection, and faults on demand."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml

from .access import ADMIN, Access
from .apply import APPLY
from .discovery import discovered
from .kinds import EXTENSIONS, selected
from .openapi import described
from .refusals import Refusal
from .requests import Requests, Target, target, verb
from .store import Store
from .tables import as_table, wants_table

#: Fault for a request's method and path: ``None``, another answer (status, text), or the seconds to
#: hang without an answer. ``"drop"`` breaks the connection after the request was executed, ``"cut"``
#: in the middle of its answer.
Trouble = Callable[[str, str], "tuple[int, str] | float | str | None"]


class Cluster:
    """Kubernetes API server on loopback. ``token`` is the administrator's; ``access`` has others.

    Without ``tls`` it uses plain HTTP. ``authority`` is the CA certificate (PEM) in kubeconfigs.
    """

    def __init__(
        self, definition: Path, tls: ssl.SSLContext | None = None, *, authority: str = ""
    ) -> None:
        self._authority = authority
        self.store = Store()
        self.access = Access(self.store)
        self.requests = Requests(self.store, self.access)
        self.trouble: Trouble = lambda method, path: None
        #: Called before an authorized request is executed, to cause conflicts. Not called for dry
        #: runs.
        self.meanwhile: Callable[[str, str], None] = lambda method, path: None
        #: Called after a request was executed and before the answer, to delay it.
        self.afterwards: Callable[[str, str], None] = lambda method, path: None
        #: Path of a pod's log on its node, or ``None``.
        self.logs: Callable[[str, str], Path | None] = lambda namespace, pod: None
        #: ``query`` and ``headers`` of the request that this thread of the server handles.
        self.asked = threading.local()
        #: Method and path of each request.
        self.log: list[tuple[str, str]] = []
        self.token = self.access.token(ADMIN)
        self.stopping = threading.Event()
        namespaces = self.store.kinds[("", "namespaces")]
        self.store.create(namespaces, "", {"metadata": {"name": "default"}})
        definitions = self.store.kinds[(EXTENSIONS, "customresourcedefinitions")]
        document = yaml.safe_load(definition.read_text(encoding="utf-8"))
        self.store.create(definitions, "", document)
        handler = type("Handler", (_Handler,), {"cluster": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="standin", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the server: later connections are refused."""
        self.stopping.set()
        with self.store.changed:
            self.store.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def cut(self) -> None:
        """Break all open connections, including watches."""
        self._server.cut()

    def kubeconfig(self, path: Path, token: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig with this token (default: the administrator's)."""
        cluster = {"server": self.url}
        if self._authority:
            data = base64.b64encode(self._authority.encode()).decode()
            cluster["certificate-authority-data"] = data
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "standin",
                    "clusters": [{"name": "standin", "cluster": cluster}],
                    "users": [{"name": "user", "user": {"token": token or self.token}}],
                    "contexts": [
                        {
                            "name": "standin",
                            "context": {
                                "cluster": "standin",
                                "user": "user",
                                "namespace": namespace,
                            },
                        }
                    ],
                }
            ),
            encoding="utf-8",
        )
        return path


_NOTHING: dict[str, Any] = {"metadata": {}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        self.cut()

    def cut(self) -> None:
        for each in list(self._open):  # keep-alive connections end with the server
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection."""


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the parent's name
        """Log nothing: tests use ``Cluster.log``."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.cluster.log.append((self.command, parts.path))
        self.cluster.asked.query = dict(parse_qsl(parts.query))
        self.cluster.asked.headers = self.headers
        trouble = self.cluster.trouble(self.command, parts.path)
        if isinstance(trouble, float):
            self.cluster.stopping.wait(trouble)
            self.close_connection = True
            return
        if isinstance(trouble, tuple):
            self._send(trouble[0], trouble[1].encode(), "text/plain")
            return
        try:
            answer = self._answer(unquote(parts.path), dict(parse_qsl(parts.query)), body)
        except LookupError:
            self._send(404, b"404 page not found\n", "text/plain")
            return
        except Refusal as refusal:
            answer = refusal.code, refusal.body()
        if answer is None:
            return
        if trouble == "drop":
            self.close_connection = True
            return
        if trouble == "cut":
            text = json.dumps(answer[1]).encode()
            self._send(answer[0], text, "application/json", cut=len(text) // 2)
            self.close_connection = True
            return
        self._send(answer[0], json.dumps(answer[1]).encode(), "application/json")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  # http.server's names

    def _answer(self, path: str, query: dict[str, str], text: bytes) -> tuple[int, Any] | None:
        cluster = self.cluster
        user = cluster.access.who(self.headers.get("Authorization"))
        if path == "/version":
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2-standin"}
        found = discovered(cluster.store, path) or described(cluster.store, path)
        if found is not None:
            return 200, found
        at = target(cluster.store, path)
        watch = query.get("watch") in ("1", "true")
        allowed = verb(self.command, at, watch)
        cluster.access.check(user, allowed, at.kind, at.namespace, at.name, at.subresource)
        content_type = (self.headers.get("Content-Type") or "").partition(";")[0].strip()
        try:
            load = yaml.safe_load if content_type == APPLY else json.loads
            body = load(text) if text else None
        except (ValueError, yaml.YAMLError):
            raise Refusal(400, "the object provided is unrecognized: invalid JSON") from None
        if allowed == "watch":
            self._watch(at, query)
            return None
        if at.subresource == "log":
            self._log(at, query)
            return None
        if query.get("dryRun") != "All":
            cluster.meanwhile(self.command, path)
        answer = cluster.requests.answer(self.command, at, query, body, content_type)
        cluster.afterwards(self.command, path)
        if self.command == "GET" and wants_table(self.headers.get("Accept") or ""):
            return answer[0], as_table(at.kind, answer[1])
        return answer

    def _send(self, status: int, text: bytes, content_type: str, cut: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[:cut])

    # -- logs ------------------------------------------------------------------------------------

    def _log(self, at: Target, query: dict[str, str]) -> None:
        """Send the log of a pod's container from its node; with ``follow``, until the container
        ends."""
        store = self.cluster.store
        name = query.get("container") or "?"

        def state() -> dict[str, Any]:
            pod = store.get(at.kind, at.namespace, at.name)
            known = pod.get("status", {}).get("containerStatuses", ())
            return next((each["state"] for each in known if each["name"] == name), {})

        path = self.cluster.logs(at.namespace, at.name)
        if path is None or not {"running", "terminated"} & state().keys():
            why = f'container "{name}" in pod "{at.name}" is waiting to start: ContainerCreating'
            raise Refusal(400, why)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with path.open("rb") as file:
            while not self.cluster.stopping.is_set():
                try:
                    ended = "running" not in state()
                except Refusal:
                    ended = True
                if path.stat().st_size < file.tell():  # the log was rotated
                    file.seek(0)
                while piece := file.read(65536):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                if ended or query.get("follow") not in ("1", "true", "True"):
                    break
                self.cluster.stopping.wait(0.05)
        self.wfile.write(b"0\r\n\r\n")

    # -- watches -----------------------------------------------------------------------------------

    def _watch(self, at: Target, query: dict[str, str]) -> None:
        store, fields = self.cluster.store, at.kind.fields
        first: list[dict[str, Any]] = []
        with store.changed:
            version = int(query.get("resourceVersion") or 0) or store.version
            if query.get("resourceVersion", "0") in ("", "0"):  # the existing objects first
                first = store.all(at.kind, at.namespace)
        selected(_NOTHING, query.get("labelSelector", ""), query.get("fieldSelector", ""), fields)
        gone = Refusal(410, f"too old resource version: {version} ({store.forgotten})")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # Kubernetes reports this error in the stream too.
        old = [("ERROR", gone.body())] if version < store.forgotten else None
        for what, found in old or self._news(at, query, version, first):
            line = json.dumps({"type": what, "object": found}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def _news(
        self, at: Target, query: dict[str, str], version: int, first: list[dict[str, Any]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield changes until the watch ends, with a bookmark two seconds before that."""
        store = self.cluster.store
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        for found in first:
            if selected(found, labels, fields, at.kind.fields):
                yield "ADDED", found
        end = time.monotonic() + float(query.get("timeoutSeconds") or 30)
        mark = max(end - 2, time.monotonic())
        marked = query.get("allowWatchBookmarks") not in ("1", "true")
        while not self.cluster.stopping.is_set():
            with store.changed:
                news = list(store.since(version, at.kind, at.namespace))
                if not news:
                    store.changed.wait(max(min(end, end if marked else mark) - time.monotonic(), 0))
                    news = list(store.since(version, at.kind, at.namespace))
                latest = store.version
            for when, what, found, before in news:
                version = when
                now = what != "DELETED" and selected(found, labels, fields, at.kind.fields)
                was = before is not None and selected(before, labels, fields, at.kind.fields)
                # Objects that no longer match are reported as deleted.
                if now or was:
                    yield "MODIFIED" if now and was else "ADDED" if now else "DELETED", found
            if not marked and time.monotonic() >= mark:
                marked = True
                metadata = {"resourceVersion": str(latest), "creationTimestamp": None}
                kind, api_version = at.kind.kind, at.kind.api_version
                yield (
                    "BOOKMARK",
                    {"kind": kind, "apiVersion": api_version, "metadata": metadata},
                )
            if time.monotonic() >= end:
                return
