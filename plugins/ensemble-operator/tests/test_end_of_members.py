"""Ends of members and of their runs in ``plan``: recreated, lost, resumed and finished ones."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_operator.changes import Delete
from ensemble_operator.object_names import WITHDRAWS, format_time
from fake_namespace import (
    FILE,
    OTHER,
    World,
    ensemble,
    member,
    minicluster,
    running,
    told,
)


@pytest.mark.parametrize(("code", "result"), [(0, "Succeeded"), (1, "Failed"), (3, "Failed")])
def test_an_end_is_reported_and_nothing_is_created_again(code: int, result: str) -> None:
    world = running()
    world.ends("study-0", code)
    world.settle()
    assert world.condition("Finished") == ("True", result)
    assert (world.status["phase"], world.status["exit"]) == (result, str(code))
    assert world.entry()["exitCode"] == code
    assert world.condition("Ready")[0] == str(code == 0), "kept while finished, unless it failed"
    assert world.children[("Deployment", "study")]["spec"]["replicas"] == 0
    assert ("MiniCluster", "study-0") in world.children, "its pods have the logs"
    world.delete("MiniCluster", "study-0")
    world.settle()
    assert ("MiniCluster", "study-0") not in world.children


def test_a_pod_that_succeeds_although_nothing_ran_is_lost() -> None:
    """The Flux Operator's script exits with 0 even if Flux failed."""
    world = running()
    world.pod("study-0", {"terminated": {"exitCode": 0}}, phase="Succeeded")
    world.settle()
    assert world.condition("Finished") == ("True", "Lost")
    assert ("MiniCluster", "study-0") not in world.children
    world = running(ensemble(state={"claim": "c"}))
    world.pod("study-0", {"terminated": {"exitCode": 0}}, phase="Succeeded")
    world.settle()
    assert world.condition("Finished")[0] == "False", "its run continues in another pod"


def test_a_member_whose_job_creates_no_other_first_pod_is_recreated() -> None:
    world = running(ensemble(state={"claim": "c"}))
    for pause in (0, 10, 20):
        before = world.children[("MiniCluster", "study-0")]["metadata"]["uid"]
        world.job_made_of("study-0", {"completedIndexes": "0", "conditions": []})
        world.pod("study-0", {"terminated": {"exitCode": 0}}, phase="Succeeded", began=world.now)
        world.settle()
        if pause:
            assert world.children[("MiniCluster", "study-0")]["metadata"]["uid"] == before
            assert (world.plan().again or 0) <= world.now + pause
            world.now += pause
            world.settle()
        assert world.children[("MiniCluster", "study-0")]["metadata"]["uid"] != before
    assert world.condition("Finished")[0] == "False"
    assert [each.reason for each in world.events].count("Recreated") == 3


def grown(found: dict[str, Any]) -> World:
    """Return a world in which the rules of a run have set the size of the member to 5."""
    world = World(found)
    world.settle()
    world.runs("study-0", **{"nodes.up": 8})
    world.settle()
    if ("Job", "study-run") in world.children:
        world.pod("study-run", {"running": {}})
    world.children[("MiniCluster", "study-0")]["spec"]["size"] = 5
    world.settle()
    assert world.condition("Ready")[0] == "True"
    return world


def withdraw(world: World) -> None:
    """Let a shared run cancel its jobs, if it has to."""
    world.settle(20)
    if WITHDRAWS in world.children.get(("Job", "study-run"), {"metadata": {}})["metadata"].get(
        "annotations", {}
    ):
        world.ends("study-run")
        world.settle(20)


def suspend(world: World) -> None:
    world.edit(lambda spec: spec.update(suspend=True))
    withdraw(world)
    assert ("MiniCluster", "study-0") not in world.children
    world.edit(lambda spec: spec.update(suspend=False))


def change_image(world: World) -> None:
    spec = world.found["spec"]["members"][0]["minicluster"]["spec"]
    world.edit(lambda _: spec["containers"][0].update(image="lammps:2"))


def lose(world: World) -> None:
    world.job_made_of("study-0", {"completedIndexes": "1", "conditions": []})
    world.killed("study-0")


WIDE = {"maxSize": 8}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "happens", [lose, suspend, change_image, lambda world: world.delete("MiniCluster", "study-0")]
)
def test_a_member_recreated_for_a_resumed_run_has_its_last_size(happens: Any, shared: bool) -> None:
    """The run's rules asked for these nodes, and will not ask again."""
    given = member(2, spec=WIDE)
    more = {"ensemble": given.pop("ensemble")} if shared else {}
    world = grown(ensemble(given, state={"claim": "c"}, updatePolicy="Recreate", **more))
    before = world.children[("MiniCluster", "study-0")]["metadata"]["uid"]
    happens(world)
    withdraw(world)
    assert world.children[("MiniCluster", "study-0")]["metadata"]["uid"] != before
    assert minicluster(world)["size"] == world.entry()["size"] == 5
    assert told(world).count("Resized") == 1


