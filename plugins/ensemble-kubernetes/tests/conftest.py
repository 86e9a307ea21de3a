"""Fixtures: a cluster whose pods are processes on this machine.

It is the stand-in for Kubernetes, or a control plane without nodes with ``--kubeconfig FILE``. Runs
have exactly the rights of ``deploy/access.yaml``.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from ensemble_kubernetes.executor import KubernetesExecutor
from ensemble_testing import Session

# scripts/soak.py imports this file without pytest.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "shared"))

from kubernetes_stand_in import Cluster as StandIn
from kubernetes_stand_in import Player, definition
from kubernetes_stand_in.kinds import BATCH, RBAC
from kubernetes_stand_in.kubelet import Kubelet
from kubernetes_stand_in.real import Gate, RealNode
from kubernetes_stand_in.refusals import Refusal

#: Cores of the node.
CORES = 4
ACCESS = Path(__file__).parents[1] / "deploy" / "access.yaml"
IMAGE, MISSING = "registry.example/work:1", "registry.example/missing:1"

DENIED = Refusal(403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"')


def lacking() -> None:
    """Return what is missing for the cluster: nothing."""


class Cluster:
    """A cluster with one node, and faults for it. ``environment`` selects it for a run."""

    namespace = "default"
    cluster: Any

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="ensemble-kubernetes-")
            folder = Path(self._folder.name)
        self._begin()
        store = self.cluster.store
        self.jobs, self.pods = store.kinds[(BATCH, "jobs")], store.kinds[("", "pods")]
        self.namespaces, self.quotas = store.kinds[("", "namespaces")], store.kinds[("", "resourcequotas")]  # fmt: skip
        self.kubelet = self.node(folder)
        for found in yaml.safe_load_all(ACCESS.read_text()):
            group = RBAC if found["kind"].startswith("Role") else ""
            kind = store.kinds[(group, found["kind"].lower() + "s")]
            store.create(kind, self.namespace, found)
        self.user = f"system:serviceaccount:{self.namespace}:ensemble"
        self.kubeconfig = self.cluster.kubeconfig(
            folder / "config", self.cluster.access.token(self.user)
        )
        self.environment = {"KUBECONFIG": str(self.kubeconfig)}

    def _begin(self) -> None:
        self.cluster = StandIn(definition())
        self.player = Player(self.cluster, 0.02, plays_pods=False)

    def _end(self) -> None:
        self.player.stop()
        self.cluster.stop()

    def node(self, folder: Path, namespace: str = "") -> Kubelet:
        """Return a node for the pods of a namespace."""
        admin = self.cluster.kubeconfig(folder / "admin")
        return Kubelet(self.cluster, admin, folder / "node", **self._about(namespace))

    def _about(self, namespace: str) -> dict[str, Any]:
        said = f'failed to resolve reference "{MISSING}": not found'
        images = {MISSING: said}
        return {"slots": CORES, "images": images, "namespace": namespace or self.namespace}

    def executor(self, **options: Any) -> KubernetesExecutor:
        return KubernetesExecutor(**{"kubeconfig": str(self.kubeconfig), "image": IMAGE, **options})

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options of ``executor`` for ``ensemble run``."""
        return ("-o", f"kubeconfig={self.kubeconfig}", "-o", f"image={IMAGE}")

    def limit(self, what: str, limit: str) -> None:
        """Create a quota, and wait until it is counted."""
        body = {"metadata": {"name": "few"}, "spec": {"hard": {what: limit}}}
        store = self.cluster.store
        store.create(self.quotas, self.namespace, body)
        self.wait(lambda: "hard" in store.get(self.quotas, self.namespace, "few").get("status", {}))

    def created(self) -> int:
        """Return the number of Jobs created so far."""
        history = self.cluster.store.history
        return sum(what == "ADDED" and key[1] == "jobs" for _, what, key, *_ in history)

    def active(self) -> list[str]:
        """Return the names of unfinished Jobs."""
        return [
            each["metadata"]["name"]
            for each in self.cluster.store.all(self.jobs)
            if not any(
                known["type"] in ("Complete", "Failed")
                for known in each.get("status", {}).get("conditions", ())
            )
        ]

    def job(self, words: str) -> str:
        """Return the name of the active Job whose name contains this."""
        (name,) = [n for n in self.active() if words in n]
        return name

    @contextmanager
    def pods_forbidden(self, refusal: Refusal = DENIED) -> Iterator[None]:
        """Reject pods by a policy inside the block, or otherwise."""
        store = self.cluster.store
        real = store.create

        def create(kind: Any, namespace: str, given: Any) -> Any:
            if kind.plural == "pods":
                raise refusal
            return real(kind, namespace, given)

        store.create = create
        try:
            yield
        finally:
            store.create = real

    def wait(self, what: Callable[[], bool], seconds: float = 240.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)

    def sweep(self) -> None:
        """Remove faults and objects of a test."""
        self.cluster.trouble = lambda method, path: None
        self.cluster.meanwhile = self.cluster.afterwards = lambda method, path: None
        self.kubelet.lost = False
        store = self.cluster.store
        for kind in (self.quotas, self.jobs, self.pods):
            for each in store.all(kind):
                with suppress(Refusal):  # already deleted
                    self._remove(kind, each["metadata"])
        self.wait(lambda: not store.all(self.pods))

    def _remove(self, kind: Any, metadata: Any) -> None:
        self.cluster.store.delete(kind, metadata["namespace"], metadata["name"])

    def close(self) -> None:
        self.kubelet.close()
        self._end()
        assert self.kubelet.problems == []


