"""Runs the operator: logs in to Kubernetes, watches it with kopf, and reconciles changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import kopf

from ensemble_core import UsageError
from ensemble_operator.api import Api, ApiError
from ensemble_operator.cache import Cache
from ensemble_operator.crd_schema import KIND
from ensemble_operator.lease import Lease
from ensemble_operator.object_names import KINDS, LABEL
from ensemble_operator.reconcile_loop import Loop
from ensemble_operator.service_polling import ServicePoller
from ensemble_operator.settings import Settings

#: Comparison of the cache with the cluster: seconds between two comparisons, seconds until a failed
#: one is retried, and seconds without a success after which the process should restart.
_CHECK, _AGAIN, _UNKNOWN = 300.0, 10.0, 900.0
#: Seconds within which kopf must end, and seconds until it is restarted.
_ENDING, _PAUSE = 10.0, 1.0
_FLUX = "/apis/flux-framework.org/v1alpha2"
_log = logging.getLogger("ensemble.operator")

#: Folder of a pod's service account.
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def kopf_identity() -> Any:
    """Return a unique name that identifies this process to kopf."""
    # Kopf's default looks up the user's name, which fails for a uid without a name (OpenShift).
    return f"{socket.gethostname()}/{uuid.uuid4().hex[:8]}"


def log_in(account: Path = _ACCOUNT) -> kopf.ConnectionInfo:
    """Return the connection for the pod's service account or, outside of a pod, for a kubeconfig.

    Raises :class:`UsageError` if neither exists.
    """
    found = _account_login(account) or kopf.login_with_kubeconfig(
        logger=_log, settings=kopf.OperatorSettings()
    )
    if found is None:
        raise UsageError(
            "cannot connect to Kubernetes",
            cause="no pod service account and no kubeconfig",
            hint="use --kubeconfig FILE or set KUBECONFIG",
            code="no-cluster",
        )
    return found


def _account_login(account: Path) -> kopf.ConnectionInfo | None:
    try:
        token = (account / "token").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    authority = account / "ca.crt"
    return kopf.ConnectionInfo(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_path=str(authority) if authority.exists() else None,
        token=token,
    )


class Operator:
    """The operator of one process.

    - ``namespaces``: empty for all
    - ``lease``: namespace of the Lease for leader election; empty for none
    """

    def __init__(
        self,
        settings: Settings,
        namespaces: Collection[str] = (),
        *,
        lease: str = "",
        health: str | None = None,
        asking: Any = None,
        login: Callable[[], kopf.ConnectionInfo] = log_in,
    ) -> None:
        self.cache = Cache()
        self.counts: dict[str, int] = {}
        self._login = login
        self._namespaces = list(namespaces)
        self._lease_space = lease
        self._health = health
        self._asking = asking or ServicePoller()
        self._flux = True
        #: Whether both of the last two comparisons found changes that watches had missed, and
        #: whether the last one did.
        self._stale = self._doubt = False
        #: Time of the last comparison (or of the start) and of the next one, monotonic.
        self._compared = time.monotonic()
        self._due = self._compared + _CHECK
        self.api = Api(login, self._count)
        self.loop = Loop(self.api, self.cache, settings, self._asking, flux=lambda: self._flux)

    def _count(self, method: str) -> None:
        self.counts[method] = self.counts.get(method, 0) + 1

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until ``stop``, SIGTERM or SIGINT (in the main thread), or until the Lease is
        lost.
        """
        lease = None
        stop = stop or asyncio.Event()
        tasks: list[asyncio.Future[Any]] = []
        ending = asyncio.Event()
        try:
            if self._lease_space:
                identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
                lease = Lease(self.api, self._lease_space, identity)
                await lease.acquire()
                tasks.append(asyncio.ensure_future(lease.hold()))
            self._flux = await self._has_flux_operator()
            if not self._flux:
                _log.warning("the MiniCluster CRD is not installed: install the Flux Operator")
            tasks += map(asyncio.ensure_future, (self.loop.run(), self._check()))
            tasks.append(asyncio.ensure_future(stop.wait()))
            watching = asyncio.ensure_future(self._kopf(ending, stop))
            done, _ = await asyncio.wait([*tasks, watching], return_when=asyncio.FIRST_COMPLETED)
            await _end(tasks)  # before kopf's, which take longer: another operator may be active
            ending.set()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(watching, _ENDING)
            for each in done:
                each.result()
        finally:
            await _end(tasks)
            if lease is not None:
                await lease.release()
            await self.api.close()
            self._asking.close()

    # -- kopf --------------------------------------------------------------------------------------

    async def _kopf(self, ending: asyncio.Event, stop: asyncio.Event) -> None:
        """Watch until ``ending`` is set; restart watches that end on their own."""
        while True:
            tasks = await kopf.spawn_tasks(
                registry=self._registry(),
                settings=_kopf_settings(),
                standalone=True,
                identity=kopf_identity(),
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                liveness_endpoint=self._health,
            )
            _handle_signals(stop)  # kopf would handle signals itself, and only end its watches
            told = asyncio.ensure_future(ending.wait())
            done, _ = await asyncio.wait([*tasks, told], return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            await _end_kopf()
            errors = [each.exception() for each in done if not each.cancelled()]
            if ending.is_set():
                return
            why = next((str(each) for each in errors if each is not None), "kopf has ended")
            _log.warning("the watches of Kubernetes objects ended and are restarted: %s", why)
            self.loop.counts["watch restarts"] += 1
            self._due = 0.0  # compare soon: nothing else reports changes during the gap
            await asyncio.sleep(_PAUSE)
            with contextlib.suppress(ApiError):
                await self._compare()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            return self._login()

        @kopf.on.probe(registry=registry, id="watches")
        def watches(**_: Any) -> str:
            silent = time.monotonic() - self._compared > _UNKNOWN
            if self._stale or silent:
                why = "watches have not been verified for a while"
                raise kopf.PermanentError(why)
            return "alive"

        for kind, about in KINDS.items():
            if about.watched and (kind != "MiniCluster" or self._flux):
                self._watch(registry, kind)
        return registry

    def _watch(self, registry: kopf.OperatorRegistry, kind: str) -> None:
        about = KINDS[kind]
        where = (about.group, about.version, about.plural)

        # Other handlers of kopf leave annotations or finalizers on objects. The index only delays
        # the events until kopf has listed all existing objects.
        @kopf.index(*where, registry=registry, id=f"listed-{about.plural}")
        def listed(body: Mapping[str, Any], **_: Any) -> None:
            self.cache.told(kind, dict(body))

        @kopf.on.event(*where, registry=registry, id=f"told-{about.plural}")
        async def told(event: Mapping[str, Any], **_: Any) -> None:
            found = dict(event["object"])
            key = self.cache.told(kind, found, gone=event["type"] == "DELETED")
            if key is not None:
                self.loop.reconcile_soon(key)
            if kind == "ConfigMap":
                metadata = found["metadata"]
                self.loop.config_map(metadata.get("namespace", ""), metadata["name"])

    # -- other checks ------------------------------------------------------------------

    async def _has_flux_operator(self) -> bool:
        try:
            await self.api("GET", _FLUX)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def _check(self) -> None:
        """Compare the cache with the cluster, because a relist reports no deletions.

        If the Flux Operator has been installed, restart the process.
        """
        while True:
            await asyncio.sleep(_AGAIN)
            with contextlib.suppress(ApiError):
                if not self._flux and await self._has_flux_operator():
                    _log.warning("the MiniCluster CRD is installed now: restarting the operator")
                    return
                if time.monotonic() >= self._due:
                    missed = await self._compare()
                    self._stale, self._doubt = missed and self._doubt, missed

    async def _compare(self) -> bool:
        """Correct the cache where watches missed changes. Return whether they missed any."""
        missed = False
        for kind, about in KINDS.items():
            if not about.watched or (kind == "MiniCluster" and not self._flux):
                continue
            query = {} if kind == KIND else {"labelSelector": LABEL}
            for namespace in self._namespaces or [""]:
                path = about.path(namespace) if namespace else about.everywhere
                found = await self.api("GET", path, query=query)
                version = str(found["metadata"].get("resourceVersion", ""))
                for key in self.cache.listed(kind, found["items"], version, namespace):
                    missed = True
                    self.loop.reconcile_soon(key)
        for key, kind, name in self.cache.blocking_objects():
            await self.loop.check_blocker(key, kind, name)
        self._compared = time.monotonic()
        self._due = self._compared + _CHECK
        return missed


def _handle_signals(stop: asyncio.Event) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks repeatedly until each has ended.

    Before Python 3.12, ``wait_for`` loses a cancellation that arrives together with its result.
    """
    left = set(tasks)
    while left:
        for each in left:
            each.cancel()
        _, left = await asyncio.wait(left, timeout=1.0)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end_kopf() -> None:
    """End kopf's tasks, repeatedly until they have ended.

    Kopf's own shutdown waits for streams that it fails to close, and a stream that is cancelled
    while it connects loses the cancellation.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _ENDING
    while loop.time() < end:
        left = [each for each in asyncio.all_tasks() if _is_kopf(each) and not each.done()]
        if not left:
            return
        for each in left:
            each.cancel()
        await asyncio.wait(left, timeout=0.2)


def _is_kopf(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return "/kopf/" in getattr(code, "co_filename", "")


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    return settings
