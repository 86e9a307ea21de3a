"""Namespace for stories and rounds, in the stand-in or a real cluster."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from ensemble_operator.api import MERGE, Api, ApiError
from ensemble_operator.crd_schema import GROUP, PLURAL, definition
from ensemble_operator.kopf_watch import log_in
from ensemble_operator.object_names import KINDS
from kubernetes_stand_in.node import python
from operator_cluster import Stand

__all__ = ["DEFINITIONS", "Place", "real"]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
#: Seconds before each read request to a real cluster.
_PAUSE = 0.1

Object = dict[str, Any]


class Place:
    """Namespace of a cluster, with its operators.

    ``stand`` is ``None`` on a real cluster. ``images`` is empty if the cluster cannot run them.
    """

    def __init__(
        self,
        config: Path,
        stand: Stand | None,
        images: tuple[str, ...],
        folder: Path | None = None,
    ) -> None:
        self.stand, self.images = stand, images
        self.plays_node = False
        self._log = None if folder is None else folder / "log"
        self.operators: list[subprocess.Popen[bytes]] = []
        self.namespace = f"ensemble-{uuid.uuid4().hex[:8]}"
        self.patience = 240.0
        self.config = config
        self._api = Api(log_in)
        self._loop = asyncio.new_event_loop()

    def __call__(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        """Send a request and return the response. Raise :class:`ApiError` if it fails."""
        if self.stand is None and method == "GET":
            time.sleep(_PAUSE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(self.config))
            # The stand-in compiles the definition's rules when it first gets an Ensemble.
            patch.setattr("ensemble_operator.api._TIMEOUT", self.patience)
            return self._loop.run_until_complete(self._api(method, path, body, **more))

    def path(self, kind: str, name: str = "") -> str:
        return KINDS[kind].path(self.namespace, name)

    def get(self, kind: str, name: str) -> Object | None:
        try:
            found: Object = self("GET", self.path(kind, name))
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found

    def names(self, kind: str) -> list[str]:
        items = self("GET", self.path(kind))["items"]
        return [each["metadata"]["name"] for each in items]

    def make(self, found: Mapping[str, Any]) -> Object:
        body = {**found, "metadata": {"name": found["metadata"]["name"]}}
        body["apiVersion"] = KINDS[found["kind"]].api_version
        made: Object = self("POST", self.path(found["kind"]), body)
        return made

    def edit(self, name: str, **spec: Any) -> None:
        self("PATCH", self.path("Ensemble", name), {"spec": spec}, content_type=MERGE)

    def delete(self, kind: str, name: str) -> None:
        self("DELETE", self.path(kind, name))

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        status = (self.get("Ensemble", name) or {}).get("status", {})
        for each in status.get("conditions", ()):
            if each["type"] == kind:
                return each["status"], each["reason"]
        return "", ""

    # -- the interface of the stand-in -------------------------------------------------------------

    def apply(self, found: Mapping[str, Any]) -> Object:
        name = found["metadata"]["name"]
        if self.get(found["kind"], name) is None:
            return self.make(found)
        changed: Object = self(
            "PATCH", self.path(found["kind"], name), {"spec": found["spec"]}, content_type=MERGE
        )
        return changed

    def events(self) -> list[str]:
        return [each["reason"] for each in self.all("Event")]

    def all(self, kind: str) -> list[Object]:
        items: list[Object] = self("GET", self.path(kind))["items"]
        return items

    def status(self, name: str) -> Object:
        return (self.get("Ensemble", name) or {}).get("status", {})

    def close(self) -> None: ...

    def operate(self, *words: str) -> subprocess.Popen[bytes]:
        """Start an operator for the namespace."""
        assert self._log is not None
        command = [*python("ensemble_operator.main"), "run", "--kubeconfig", str(self.config)]
        command += ["--namespace", self.namespace, "--health", "", *words]
        if self.images:
            command += ["--image", self.images[0], "--view-image", self.images[1]]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ENSEMBLE_")}
        made = subprocess.Popen(command, env=environment, stderr=self._log.open("a"))
        self.operators.append(made)
        return made

    @property
    def said(self) -> str:
        """Return the log of the operators."""
        return self._log.read_text() if self._log is not None else ""

    def minutes_pass(self) -> None:
        """Let two minutes pass in the stand-in. A real cluster needs no help: ``until`` waits."""
        if self.stand is not None:
            self.stand.cluster.store.age(120)

    def end(self, job: str) -> None:
        """End a run in the stand-in; elsewhere it ends on its own."""
        if self.stand is not None:
            stand = self.stand
            self.until(lambda: stand.player.pod(self.namespace, job) is not None)
            stand.player.end(self.namespace, job)

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + self.patience
        while not holds():
            if time.monotonic() > end:
                ensembles = self("GET", self.path("Ensemble"))["items"]
                pytest.fail(
                    f"not so within {self.patience:g} s: {[e.get('status') for e in ensembles]}"
                )
            time.sleep(0.1 if self.stand is not None else 1.0)

    def define(self) -> bool:
        """Install the current definition of Ensembles; return whether it replaced one."""
        path = f"{DEFINITIONS}/{PLURAL}.{GROUP}"
        try:
            before = self("GET", path)
        except ApiError as error:
            if error.status != 404:
                raise
            self("POST", DEFINITIONS, definition())
            return False
        self("PATCH", path, {"spec": definition()["spec"]}, content_type=MERGE)
        return bool(before)

    def remove(self) -> None:
        """Remove the namespace and force the deletion of its pods, whose node has ended."""
        self("DELETE", f"/api/v1/namespaces/{self.namespace}")
        for pod in self.names("Pod") if self.stand is None else ():
            with suppress(ApiError):
                self("DELETE", self.path("Pod", pod), query={"gracePeriodSeconds": "0"})


@contextmanager
def real(config: Path) -> Iterator[Place]:
    """Yield a new namespace of the cluster in a kubeconfig; remove it afterwards."""
    place = Place(config.absolute(), None, ())
    place.define()
    place("POST", "/api/v1/namespaces", {"metadata": {"name": place.namespace}})
    try:
        yield place
    finally:
        place.remove()
