"""Tests of the sizes that the resizer grants, and of the MiniCluster that it chooses."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kubernetes_stand_in import Cluster, Operator
from kubernetes_stand_in.kinds import FLUX
from resizer_checks import (
    MEMBER,
    Build,
    Make,
    on_record,
    patches,
    seen,
    sizes,
    touch,
    without_waits,
)

from ensemble_core import UsageError

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")


# -- sizes -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("operator")
class TestWithAnOperator:
    @pytest.mark.parametrize(
        ("spec", "delta", "expected"),
        [
            ({"size": 2, "maxSize": 8}, 2, ("granted", 2, 4, 4, "")),
            ({"size": 4, "maxSize": 8}, -2, ("granted", 4, 2, 2, "")),
            ({"size": 2, "maxSize": 3}, 2, ("partial", 2, 4, 3, "at-maximum")),
            ({"size": 3, "maxSize": 3}, 2, ("denied", 3, 5, 3, "at-maximum")),
            ({"size": 3, "minSize": 2, "maxSize": 4}, -2, ("partial", 3, 1, 2, "at-minimum")),
            ({"size": 2, "minSize": 2, "maxSize": 4}, -1, ("denied", 2, 1, 2, "at-minimum")),
            ({"size": 3, "maxSize": 4}, -5, ("partial", 3, -2, 1, "at-minimum")),
            ({"size": 1, "maxSize": 4}, -1, ("denied", 1, 0, 1, "at-minimum")),
            ({"size": 2}, 1, ("denied", 2, 3, 2, "at-maximum")),
            ({"size": 2}, -1, ("granted", 2, 1, 1, "")),
            ({"size": 2, "maxSize": 8}, 0, ("granted", 2, 2, 2, "")),
            ({"size": 2, "maxSize": 8}, 2**62, ("partial", 2, 2 + 2**62, 8, "at-maximum")),
        ],
    )
    def test_a_size_is_granted_within_the_bounds(
        self,
        cluster: Cluster,
        build: Build,
        minicluster: Make,
        spec: dict[str, int],
        delta: int,
        expected: tuple[Any, ...],
    ) -> None:
        minicluster(**spec)
        seen(cluster)
        answer = build().resize(MEMBER, delta)
        assert sizes(answer) == expected
        assert on_record(cluster) == answer.granted
        assert bool(answer.reason) == bool(answer.code)
        if answer.granted == answer.before:
            assert patches(cluster) == []

    def test_consecutive_requests_add_up(
        self, cluster: Cluster, build: Build, minicluster: Make
    ) -> None:
        minicluster(size=2, maxSize=8)
        seen(cluster)
        resizer = build()
        answers = [resizer.resize(MEMBER, delta) for delta in (2, -1, 3, -4)]
        assert [(each.before, each.granted) for each in answers] == [(2, 4), (4, 3), (3, 6), (6, 2)]
        assert all(each.outcome == "granted" and not each.code for each in answers)
        assert resizer.size(MEMBER) == 2

    def test_a_size_ignored_by_the_operator_is_not_the_current_one(
        self, cluster: Cluster, build: Build, minicluster: Make
    ) -> None:
        """Another client sets 9, above the maximum of 4. The operator ignores it and keeps 3."""
        found = minicluster(size=2, maxSize=4)
        seen(cluster)
        resizer = build()
        assert resizer.resize(MEMBER, 1).granted == 3
        kind = cluster.store.kinds[(FLUX, "miniclusters")]
        found = cluster.store.get(kind, "default", "ensemble")
        cluster.store.write(kind, "default", {**found, "spec": {**found["spec"], "size": 9}})
        assert resizer.size(MEMBER) == 3
        assert sizes(resizer.resize(MEMBER, 1)) == ("granted", 3, 4, 4, "")

    def test_a_lost_status_is_not_waited_for(
        self, cluster: Cluster, build: Build, minicluster: Make, operator: Operator
    ) -> None:
        """If another client's change makes the operator's status write fail, ``status.size`` stays
        wrong.
        """
        minicluster(size=2, maxSize=8)
        seen(cluster)
        operator.before_status = lambda: touch(cluster)
        assert sizes(build().resize(MEMBER, 2)) == ("granted", 2, 4, 4, "")
        kind = cluster.store.kinds[(FLUX, "miniclusters")]
        assert cluster.store.get(kind, "default", "ensemble")["status"]["size"] == 0

    def test_the_operators_size_is_known_although_its_status_was_lost(
        self, cluster: Cluster, build: Build, minicluster: Make, operator: Operator
    ) -> None:
        """The operator has 4, reports 0 and ignores another client's 9, above the maximum of 8."""
        minicluster(size=2, maxSize=8)
        seen(cluster)
        operator.before_status = lambda: touch(cluster)
        assert build().resize(MEMBER, 2).granted == 4
        kind = cluster.store.kinds[(FLUX, "miniclusters")]
        found = cluster.store.get(kind, "default", "ensemble")
        cluster.store.write(kind, "default", {**found, "spec": {**found["spec"], "size": 9}})
        assert build().size(MEMBER) == 4
        assert sizes(build().resize(MEMBER, 1)) == ("granted", 4, 5, 5, "")

    @pytest.mark.parametrize(
        ("now", "says"),
        [
            (8, "its maxSize"),
            (3, "its maxSize"),
            (12, "fixed by the Flux Operator at creation; its maxSize of 12 was set later"),
            (None, "fixed by the Flux Operator at creation; it has no maxSize"),
        ],
    )
    def test_the_reason_for_a_limit_is_that_of_the_object(
        self, cluster: Cluster, build: Build, minicluster: Make, now: int | None, says: str
    ) -> None:
        """maxSize is 8 at creation, then lowered, raised or removed."""
        minicluster(size=2, maxSize=8)
        seen(cluster)
        kind = cluster.store.kinds[(FLUX, "miniclusters")]
        found = cluster.store.get(kind, "default", "ensemble")
        found["spec"] = {**found["spec"], "maxSize": now}
        if now is None:
            del found["spec"]["maxSize"]
        cluster.store.write(kind, "default", found)
        answer = build().resize(MEMBER, 20)
        most = min(now or 8, 8)
        assert sizes(answer) == ("partial", 2, 22, most, "at-maximum")
        assert answer.reason.endswith(says)

    def test_a_size_that_is_reset_is_not_granted(
        self, cluster: Cluster, build: Build, minicluster: Make, operator: Operator
    ) -> None:
        """The bounds change between the read and the patch, so the operator resets the size."""
        minicluster(size=2, maxSize=8)
        seen(cluster)
        operator.stop()
        kind = cluster.store.kinds[(FLUX, "miniclusters")]

        def set_back() -> None:
            end = time.monotonic() + 120
            while on_record(cluster) != 6 and time.monotonic() < end:
                time.sleep(0.005)
            found = cluster.store.get(kind, "default", "ensemble")
            cluster.store.write(kind, "default", {**found, "spec": {**found["spec"], "size": back}})

        for back, outcome in ((2, "denied"), (4, "partial")):
            watcher = threading.Thread(target=set_back)
            watcher.start()
            answer = build().resize(MEMBER, 6 - on_record(cluster))
            watcher.join()
            assert (answer.outcome, answer.granted, answer.code) == (outcome, back, "overridden")
            assert "Flux Operator" in answer.reason


