"""The standard gRPC health service (``grpc.health.v1``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from ensemble_service.rpc_error import Refused

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_LONGEST_NAME = 200
_STATUS = health_pb2.HealthCheckResponse


# Probes have no token, so nothing that a caller sends may be stored.
class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no types
    """Reports whether the server's gRPC services accept requests."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._serving = False
        self._changed = asyncio.Event()

    def set(self, serving: bool) -> None:
        """Set whether the services accept requests."""
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def _now(self, name: str) -> Any:
        if len(name) > _LONGEST_NAME:
            message = f"a service name has at most {_LONGEST_NAME} characters"
            raise Refused("INVALID_ARGUMENT", message)
        if name not in self._names:
            return _STATUS.SERVICE_UNKNOWN
        return _STATUS.SERVING if self._serving else _STATUS.NOT_SERVING

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Report whether a service accepts requests (gRPC's health check)."""
        status = self._now(request.service)
        if status == _STATUS.SERVICE_UNKNOWN:
            raise Refused("NOT_FOUND", "no service of this name")
        return _STATUS(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Report the state now and on each change (gRPC's health watch)."""
        told, name = None, request.service
        while True:
            changed, status = self._changed, self._now(name)
            if status != told:
                told = status
                yield _STATUS(status=status)
            await changed.wait()
