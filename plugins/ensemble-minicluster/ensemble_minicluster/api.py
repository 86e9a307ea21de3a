"""Kubernetes client that reads and sets the size of a Flux MiniCluster. No request is retried."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ensemble_core import EnsembleError, UsageError

GROUP = "flux-framework.org"
VERSION = "v1alpha2"
PLURAL = "miniclusters"

#: Maximum number of bytes to read of a reply. Objects in etcd are far smaller.
_LARGEST = 4 << 20
_WORDS = 300
_OWN_NAMES = re.compile(r"^(<[^>]*>|HTTPS?Connection(Pool)?\([^)]*\)): ")


class Fault(Exception):
    """A failed request."""

    def __init__(
        self, code: str, reason: str, *, transient: bool = False, perhaps: bool = False
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.transient = transient
        #: It is unknown whether the request has an effect.
        self.perhaps = perhaps


#: For each HTTP status: the error code, whether it is transient, and a message.
_REFUSALS = {
    400: ("invalid", False, "Kubernetes does not understand the request"),
    401: ("unauthorized", False, "Kubernetes does not know these credentials"),
    403: ("forbidden", False, "Kubernetes does not allow it"),
    404: ("not-found", False, "the MiniCluster does not exist"),
    409: ("conflict", True, "the MiniCluster was changed at the same time"),
    410: ("gone", True, "Kubernetes no longer has this version"),
    422: ("invalid", False, "Kubernetes rejects it as invalid"),
    429: ("too-many-requests", True, "Kubernetes limits the rate of requests"),
}


class MiniClusters:
    """Requests about MiniClusters. The argument is a ``kubernetes.client.ApiClient``."""

    def __init__(self, api_client: Any) -> None:
        from kubernetes.client import BatchV1Api, CustomObjectsApi

        self._client = api_client
        self._jobs = BatchV1Api(api_client)
        self._api = CustomObjectsApi(api_client)

    def get(self, namespace: str, name: str, timeout: float) -> Mapping[str, Any]:
        """Return the MiniCluster. Raises :class:`Fault`."""
        return self._call(
            self._api.get_namespaced_custom_object,
            (GROUP, VERSION, namespace, PLURAL, name),
            timeout,
            changes=False,
        )

    def scale(self, namespace: str, name: str, size: int, version: str, timeout: float) -> None:
        """Set the size, unless the object has changed since ``version``.

        Raises :class:`Fault`, with the code ``conflict`` if the object has changed.
        """
        # The client sends an object as a merge patch.
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": size}}
        self._call(
            self._api.patch_namespaced_custom_object_scale,
            (GROUP, VERSION, namespace, PLURAL, name, body),
            timeout,
            changes=True,
        )

    def parallelism(self, namespace: str, name: str, timeout: float) -> int | None:
        """Return the number of pods that the Flux Operator's Job of this name should have.

        Raises :class:`Fault`.
        """
        found = self._call(
            self._jobs.read_namespaced_job, (name, namespace), timeout, changes=False
        )
        spec = found.get("spec")
        count = spec.get("parallelism") if isinstance(spec, Mapping) else None
        return count if isinstance(count, int) and not isinstance(count, bool) else None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(
        self,
        call: Callable[..., Any],
        arguments: tuple[object, ...],
        timeout: float,
        *,
        changes: bool,
    ) -> Mapping[str, Any]:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import (
            ConnectTimeoutError,
            HTTPError,
            NewConnectionError,
            ProxyError,
            SSLError,
            TimeoutError,  # noqa: A004  # urllib3's own
        )

        try:
            # Two values, for connecting and for each read, because older clients ignore a single
            # float.
            limits = (timeout, timeout)
            answer = call(*arguments, _preload_content=False, _request_timeout=limits)
            try:
                text = answer.read(_LARGEST + 1)
            finally:
                answer.release_conn()
        except ApiException as error:
            raise _refusal(error, changes) from None
        except (NewConnectionError, ConnectTimeoutError, ProxyError) as error:
            raise Fault(
                "unreachable",
                f"Kubernetes cannot be reached: {_short_error(error)}",
                transient=True,
            ) from None
        except SSLError as error:
            raise _untrusted_fault(str(error)) from None
        except TimeoutError:
            raise Fault(
                "timeout",
                f"Kubernetes did not answer within {timeout:.3g} s",
                transient=True,
                perhaps=changes,
            ) from None
        except (HTTPError, OSError) as error:
            raise Fault(
                "unreachable",
                f"the connection to Kubernetes broke: {_short_error(error)}",
                transient=True,
                perhaps=changes,
            ) from None
        try:
            found = json.loads(text) if len(text) <= _LARGEST else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, Mapping):
            raise Fault(
                "malformed",
                "the server does not answer like Kubernetes (a proxy, another server?)",
                perhaps=changes,
            )
        return found


def _refusal(error: Any, changes: bool) -> Fault:
    """Return the fault for an ``ApiException``."""
    status = error.status or 0
    if not status:  # this is how the client reports an SSL error
        return _untrusted_fault(str(error.reason))
    known = _REFUSALS.get(status)
    said, kubernetes_said_it = _error_message(error.body)
    if known is not None:
        code, transient, words = known
        if status == 404 and not kubernetes_said_it:
            words = "the MiniCluster CRD is not installed: install the Flux Operator"
        return Fault(code, f"{words}{said}", transient=transient)
    if status >= 500:
        words = f"Kubernetes has a problem (status {status})"
        return Fault("unavailable", f"{words}{said}", transient=True, perhaps=changes)
    return Fault("unexpected", f"Kubernetes answered with status {status}{said}")


def _error_message(body: object) -> tuple[str, bool]:
    """Return the message of an error body, and whether the body is a Kubernetes ``Status``."""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    try:
        status = json.loads(body) if isinstance(body, str) else None
    except (ValueError, RecursionError):
        return "", False
    if not isinstance(status, Mapping) or status.get("kind") != "Status":
        return "", False
    message = status.get("message")
    return (f": {_short_error(message)}" if message else ""), True


def _untrusted_fault(words: str) -> Fault:
    return Fault("untrusted", f"no trusted connection to Kubernetes: {_short_error(words)}")


def _short_error(error: object) -> str:
    """Return an error in one short line, without the client's own names for its objects."""
    text = _OWN_NAMES.sub("", " ".join(str(error).split()))
    return text if len(text) <= _WORDS else f"{text[:_WORDS]}…"


def connect(kubeconfig: str | None = None, context: str | None = None) -> MiniClusters:
    """Return a connection for a kubeconfig file or, without one, for a pod's service account.

    No request is sent yet. Raises :class:`EnsembleError` if neither configuration exists.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise EnsembleError(
            "the resizer 'kubernetes' needs the Kubernetes client",
            hint="pip install 'ensemble-minicluster[kubernetes]'",
            code="no-kubernetes",
        ) from None
    configuration = client.Configuration()
    file = os.path.expanduser(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or None
    in_pod = not file and not context and "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if in_pod:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(
                config_file=file,
                context=context,
                client_configuration=configuration,
            )
    except Exception as error:  # the client raises anything for an invalid file
        where = "the pod's service account" if in_pod else file or "~/.kube/config"
        raise UsageError(
            f"no usable Kubernetes cluster in {where}",
            cause=_short_error(error) or type(error).__name__,
            hint="set automountServiceAccountToken for the pod of the service"
            if in_pod
            else "choose a file with --option kubeconfig=FILE and a context with context=NAME",
            code="no-cluster",
        ) from None
    configuration.retries = False  # the resizer decides about retries
    return MiniClusters(client.ApiClient(configuration))