class RealCluster(Cluster):
    """A new namespace of a control plane without nodes."""

    def __init__(self, folder: Path | None, config: Path) -> None:
        self._config, self.namespace = config, f"ensemble-{uuid.uuid4().hex[:8]}"
        super().__init__(folder)

    def _begin(self) -> None:
        self.cluster = Gate(self._config, self.namespace)
        kinds, store = self.cluster.store.kinds, self.cluster.store
        store.create(kinds[("", "namespaces")], "", {"metadata": {"name": self.namespace}})

    def _end(self) -> None:
        self.cluster.store.delete(self.namespaces, "", self.namespace)
        self.cluster.stop()

    def node(self, folder: Path, namespace: str = "") -> Kubelet:
        return RealNode(self.cluster, self._config, folder / "node", **self._about(namespace))

    def created(self) -> int:
        allowed = self.cluster.access.allowed
        return sum((verb, what) == ("create", "jobs") for _, verb, what, _ in allowed)

    @contextmanager
    def pods_forbidden(self, refusal: Refusal = DENIED) -> Iterator[None]:
        if refusal is not DENIED:
            pytest.skip("a real control plane cannot be told to fail so")
        path, label = f"/api/v1/namespaces/{self.namespace}", "pod-security.kubernetes.io/enforce"
        for level in ("restricted", None):
            body = {"metadata": {"labels": {label: level}}}
            self.cluster.store("PATCH", path, body, "application/merge-patch+json")
            if level:
                yield

    def _remove(self, kind: Any, metadata: Any) -> None:
        """Remove immediately, without waiting for pods of a lost node."""
        options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        self.cluster.store.delete(kind, metadata["namespace"], metadata["name"], **options)


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # the operator's tests define it too
        parser.addoption("--kubeconfig", metavar="FILE", help="play on the cluster of this file")


@pytest.fixture(scope="module")
def _world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder, config = (
        tmp_path_factory.mktemp("cluster"),
        request.config.getoption("--kubeconfig", default=None),
    )
    world = RealCluster(folder, Path(config).absolute()) if config else Cluster(folder)
    yield world
    world.close()


@pytest.fixture
def world(_world: Cluster) -> Iterator[Cluster]:
    """Yield the cluster; clean it up after the test."""
    yield _world
    _world.sweep()


@pytest.fixture
def session(world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Yield a session of the executor. At its end, jobs that wait for the file ``gate`` end."""
    monkeypatch.chdir(tmp_path)
    with Session(world.executor(), tmp_path, 240.0, tidy=True) as session:
        yield session
        (tmp_path / "gate").touch()
    session.check_ended_once()
