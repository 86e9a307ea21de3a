"""The cluster of the stories: the stand-in, or with ``--kubeconfig FILE`` the real one that it names.

The operator is a process of its own, outside of the cluster, so that it hears of no member's beats.
On a real cluster the Flux Operator has to be there; runs need ``--images SERVICE,VIEW``, which its
nodes can pull. All of it happens in a namespace that is made for it, and takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # for scene, stand and world

from ensemble_operator.api import MERGE, ApiError
from ensemble_operator.schema import GROUP, PLURAL, definition
from kubernetes_stand_in.node import Node, python
from scene import Place
from stand import Stand

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SOURCE = "from ensemble_operator.main import main; main()"


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # the conformance list has it too
        parser.addoption("--kubeconfig", metavar="FILE", help="play on the cluster of this file")
    parser.addoption(
        "--play-node", action="store_true",
        help="play the scheduler and the kubelet of a control plane that has neither",
    )  # fmt: skip
    parser.addoption("--images", metavar="SERVICE,VIEW", help="images that its nodes can pull")


def _defined(place: Place) -> bool:
    """Have Ensembles known, as they are defined now; whether they were before."""
    path = f"{_DEFINITIONS}/{PLURAL}.{GROUP}"
    try:
        before = place("GET", path)
    except ApiError as error:
        if error.status != 404:
            raise
        place("POST", _DEFINITIONS, definition())
        return False
    place("PATCH", path, {"spec": definition()["spec"]}, content_type=MERGE)
    return bool(before)


def _node(config: Path, folder: Path, namespace: str) -> Node:
    """A node for the pods of a namespace, with an ``ensemble`` in every image."""
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
    """A namespace of the cluster of ``--kubeconfig``, on which a node is played; else none."""
    given = request.config.getoption("--kubeconfig", default=None)
    if not given:
        yield None
        return
    if not request.config.getoption("--play-node"):
        pytest.skip("needs --play-node: processes of this machine are the containers")
    place = Place(Path(given).absolute(), None, ())
    _defined(place)
    place("POST", "/api/v1/namespaces", {"metadata": {"name": place.namespace}})
    yield place
    place("DELETE", f"/api/v1/namespaces/{place.namespace}")


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("stories")
    given = request.config.getoption("--kubeconfig", default=None)
    images = (request.config.getoption("--images", default=None) or "").split(",")
    stand = None if given else Stand()
    config = Path(given).absolute() if given else folder / "config"
    if stand is not None:
        stand.cluster.kubeconfig(config)
    place = Place(config, stand, tuple(filter(None, images)))
    try:
        place("GET", "/apis/flux-framework.org/v1alpha2")
    except ApiError as error:
        pytest.fail(f"the Flux Operator has to be there: {error}")
    was_there = _defined(place)
    place("POST", "/api/v1/namespaces", {"metadata": {"name": place.namespace}})
    words = ["run", "--kubeconfig", str(config), "--namespace", place.namespace, "--health", ""]
    if place.images:
        words += ["--image", place.images[0], "--view-image", place.images[1]]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ENSEMBLE_")}
    operator = subprocess.Popen(
        [sys.executable, "-c", _SOURCE, *words], env=environment, stderr=(folder / "log").open("w")
    )
    node = None
    if request.config.getoption("--play-node") and stand is None:
        node = _node(config, folder, place.namespace)
    try:
        yield place
        assert operator.poll() is None, (folder / "log").read_text()
    finally:
        operator.terminate()
        ended = operator.wait(60)
        if node is not None:
            node.close()
        place("DELETE", f"/api/v1/namespaces/{place.namespace}")
        if not was_there:
            place("DELETE", f"{_DEFINITIONS}/{PLURAL}.{GROUP}")
        if stand is not None:
            stand.close()
    assert ended == 0, (folder / "log").read_text()
