"""Tests that the resizer is idempotent after lost responses, kills and conflicts.

They use the stand-in.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes_stand_in import Cluster
from kubernetes_stand_in.kinds import FLUX
from resizer_checks import MEMBER, Build, Make, on_record, patches, seen, sizes, without_waits

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")

from ensemble_core import EnsembleError, Resized, Resizer

# -- patches with lost answers -----------------------------------------------------------------------


@pytest.mark.usefixtures("operator")
def test_a_patch_that_took_effect_is_not_repeated(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    """The connection breaks after the size was set."""
    minicluster(size=2, maxSize=8)
    seen(cluster)
    drops = iter(["drop"])
    cluster.trouble = lambda method, path: next(drops, None) if method == "PATCH" else None
    assert sizes(build().resize(MEMBER, 2)) == ("granted", 2, 4, 4, "")
    assert on_record(cluster) == 4
    assert len(patches(cluster)) == 1


@pytest.mark.usefixtures("operator")
def test_a_patch_that_did_not_take_effect_is_repeated(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)
    troubles = iter([0.0])
    cluster.trouble = lambda method, path: next(troubles, None) if method == "PATCH" else None
    assert sizes(build().resize(MEMBER, 2)) == ("granted", 2, 4, 4, "")
    assert len(patches(cluster)) == 2


def test_an_unknown_outcome_of_a_patch_is_reported(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    dead: list[bool] = []

    def trouble(method: str, path: str) -> Any:
        if method == "PATCH":
            dead.append(True)
            return "drop"
        return 0.0 if dead else None

    cluster.trouble = trouble
    with without_waits(build(timeout=30)) as resizer:
        answer = resizer.resize(MEMBER, 2)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "unreachable", True)
    assert "it is unknown whether 4 nodes were set" in answer.reason


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.usefixtures("operator")
def test_a_repeated_request_does_not_grow_twice(
    cluster: Cluster, build: Build, minicluster: Make, carried_out: bool
) -> None:
    """The first request is denied, because its outcome is unknown."""
    minicluster(size=2, maxSize=8)
    seen(cluster)
    dead: list[bool] = []

    def trouble(method: str, path: str) -> Any:
        if method == "PATCH":
            dead.append(True)
            return "drop" if carried_out else 0.0
        return 0.0 if dead else None

    cluster.trouble = trouble
    resizer = build(timeout=30)
    with without_waits(resizer):
        assert resizer.resize(MEMBER, 2).outcome == "denied"
    assert on_record(cluster) == (4 if carried_out else 2)
    cluster.trouble = lambda method, path: None
    assert sizes(resizer.resize(MEMBER, 2)) == ("granted", 2, 4, 4, "")
    assert on_record(cluster) == 4
    assert sizes(resizer.resize(MEMBER, 2)) == ("granted", 4, 6, 6, "")


@pytest.mark.parametrize("late", [2.1, 3.6])  # timeouts: 3 s in total, 1.5 s per request
@pytest.mark.usefixtures("operator")
def test_a_patch_that_takes_effect_late_is_not_applied_twice(
    cluster: Cluster, build: Build, minicluster: Make, late: float
) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)
    first = threading.Lock()

    def meanwhile(method: str, path: str) -> None:
        if method == "PATCH" and first.acquire(blocking=False):
            time.sleep(late)

    cluster.meanwhile = meanwhile
    assert sizes(build(timeout=3).resize(MEMBER, 2))[:4] == ("granted", 2, 4, 4)
    time.sleep(late)
    assert on_record(cluster) == 4


# -- a service killed during a request -----------------------------------------------------------------


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.usefixtures("operator")
def test_a_service_killed_during_a_request_grows_once_after_its_return(
    cluster: Cluster, build: Build, minicluster: Make, carried_out: bool
) -> None:
    """Regression: the request was denied as interrupted, though the nodes existed."""
    minicluster(size=2, maxSize=8)
    seen(cluster)

    class Killed(BaseException):
        """Simulated kill of the service, before or after its patch."""

    resizer = build()
    scale = resizer._objects.scale

    def killed(*given: Any) -> None:
        if carried_out:
            scale(*given)
        raise Killed

    resizer._objects.scale = killed
    kept: list[tuple[str, Any]] = []
    resizer.keep = lambda member, data: kept.append((member, json.loads(json.dumps(data))))
    with pytest.raises(Killed):
        resizer.resize(MEMBER, 2)
    assert on_record(cluster) == (4 if carried_out else 2)
    ((member, data),) = kept
    answer = build().decide(member, 2, data)
    assert answer is not None
    assert sizes(answer) == ("granted", 2, 4, 4, "")
    assert on_record(cluster) == 4


@pytest.mark.usefixtures("operator")
def test_a_request_without_effect_before_the_kill_is_carried_out(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)
    answer = build().decide(MEMBER, 2, {})
    assert answer is not None
    assert sizes(answer) == ("granted", 2, 4, 4, "")
    assert on_record(cluster) == 4


@pytest.mark.usefixtures("operator")
def test_a_size_that_cannot_be_recorded_is_not_set(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)

    def fails(member: str, kept: Any) -> None:
        raise EnsembleError("the request cannot be put on record", cause="disk full")

    resizer = build(timeout=30)
    resizer.keep = fails
    with without_waits(resizer):
        answer = resizer.resize(MEMBER, 2)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "no-record", True)
    assert "disk full" in answer.reason
    assert on_record(cluster) == 2


@pytest.mark.usefixtures("operator")
def test_the_outcome_stays_unknown_if_others_have_set_the_size(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)
    kept: list[Any] = []
    resizer = build()
    resizer.keep = lambda member, data: kept.append(data)
    assert resizer.resize(MEMBER, 2).granted == 4
    assert build().resize(MEMBER, 1).granted == 5
    assert build().decide(MEMBER, 2, kept[0]) is None
    assert build().decide(MEMBER, 2, {"nonsense": 1}) is None
    assert on_record(cluster) == 5


# -- conflicts ---------------------------------------------------------------------------------------


def changed_by_others(cluster: Cluster, times: int) -> Callable[[str, str], None]:
    """Return a hook that changes the object as another client before the first ``times`` patches."""
    left = [times]
    kind = cluster.store.kinds[(FLUX, "miniclusters")]

    def meanwhile(method: str, path: str) -> None:
        if method == "PATCH" and left[0]:
            left[0] -= 1
            found = cluster.store.get(kind, "default", "ensemble")
            found["metadata"]["labels"] = {"turn": str(left[0])}
            cluster.store.write(kind, "default", found)

    return meanwhile


@pytest.mark.usefixtures("operator")
def test_a_conflict_is_retried(cluster: Cluster, build: Build, minicluster: Make) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)
    cluster.meanwhile = changed_by_others(cluster, 3)
    assert sizes(build().resize(MEMBER, 2)) == ("granted", 2, 4, 4, "")
    assert len(patches(cluster)) == 4


def test_repeated_conflicts_are_given_up(cluster: Cluster, build: Build, minicluster: Make) -> None:
    minicluster(size=2, maxSize=8)
    cluster.meanwhile = changed_by_others(cluster, 1000)
    with without_waits(build(timeout=30)) as resizer:
        answer = resizer.resize(MEMBER, 2)
    assert sizes(answer) == ("denied", 2, 4, 2, "conflict")
    assert answer.transient
    assert "others changed its size during each of the" in answer.reason
    assert 2 <= len(patches(cluster)) <= 8
    assert on_record(cluster) == 2


@pytest.mark.usefixtures("operator")
def test_concurrent_requests_lose_nothing(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    """Four services resize one MiniCluster. Its size must match the granted requests."""
    minicluster(size=1, maxSize=100)
    seen(cluster)
    answers: list[Resized] = []
    resizers = [build() for _ in range(4)]

    def grow(resizer: Resizer) -> None:
        answers.extend(resizer.resize(MEMBER, 1) for _ in range(3))

    threads = [threading.Thread(target=grow, args=(each,)) for each in resizers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    patched = [each for each in answers if each.outcome != "denied"]
    assert len(answers) == 12
    assert all(each.code == "conflict" for each in answers if each.outcome == "denied")
    assert on_record(cluster) == 1 + len(patched)
