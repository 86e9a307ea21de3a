"""Fixtures of the resizer's tests: the cluster.

By default, it is a stand-in. With ``--kubeconfig FILE``, the conformance tests use a real cluster.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for api_requests and resizer_checks

from api_requests import Place, Talk
from kubernetes_stand_in import Cluster, Operator, definition

from ensemble_core import Resizer


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # the operator's stories define it too
        parser.addoption(
            "--kubeconfig",
            metavar="FILE",
            help="run the conformance list against the cluster of this file, as one who may do all",
        )


@pytest.fixture(scope="module")
def kubeconfig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, bool]]:
    """Yield the cluster's kubeconfig file, and whether the cluster is real."""
    pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")
    given = request.config.getoption("--kubeconfig", default=None)
    if given:
        yield Path(given), True
        return
    cluster = Cluster(definition())
    operator = Operator(cluster)
    yield cluster.kubeconfig(tmp_path_factory.mktemp("standin") / "config"), False
    operator.stop()
    cluster.stop()


@pytest.fixture(scope="module")
def place(kubeconfig: tuple[Path, bool]) -> Iterator[Place]:
    file, real = kubeconfig
    talk = Talk.of(file)
    namespace = f"conformance-{uuid.uuid4().hex[:8]}"
    talk.ok("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    yield Place(talk, namespace, real)
    talk("DELETE", f"/api/v1/namespaces/{namespace}")
    talk.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Yield a separate stand-in without an operator."""
    cluster = Cluster(definition())
    yield cluster
    cluster.stop()


@pytest.fixture
def operator(cluster: Cluster) -> Iterator[Operator]:
    operator = Operator(cluster)
    yield operator
    operator.stop()


@pytest.fixture
def minicluster(cluster: Cluster) -> Callable[..., dict[str, Any]]:
    """Return a function that creates a MiniCluster in the stand-in, from a name and fields of its
    spec.
    """
    kind = cluster.store.kinds[("flux-framework.org", "miniclusters")]

    def make(name: str = "ensemble", namespace: str = "default", **spec: Any) -> dict[str, Any]:
        document = {"metadata": {"name": name}, "spec": {"containers": [{}], **spec}}
        return cluster.store.create(kind, namespace, document)

    return make


@pytest.fixture
def build(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Resizer]]:
    """Yield a function that builds the resizer as the service does, with more options."""
    pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")
    from ensemble_minicluster import resizer

    built: list[Resizer] = []

    def build(**options: Any) -> Resizer:
        file = cluster.kubeconfig(tmp_path / "config", options.pop("token", None))
        built.append(resizer.build({"kubeconfig": str(file), "timeout": 4, **options}))
        return built[-1]

    yield build
    for each in built:
        each.close()
