"""The standard gRPC health service (``grpc.health.v1``), bounded: probes have no token.

Of what a caller sends nothing is kept. ``rpc_guard`` limits how many messages of callers without a
token are read at once, and how many of their streams there are for how long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from ensemble_service.refusal import Refused

__all__ = ["SERVICE_NAME", "HealthService"]

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_LONGEST_NAME = 200
_STATUS = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no types
    """Answers for these services, which serve or stop together."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._serving = False
        self._changed = asyncio.Event()

    def set(self, serving: bool) -> None:
        """Sets whether the services take requests from now on."""
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def _now(self, name: str) -> Any:
        if len(name) > _LONGEST_NAME:
            message = f"a service's name has at most {_LONGEST_NAME} characters"
            raise Refused("INVALID_ARGUMENT", message)
        if name not in self._names:
            return _STATUS.SERVICE_UNKNOWN
        return _STATUS.SERVING if self._serving else _STATUS.NOT_SERVING

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The health check of the gRPC protocol: whether a service takes requests now."""
        status = self._now(request.service)
        if status == _STATUS.SERVICE_UNKNOWN:
            raise Refused("NOT_FOUND", "there is no service of this name")
        return _STATUS(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The health watch of the gRPC protocol: the state now, and again when it changes."""
        told, name = None, request.service
        while True:
            changed, status = self._changed, self._now(name)
            if status != told:
                told = status
                yield _STATUS(status=status)
            await changed.wait()