def test_a_service_may_have_a_lower_limit_than_the_minicluster(
    cluster: Cluster, build: Build, minicluster: Make, operator: Operator
) -> None:
    minicluster(size=2, maxSize=8)
    seen(cluster)
    resizer = build(max_size=3)
    answer = resizer.resize(MEMBER, 4)
    assert sizes(answer) == ("partial", 2, 6, 3, "at-maximum")
    assert "this service" in answer.reason


def test_a_minicluster_above_the_services_limit_is_not_shrunk_by_growing(
    cluster: Cluster, build: Build, minicluster: Make, operator: Operator
) -> None:
    minicluster(size=6, maxSize=8)
    seen(cluster)
    resizer = build(max_size=3)
    assert sizes(resizer.resize(MEMBER, 1)) == ("denied", 6, 7, 6, "at-maximum")
    assert sizes(resizer.resize(MEMBER, -1)) == ("granted", 6, 5, 5, "")


def test_without_a_maximum_only_the_option_limits(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2)
    for options, granted in (({}, 5), ({"max_size": 6}, 6)):
        with without_waits(build(timeout=30, **options)) as resizer:
            assert resizer.resize(MEMBER, 3).granted == granted
    answer = build().resize(MEMBER, 2**40)
    assert (answer.outcome, answer.code) == ("denied", "out-of-bounds")
    assert on_record(cluster) == 6


