"""Checks shared by the tests of the resizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes_stand_in import Cluster
from kubernetes_stand_in.kinds import FLUX

from ensemble_core import Resized, Resizer

Build = Callable[..., Resizer]
Make = Callable[..., dict[str, Any]]

MEMBER = "default/ensemble"


def on_record(cluster: Cluster, name: str = "ensemble", namespace: str = "default") -> int:
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    size: int = cluster.store.get(kind, namespace, name)["spec"]["size"]
    return size


def patches(cluster: Cluster) -> list[str]:
    return [path for method, path in cluster.log if method not in ("GET", "POST")]


def sizes(answer: Resized) -> tuple[str, int, int, int, str]:
    return answer.outcome, answer.before, answer.asked, answer.granted, answer.code


@contextmanager
def without_waits(resizer: Any) -> Iterator[Resizer]:
    """Replace a resizer's sleeps by jumps of its clock."""
    waited = [0.0]

    def wait(seconds: float) -> None:
        waited[0] += seconds

    before = resizer._clock, resizer._sleep
    resizer._clock, resizer._sleep = lambda: time.monotonic() + waited[0], wait
    yield resizer
    resizer._clock, resizer._sleep = before


def seen(cluster: Cluster) -> None:
    """Wait until the operator has processed the MiniCluster."""
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    end = time.monotonic() + 120
    while "status" not in cluster.store.get(kind, "default", "ensemble"):
        assert time.monotonic() < end
        time.sleep(0.01)


def touch(cluster: Cluster) -> None:
    """Change the MiniCluster as another client would, without changing its size."""
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    found = cluster.store.get(kind, "default", "ensemble")
    found["metadata"].setdefault("labels", {})["touched"] = found["metadata"]["resourceVersion"]
    cluster.store.write(kind, "default", found)
