"""Client of the Kubernetes API for one namespace. Failed requests are never retried."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Literal

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from ensemble_core import ExecutorError, UsageError

Object = dict[str, Any]
Kind = Literal["jobs", "pods", "events"]
#: In seconds: timeout for connecting and for a reply; duration of a watch; time after that within
#: which the server must end the watch.
_TIMEOUT, _WATCH, _SILENT = 30.0, 300, 30.0
_WORDS = 400
#: How many bytes of a log are written at once at most: programs print millions of lines.
_PIECE = 1 << 16
#: What a kubelet sends in place of a log that it cannot read, with the status 200.
_NO_LOG = re.compile(
    rb"unable to retrieve container logs for [\w.-]+://\w*"
    rb'|failed to (?:try resolving symlinks in path|open log file) "/var/(?:log|lib)/[^"]*": [^\n]*'
)
_FOREIGN = "the answer is not from Kubernetes (a proxy?) or is incomplete"
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class ApiError(Exception):
    """A request that failed."""

    def __init__(self, status: int, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        #: HTTP status (0: no reply), and seconds to wait before a retry, if the server says so.
        self.status, self.message, self.after = status, message, after

    @property
    def passing(self) -> bool:
        """True if a retry may succeed."""
        # 401: the token was replaced.
        return self.status in (0, 401, 408, 429) or self.status >= 500


class Api:
    """Requests about the Jobs, pods and events of a namespace. Thread-safe.

    Raises :class:`UsageError` if no cluster is configured. Failed requests raise :class:`ApiError`.
    """

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str | None) -> None:
        configuration = client.Configuration()
        file = os.path.expanduser(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG")
        in_pod = not file and not context and "KUBERNETES_SERVICE_HOST" in os.environ
        try:
            if in_pod:
                config.load_incluster_config(client_configuration=configuration)
                with open(_SERVICE_ACCOUNT, encoding="utf-8") as text:
                    default = text.read().strip()
            else:
                every, current = config.list_kube_config_contexts(file)
                named = {each["name"]: each["context"] for each in every}
                default = named.get(context, current["context"]).get("namespace", "default")
                context = context or current["name"]
                config.load_kube_config(file, context, client_configuration=configuration)
        except Exception as error:  # the client raises all kinds of exceptions for an invalid file
            where = "the pod's service account" if in_pod else file or "~/.kube/config"
            raise UsageError(
                f"no usable Kubernetes cluster in {where}",
                cause=_short(error) or type(error).__name__,
                hint="choose a file with -o kubeconfig=FILE and a context with -o context=NAME",
                code="no-cluster",
            ) from None
        # A request may have been carried out even if its reply was lost.
        configuration.retries = False
        configuration.connection_pool_maxsize = 32
        self._configuration = configuration
        self._login = None if in_pod else (file, context)
        self.namespace: str = namespace or default
        #: For people; and what identifies the cluster, by whatever address it is reached.
        self.place = f"namespace {self.namespace} of {configuration.host}"
        self.identity = f"{self.namespace}@{_authority(configuration)}"
        self._client = client.ApiClient(configuration)
        self._batch, self._core = client.BatchV1Api(self._client), client.CoreV1Api(self._client)
        self._lists: dict[Kind, Callable[..., Any]] = {
            "jobs": self._batch.list_namespaced_job,
            "pods": self._core.list_namespaced_pod,
            "events": self._core.list_namespaced_event,
        }
        self._lock = threading.Lock()
        self._streams: set[BaseHTTPResponse] = set()
        self._closed = False

    def check(self) -> None:
        """Raise :class:`ExecutorError` if the cluster is unreachable or does not let us list
        Jobs.
        """
        try:
            self._json(self._lists["jobs"], self.namespace, limit=1)
        except ApiError as error:
            away = error.passing and error.status != 401
            raise ExecutorError(
                f"cannot list the Jobs of namespace {self.namespace}",
                cause=error.message,
                hint="try again once 'kubectl get jobs' works"
                if away
                else "apply deploy/access.yaml of ensemble-kubernetes, or choose another namespace "
                "(-o namespace=NAME)",
                code="no-kubernetes" if away else "refused",
                transient=away,
            ) from None

    def create(self, body: Object) -> None:
        """Create a Job."""
        self._json(self._batch.create_namespaced_job, self.namespace, body)

    def delete(self, selector: str, *, wait: bool) -> None:
        """Delete the Jobs that match a selector, with their pods.

        With ``wait``, a Job exists until its last pod is gone.
        """
        policy = "Foreground" if wait else "Background"
        self._json(
            self._batch.delete_collection_namespaced_job,
            self.namespace,
            label_selector=selector,
            propagation_policy=policy,
        )

    def list(self, kind: Kind, **selectors: str) -> tuple[list[Object], str]:
        """Return all matching objects, and the resource version to watch from."""
        found = self._json(self._lists[kind], self.namespace, **selectors)
        try:
            return list(found["items"]), str(found["metadata"]["resourceVersion"])
        except (KeyError, TypeError):
            raise ApiError(0, _FOREIGN) from None

    @contextmanager
    def watch(self, kind: Kind, version: str, **selectors: str) -> Iterator[Iterator[Object]]:
        """Yield the changes since a resource version, until the server ends the watch."""
        with self._stream(
            self._lists[kind], self.namespace, watch=True, resource_version=version,
            allow_watch_bookmarks=True, timeout_seconds=_WATCH,
            _request_timeout=(_TIMEOUT, _WATCH + _SILENT), **selectors,
        ) as response:  # fmt: skip
            yield map(_change, _pieces(iter(response)))

    @contextmanager
    def log(self, pod: str, *, follow: bool = False) -> Iterator[Iterator[bytes]]:
        """Yield the log of a pod from its beginning, in chunks; with ``follow``, until the log
        ends.
        """
        with self._stream(
            self._core.read_namespaced_pod_log, pod, self.namespace, container="job",
            follow=follow, _request_timeout=(_TIMEOUT, float(_WATCH) if follow else _TIMEOUT),
        ) as response:  # fmt: skip
            pieces = _pieces(response.stream(_PIECE))
            first = next(pieces, b"")
            if _NO_LOG.fullmatch(first):
                raise ApiError(503, _short(first.decode("utf-8", "replace")))
            yield chain([first] if first else [], pieces)

    def cut(self) -> None:
        """End all watches and followed logs."""
        with self._lock:
            for each in self._streams:
                each.shutdown()

    def close(self) -> None:
        """End all requests in progress and reject new ones."""
        self._closed = True
        self.cut()

    def release(self) -> None:
        """Close all connections. Call it when no request is in progress."""
        self._client.close()
        self._client.rest_client.pool_manager.clear()

    # -- one request -----------------------------------------------------------------------------

    def _json(self, call: Callable[..., Any], *arguments: Any, **query: Any) -> Object:
        response = self._request(call, *arguments, _request_timeout=(_TIMEOUT, _TIMEOUT), **query)
        try:
            return _parse(response.read())
        except (HTTPError, OSError) as error:
            raise _connection_error(error) from None
        finally:
            response.release_conn()

    @contextmanager
    def _stream(
        self, call: Callable[..., Any], *arguments: Any, **query: Any
    ) -> Iterator[BaseHTTPResponse]:
        response = self._request(call, *arguments, **query)
        with self._lock:
            self._streams.add(response)
        try:
            if self._closed:
                raise ApiError(0, "closed")
            yield response
        finally:
            with self._lock:
                self._streams.discard(response)
            response.close()

    def _request(self, call: Callable[..., Any], *arguments: Any, **query: Any) -> BaseHTTPResponse:
        if self._closed:
            raise ApiError(0, "closed")
        try:
            response: BaseHTTPResponse = call(*arguments, _preload_content=False, **query)
        except ApiException as error:
            if error.status == 401:
                self._log_in_again()
            raise _refusal(error) from None
        except (HTTPError, OSError) as error:
            raise _connection_error(error) from None
        return response

    def _log_in_again(self) -> None:
        """Read the token again: the kubeconfig, or a file that it names, may have a new one."""
        if self._login is None:  # the client does that for a pod's service account
            return
        new = client.Configuration()
        with suppress(Exception):  # as above; somebody may be writing the file
            config.load_kube_config(*self._login, client_configuration=new)
            if new.host == self._configuration.host:
                self._configuration.api_key = new.api_key
                self._configuration.refresh_api_key_hook = new.refresh_api_key_hook


def _authority(configuration: client.Configuration) -> str:
    """Return what identifies a cluster: its certificate authority, or else its address."""
    file = configuration.ssl_ca_cert
    if not file or not configuration.verify_ssl:
        return str(configuration.host)
    with open(file, "rb") as authority:
        return hashlib.sha256(b"".join(authority.read().split())).hexdigest()


def _pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a reply as they arrive. Errors of the caller are not caught here."""
    while True:
        try:
            piece = next(pieces, None)
        except (HTTPError, OSError, AttributeError) as error:  # AttributeError: cut off
            raise _connection_error(error) from None
        if piece is None:
            return
        yield piece


def _parse(text: bytes) -> Object:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ApiError(0, _FOREIGN)
    return found


def _change(line: bytes) -> Object:
    """Parse an event of a watch. Raise :class:`ApiError` for an error event."""
    event = _parse(line)
    found = event.get("object")
    if not isinstance(found, dict):
        raise ApiError(0, _FOREIGN)
    if event.get("type") == "ERROR":
        raise ApiError(found.get("code", 500), _short(found.get("message", "")))
    if not isinstance(found.get("metadata"), dict):
        raise ApiError(0, _FOREIGN)
    return event


def _refusal(error: ApiException) -> ApiError:
    headers = error.headers or {}
    after = str(headers.get("Retry-After", ""))
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason or f"status {error.status}"
    status = error.status or 0
    return ApiError(status, _short(message), float(after) if after.isdigit() else 0.0)


def _connection_error(error: Exception) -> ApiError:
    return ApiError(0, _short(error) or type(error).__name__)


def _short(words: object) -> str:
    text = " ".join(str(words).split())
    return text if len(text) <= _WORDS else f"{text[:_WORDS]}…"


def selector(name: str, values: Sequence[str]) -> str:
    """Return a selector of objects whose label ``name`` has one of these values."""
    return f"{name} in ({','.join(values)})"
