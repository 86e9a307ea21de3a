"""Client of the Kubernetes API for one namespace: one request, one answer or an :class:`ApiError`.

Nothing is tried twice here: a request whose answer is lost may have been carried out.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from ensemble_core import ExecutorError, UsageError

__all__ = ["Api", "ApiError", "Kind"]

Object = dict[str, Any]
Kind = Literal["jobs", "pods", "events"]
#: Seconds for connecting and for an answer; how long a watch lasts, and how much longer the server
#: may be silent.
_TIMEOUT, _WATCH, _SILENT = 30.0, 300, 30.0
_WORDS = 400
_FOREIGN = "the answer is not Kubernetes' (a proxy, or cut short)"
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class ApiError(Exception):
    """A request that was refused (``status``), or whose answer did not come (0). ``after`` is how
    many seconds the server asks to wait."""

    def __init__(self, status: int, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.message, self.after = status, message, after

    @property
    def passing(self) -> bool:
        """True if the same may work later: the server is away or busy, or our token is replaced."""
        return self.status in (0, 401, 408, 429) or self.status >= 500


class Api:
    """Requests about the Jobs, pods and events of a namespace. Usable from several threads.

    Raises :class:`UsageError` if nothing says how to reach a cluster.
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
                config.load_kube_config(file, context, client_configuration=configuration)
                every, current = config.list_kube_config_contexts(file)
                named = {each["name"]: each["context"] for each in every}
                default = named.get(context, current["context"]).get("namespace", "default")
        except Exception as error:  # whatever a wrong file makes the client stumble over
            where = "the pod's service account" if in_pod else file or "~/.kube/config"
            raise UsageError(
                f"{where} does not say how to reach a Kubernetes cluster",
                cause=_short(error) or type(error).__name__,
                hint="name the file with -o kubeconfig=FILE, and its context with -o context=NAME",
                code="no-cluster",
            ) from None
        configuration.retries = False
        configuration.connection_pool_maxsize = 32
        self.namespace: str = namespace or default
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
        """Raise an :class:`ExecutorError` if the cluster is away or does not let us see Jobs."""
        try:
            self._json(self._lists["jobs"], self.namespace, limit=1)
        except ApiError as error:
            away = error.passing and error.status != 401
            raise ExecutorError(
                f"Kubernetes does not list the Jobs of namespace {self.namespace}",
                cause=error.message,
                hint="'kubectl get jobs' must work; when the cluster is there again, try again"
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
        """Delete the Jobs that a selector matches, with their pods. With ``wait`` a Job is there
        until its last pod is gone."""
        policy = "Foreground" if wait else "Background"
        self._json(
            self._batch.delete_collection_namespaced_job,
            self.namespace,
            label_selector=selector,
            propagation_policy=policy,
        )

    def list(self, kind: Kind, **selectors: str) -> tuple[list[Object], str]:
        """All objects that match, and the version from which to watch."""
        found = self._json(self._lists[kind], self.namespace, **selectors)
        try:
            return list(found["items"]), str(found["metadata"]["resourceVersion"])
        except (KeyError, TypeError):
            raise ApiError(0, _FOREIGN) from None

    @contextmanager
    def watch(self, kind: Kind, version: str, **selectors: str) -> Iterator[Iterator[Object]]:
        """Changes since a version, until the server ends the watch."""
        with self._stream(
            self._lists[kind], self.namespace, watch=True, resource_version=version,
            allow_watch_bookmarks=True, timeout_seconds=_WATCH,
            _request_timeout=(_TIMEOUT, _WATCH + _SILENT), **selectors,
        ) as lines:  # fmt: skip
            yield map(_change, lines)

    @contextmanager
    def log(self, pod: str, *, follow: bool = False) -> Iterator[Iterator[bytes]]:
        """The log of a pod from its beginning, in pieces; with ``follow`` until it ends."""
        with self._stream(
            self._core.read_namespaced_pod_log, pod, self.namespace, container="job",
            follow=follow, _request_timeout=(_TIMEOUT, float(_WATCH) if follow else _TIMEOUT),
        ) as pieces:  # fmt: skip
            yield pieces

    def cut(self) -> None:
        """End what is being watched and followed."""
        with self._lock:
            for each in self._streams:
                each.shutdown()

    def close(self) -> None:
        """End what is under way, and give connections back."""
        self._closed = True
        self.cut()

    def release(self) -> None:
        """Close connections. To be called when no request is under way."""
        self._client.close()
        self._client.rest_client.pool_manager.clear()

    # -- one request -----------------------------------------------------------------------------

    def _json(self, call: Callable[..., Any], *arguments: Any, **query: Any) -> Object:
        response = self._ask(call, *arguments, _request_timeout=(_TIMEOUT, _TIMEOUT), **query)
        try:
            return _parsed(response.read())
        except (HTTPError, OSError) as error:
            raise _broken(error) from None
        finally:
            response.release_conn()

    @contextmanager
    def _stream(
        self, call: Callable[..., Any], *arguments: Any, **query: Any
    ) -> Iterator[Iterator[bytes]]:
        response = self._ask(call, *arguments, **query)
        with self._lock:
            self._streams.add(response)
        try:
            if self._closed:
                raise ApiError(0, "closed")
            yield _pieces(response)
        finally:
            with self._lock:
                self._streams.discard(response)
            response.close()

    def _ask(self, call: Callable[..., Any], *arguments: Any, **query: Any) -> BaseHTTPResponse:
        if self._closed:
            raise ApiError(0, "closed")
        try:
            response: BaseHTTPResponse = call(*arguments, _preload_content=False, **query)
        except ApiException as error:
            raise _refusal(error) from None
        except (HTTPError, OSError) as error:
            raise _broken(error) from None
        return response


def _pieces(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the lines of an answer as they arrive. Errors of their reader are not caught here."""
    pieces = iter(response)
    while True:
        try:
            piece = next(pieces, None)
        except (HTTPError, OSError, AttributeError) as error:  # the last: of one that is cut
            raise _broken(error) from None
        if piece is None:
            return
        yield piece


def _parsed(text: bytes) -> Object:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ApiError(0, _FOREIGN)
    return found


def _change(line: bytes) -> Object:
    """An event of a watch; an error comes as one, too."""
    event = _parsed(line)
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


def _broken(error: Exception) -> ApiError:
    return ApiError(0, _short(error) or type(error).__name__)


def _short(words: object) -> str:
    text = " ".join(str(words).split())
    return text if len(text) <= _WORDS else f"{text[:_WORDS]}…"


def selector(name: str, values: Sequence[str]) -> str:
    """A label selector for any of these values."""
    return f"{name} in ({','.join(values)})"
