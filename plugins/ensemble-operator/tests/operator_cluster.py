"""Cluster for tests of the whole operator.

It has the stand-in over sockets, the Flux Operator, simulated pods, and operators that a test
starts, stops and kills.
"""

from __future__ import annotations

import asyncio
import atexit
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kopf
import yaml
from ensemble_operator.changes import Figures
from ensemble_operator.crd_schema import GROUP
from ensemble_operator.crd_schema import definition as ensembles
from ensemble_operator.kopf_watch import Operator
from ensemble_operator.object_names import KINDS
from ensemble_operator.settings import Settings
from ensemble_service import init_certificates
from ensemble_testing import wait_until
from kubernetes_stand_in import Cluster, Player, definition
from kubernetes_stand_in import Operator as FluxOperator
from kubernetes_stand_in.kinds import EXTENSIONS
from kubernetes_stand_in.refusals import Refusal

Object = dict[str, Any]
#: Event loops of killed operators, stopped with their tasks pending.
_STOPPED: list[asyncio.AbstractEventLoop] = []
#: Default settings with faster polling of the (simulated) services.
QUICK = Settings(ask=0.2)


class ServicePoller:
    """Simulated services: each member with a running first pod has just sent a heartbeat."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self.asked = 0

    async def __call__(self, key: Any, target: Any) -> Mapping[str, Figures] | None:
        self.asked += 1
        namespace, _ = key
        found = {}
        for each in self._stand.all("MiniCluster", namespace):
            job = each["metadata"]["name"]
            pods = [
                self._stand.player.pod(namespace, job, index)
                for index in range(each["spec"]["size"])
            ]
            run = [(pod or {}).get("status", {}).get("phase") == "Running" for pod in pods]
            if run and run[0]:
                found[f"{namespace}/{job}"] = Figures(time.time(), {"nodes.up": float(sum(run))})
        return found

    def forget(self, key: Any) -> None: ...
    def close(self) -> None: ...


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the pending tasks of a stopped event loop, and close it."""
    while tasks := asyncio.all_tasks(loop):  # a task that is cancelled may begin others
        for each in tasks:
            each.cancel()
        loop.run_until_complete(_wait(tasks))
    loop.close()


async def _wait(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=1)


@atexit.register
def _end_stopped() -> None:
    """End the tasks of killed operators while asyncio still works.

    Otherwise the interpreter finishes them during its shutdown. Python 3.11 then sometimes crashed
    with signal 11, after the last test had passed.
    """
    for each in _STOPPED:
        _end(each)


class Running:
    """Operator in its own thread."""

    def __init__(self, stand: Stand, token: str | None = None, **more: Any) -> None:
        self.stand = stand
        self.error: BaseException | None = None
        self.operator: Operator | None = None
        self.killed = False
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._token = token or stand.cluster.token
        self._more = more
        self._thread = threading.Thread(target=self._work, name="operator-under-test", daemon=True)
        self._thread.start()
        self._ready.wait(120)

    def _work(self) -> None:
        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            login = self._more.pop("login", None) or self._log_in
            settings = self._more.pop("settings", QUICK)
            namespaces = self._more.pop("namespaces", ("default",))
            asking = self._more.pop("asking", None) or ServicePoller(self.stand)
            self.operator = Operator(settings, namespaces, asking=asking, login=login, **self._more)
            self._ready.set()
            await self.operator.run(self._stop)

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            self.error = None if self.killed else error
        finally:
            # A killed operator does nothing more: its tasks are not cancelled before the tests end.
            if self.killed:
                _STOPPED.append(loop)
            else:
                _end(loop)
            self._ready.set()

    def _log_in(self) -> kopf.ConnectionInfo:
        url, authority = self.stand.cluster.url, self.stand.authority
        return kopf.ConnectionInfo(server=url, token=self._token, ca_path=authority)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def kill(self) -> None:
        """Stop it at once, like a kill: pending work is not done."""
        if self._loop is not None and self._thread.is_alive():
            self.killed = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), "it does not end"


def _with_tls(folder: Path) -> Cluster:
    init_certificates(folder, ["127.0.0.1"], days=2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    return Cluster(definition(), context, authority=(folder / "ca.crt").read_text())


class Stand:
    """Stand-in cluster with the Flux Operator and the definition of Ensembles.

    ``tls`` is an empty folder for its certificates; without it, the cluster uses plain HTTP. If not
    ``plays_pods``, a node has to run the pods.
    """

    def __init__(
        self, *, delay: float = 0.05, tls: Path | None = None, plays_pods: bool = True
    ) -> None:
        self.authority = None if tls is None else str(tls / "ca.crt")
        self.cluster = Cluster(definition()) if tls is None else _with_tls(tls)
        kind = self.cluster.store.kinds[(EXTENSIONS, "customresourcedefinitions")]
        self.cluster.store.create(kind, "", ensembles())
        self.flux = FluxOperator(self.cluster, delay=delay, grace=0.05)
        self.player = Player(self.cluster, delay=delay, plays_pods=plays_pods)
        self.operators: list[Running] = []

    def close(self) -> None:
        self.cluster.trouble = lambda method, path: None
        for each in self.operators:
            each.stop()
        self.player.stop()
        self.flux.stop()
        self.cluster.stop()

    def start(self, **more: Any) -> Running:
        self.operators.append(Running(self, **more))
        return self.operators[-1]

    # -- objects ---------------------------------------------------------------------------------

    def kind(self, kind: str) -> Any:
        about = KINDS[kind]
        return self.cluster.store.kinds[(about.group, about.plural)]

    def apply(self, found: Object) -> Object:
        """Create an object or replace its spec, like ``kubectl apply``."""
        kind, name = self.kind(found["kind"]), found["metadata"]["name"]
        namespace = found["metadata"].get("namespace", "default")
        found = {**found, "metadata": {"name": name, "namespace": namespace}}
        with self.cluster.store.changed:
            try:
                old = self.cluster.store.get(kind, namespace, name)
            except Refusal:
                return self.cluster.store.create(kind, namespace, found)
            return self.cluster.store.write(kind, namespace, {**old, "spec": found["spec"]})

    def apply_file(self, path: Path) -> list[Object]:
        return [self.apply(each) for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]

    def all(self, kind: str, namespace: str = "default") -> list[Object]:
        found: list[Object] = self.cluster.store.all(self.kind(kind), namespace)
        return found

    def names(self, kind: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.all(kind)]

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        try:
            found: Object = self.cluster.store.get(self.kind(kind), namespace, name)
        except Refusal:
            return None
        return found

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        self.cluster.store.delete(self.kind(kind), namespace, name)

    def status(self, name: str, namespace: str = "default") -> Object:
        return (self.get("Ensemble", name, namespace) or {}).get("status", {})

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        for each in self.status(name).get("conditions", ()):
            if each["type"] == kind:
                return each["status"], each["reason"]
        return "", ""

    def ready(self, name: str) -> bool:
        return self.condition(name, "Ready")[0] == "True"

    def events(self) -> list[str]:
        return [each["reason"] for each in self.all("Event")]

    def until(self, holds: Any, about: str = "") -> None:
        try:
            wait_until(holds)
        except BaseException:
            wrong = [repr(each.error) for each in self.operators if each.error]
            print(
                "operators:",
                wrong,
                "statuses:",
                [e.get("status") for e in self.all("Ensemble")],
                about,
            )
            raise


__all__ = ["GROUP", "QUICK", "Running", "ServicePoller", "Stand"]
