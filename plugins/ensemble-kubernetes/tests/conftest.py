"""A cluster for the tests: the stand-in for Kubernetes, with a node on which pods are processes of
this machine. Runs have the rights of ``deploy/access.yaml``, and no others.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from ensemble_kubernetes.executor import KubernetesExecutor

# Without pytest too, for scripts/soak.py.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "shared"))

from kubernetes_stand_in import Cluster as StandIn
from kubernetes_stand_in import Player, definition
from kubernetes_stand_in.kinds import BATCH, RBAC
from kubernetes_stand_in.kubelet import Kubelet
from kubernetes_stand_in.refusals import Refusal

#: Cores of the node.
CORES = 4
ACCESS = Path(__file__).parents[1] / "deploy" / "access.yaml"
IMAGE, MISSING = "registry.example/work:1", "registry.example/missing:1"


def lacking() -> None:
    """Nothing is needed for this cluster that is not always there."""


class Cluster:
    """The cluster, its node, and what tests do to them; ``environment`` names it for a run."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="ensemble-kubernetes-")
            folder = Path(self._folder.name)
        self.cluster = StandIn(definition())
        self.player = Player(self.cluster, 0.02, plays_pods=False)
        store = self.cluster.store
        self.jobs, self.pods = store.kinds[(BATCH, "jobs")], store.kinds[("", "pods")]
        self.namespaces, self.quotas = store.kinds[("", "namespaces")], store.kinds[("", "resourcequotas")]  # fmt: skip
        admin = self.cluster.kubeconfig(folder / "admin")
        said = f'failed to resolve reference "{MISSING}": not found'
        self.kubelet = Kubelet(
            self.cluster, admin, folder / "node", slots=CORES, images={MISSING: said}
        )
        for found in yaml.safe_load_all(ACCESS.read_text()):
            group = RBAC if found["kind"].startswith("Role") else ""
            kind = store.kinds[(group, found["kind"].lower() + "s")]
            store.create(kind, "default", found)
        token = self.cluster.access.token("system:serviceaccount:default:ensemble")
        self.kubeconfig = self.cluster.kubeconfig(folder / "config", token)
        self.environment = {"KUBECONFIG": str(self.kubeconfig)}

    def executor(self, **options: Any) -> KubernetesExecutor:
        return KubernetesExecutor(**{"kubeconfig": str(self.kubeconfig), "image": IMAGE, **options})

    @property
    def words(self) -> tuple[str, ...]:
        """The same, as options of ``ensemble run``."""
        return ("-o", f"kubeconfig={self.kubeconfig}", "-o", f"image={IMAGE}")

    def active(self) -> list[str]:
        """The names of Jobs that are not over."""
        found = self.cluster.store.all(self.jobs)
        return [
            each["metadata"]["name"]
            for each in found
            if not each.get("status", {}).get("conditions")
        ]

    def job(self, words: str) -> str:
        """The name of the Job that has this in its name."""
        (name,) = [n for n in self.active() if words in n]
        return name

    def wait(self, what: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)

    def sweep(self) -> None:
        """Undo what a test did."""
        self.cluster.trouble = lambda method, path: None
        self.cluster.meanwhile = self.cluster.afterwards = lambda method, path: None
        self.kubelet.lost = False
        store = self.cluster.store
        for kind in (self.quotas, self.jobs, self.pods):
            for each in store.all(kind):
                with suppress(Refusal):  # it went by itself
                    store.delete(kind, each["metadata"]["namespace"], each["metadata"]["name"])
        self.wait(lambda: not store.all(self.pods))

    def close(self) -> None:
        self.kubelet.close()
        self.player.stop()
        self.cluster.stop()
        assert self.kubelet.problems == []


@pytest.fixture(scope="module")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    world = Cluster(tmp_path_factory.mktemp("cluster"))
    yield world
    world.close()


@pytest.fixture
def world(_world: Cluster) -> Iterator[Cluster]:
    """The cluster; what a test leaves in it goes."""
    yield _world
    _world.sweep()