def test_a_recreated_member_is_not_larger_than_its_new_maximum() -> None:
    world = grown(ensemble(member(2, spec=WIDE), state={"claim": "c"}))
    spec = world.found["spec"]["members"][0]["minicluster"]["spec"]
    world.edit(lambda _: spec.update(maxSize=4))
    lose(world)
    world.settle()
    assert minicluster(world)["size"] == world.entry()["size"] == 4
    assert told(world).count("Resized") == 2


@pytest.mark.parametrize("shared", [False, True])
def test_a_member_of_another_run_has_the_size_of_its_spec(shared: bool) -> None:
    given = member(2, spec=WIDE)
    more = {"ensemble": given.pop("ensemble")} if shared else {}
    world = grown(ensemble(given, state={"claim": "c"}, **more))
    world.ends("study-run" if shared else "study-0")
    world.settle()
    holder = world.found["spec"] if shared else world.found["spec"]["members"][0]
    world.edit(lambda _: holder.update(ensemble=OTHER))
    world.settle(20)
    assert minicluster(world)["size"] == 2


def test_a_member_of_a_run_that_starts_again_has_the_size_of_its_spec() -> None:
    """Without its journal, the run's rules ask for nodes again."""
    world = grown(ensemble(member(2, spec=WIDE)))
    suspend(world)
    world.settle()
    assert minicluster(world)["size"] == 2


def job_over(monkeypatch: pytest.MonkeyPatch, kind: str = "Complete", ago: float = 0) -> World:
    """Return a world in which an outside run's Job has ended and its pod is not known yet."""
    world = running(ensemble({"minicluster": member()["minicluster"]}, ensemble=FILE))
    over = {"type": kind, "status": "True", "lastTransitionTime": format_time(world.now - ago)}
    world.children[("Job", "study-run")]["status"] = {"conditions": [over]}
    del world.pods["study-run-0"]
    monkeypatch.setattr(world, "kubernetes", lambda: None)  # would create a pod
    return world


