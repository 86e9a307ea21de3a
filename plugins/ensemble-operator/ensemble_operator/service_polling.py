"""Polls ensemble services for the status of their members, in threads."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError
from ensemble_operator.changes import Figures
from ensemble_operator.member_reconcile import BEAT

if TYPE_CHECKING:
    from ensemble_service import ServiceClient

#: Number of services polled at a time, and timeout of each poll in seconds.
_AT_ONCE, _TIMEOUT = 8, 5.0
_log = logging.getLogger("ensemble.operator")


@dataclass(frozen=True)
class Target:
    """How to connect to a service."""

    host: str
    port: int
    token: str  #: of the operator
    authority: str  #: certificate of the certificate authority (PEM)


class ServicePoller:
    """Polls services. Connections stay open."""

    def __init__(self) -> None:
        # The services' client blocks.
        self._threads = ThreadPoolExecutor(_AT_ONCE, "ensemble-asking")
        self._clients: dict[tuple[str, str], tuple[Target, ServiceClient]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ensemble-operator-")

    async def __call__(self, key: tuple[str, str], target: Target) -> Mapping[str, Figures] | None:
        """Return the status of a service's members; ``None`` if the service does not answer."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._ask, key, target)

    def _ask(self, key: tuple[str, str], target: Target) -> Mapping[str, Figures] | None:
        try:
            return {each.member: _figures(each) for each in self._client(key, target).status()}
        except EnsembleError as error:
            _log.debug("%s/%s: its service does not answer: %s", *key, error)
            return None

    def _client(self, key: tuple[str, str], target: Target) -> ServiceClient:
        known = self._clients.get(key)
        if known is not None and known[0] == target:
            return known[1]
        from ensemble_service import ServiceClient

        if known is not None:
            known[1].close()
        authority = Path(self._folder.name, f"{key[0]}.{key[1]}.crt")
        authority.write_text(target.authority)
        client = ServiceClient(
            target.host, target.port, token=target.token, ca=authority, timeout=_TIMEOUT
        )
        self._clients[key] = (target, client)
        return client

    def forget(self, key: tuple[str, str]) -> None:
        """Stop polling a service."""
        known = self._clients.pop(key, None)
        if known is not None:
            known[1].close()

    def close(self) -> None:
        """Close all clients."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for key in list(self._clients):
            self.forget(key)
        self._folder.cleanup()


def _figures(status: Any) -> Figures:
    groups = tuple(
        {
            "name": each.name,
            "submitted": each.waiting + each.running + each.success + each.failed + each.cancelled,
            "running": each.running,
            "success": each.success,
            "failed": each.failed,
        }
        for each in status.groups
    )
    beat, now = status.last_beat, time.time()
    if status.alive and not 0.0 <= now - beat <= BEAT:
        beat = now  # the service's clock differs: it calls only those alive that it has just heard
    return Figures(beat, dict(status.gauges), groups, status.denied, status.alive)
