"""Errors in ``plan``: invalid files, foreign objects, missing Secrets and their conditions."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_operator.changes import Delete, Keys
from ensemble_operator.object_names import content
from fake_namespace import (
    FILE,
    OTHER,
    World,
    ensemble,
    member,
    running,
    told,
)


def test_an_invalid_spec_is_a_condition_and_nothing_is_created() -> None:
    world = World(ensemble(member(spec={"containers": []})))
    made = world.step()
    assert made.changes == ()
    assert world.condition("Valid") == ("False", "InvalidMember")
    assert world.status["phase"] == "Pending"
    assert told(world) == ["InvalidMember"]
    assert world.plan().status == world.status


def test_an_invalid_file_is_a_condition_with_places_and_nothing_is_created() -> None:
    wrong = ["ensemble.yaml:2:54: there is no job group 'b'; did you mean 'a'?"]
    world = World(ensemble(), errors={content(FILE): wrong})
    assert world.step().changes == ()
    found = world.status["conditions"][0]
    assert (found["type"], found["status"], found["reason"]) == ("Valid", "False", "InvalidFile")
    assert "ensemble.yaml:2:54" in found["message"]
    world.more = {}
    world.settle()
    assert ("MiniCluster", "study-0") in world.children


def test_a_run_continues_when_its_file_becomes_invalid() -> None:
    world = running()
    world.edit(lambda spec: spec["members"][0].update(ensemble=OTHER))
    world.more = {"errors": {content(OTHER): ["wrong"]}}
    world.settle()
    assert world.condition("Valid") == ("False", "InvalidFile")
    assert world.status["phase"] == "Running"
    assert ("MiniCluster", "study-0") in world.children


def spoil(world: World, what: str = "file") -> None:
    """Make the file of the running member invalid, or its spec in a way that only the operator
    finds.
    """
    changed: dict[str, Any] = {"ensemble": OTHER}
    if what == "spec":
        containers = [{"image": "lammps", "command": "bash"}]
        changed["minicluster"] = {"spec": {"containers": containers}}
    world.edit(lambda spec: spec["members"][0].update(changed))
    world.more = {"errors": {content(OTHER): ["wrong"]}}
    world.settle()


@pytest.mark.parametrize(("code", "result"), [(0, "Succeeded"), (3, "Failed"), (None, "Lost")])
@pytest.mark.parametrize("policy", ["OnFinish", "Recreate"])
@pytest.mark.parametrize("what", ["file", "spec"])
def test_the_end_of_a_run_whose_file_or_spec_became_invalid_is_recorded(
    code: int | None, result: str, policy: str, what: str
) -> None:
    """Otherwise a lost run starts from the beginning, and its members stay ready."""
    world = running(ensemble(updatePolicy=policy))
    spoil(world, what)
    if code is None:
        world.killed("study-0")
    else:
        world.ends("study-0", code)
    world.settle()
    assert world.condition("Valid") == (
        "False",
        "Invalid" + {"file": "File", "spec": "Member"}[what],
    )
    assert world.condition("Finished") == ("True", result)
    good = code == 0
    wanted = ("True", "NotNeeded") if good else ("False", result)
    assert world.condition("MembersReady") == wanted
    assert world.status["phase"] == ("Succeeded" if good else "Failed")
    assert (("MiniCluster", "study-0") in world.children) is (code is not None)
    assert told(world).count("Finished" if good else "Failed") == 1
    world.more = {}
    world.edit(lambda spec: spec["members"][0].update(member(ensemble=OTHER)))
    world.settle()
    assert world.condition("Finished") == ("False", "Running"), "the new file runs"


@pytest.mark.parametrize("ended_before", [True, False])
@pytest.mark.parametrize("what", ["file", "spec"])
def test_an_ensemble_that_became_invalid_is_deleted_after_its_time_to_live(
    ended_before: bool, what: str
) -> None:
    """Otherwise it stays, and is reconciled ten times a second."""
    world = running(ensemble(ttlSecondsAfterFinished=60))
    steps = [lambda: world.ends("study-0"), lambda: spoil(world, what)]
    for step in steps if ended_before else steps[::-1]:
        step()
        world.settle()
    assert world.condition("Valid")[0] == "False"
    again = world.plan().again
    assert again is not None
    assert world.now < again <= world.now + 60
    assert not world.gone
    world.now += 120
    world.step()
    assert world.gone


@pytest.mark.parametrize("what", ["file", "spec"])
def test_a_member_that_became_invalid_is_not_ready_if_its_heartbeats_stop(what: str) -> None:
    world = running()
    spoil(world, what)
    assert world.condition("MembersReady") == ("True", "Ready")
    world.now += 120
    world.settle()
    assert world.condition("MembersReady") == ("False", "Unreachable")


def test_members_whose_file_is_valid_end_while_another_file_is_not() -> None:
    world = World(ensemble(member(), member()))
    world.settle()
    world.runs("study-0")
    world.runs("study-1")
    world.settle()
    spoil(world)
    world.ends("study-1", 1)
    world.settle()
    assert world.entry("1")["result"] == "Failed"
    assert world.condition("MembersReady") == ("False", "Failed")


def test_a_shared_run_is_followed_to_its_end_if_the_spec_became_invalid() -> None:
    world = World(ensemble({"minicluster": member()["minicluster"]}, ensemble=FILE))
    world.settle()
    world.runs("study-0")
    world.settle()
    world.runs("study-run")
    world.settle()
    containers = [{"image": "lammps", "command": "bash"}]
    world.edit(
        lambda spec: spec["members"][0].update(minicluster={"spec": {"containers": containers}})
    )
    world.settle()
    world.ends("study-run", 3)
    world.settle()
    assert world.condition("Valid") == ("False", "InvalidMember")
    assert world.condition("Finished") == ("True", "Failed")
    assert world.status["exit"] == "3"


def test_a_missing_flux_operator_is_reported() -> None:
    world = World(ensemble(), flux=False)
    assert world.step().changes == ()
    assert world.condition("Valid") == ("False", "NoFluxOperator")


@pytest.mark.parametrize("kind", ["MiniCluster", "Deployment", "Service", "ConfigMap"])
def test_foreign_objects_are_never_adopted(kind: str) -> None:
    probe = running()
    name = next(n for k, n in probe.children if k == kind)
    foreign = {"kind": kind, "metadata": {"name": name, "uid": "theirs"}, "spec": {"size": 3}}
    world = World(ensemble())
    world.children[(kind, name)] = foreign
    world.settle()
    assert world.children[(kind, name)]["metadata"]["uid"] == "theirs"
    assert world.condition("Valid") == ("False", "Conflict")
    assert world.condition("Ready")[0] == "False"
    assert told(world).count("Conflict") == 1


@pytest.mark.parametrize("name", ["study-tls", "study-tokens", "study-0-token"])
def test_a_foreign_secret_is_neither_read_nor_written(name: str) -> None:
    world = World(ensemble())
    theirs = {"kind": "Secret", "metadata": {"name": name, "uid": "theirs"}, "data": {"a": "Yg=="}}
    world.secrets[name] = theirs
    world.step()
    assert world.condition("Valid") == ("False", "Conflict")
    assert not any(isinstance(each, Keys) for each in world.done)
    assert world.secrets[name] is theirs
    assert world.plan().again == world.now + 10, "it is not watched, so it is looked at"
    world.secrets[name] = None
    world.settle()
    assert world.condition("Valid") == ("True", "Sound")


def test_an_object_of_an_earlier_ensemble_of_that_name_is_foreign() -> None:
    world = running()
    world.found["metadata"]["uid"] = "uid-new"
    world.found.pop("status")
    made = world.plan()
    assert not any(isinstance(each, Delete) for each in made.changes)
    assert {c["reason"] for c in made.status["conditions"] if c["type"] == "Valid"} == {"Conflict"}


def test_a_secret_deleted_by_hand_is_recreated() -> None:
    for name in ("study-tls", "study-tokens", "study-0-token"):
        world = running()
        world.secrets[name] = None
        world.settle()
        assert world.secrets[name] is not None


def test_certificates_are_renewed_in_time() -> None:
    world = running()
    world.now += 1.1e7
    assert any(isinstance(each, Keys) for each in world.plan().changes)


def test_a_missing_secret_of_the_user_is_reported() -> None:
    world = World(ensemble(sidecar={"tls": {"secretName": "mine"}}))
    world.secrets["mine"] = None
    world.step()
    assert world.condition("ServiceReady") == ("False", "NoSecret")


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("ImagePull", {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}),
        (
            "CrashLoop",
            {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
        ),
        ("Unschedulable", {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable"}]}),
        ("Starting", {}),
    ],
)
def test_the_reason_why_the_service_is_unavailable_is_reported(reason: str, status: Any) -> None:
    world = World(ensemble())
    world.step()
    labels = {"app.kubernetes.io/component": "service", "job-name": ""}
    world.pods["s"] = {"metadata": {"name": "s", "labels": labels}, "status": status}
    world.step()
    assert world.condition("ServiceReady") == ("False", reason)


def test_a_just_changed_service_does_not_count_as_ready() -> None:
    world = running()
    deployment = world.children[("Deployment", "study")]
    deployment["metadata"]["generation"] = 2
    deployment["status"] = {"availableReplicas": 1, "observedGeneration": 1}
    world.step()
    assert world.condition("ServiceReady") == ("False", "Starting")
    deployment["status"]["observedGeneration"] = 2
    world.step()
    assert world.condition("ServiceReady") == ("True", "Available")


def test_a_condition_of_the_previous_spec_has_its_generation() -> None:
    """Otherwise a user who waits for an edited Ensemble would see the previous run's end."""
    world = running()
    world.ends("study-0")
    world.settle()
    world.edit(lambda spec: spec["members"][0].update(ensemble="jobs: 3"))
    world.more = {"errors": {content("jobs: 3"): ("line 1: no",)}}
    world.step()
    seen = {each["type"]: each["observedGeneration"] for each in world.status["conditions"]}
    assert (seen["Valid"], seen["Finished"]) == (2, 1)
    assert world.status["observedGeneration"] == 2


def test_the_reason_why_a_member_is_not_ready_is_reported() -> None:
    world = running()
    world.now += 61
    world.step()
    assert world.condition("MembersReady") == ("False", "Unreachable")
    world.figures = {}
    world.step()
    assert world.condition("MembersReady") == ("False", "WaitingForFlux")