@pytest.mark.parametrize(
    ("kind", "code", "result"), [("Complete", 0, "Succeeded"), ("Failed", 1, "Failed")]
)
@pytest.mark.parametrize("seen", ["no pod", "a pod that waits"])
def test_a_run_is_not_lost_if_its_jobs_end_is_seen_before_its_pods(
    seen: str, kind: str, code: int, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs and pods have separate watches, so the events of either may arrive first."""
    world = job_over(monkeypatch, kind)
    if seen == "a pod that waits":
        world.pod("study-run", {"waiting": {}}, phase="Pending", container="run")
    world.settle()
    assert world.condition("Finished")[0] == "False"
    assert world.now < (world.plan().again or 0) <= world.now + 10
    world.ends("study-run", code)
    world.settle()
    assert world.condition("Finished") == ("True", result)


def test_a_run_whose_job_has_ended_is_lost_if_its_pod_is_never_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = job_over(monkeypatch)
    world.settle()
    world.now = world.plan().again or 0
    world.settle()
    assert world.condition("Finished") == ("True", "Lost")


@pytest.mark.parametrize("seen", ["a pod that runs", "only the pod that was lost"])
def test_a_member_is_not_recreated_if_its_jobs_end_is_seen_before_its_pods(
    seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Job has created another first pod. So far, only the Job's status shows that it has ended;
    workers still run.
    """
    world = running(ensemble(member(size=2), state={"claim": "c"}))
    world.job_made_of("study-0", {})
    world.killed("study-0")
    world.settle()
    assert world.entry()["lostPod"]
    if seen == "a pod that runs":
        world.runs("study-0")
        world.settle()
    before = world.children[("MiniCluster", "study-0")]["metadata"]["uid"]
    world.job_made_of("study-0", {"completedIndexes": "0"})
    world.settle()
    assert world.children[("MiniCluster", "study-0")]["metadata"]["uid"] == before
    assert world.now < (world.plan().again or 0) <= world.now + 10
    world.ends("study-0")
    world.settle()
    assert world.condition("Finished") == ("True", "Succeeded")
    assert [each.reason for each in world.events].count("Recreated") == 0


@pytest.mark.parametrize("over", [True, False])
def test_a_resumed_member_is_not_recreated_because_its_workers_end_before_its_first_pod(
    over: bool,
) -> None:
    """At the end of a run, the workers end first. If the first pod does not follow, they belonged
    to the pod that was lost.
    """
    world = running(ensemble(member(size=2), state={"claim": "c"}))
    world.job_made_of("study-0", {})
    world.killed("study-0")
    world.settle()
    world.runs("study-0")
    world.settle()
    world.job_made_of("study-0", {"completedIndexes": "1"})
    world.settle()
    assert "Recreated" not in told(world)
    assert world.now < (world.plan().again or 0) <= world.now + 10
    if over:
        world.ends("study-0")
    else:
        world.now = world.plan().again or 0
    world.settle()
    assert (world.condition("Finished") == ("True", "Succeeded")) == over
    assert told(world).count("Recreated") == (0 if over else 1)


def test_a_member_is_recreated_if_its_jobs_last_pod_is_never_seen() -> None:
    world = running(ensemble(member(size=2), state={"claim": "c"}))
    world.job_made_of("study-0", {})
    world.killed("study-0")
    world.settle()
    world.job_made_of("study-0", {"completedIndexes": "0"})
    world.settle()
    world.now = world.plan().again or 0
    world.settle()
    assert [each.reason for each in world.events].count("Recreated") == 1


def test_the_control_planes_clock_does_not_affect_how_long_a_pods_end_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = job_over(monkeypatch, ago=3600)
    world.settle()
    assert world.condition("Finished")[0] == "False"
    assert world.now < (world.plan().again or 0) <= world.now + 10


def test_a_member_is_ready_once_all_of_its_nodes_are_up() -> None:
    world = World(ensemble(member(size=3)))
    world.settle()
    world.runs("study-0", **{"nodes.up": 1})
    world.settle()
    assert world.condition("Ready") == ("False", "WaitingForNodes")
    (found,) = [c for c in world.status["conditions"] if c["type"] == "Ready"]
    assert found["message"] == "1 of 3 nodes of study-0 are up"
    assert world.status["membersReady"] == "0/1"
    world.runs("study-0", **{"nodes.up": 3})
    world.settle()
    assert world.condition("Ready")[0] == "True"


def test_the_end_is_recorded_before_anything_is_deleted() -> None:
    world = running()
    world.killed("study-0")
    first = world.plan()
    assert not any(isinstance(each, Delete) for each in first.changes)
    assert first.status["members"][0]["result"] == "Lost"
    world.found["status"] = dict(first.status)
    assert any(isinstance(each, Delete) for each in world.plan().changes)


def test_a_lost_pod_without_a_claim_is_the_end_and_its_job_is_stopped() -> None:
    world = running()
    world.killed("study-0")
    world.settle()
    assert world.condition("Finished") == ("True", "Lost")
    assert ("MiniCluster", "study-0") not in world.children
    assert "Failed" in told(world)
    assert world.condition("MembersReady") == ("False", "Lost")
    assert world.status["membersReady"] == "0/1"


@pytest.mark.parametrize("code", [0, 1])
def test_members_of_a_run_that_ended_before_they_were_ready_never_become_ready(code: int) -> None:
    world = World(ensemble(member(size=3)))
    world.settle()
    world.runs("study-0", **{"nodes.up": 1})
    world.settle()
    world.ends("study-0", code)
    world.settle()
    good = code == 0
    wanted = ("True", "NotNeeded") if good else ("False", "Failed")
    assert world.condition("MembersReady") == wanted
    assert world.status["membersReady"] == f"{int(good)}/1"
    assert "MemberReady" not in told(world)


def test_a_failed_member_is_not_ready_while_others_run() -> None:
    world = World(ensemble(member(), member()))
    world.settle()
    world.runs("study-0")
    world.runs("study-1")
    world.settle()
    world.ends("study-0", 1)
    world.settle()
    assert world.condition("MembersReady") == ("False", "Failed")
    assert (world.status["phase"], world.status["membersReady"]) == ("Running", "1/2")


def test_a_running_member_that_grows_keeps_its_phase() -> None:
    world = running()
    found = world.children[("MiniCluster", "study-0")]
    found["spec"] = {**found["spec"], "size": 3}
    world.settle()
    assert world.condition("Ready") == ("False", "WaitingForNodes")
    assert world.status["phase"] == "Running"


def test_the_message_of_a_pod_is_in_a_condition_once() -> None:
    world = World(ensemble(member()))
    world.settle()
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    world.pod("study-0", {"waiting": waiting}, phase="Pending")
    world.settle()
    (found,) = [c for c in world.status["conditions"] if c["type"] == "MembersReady"]
    assert found["message"].count("no such image") == 1


def test_a_lost_pod_with_a_claim_is_resumed() -> None:
    world = running(ensemble(state={"claim": "c"}))
    world.killed("study-0")
    world.settle()
    assert world.condition("Finished")[0] == "False"
    assert world.condition("MembersReady") == ("False", "WaitingForPods")
    assert told(world).count("MemberLost") == 1
    world.now += 10
    world.runs("study-0")
    world.settle()
    assert world.condition("Ready")[0] == "True"
    world.job_made_of("study-0", {"conditions": [{"type": "Failed", "status": "True"}]})
    world.killed("study-0")
    world.settle()
    assert world.condition("Finished") == ("True", "Lost")


@pytest.mark.parametrize("known", [True, False])
def test_a_lost_pod_is_the_end_even_if_its_job_has_created_another(known: bool) -> None:
    """With and without labels on the Job."""
    world = running()
    if known:
        world.job_made_of("study-0", {})
    world.killed("study-0")
    world.pods["killed"] = world.pods["study-0-0"]
    world.runs("study-0")
    world.settle()
    assert world.condition("Finished") == ("True", "Lost")


@pytest.mark.parametrize(("state", "ends"), [(None, True), ({"claim": "c"}, False)])
def test_a_run_whose_job_others_delete_does_not_start_again_from_the_beginning(
    state: Any, ends: bool
) -> None:
    """The Flux Operator creates the Job again at once, so only the pod's age tells of it."""
    world = running(ensemble(**({"state": state} if state else {})))
    world.job_made_of("study-0", {})
    world.runs("study-0")
    world.settle()
    del world.children[("Job", "study-0")]
    world.job_made_of("study-0", {})
    world.pod("study-0", {"waiting": {"reason": "PodInitializing"}}, phase="Pending")
    world.settle()
    assert world.condition("MembersReady") == ("False", "WaitingForPods")
    world.pod("study-0", {"running": {}}, began=1_800_000_060.0)
    world.settle()
    assert world.condition("Finished") == (("True", "Lost") if ends else ("False", "Running"))
    assert (("MiniCluster", "study-0") in world.children) is not ends


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_the_pod_created_after_a_failed_one_counts(names: tuple[str, str]) -> None:
    """Both may have the same creation time, in seconds."""
    world = running(ensemble(state={"claim": "c"}))
    world.killed("study-0")
    world.pods["killed"] = world.pods["study-0-0"]
    world.runs("study-0")
    for name, own in zip(("killed", "study-0-0"), names, strict=True):
        world.pods[name]["metadata"]["name"] = own
    world.settle()
    assert world.condition("Ready")[0] == "True"
    assert told(world).count("MemberLost") == 1, "though it was not seen before there was another"
    world.ends("study-0", 1)
    world.pods["study-0-0"]["metadata"]["name"] = names[1]
    world.settle()
    assert world.condition("Finished") == ("True", "Failed")


@pytest.mark.parametrize("known", [True, False])
def test_pods_of_an_earlier_minicluster_do_not_end_the_run(known: bool) -> None:
    """A recreated MiniCluster has the name of the old one, whose pods may still be ending."""
    world = running()
    if known:
        world.job_made_of("study-0", {})
        (owner,) = world.children["Job", "study-0"]["metadata"]["ownerReferences"]
        owner["uid"] = "of the one before"
    else:
        made = "2027-01-15T09:00:00Z"
        world.children["MiniCluster", "study-0"]["metadata"]["creationTimestamp"] = made
    world.killed("study-0")
    world.pods["study-0-0"]["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
    world.settle()
    assert world.condition("Finished") == ("False", "Running")


@pytest.mark.parametrize(("state", "ends"), [({}, True), ({"claim": "c"}, False)])
def test_a_member_deleted_by_hand_is_resumed_if_its_journal_is_kept(state: Any, ends: bool) -> None:
    world = running(ensemble(state=state))
    world.delete("MiniCluster", "study-0")
    world.settle()
    assert (world.condition("Finished")[0] == "True") == ends
    assert (("MiniCluster", "study-0") in world.children) != ends


def test_an_ensemble_is_deleted_after_its_time_to_live() -> None:
    world = running(ensemble(ttlSecondsAfterFinished=100))
    world.ends("study-0")
    world.settle()
    again = world.plan().again
    assert again is not None
    assert again <= world.now + 100
    assert not world.gone
    world.now += 101
    world.step()
    assert world.gone


def test_an_ensemble_with_one_finished_and_one_running_member_is_not_finished() -> None:
    world = running(ensemble(member(), member()))
    world.ends("study-0")
    world.settle()
    assert world.condition("Finished")[0] == "False"
    assert world.condition("Ready")[0] == "True"
    world.ends("study-1", 2)
    world.settle()
    assert world.condition("Finished") == ("True", "Failed")
    assert world.status["exit"] == "0,2"
