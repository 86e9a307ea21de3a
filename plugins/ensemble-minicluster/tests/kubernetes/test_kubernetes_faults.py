"""Tests of the resizer's error codes and messages, against the stand-in."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from ensemble_minicluster.api import Fault
from ensemble_minicluster.resizer import KubernetesResizer
from kubernetes_stand_in import Cluster, Operator
from kubernetes_stand_in.kinds import FLUX
from resizer_checks import MEMBER, Build, Make, on_record, patches, seen, sizes, without_waits

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")


# -- faults ----------------------------------------------------------------------------------------


def test_a_missing_minicluster_is_not_found(build: Build) -> None:
    answer = build().resize(MEMBER, 1)
    assert sizes(answer) == ("denied", 0, 0, 0, "not-found")
    assert not answer.transient
    assert "MiniCluster default/ensemble: the MiniCluster does not exist" in answer.reason


def test_a_cluster_without_the_operator_differs_from_a_missing_minicluster(
    cluster: Cluster, build: Build
) -> None:
    del cluster.store.kinds[(FLUX, "miniclusters")]
    answer = build().resize(MEMBER, 1)
    assert answer.code == "not-found"
    assert "install the Flux Operator" in answer.reason


def test_a_wrong_token_is_reported(cluster: Cluster, build: Build, minicluster: Make) -> None:
    minicluster(size=2, maxSize=8)
    answer = build(token="wrong").resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "unauthorized", False)


def test_missing_permissions_are_reported(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    token = cluster.access.token("system:serviceaccount:default:nobody")
    answer = build(token=token).resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "forbidden", False)
    assert 'cannot get resource "miniclusters"' in answer.reason


def status(code: int) -> str:
    return f'{{"kind": "Status", "code": {code}, "message": "said by the server"}}'


@pytest.mark.parametrize(
    ("code", "expected", "transient"),
    [
        (400, "invalid", False),
        (401, "unauthorized", False),
        (403, "forbidden", False),
        (404, "not-found", False),
        (410, "gone", True),
        (422, "invalid", False),
        (418, "unexpected", False),
        (302, "unexpected", False),
        (429, "too-many-requests", True),
        (500, "unavailable", True),
        (503, "unavailable", True),
        (504, "unavailable", True),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_a_rejection_has_its_code_and_the_servers_message(
    cluster: Cluster,
    build: Build,
    minicluster: Make,
    method: str,
    code: int,
    expected: str,
    transient: bool,
) -> None:
    minicluster(size=2, maxSize=8)
    cluster.trouble = lambda asked, path: (code, status(code)) if asked == method else None
    with without_waits(build(timeout=6)) as resizer:
        answer = resizer.resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", expected, transient)
    assert "said by the server" in answer.reason
    assert "\n" not in answer.reason
    assert on_record(cluster) == 2
    assert len(cluster.log) <= (30 if transient else 2)
    if method == "PATCH":
        assert (answer.before, answer.asked, answer.granted) == (2, 3, 2)


def test_a_short_fault_of_the_api_server_is_retried(
    cluster: Cluster, build: Build, minicluster: Make, operator: Operator
) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)
    troubles = iter([(503, "no"), (502, "no")])
    cluster.trouble = lambda method, path: next(troubles, None)
    assert sizes(build().resize(MEMBER, 1)) == ("granted", 2, 3, 3, "")


def test_an_api_server_that_is_away_for_seconds_is_waited_for(
    cluster: Cluster, build: Build, minicluster: Make, operator: Operator
) -> None:
    """Regression: the request was denied after 0.25 s, whatever the timeout."""
    minicluster(size=2, maxSize=8)
    seen(cluster)
    asked: list[str] = []

    def trouble(method: str, path: str) -> tuple[int, str] | None:
        asked.append(method)
        return (503, "no") if len(asked) <= 6 else None

    cluster.trouble = trouble
    assert sizes(build(timeout=150).resize(MEMBER, 1)) == ("granted", 2, 3, 3, "")


def test_an_api_server_that_has_just_started_may_reject_a_valid_token(
    cluster: Cluster, build: Build, minicluster: Make, operator: Operator
) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)
    troubles = iter([(503, "no"), (403, status(403)), (403, status(403)), (403, status(403))])
    cluster.trouble = lambda method, path: next(troubles, None)
    assert sizes(build(timeout=150).resize(MEMBER, 1)) == ("granted", 2, 3, 3, "")


def test_a_permanent_rejection_after_a_fault_can_be_retried_later(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    troubles = iter([(503, "no")])
    cluster.trouble = lambda method, path: next(troubles, (403, status(403)))
    with without_waits(build(timeout=30)) as resizer:
        answer = resizer.resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "forbidden", True)


@pytest.mark.parametrize("text", ["<html>login</html>", "", "[]", "null", '"x"', "[" * 100_000])
@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_a_server_that_is_not_kubernetes_is_reported(
    cluster: Cluster, build: Build, minicluster: Make, text: str, method: str
) -> None:
    minicluster(size=2, maxSize=8)
    cluster.trouble = lambda asked, path: (200, text) if asked == method else None
    with without_waits(build(timeout=30)) as resizer:
        answer = resizer.resize(MEMBER, 1)
    assert (answer.outcome, answer.code) == ("denied", "malformed")
    assert on_record(cluster) == 2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"metadata": {"resourceVersion": "1"}, "spec": {}}', "no-size"),
        ('{"metadata": {"resourceVersion": "1"}}', "no-size"),
        ('{"metadata": {"resourceVersion": "1"}, "spec": null}', "no-size"),
        ('{"metadata": {"resourceVersion": "1"}, "spec": {"size": "2"}}', "malformed"),
        ('{"metadata": {"resourceVersion": "1"}, "spec": {"size": true}}', "malformed"),
        ('{"metadata": {"resourceVersion": "1"}, "spec": []}', "malformed"),
        ('{"metadata": [], "spec": {"size": 2}}', "malformed"),
        ('{"spec": {"size": 2}}', "malformed"),
        ("{}", "no-size"),
    ],
)
def test_a_malformed_minicluster_is_not_resized(
    cluster: Cluster, build: Build, text: str, code: str
) -> None:
    cluster.trouble = lambda method, path: (200, text)
    answer = build().resize(MEMBER, 1)
    assert (answer.outcome, answer.code) == ("denied", code)
    assert patches(cluster) == []


def test_an_api_server_that_is_down_is_unreachable(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    resizer = build(timeout=30)
    assert resizer.size(MEMBER) == 2
    cluster.stop()
    with without_waits(resizer):
        answer = resizer.resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "unreachable", True)
    assert "Kubernetes cannot be reached: Failed to establish" in answer.reason
    assert resizer.size(MEMBER) is None


def test_a_hanging_api_server_is_given_up_in_time(cluster: Cluster, build: Build) -> None:
    cluster.trouble = lambda method, path: 30.0
    start = time.monotonic()
    answer = build(timeout=2).resize(MEMBER, 1)
    assert time.monotonic() - start < 25
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "timeout", True)


def test_a_server_that_closes_the_connection_is_unreachable(cluster: Cluster, build: Build) -> None:
    cluster.trouble = lambda method, path: 0.0
    with without_waits(build(timeout=30)) as resizer:
        answer = resizer.resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "unreachable", True)
    assert "broke" in answer.reason


def test_the_servers_message_is_reported_though_its_last_answer_came_too_late() -> None:
    clock = iter(range(1000))
    said = iter([Fault("unavailable", "the server is being restarted", transient=True)])

    class Slow:
        def get(self, namespace: str, name: str, timeout: float) -> Mapping[str, object]:
            raise next(said, Fault("timeout", "Kubernetes did not answer", transient=True))

        def scale(self, *_: object) -> None: ...
        def parallelism(self, *_: object) -> None: ...

    resizer = KubernetesResizer(
        Slow(), timeout=5, clock=lambda: float(next(clock)), sleep=lambda _: None
    )
    answer = resizer.resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "unavailable", True)
    assert "being restarted" in answer.reason
