"""Conformance tests of the Flux Operator: the behaviour that the resizer depends on.

Mostly these are the cases in which it does nothing. The tests run unchanged against the stand-in
and, with ``--kubeconfig FILE``, against a real cluster with the operator.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from api_requests import Place

Make = Callable[..., str]

INDEX = "batch.kubernetes.io/job-completion-index"

_numbers = itertools.count(1)


@pytest.fixture
def make(place: Place) -> Make:
    """Return a function that creates a MiniCluster and returns its path.

    It waits until the operator has processed the MiniCluster.
    """

    def make(**spec: Any) -> str:
        body: dict[str, Any] = {
            "apiVersion": "flux-framework.org/v1alpha2",
            "kind": "MiniCluster",
            "metadata": {"name": f"o{next(_numbers)}"},
            "spec": {"interactive": True, "containers": [{"image": "rockylinux:9"}], **spec},
        }
        place.talk.ok("POST", place.path, body)
        path = f"{place.path}/{body['metadata']['name']}"
        end = time.monotonic() + (30 if place.real else 5)
        while not place.talk.ok("GET", path).get("status", {}).get("selector"):
            if time.monotonic() > end:
                pytest.skip("no Flux Operator takes MiniClusters up in this cluster")
            time.sleep(0.05)
        return path

    return make


def scale(place: Place, path: str, size: int) -> None:
    assert place.talk.merge(f"{path}/scale", {"spec": {"replicas": size}})[0] == 200


def settle(place: Place) -> None:
    """Wait long enough for the operator to act."""
    time.sleep(5 if place.real else 0.4)


def pods(place: Place, path: str) -> list[dict[str, Any]]:
    selector = f"labelSelector=job-name%3D{path.rpartition('/')[2]}"
    found = place.talk.ok("GET", f"/api/v1/namespaces/{place.namespace}/pods?{selector}")
    items: list[dict[str, Any]] = found["items"]
    return items


def test_the_size_of_the_status_is_0_until_the_first_resize(place: Place, make: Make) -> None:
    path = make(size=2, maxSize=4)
    settle(place)
    status = place.talk.ok("GET", path)["status"]
    assert (status["size"], status["maximumSize"]) == (0, 4)
    scale(place, path, 3)
    place.talk.until(path, lambda found: found["status"]["size"] == 3, place.patience)


def test_a_size_over_the_maximum_is_silently_ignored(place: Place, make: Make) -> None:
    path = make(size=2, maxSize=4)
    scale(place, path, 3)
    place.talk.until(path, lambda found: found["status"]["size"] == 3, place.patience)
    scale(place, path, 9)
    settle(place)
    found = place.talk.ok("GET", path)
    assert (found["spec"]["size"], found["status"]["size"]) == (9, 3)
    scale(place, path, 4)
    place.talk.until(path, lambda found: found["status"]["size"] == 4, place.patience)


def test_a_size_of_0_is_silently_ignored(place: Place, make: Make) -> None:
    path = make(size=2, maxSize=4)
    scale(place, path, 3)
    place.talk.until(path, lambda found: found["status"]["size"] == 3, place.patience)
    scale(place, path, 0)
    settle(place)
    assert place.talk.ok("GET", path)["status"]["size"] == 3


def test_without_a_maximum_a_minicluster_does_not_grow_beyond_its_initial_size(
    place: Place, make: Make
) -> None:
    path = make(size=2)
    scale(place, path, 5)
    settle(place)
    found = place.talk.ok("GET", path)
    assert found["status"]["maximumSize"] == 2
    assert found["status"]["size"] <= 2
    assert found["spec"]["size"] == 2


def test_pods_outlive_a_shrink_for_a_while(place: Place, make: Make) -> None:
    path = make(size=3, maxSize=4)
    end = time.monotonic() + place.patience
    while len(pods(place, path)) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    if any(
        each.get("status", {}).get("phase", "Running") != "Running" for each in pods(place, path)
    ):
        pytest.skip("the pods do not run in this cluster, and one that does not run goes at once")
    scale(place, path, 1)
    place.talk.until(path, lambda found: found["status"]["size"] == 1, place.patience)
    while True:  # the status changes before the pods end
        going = [each for each in pods(place, path) if "deletionTimestamp" in each["metadata"]]
        if going or time.monotonic() > end:
            break
        time.sleep(0.01)
    assert sorted(each["metadata"]["labels"][INDEX] for each in going) == ["1", "2"]
    while len(pods(place, path)) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(pods(place, path)) == 1
