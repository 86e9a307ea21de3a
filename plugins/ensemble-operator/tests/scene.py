"""The place of the stories: a namespace of the stand-in or of a real cluster."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ensemble_operator.api import MERGE, Api, ApiError
from ensemble_operator.login import log_in
from ensemble_operator.names import KINDS
from stand import Stand

__all__ = ["Place"]

Object = dict[str, Any]


class Place:
    """A namespace of a cluster, and an operator at work in it. ``stand`` is ``None`` on a real
    cluster, ``images`` are empty where there are none that could be run."""

    def __init__(self, config: Path, stand: Stand | None, images: tuple[str, ...]) -> None:
        self.stand, self.images = stand, images
        self.namespace = f"ensemble-{uuid.uuid4().hex[:8]}"
        self.patience = 60.0 if stand is not None else 300.0
        self.config = self._config = config

    def __call__(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        """The answer. Raises :class:`ApiError`."""

        async def ask() -> Any:
            api = Api(log_in)
            try:
                return await api(method, path, body, **more)
            finally:
                await api.close()

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(self._config))
            return asyncio.run(ask())

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

    # -- as the stand-in is asked ------------------------------------------------------------------

    def apply(self, found: Mapping[str, Any]) -> Object:
        return self.make(found)

    def all(self, kind: str) -> list[Object]:
        items: list[Object] = self("GET", self.path(kind))["items"]
        return items

    def status(self, name: str) -> Object:
        return (self.get("Ensemble", name) or {}).get("status", {})

    def close(self) -> None: ...

    def end(self, job: str) -> None:
        """In the stand-in a run ends when that is said; elsewhere by itself."""
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