def test_a_size_without_an_operator_is_granted_as_unconfirmed(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    with without_waits(build(timeout=30)) as resizer:
        answer = resizer.resize(MEMBER, 2)
    assert sizes(answer) == ("granted", 2, 4, 4, "unconfirmed")
    assert "has not acted" in answer.reason
    assert on_record(cluster) == 4


@pytest.mark.parametrize("size", [0, 9])
def test_nothing_is_done_if_the_current_size_is_unknown(
    cluster: Cluster, build: Build, minicluster: Make, size: int
) -> None:
    minicluster(size=size, maxSize=8)
    resizer = build()
    for delta in (1, -1):
        answer = resizer.resize(MEMBER, delta)
        assert (answer.outcome, answer.code) == ("denied", "size-unknown")
        assert f"ignores its spec.size, {size}" in answer.reason
    assert resizer.size(MEMBER) is None
    assert patches(cluster) == []


def test_contradictory_bounds_are_reported(build: Build, minicluster: Make) -> None:
    minicluster(size=4, minSize=5, maxSize=3)
    answer = build().resize(MEMBER, 1)
    assert (answer.outcome, answer.code) == ("denied", "bad-bounds")


def test_a_minicluster_being_deleted_is_not_touched(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    found = minicluster(size=2, maxSize=8)
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    found["metadata"]["finalizers"] = ["example.org/wait"]
    cluster.store.write(kind, "default", found)
    cluster.store.delete(kind, "default", "ensemble")
    answer = build().resize(MEMBER, 1)
    assert (answer.outcome, answer.code) == ("denied", "being-deleted")


# -- chosen objects -----------------------------------------------------------------------------------


def test_the_service_maps_members_to_objects(
    cluster: Cluster, build: Build, minicluster: Make, operator: Operator
) -> None:
    minicluster("ensemble", size=2, maxSize=8)
    minicluster("melt-a1b2", size=1, maxSize=8)
    seen(cluster)
    resizer = build(map='{"default/melt": "melt-a1b2"}')
    assert resizer.resize("default/melt", 1).granted == 2
    assert (on_record(cluster, "melt-a1b2"), on_record(cluster, "ensemble")) == (2, 2)
    assert build(map={"melt": "melt-a1b2"}).size("default/melt") == 2


def test_only_the_configured_namespace_is_touched(
    cluster: Cluster, build: Build, minicluster: Make
) -> None:
    minicluster(size=2, maxSize=8)
    resizer = build(namespace="physics")
    answer = resizer.resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "forbidden", False)
    assert resizer.size(MEMBER) is None
    assert [each for each in cluster.log if FLUX in each[1]] == []


@pytest.mark.parametrize("member", ["", "a/b/c", "../x", "default/", "Default/x", "a b", "x" * 70])
def test_an_invalid_member_name_reaches_no_api_server(
    cluster: Cluster, build: Build, member: str
) -> None:
    answer = build().resize(member, 1)
    assert (answer.outcome, answer.code) == ("denied", "bad-member")
    assert cluster.log == []


def test_a_fixed_member_is_not_resized(
    cluster: Cluster, build: Build, minicluster: Make, operator: Operator
) -> None:
    minicluster(size=2, maxSize=8)
    minicluster("other", size=2, maxSize=8)
    resizer = build(fixed='["ensemble"]')
    assert sizes(resizer.resize(MEMBER, 1))[-1] == "not-ours"
    assert resizer.size(MEMBER) == on_record(cluster) == 2
    assert patches(cluster) == []
    assert resizer.resize("default/other", 1).granted == 3


def test_fixed_members_are_given_as_a_list(build: Build) -> None:
    for wrong in ("[", "{}", "[1]"):
        with pytest.raises(UsageError):
            build(fixed=wrong)
