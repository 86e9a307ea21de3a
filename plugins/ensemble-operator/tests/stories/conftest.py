"""Fixtures of the stories: a stand-in cluster, or a real one with ``--kubeconfig FILE``.

The operator is a process outside of the cluster, so it receives no heartbeats of members. A real
cluster must have the Flux Operator; runs need ``--images SERVICE,VIEW``, which its nodes can pull.
Stories run in new namespaces. On a real cluster, they take minutes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from ensemble_operator.api import ApiError
from ensemble_operator.crd_schema import GROUP, PLURAL
from kubernetes_stand_in.node import Node, python
from operator_cluster import Stand
from story_cluster import DEFINITIONS, Place, real


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # the conformance tests define it, too
        parser.addoption("--kubeconfig", metavar="FILE", help="play on the cluster of this file")
    parser.addoption(
        "--play-node", action="store_true",
        help="play the scheduler and the kubelet of a control plane that has neither",
    )  # fmt: skip
    parser.addoption("--images", metavar="SERVICE,VIEW", help="images that its nodes can pull")


def _node(config: Path, folder: Path, namespace: str) -> Node:
    """Return a node for the pods of a namespace, with ``ensemble`` in every image."""
    program = folder / "view" / "bin" / "ensemble"
    program.parent.mkdir(parents=True)
    begin = " ".join(f"'{each}'" for each in python("ensemble_core.cli.main"))
    program.write_text(f'#!/bin/sh\nexec {begin} "$@"\n')
    program.chmod(0o755)
    images = {"/opt/ensemble": folder / "view"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ENSEMBLE_")}
    return Node(config, folder / "node", environment, namespace=namespace, images=images)


@pytest.fixture
def real_place(request: pytest.FixtureRequest) -> Iterator[Place | None]:
    """Yield a namespace of the cluster of ``--kubeconfig`` with a simulated node, or ``None``."""
    given = request.config.getoption("--kubeconfig", default=None)
    if not given:
        yield None
        return
    if not request.config.getoption("--play-node"):
        pytest.skip("needs --play-node: processes of this machine are the containers")
    with real(Path(given)) as place:
        yield place


@contextmanager
def _playing(request: pytest.FixtureRequest, folder: Path, stand: Stand | None) -> Iterator[Place]:
    """Yield a namespace with an operator and, with ``--play-node``, a simulated node."""
    given = request.config.getoption("--kubeconfig", default=None)
    images = (request.config.getoption("--images", default=None) or "").split(",")
    config = Path(given).absolute() if given else folder / "config"
    if stand is not None:
        stand.cluster.kubeconfig(config)
    place = Place(config, stand, tuple(filter(None, images)), folder)
    try:
        place("GET", "/apis/flux-framework.org/v1alpha2")
    except ApiError as error:
        pytest.fail(f"the Flux Operator has to be there: {error}")
    was_there = place.define()
    place("POST", "/api/v1/namespaces", {"metadata": {"name": place.namespace}})
    place.operate()
    node = None
    if request.config.getoption("--play-node") and stand is None:
        node = _node(config, folder, place.namespace)
        place.plays_node = True
    try:
        yield place
        assert not [each for each in place.operators if (each.poll() or 0) > 0], place.said
    finally:
        for each in place.operators:
            each.terminate()
        ended = [each.wait(60) for each in place.operators]
        if node is not None:
            node.close()
        place.remove()
        if not was_there:
            place("DELETE", f"{DEFINITIONS}/{PLURAL}.{GROUP}")
    # The signal kills an operator that has not installed its handlers yet.
    assert set(ended) <= {0, -signal.SIGKILL, -signal.SIGTERM}, place.said


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    stand = None if request.config.getoption("--kubeconfig", default=None) else Stand()
    with _playing(request, tmp_path_factory.mktemp("stories"), stand) as place:
        yield place
    if stand is not None:
        stand.close()


Another = Callable[[], Place]


@pytest.fixture
def another(
    request: pytest.FixtureRequest, place: Place, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Another]:
    """Yield a function that adds a namespace with an operator."""
    with ExitStack() as stack:

        def make() -> Place:
            folder = tmp_path_factory.mktemp("another")
            return stack.enter_context(_playing(request, folder, place.stand))

        yield make
