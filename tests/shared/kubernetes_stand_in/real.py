"""Real control plane with the interface of the stand-in, for a cluster that a kubeconfig names.

It needs an API server and a controller manager; the node is simulated. Requests of the tested code
pass a proxy, which injects faults that a real API server cannot produce on demand. The node and the
tests themselves use the API server directly.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .kinds import Kind
from .kubelet import Kubelet, _Pod
from .node import _Api
from .refusals import Refusal
from .server import Trouble, _Server
from .store import Store, now

__all__ = ["Gate", "RealNode", "serve_tls"]

Object = dict[str, Any]
_MERGE = "application/merge-patch+json"
_STATUS = re.compile(r": (\d{3}) b['\"](.*)['\"]$", re.DOTALL)
_RESOURCE = re.compile(r"^/(?:api|apis/[^/]+)/[^/]+/namespaces/([^/]+)/([^/]+)(/[^/]+)?(/[^/]+)?$")


class _Objects:
    """Objects of the cluster, with the interface of the stand-in's store."""

    def __init__(self, api: _Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self.kinds = Store().kinds
        #: Lower versions are too old for a watch.
        self.forgotten = 0

    def _path(self, kind: Kind, namespace: str, name: str = "") -> str:
        root = f"/apis/{kind.group}/{kind.version}" if kind.group else "/api/v1"
        place = f"/namespaces/{namespace or self._namespace}" if kind.namespaced else ""
        return f"{root}{place}/{kind.plural}{f'/{name}' if name else ''}"

    def __call__(self, method: str, path: str, body: object = None, kind: str = "") -> Object:
        """Return the answer. Raises :class:`Refusal`."""
        try:
            return self._api(method, path, body, kind)
        except LookupError as error:
            said = _STATUS.search(str(error))
            raise Refusal(int(said[1]) if said else 503, str(error)) from None

    @property
    def version(self) -> int:
        pods = self._path(self.kinds[("", "pods")], "")
        return int(self("GET", f"{pods}?limit=1")["metadata"]["resourceVersion"])

    def forget(self) -> None:
        """Make all versions before the current one too old for a watch."""
        self.forgotten = self.version

    def all(self, kind: Kind, namespace: str = "") -> list[Object]:
        found: list[Object] = self("GET", self._path(kind, namespace))["items"]
        return found

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return self("GET", self._path(kind, namespace, name))

    def create(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Object:
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return self("POST", self._path(kind, namespace), whole)

    def delete(self, kind: Kind, namespace: str, name: str, **options: Any) -> None:
        self("DELETE", self._path(kind, namespace, name), options or None)


class _Access:
    """Tokens of service accounts and their allowed requests, with the interface of the stand-in."""

    def __init__(self, objects: _Objects) -> None:
        self._objects = objects
        self._users: dict[str, str] = {}
        self.allowed: list[tuple[str, str, str, str]] = []

    def token(self, user: str) -> str:
        *_, namespace, name = user.split(":")
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token: str = self._objects("POST", path, body)["status"]["token"]
        self._users[f"Bearer {token}"] = user
        return token

    def note(self, authorization: str, method: str, path: str, *, watch: bool) -> None:
        found = _RESOURCE.match(path)
        if found is None:
            return
        namespace, plural, name, part = found.groups()
        verbs = {"GET": "get", "POST": "create", "DELETE": "delete", "PATCH": "patch"}
        verb = verbs.get(method, method)
        if not name:
            verb = {"get": "watch" if watch else "list", "delete": "deletecollection"}.get(
                verb, verb
            )
        user = self._users.get(authorization, "")
        self.allowed.append((user, verb, plural + (part or ""), namespace))


class Gate:
    """Proxy in front of the API server of a kubeconfig, with the interface of the stand-in
    (:class:`~kubernetes_stand_in.server.Cluster`)."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.api = _Api(kubeconfig)
        self.namespace = namespace
        self.store = _Objects(self.api, namespace)
        self.access = _Access(self.store)
        self.trouble: Trouble = lambda method, path: None
        self.meanwhile: Callable[[str, str], None] = lambda method, path: None
        self.afterwards: Callable[[str, str], None] = lambda method, path: None
        self.logs: Callable[[str, str], Path | None] = lambda namespace, pod: None
        self.asked = threading.local()
        self.log: list[tuple[str, str]] = []
        self.stopping = threading.Event()
        self.onward: set[http.client.HTTPConnection] = set()
        handler = type("Handler", (_Handler,), {"gate": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def cut(self) -> None:
        """Break all open connections, including watches."""
        self._server.cut()
        for each in list(self.onward):
            with contextlib.suppress(OSError, AttributeError):
                each.sock.shutdown(2)

    def kubeconfig(self, path: Path, token: str | None = None, namespace: str = "") -> Path:
        """Write a kubeconfig that sends requests through this proxy."""
        place = {"cluster": "c", "user": "u", "namespace": namespace or self.namespace}
        found = {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": token or self.api.token}}],
            "contexts": [{"name": "x", "context": place}],
        }  # fmt: skip
        path.write_text(json.dumps(found), encoding="utf-8")
        return path

    def connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.api.url)
        if self.api._tls is None:
            return http.client.HTTPConnection(parts.netloc)
        return http.client.HTTPSConnection(parts.netloc, context=self.api._tls)


class _Handler(BaseHTTPRequestHandler):
    gate: Gate
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the parent's name
        """Log nothing."""

    def _serve(self) -> None:
        gate, path = self.gate, urlsplit(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = dict(parse_qsl(urlsplit(self.path).query))
        gate.log.append((self.command, path))
        gate.asked.query, gate.asked.headers = query, self.headers
        trouble = gate.trouble(self.command, path)
        watch = query.get("watch") in ("1", "true", "True")
        if isinstance(trouble, float):
            gate.stopping.wait(trouble)
            self.close_connection = True
        elif isinstance(trouble, tuple):
            self._send(trouble[0], trouble[1].encode(), "text/plain")
        elif watch and 0 < int(query.get("resourceVersion") or 0) < gate.store.forgotten:
            expired = Refusal(410, f"too old resource version: {query['resourceVersion']}").body()
            line = json.dumps({"type": "ERROR", "object": expired}) + "\n"
            self._send(200, line.encode(), "application/json")
        else:
            try:
                if self.command != "GET" and query.get("dryRun") != "All":
                    gate.meanwhile(self.command, path)
            except Refusal as refusal:
                self._send(refusal.code, json.dumps(refusal.body()).encode(), "application/json")
                return
            self._pass_on(path, body, trouble, watch=watch)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  # http.server's names

    def _pass_on(self, path: str, body: bytes, trouble: str | None, *, watch: bool) -> None:
        gate = self.gate
        hidden = ("host", "connection", "accept-encoding", "content-length")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in hidden}
        onward = gate.connection()
        gate.onward.add(onward)
        try:
            onward.request(self.command, self.path, body or None, headers)
            answer = onward.getresponse()
            if answer.status < 400:
                told = self.headers.get("Authorization", "")
                gate.access.note(told, self.command, path, watch=watch)
            streamed = watch or path.endswith("/log")
            if not streamed or answer.status >= 400:
                text = answer.read()
                gate.afterwards(self.command, path)
                if trouble == "drop":
                    self.close_connection = True
                    return
                cut = len(text) // 2 if trouble == "cut" else None
                self.close_connection = self.close_connection or cut is not None
                kind = answer.getheader("Content-Type") or "application/json"
                self._send(answer.status, text, kind, cut=cut)
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type") or "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException, AttributeError):
            self.close_connection = True  # if one side is gone, the other one is told
        finally:
            gate.onward.discard(onward)
            onward.close()

    def _send(self, status: int, text: bytes, content_type: str, cut: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[:cut])


class RealNode(Kubelet):
    """Node registered with the API server: it renews its lease and serves logs."""

    def __init__(self, cluster: Any, kubeconfig: Path, folder: Path, **more: Any) -> None:
        self._log_server = _LogServer(self, folder)
        self.name = f"node-{uuid.uuid4().hex[:8]}"
        super().__init__(cluster, kubeconfig, folder, **more)
        self._beating = threading.Event()
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        self.api("POST", "/api/v1/nodes", body)
        self._beat()
        threading.Thread(target=self._beat_on, daemon=True).start()

    def _beat_on(self) -> None:
        while not self._beating.wait(10):
            with contextlib.suppress(LookupError):
                self._beat()

    def _beat(self) -> None:
        if self.lost:
            return
        ready = {"type": "Ready", "status": "True", "reason": "Played", "message": ""}
        ready |= {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        status = {
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._log_server.port}},
        }
        self.api("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, _MERGE)

    def close(self) -> None:
        self._beating.set()
        super().close()
        with contextlib.suppress(LookupError):
            self.api("DELETE", f"/api/v1/nodes/{self.name}")
        self._log_server.shutdown()

    def ask(self, method: str, path: str, body: Any = None, *kind: str) -> None:
        """Send a request like :class:`Kubelet`, but keep conditions that others set."""
        if method == "PATCH" and path.endswith("/status"):
            mine = body["status"].get("conditions", ())
            kinds = {each["type"] for each in mine}
            there = self.api("GET", path.removesuffix("/status")).get("status", {})
            others = [c for c in there.get("conditions", ()) if c["type"] not in kinds]
            body = {"status": {**body["status"], "conditions": [*others, *mine]}}
        super().ask(method, path, body, *kind)


def serve_tls(server: ThreadingHTTPServer, folder: Path) -> int:
    """Serve with a new certificate, in a thread; return the port."""
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = folder / "node.key", folder / "node.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=node", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return int(server.server_address[1])


class _LogServer(ThreadingHTTPServer):
    """Kubelet endpoint of a simulated node: serves the logs of its pods to the API server."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, node: RealNode, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), type("Logs", (_Logs,), {"node": node}))
        self.port = serve_tls(self, folder)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection."""


class _Logs(BaseHTTPRequestHandler):
    node: RealNode
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the parent's name
        """Log nothing."""

    def do_GET(self) -> None:  # http.server's name
        parts = urlsplit(self.path)
        _, _, namespace, name, _ = parts.path.split("/", 4)
        path, follow = self.node.log(namespace, name), "follow=true" in parts.query
        if path is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with path.open("rb") as file:
            while True:
                over = self._pod(name) is None or bool(getattr(self._pod(name), "over", True))
                while piece := file.read(65536):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
                if over or not follow:
                    break
                time.sleep(0.05)
        self.wfile.write(b"0\r\n\r\n")

    def _pod(self, name: str) -> _Pod | None:
        return next((p for p in list(self.node._pods.values()) if p.name == name), None)
