"""Plain requests to a Kubernetes API server.

They bypass the client libraries, whose handling of responses the conformance tests do not check.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class Talk:
    def __init__(self, client: Any, authorization: dict[str, str]) -> None:
        self._client = client
        self._authorization = authorization

    @classmethod
    def of(cls, kubeconfig: Path) -> Talk:
        from kubernetes import client, config

        configuration = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        settings = configuration.auth_settings().values()
        headers = {each["key"]: each["value"] for each in settings if each.get("in") == "header"}
        return cls(client.ApiClient(configuration), headers)

    def with_token(self, token: str) -> Talk:
        """Return a client that authenticates with this token only, without client certificates."""
        from kubernetes import client

        configuration = copy.copy(self._client.configuration)
        configuration.cert_file = configuration.key_file = None
        return Talk(client.ApiClient(configuration), {"authorization": f"Bearer {token}"})

    def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, Any]:
        """Send a request; return the status and the body of the response."""
        answer = self._request(method, path, body, content_type, accept=accept)
        text = answer.data.decode()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def ok(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> Any:
        status, found = self(method, path, body, content_type)
        assert 200 <= status <= 299, (method, path, status, found)
        return found

    def merge(self, path: str, body: object) -> tuple[int, Any]:
        return self("PATCH", path, body, MERGE)

    def watch(self, path: str, **query: object) -> Iterator[dict[str, Any]]:
        """Yield the events of one watch, until it ends."""
        text = "&".join(f"{key}={value}" for key, value in {"watch": 1, **query}.items())
        answer = self._request("GET", f"{path}?{text}", None, "application/json", stream=True)
        if answer.status != 200:
            yield {"type": "ERROR", "object": json.loads(answer.data)}
            return
        rest = b""
        for chunk in answer.stream(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def until(self, path: str, holds: Callable[[Any], bool], seconds: float) -> Any:
        """Wait until the condition holds for the object; return the object."""
        end = time.monotonic() + seconds
        while True:
            status, found = self("GET", path)
            if holds(found):
                return found
            assert time.monotonic() < end, (path, status, found)
            time.sleep(0.05)

    def close(self) -> None:
        self._client.close()

    def _request(
        self,
        method: str,
        path: str,
        body: object,
        content_type: str,
        *,
        stream: bool = False,
        accept: str = "application/json",
    ) -> Any:
        return self._client.rest_client.pool_manager.request(
            method,
            self._client.configuration.host + path,
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type, "Accept": accept, **self._authorization},
            preload_content=not stream,
            timeout=100.0,
            retries=False,
        )


@dataclass
class Place:
    """Cluster with a namespace for the tests. ``real`` clusters get longer timeouts."""

    talk: Talk
    namespace: str
    real: bool

    @property
    def patience(self) -> float:
        return 120.0 if self.real else 5.0

    @property
    def path(self) -> str:
        """Return the path of the MiniClusters."""
        return f"/apis/flux-framework.org/v1alpha2/namespaces/{self.namespace}/miniclusters"
