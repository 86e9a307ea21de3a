"""Leader election: only the operator that holds a Lease is active.

An operator that cannot renew its Lease in time exits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from ensemble_operator.api import MERGE, Api, ApiError
from ensemble_operator.object_names import KINDS

_log = logging.getLogger("ensemble.operator")


class Lease:
    """A Kubernetes Lease that this operator, named ``identity``, tries to hold. Times in seconds:

    - ``duration``: how long the Lease is valid
    - ``renew``: how long this operator stays active without a renewal
    - ``retry``: pause between attempts to acquire or renew the Lease
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        *,
        name: str = "ensemble-operator",
        duration: float = 15.0,
        renew: float = 10.0,
        retry: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._identity, self._clock = api, identity, clock
        self._path = KINDS["Lease"].path(namespace)
        self._name = name
        self._duration, self._renew, self._retry = duration, renew, retry
        #: The last observed state of another holder's Lease, and when we first saw that state, by
        #: our own clock because clocks may differ.
        self._seen: tuple[Any, float] = (None, 0.0)

    async def acquire(self) -> None:
        """Wait until we hold the Lease."""
        told = False
        while not await self._try():
            if not told:
                told = True
                _log.info("another operator is active; waiting for its Lease")
            await asyncio.sleep(self._retry)
        _log.info("holding the Lease %s", self._name)

    async def hold(self) -> None:
        """Renew the Lease regularly. Return when it is lost."""
        renewed = self._clock()
        # Some seconds without an operator are better than two operators at a time.
        while (left := renewed + self._renew - self._clock()) > 0:
            await asyncio.sleep(min(self._retry, left))
            began = self._clock()
            if await self._try(renewed + self._renew - began):
                renewed = began
        _log.error("lost the Lease %s: another operator may take over", self._name)

    async def release(self) -> None:
        """Release the Lease, so that another operator need not wait."""
        try:
            found = await self._api("GET", f"{self._path}/{self._name}")
            if found["spec"].get("holderIdentity") == self._identity:
                await self._write(found, "")
        except ApiError:
            pass

    async def _try(self, left: float = math.inf) -> bool:
        """Acquire or renew the Lease within ``left`` seconds. Return whether we hold it."""
        try:
            return await asyncio.wait_for(self._attempt(), min(left, self._renew / 2))
        except (ApiError, asyncio.TimeoutError) as error:
            _log.debug("Lease: %s", error)
            return False

    async def _attempt(self) -> bool:
        try:
            found = await self._api("GET", f"{self._path}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                raise
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": self._spec({}, self._identity),
            }
            await self._api("POST", self._path, body)
            return True
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity")
        mark = (holder, spec.get("renewTime"))
        if mark != self._seen[0]:
            self._seen = (mark, self._clock())
        if holder and holder != self._identity:
            counts = float(spec.get("leaseDurationSeconds") or self._duration)
            if self._clock() - self._seen[1] < counts:
                return False
        await self._write(found, self._identity)
        return True

    async def _write(self, found: Any, holder: str) -> None:
        body = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "spec": self._spec(found.get("spec") or {}, holder),
        }
        await self._api("PATCH", f"{self._path}/{self._name}", body, content_type=MERGE)

    def _spec(self, old: Any, holder: str) -> dict[str, Any]:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changed = old.get("holderIdentity") != holder
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(self._duration) or 1,
            "renewTime": now,
            "acquireTime": now if changed else old.get("acquireTime", now),
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + bool(changed and old),
        }
