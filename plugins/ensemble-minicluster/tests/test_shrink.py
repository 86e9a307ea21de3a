"""Tests of shrinking: drained nodes, their jobs, and nodes that accept jobs again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from ensemble_minicluster.cluster import Patience
from ensemble_testing.executor import wait_until

from ensemble_core import ExecutorError, Problem

Play = Callable[..., Any]


def drains(cluster: Any) -> list[str]:
    return [
        payload["targets"] for topic, payload in cluster.instance.asked if topic == "resource.drain"
    ]


def test_the_highest_ranks_are_drained_and_idle_before_the_service_is_asked(played: Play) -> None:
    cluster = played(4)
    cluster.instance.busy = {0, 1, 2, 3}
    cluster.session.executor.resize("resize-1", -2)
    wait_until(lambda: set(cluster.instance.drained) == {2, 3})
    cluster.instance.busy = {0, 1, 3}
    cluster.looked()
    assert cluster.cloud.requests == []
    cluster.follow()
    cluster.instance.busy = {0, 1}
    outcome = cluster.answer("resize-1")
    assert (outcome.outcome, outcome.size, outcome.reason) == ("granted", 2, "")
    assert drains(cluster) == ["2-3"]
    # Later replacements of these nodes accept jobs.
    assert cluster.instance.drained == {}


def test_a_job_scheduled_before_the_drain_is_waited_for(
    played: Play,
) -> None:
    cluster = played(2)
    cluster.follow()
    looks = 0
    answer = cluster.instance.answer

    def late(topic: str, payload: Any) -> Any:
        nonlocal looks
        if topic == "resource.sched-status" and cluster.instance.drained:
            looks += 1
            cluster.instance.busy = {1} if 2 <= looks <= 5 else set()
        return answer(topic, payload)

    cluster.instance.answer = late
    assert cluster.resize("resize-1", -1).outcome == "granted"
    assert looks > 6


def test_a_grant_is_reported_when_flux_reports_the_nodes_as_gone(played: Play) -> None:
    cluster = played(3)
    cluster.session.executor.resize("resize-1", -1)
    wait_until(lambda: cluster.cloud.count == 2)
    cluster.looked()
    assert cluster.outcomes("resize-1") == []
    assert set(cluster.instance.drained) == {2}  # no job starts on a leaving node
    cluster.instance.online.discard(2)
    assert cluster.answer("resize-1").size == 2


def test_nodes_that_do_not_leave_cause_a_timeout_and_stay_drained(played: Play) -> None:
    cluster = played(3, Patience(arrival=0.4, drain=5, settle=0))
    outcome = cluster.resize("resize-1", -1)
    assert (outcome.outcome, outcome.size) == ("timeout", 2)
    assert outcome.reason == "2 nodes should stay, but rank 2 is still up after 0.4 s"
    assert set(cluster.instance.drained) == {2}


def test_a_denied_shrink_returns_the_nodes_to_the_jobs(played: Play) -> None:
    cluster = played(3)
    cluster.cloud.smallest = 3
    outcome = cluster.resize("resize-1", -1)
    assert (outcome.outcome, outcome.size) == ("denied", 3)
    assert drains(cluster) == ["2"]
    assert cluster.instance.drained == {}


def test_a_partial_grant_spares_the_other_nodes(played: Play) -> None:
    cluster = played(4)
    cluster.cloud.smallest = 3
    cluster.follow()
    outcome = cluster.resize("resize-1", -3)
    assert (outcome.outcome, outcome.size) == ("granted", 3)
    assert outcome.reason.startswith("1 of 3 nodes")
    assert drains(cluster) == ["1-3"]
    assert cluster.instance.drained == {}


def test_our_drains_cause_no_warning_and_others_do(played: Play) -> None:
    cluster = played(3)
    told = ["pod2 was drained (ensemble gives this node back (run x)): no more jobs start there"]
    told.append("pod1 was drained (bad disk): no more jobs start there")
    cluster.flux._emit([Problem(time.time(), message) for message in told])
    assert cluster.warnings() == told[1:]


def test_rank_0_is_never_drained(played: Play) -> None:
    cluster = played(2)
    cluster.follow()
    cluster.instance.busy = {0}
    outcome = cluster.resize("resize-1", -5)
    assert (outcome.outcome, outcome.size) == ("granted", 1)
    assert drains(cluster) == ["1"]
    assert cluster.resize("resize-2", -1).outcome == "denied"
    assert drains(cluster) == ["1"]


def test_nodes_drained_by_others_stay_drained(played: Play) -> None:
    cluster = played(4)
    cluster.cloud.smallest = 4
    cluster.instance.drained = {3: "bad disk"}
    assert cluster.resize("resize-1", -2).outcome == "denied"
    assert drains(cluster) == ["2"]
    assert cluster.instance.drained == {3: "bad disk"}


def test_a_node_drained_by_another_at_the_same_time_keeps_that_reason(played: Play) -> None:
    cluster = played(4)
    cluster.follow()
    answer = cluster.instance.answer

    def raced(topic: str, payload: Any) -> Any:
        if topic == "resource.drain":
            cluster.instance.drained.setdefault(3, "bad disk")
        return answer(topic, payload)

    cluster.instance.answer = raced
    assert cluster.resize("resize-1", -2).size == 2
    assert cluster.instance.drained == {3: "bad disk"}


def test_the_recorded_size_determines_the_leaving_nodes_even_if_one_is_down(played: Play) -> None:
    cluster = played(4)
    cluster.instance.online.discard(3)
    cluster.follow()
    assert cluster.resize("resize-1", -1).outcome == "granted"
    assert drains(cluster) == ["3"]


def test_without_a_recorded_size_flux_determines_the_nodes(played: Play) -> None:
    cluster = played(3)
    cluster.cloud.knows_size = False
    cluster.follow()
    assert cluster.resize("resize-1", -1).size == 2
    assert drains(cluster) == ["2"]


# -- busy nodes ------------------------------------------------------------------------------------


def test_nodes_that_stay_busy_too_long_are_spared(played: Play) -> None:
    cluster = played(4, Patience(arrival=5, drain=0.4, settle=0))
    cluster.instance.busy = {3}
    outcome = cluster.resize("resize-1", -2)
    assert (outcome.outcome, outcome.size) == ("denied", 4)
    assert outcome.reason == "jobs still run on rank 3 after 0.4 s"
    assert cluster.instance.drained == {}
    assert cluster.cloud.requests == []


def test_skip_takes_idle_nodes_from_the_top(played: Play) -> None:
    cluster = played(4)
    cluster.follow()
    cluster.instance.busy = {1, 2}
    outcome = cluster.resize("resize-1", -3, "skip")
    assert (outcome.outcome, outcome.size) == ("granted", 3)
    assert outcome.reason == "1 of 3 nodes: the others are busy"
    assert cluster.cloud.requests == [(f"{cluster.run}/resize-1", -1)]
    assert cluster.instance.drained == {}


def test_skip_is_denied_if_the_first_node_is_busy(played: Play) -> None:
    cluster = played(4)
    cluster.instance.busy = {3}
    outcome = cluster.resize("resize-1", -2, "skip")
    assert (outcome.outcome, outcome.size) == ("denied", 4)
    assert outcome.reason == "jobs run on rank 3, which would be removed first"
    assert cluster.instance.drained == {}
    assert cluster.cloud.requests == []


def test_force_waits_for_no_job(played: Play) -> None:
    cluster = played(4)
    cluster.follow()
    cluster.instance.busy = {1, 2, 3}
    assert cluster.resize("resize-1", -2, "force").size == 2


def test_force_continues_if_flux_does_not_allow_draining(played: Play) -> None:
    cluster = played(4)
    cluster.follow()
    cluster.instance.refuses["resource.drain"] = PermissionError(1, "not permitted")
    assert cluster.resize("resize-1", -2, "force").size == 2


def test_without_permission_to_drain_the_error_says_who_has_it(played: Play) -> None:
    cluster = played(4)
    cluster.instance.refuses["resource.drain"] = PermissionError(1, "not permitted")
    outcome = cluster.resize("resize-1", -2)
    assert outcome.outcome == "denied"
    assert "only the owner of an instance may drain" in outcome.reason
    assert cluster.cloud.requests == []


# -- repeated requests-------------------------------------------------------------------------------


def test_nothing_is_drained_if_the_service_is_unreachable(
    played: Play, undelivered: ExecutorError, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = played(4)

    def size() -> int:
        raise undelivered

    monkeypatch.setattr(cluster.cloud, "size", size)
    assert cluster.resize("resize-1", -2).outcome == "undelivered"
    assert cluster.instance.drained == {}


def test_no_job_starts_on_nodes_whose_fate_is_unknown(
    played: Play, undelivered: ExecutorError
) -> None:
    cluster = played(4)
    cluster.follow()
    cluster.cloud.loses = [undelivered]
    assert cluster.resize("resize-1", -2).outcome == "undelivered"
    assert set(cluster.instance.drained) == {2, 3}
    # These nodes have left; a repeated request must not choose others.
    assert cluster.resize("resize-1", -2).size == 2
    assert drains(cluster) == ["2-3"]
    assert cluster.cloud.count == 2
    assert cluster.instance.drained == {}


def test_a_node_does_not_stay_drained_when_the_run_ends_before_its_fate_is_known(
    played: Play, undelivered: ExecutorError
) -> None:
    cluster = played(4)
    cluster.cloud.fails = [undelivered]
    assert cluster.resize("resize-1", -2).outcome == "undelivered"
    assert set(cluster.instance.drained) == {2, 3}
    cluster.close()
    assert cluster.instance.drained == {}


@pytest.mark.parametrize("when_busy", ["wait", "skip"])
def test_a_request_that_may_have_taken_effect_is_repeated_whatever_the_nodes_state(
    played: Play, undelivered: ExecutorError, when_busy: str
) -> None:
    cluster = played(4, Patience(arrival=5, drain=0.3, settle=0))
    cluster.follow()
    cluster.cloud.loses = [undelivered]
    assert cluster.resize("resize-1", -1, when_busy).outcome == "undelivered"
    cluster.instance.busy = {3}  # a failed job is still being cleaned up
    assert cluster.resize("resize-1", -1, when_busy).size == 3


@pytest.mark.parametrize("when_busy", ["wait", "skip"])
def test_a_later_controller_does_not_choose_other_nodes_when_the_first_are_gone(
    played: Play, when_busy: str
) -> None:
    cluster = played(4)
    cluster.session.executor.resize("resize-1", -2, when_busy=when_busy)
    wait_until(lambda: cluster.cloud.count == 2)
    cluster.instance.online -= {2, 3}
    cluster.instance.busy = {0, 1}
    cluster.kill()
    outcome = cluster.resize("resize-1", -2, when_busy)
    assert (outcome.outcome, outcome.size) == ("granted", 2)
    assert set(drains(cluster)) == {"2-3"}
    assert cluster.instance.drained == {}


def test_a_later_controller_continues_to_wait_for_jobs_on_the_same_nodes(played: Play) -> None:
    cluster = played(4)
    cluster.instance.busy = {3}
    cluster.session.executor.resize("resize-1", -2)
    wait_until(lambda: set(cluster.instance.drained) == {2, 3})
    cluster.kill()
    cluster.session.executor.resize("resize-1", -2)
    cluster.looked()
    assert cluster.cloud.requests == []
    cluster.follow()
    cluster.instance.busy = set()
    assert cluster.answer("resize-1").size == 2
    assert cluster.instance.drained == {}


def test_a_shrink_at_the_end_of_a_run_is_delivered(played: Play) -> None:
    cluster = played(3)
    cluster.follow()
    cluster.session.executor.resize("resize-1", -2)
    cluster.close()
    assert cluster.cloud.count == 1
    assert cluster.instance.drained == {}


def test_a_run_that_ends_while_jobs_are_on_the_nodes_spares_them_soon(
    played: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_minicluster.grow_and_shrink.LAST", 0.3)
    cluster = played(3)
    cluster.instance.busy = {2}
    cluster.session.executor.resize("resize-1", -1)
    wait_until(lambda: set(cluster.instance.drained) == {2})
    cluster.close()
    assert cluster.instance.drained == {}
    assert cluster.cloud.requests == []


def test_grow_after_shrink_and_shrink_after_grow(played: Play) -> None:
    cluster = played(2)
    cluster.follow()
    sizes = [cluster.resize(f"resize-{n}", d).size for n, d in enumerate((2, -2, 1, -1, 2, -3))]
    assert sizes == [4, 2, 3, 2, 4, 1]
    assert cluster.instance.drained == {}


def test_after_any_history_each_request_is_answered_and_no_node_stays_drained(
    played: Play, undelivered: ExecutorError
) -> None:
    chance = random.Random(5)
    cluster = played(2, Patience(arrival=5, drain=0.2, settle=0))
    cluster.follow()
    for step in range(25):
        up = cluster.cloud.count
        cluster.instance.busy = {rank for rank in range(up) if chance.random() < 0.3}
        if chance.random() < 0.2:
            cluster.cloud.fails = [undelivered]
        elif chance.random() < 0.3:
            cluster.cloud.loses = [undelivered]
        delta = chance.choice([-3, -2, -1, 1, 2, 3])
        how = chance.choice(["wait", "skip", "force"])
        first = outcome = cluster.resize(f"resize-{step}", delta, how)
        if outcome.outcome == "undelivered":
            if chance.random() < 0.5:
                cluster.kill()
            outcome = cluster.resize(f"resize-{step}", delta, how)
        assert outcome.outcome in ("granted", "denied"), (step, first, outcome)
        assert outcome.size == cluster.cloud.count, (step, first, outcome)
        assert cluster.instance.online == set(range(cluster.cloud.count))
        assert cluster.instance.drained == {}, (step, delta, how, first, outcome)
        lost = set(range(cluster.cloud.count, up)) & cluster.instance.busy
        assert not lost or how == "force" or first.outcome == "undelivered"
        cluster.cloud.fails, cluster.cloud.loses = [], []
