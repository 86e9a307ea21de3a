"""Tests of ``plan``: the changes that follow from an Ensemble's state."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from ensemble_operator.changes import Create, Figures, Keys, Observed
from ensemble_operator.reconcile import plan
from ensemble_operator.resource import Reference
from ensemble_operator.settings import Settings
from fake_namespace import (
    FILE,
    OTHER,
    World,
    ensemble,
    kinds,
    member,
    minicluster,
    running,
    shared,
    told,
)

# -- creation --------------------------------------------------------------------------------------


def test_an_ensemble_becomes_a_service_and_then_a_minicluster() -> None:
    world = World(ensemble())
    world.step()
    assert kinds(world) == {
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Deployment",
        "Service",
        "NetworkPolicy",
    }
    assert isinstance(world.done[0], Keys), "the Secrets come before what mounts them"
    world.kubernetes()
    world.step()
    assert "ConfigMap" not in kinds(world), "all of a member is tried first"
    world.settle()
    assert {"MiniCluster", "ConfigMap"} <= kinds(world)
    made = [each for each, _ in world.children]
    assert made.index("ConfigMap") < made.index("MiniCluster"), "what it mounts comes before it"
    world.settle()
    assert world.condition("ServiceReady")[0] == "True"
    assert world.condition("MembersReady") == ("False", "WaitingForPods")
    assert world.status["phase"] == "Starting"
    assert told(world).count("Created") == 2


def test_it_is_ready_once_its_members_send_heartbeats() -> None:
    world = running()
    assert world.condition("Ready")[0] == "True"
    assert (world.status["phase"], world.status["membersReady"]) == ("Running", "1/1")
    assert world.status["nodes"] == {"up": 1, "free": 1}
    assert world.status["running"] == 1
    assert world.entry()["groups"] == [{"name": "a", "success": 1}]
    assert world.status["service"]["address"] == "study-grpc.default.svc:50051"


def test_all_objects_belong_to_the_ensemble_by_owner_and_label() -> None:
    world = running()
    for found in [*world.children.values(), *world.secrets.values()]:
        assert found is not None
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
            "uid-e",
            True,
            True,
        )
        assert found["metadata"]["labels"]["ensemble.flux-framework.org/ensemble"] == "study"


def test_a_members_size_is_one_by_default_and_not_larger_than_its_maximum() -> None:
    spec = minicluster(running())
    assert (spec["size"], spec["minSize"], spec["maxSize"]) == (1, 1, 1)
    spec = minicluster(running(ensemble(member(3))))
    assert (spec["size"], spec["minSize"], spec["maxSize"]) == (3, 1, 3)


def test_the_users_minicluster_is_extended_and_never_replaced() -> None:
    given = {
        "containers": [
            {
                "image": "a",
                "environment": {"OMP_NUM_THREADS": "2"},
                "commands": {"pre": "module load x"},
                "volumes": {"data": {"claimName": "data", "path": "/data"}},
            },
            {"image": "b", "name": "log", "command": "tail -f /x"},
        ],
        "pod": {"tolerations": [{"key": "gpu"}], "labels": {"team": "x"}},
        "flux": {"environment": {"A": "b"}},
        "network": {"disableAffinity": True},
        "unheardOf": {"by": "us"},
    }
    spec = minicluster(running(ensemble(member(spec=given))))
    first = spec["containers"][0]
    assert first["environment"]["OMP_NUM_THREADS"] == "2"
    assert first["commands"]["pre"].startswith("module load x\n")
    assert first["volumes"]["data"] == {"claimName": "data", "path": "/data"}
    assert spec["containers"][1] == given["containers"][1]  # type: ignore[index]
    assert spec["pod"]["tolerations"] == [{"key": "gpu"}]
    assert spec["pod"]["labels"]["team"] == "x"
    assert spec["flux"]["environment"] == {"A": "b"}
    assert spec["network"]["disableAffinity"] is True
    assert spec["unheardOf"] == {"by": "us"}


def test_nothing_is_installed_when_a_pod_starts() -> None:
    spec = minicluster(running())
    text = str(spec)
    assert not any(word in text for word in ("apt-get", "yum ", "pip install"))
    assert [each["name"] for each in spec["containers"][1:]] == ["ensemble-view"]
    image = minicluster(running(ensemble(install={"method": "Image"})))
    assert len(image["containers"]) == 1
    pip = minicluster(running(ensemble(install={"method": "Pip", "requirements": "a==1 --hash=x"})))
    assert "pip install --require-hashes" in pip["containers"][0]["commands"]["pre"]


def test_members_reach_the_service_by_name_with_their_own_token_and_the_authority() -> None:
    world = running(ensemble(member(), member()))
    files = {n: f for (kind, n), f in world.children.items() if kind == "ConfigMap"}
    for name, found in files.items():
        script = found["data"]["start.sh"]
        assert "--host study-grpc.default.svc --port 50051" in script
        assert "--or-resume" in script
        assert found["immutable"] is True
        assert name.startswith("study-")
    assert len(files) == 2
    for index in range(2):
        container = minicluster(world, f"study-{index}")["containers"][0]
        assert container["volumes"]["ensemble-member"]["secretName"] == f"study-{index}-token"
        assert container["environment"]["ENSEMBLE_CA"].endswith("ca.crt")


def test_the_service_may_resize_its_own_members_and_nothing_else() -> None:
    world = running(ensemble(member(), member(name="b")))
    rules = world.children[("Role", "study")]["rules"]
    assert all(rule["resourceNames"] == ["study-0", "study-b"] for rule in rules)
    done = {(verb, what) for rule in rules for verb in rule["verbs"] for what in rule["resources"]}
    assert done == {("get", "miniclusters"), ("patch", "miniclusters/scale"), ("get", "jobs")}


def test_upstreams_image_is_ignored_with_an_event() -> None:
    image = "ghcr.io/converged-computing/ensemble-python:latest"
    world = running(ensemble(sidecar={"image": image, "pullAlways": True}))
    (container,) = world.children[("Deployment", "study")]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "ensemble:1.0.0"
    assert container["imagePullPolicy"] == "Always"
    assert told(world).count("Ignored") == 1


def test_the_flux_operator_ignores_our_pods() -> None:
    world = running()
    template = world.children[("Deployment", "study")]["spec"]["template"]
    assert template["metadata"]["labels"]["job-index"] == "none"


def test_a_pod_is_not_restarted_because_jobs_failed() -> None:
    spec = minicluster(running())
    assert spec["pod"]["restartPolicy"] == "Never"
    assert spec["backoffLimit"] == 1
    kept = minicluster(running(ensemble(state={"size": "1Gi"})))
    assert kept["backoffLimit"] == 6


def test_journals_are_in_a_claim_of_each_member_if_requested() -> None:
    world = running(ensemble(member(), member(), state={"size": "2Gi", "storageClassName": "fast"}))
    for name in ("study-0", "study-1"):
        claim = world.children[("PersistentVolumeClaim", name)]["spec"]
        assert claim["resources"]["requests"]["storage"] == "2Gi"
        container = minicluster(world, name)["containers"][0]
        assert container["volumes"]["ensemble-state"]["claimName"] == name
        assert container["environment"]["ENSEMBLE_STATE"] == f"/var/lib/ensemble/{name}"
    mine = running(ensemble(member(), state={"claim": "mine"}))
    assert "PersistentVolumeClaim" not in kinds(mine)
    assert minicluster(mine)["containers"][0]["volumes"]["ensemble-state"]["claimName"] == "mine"


def test_a_requested_autoscaler_is_created_and_rules_do_not_set_the_size() -> None:
    scaled = member(1, resize="HPA", autoscaling={"metrics": []}, spec={"maxSize": 4})
    world = running(ensemble(scaled, member()))
    spec = world.children[("HorizontalPodAutoscaler", "study-0")]["spec"]
    assert spec["scaleTargetRef"]["name"] == "study-0"
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    deployment = world.children[("Deployment", "study")]["spec"]["template"]["spec"]
    assert '--option=fixed=["default/study-0"]' in deployment["containers"][0]["args"]


# -- changes -----------------------------------------------------------------------------------------


def test_a_changed_image_of_the_service_is_used_at_once() -> None:
    world = running()
    world.edit(lambda spec: spec.update(sidecar={"image": "mine:2"}))
    world.settle()
    pod = world.children[("Deployment", "study")]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "mine:2"
    assert "Updated" in told(world)


@pytest.mark.parametrize("change", ["file", "minicluster"])
def test_a_running_member_stays_unchanged_until_its_run_is_over(change: str) -> None:
    world = running()
    before = world.children[("MiniCluster", "study-0")]["metadata"]["uid"]

    def edit(spec: Any) -> None:
        if change == "file":
            spec["members"][0]["ensemble"] = OTHER
        else:
            spec["members"][0]["minicluster"]["spec"]["containers"][0]["image"] = "lammps:2"

    world.edit(edit)
    world.settle()
    assert world.children[("MiniCluster", "study-0")]["metadata"]["uid"] == before
    reason = "RunningOldFile" if change == "file" else "NeedsRecreate"
    assert world.condition("Updated") == ("False", reason)
    assert len([n for k, n in world.children if k == "ConfigMap"]) == 1, (
        "no file of what is to come"
    )
    world.ends("study-0")
    world.settle()
    again = ("MiniCluster", "study-0")
    if change == "file":  # a new file is a new run
        assert world.children[again]["metadata"]["uid"] != before
    else:
        assert world.condition("Finished") == ("True", "Succeeded")
    assert world.condition("Updated")[0] == "True"


def test_with_recreate_a_change_is_applied_at_once() -> None:
    world = running(ensemble(updatePolicy="Recreate"))
    before = world.children[("MiniCluster", "study-0")]["metadata"]["uid"]
    world.edit(lambda spec: spec["members"][0].update(ensemble=OTHER))
    world.settle()
    assert world.children[("MiniCluster", "study-0")]["metadata"]["uid"] != before
    (files,) = [f for (k, _), f in world.children.items() if k == "ConfigMap"]
    assert files["data"]["ensemble.yaml"] == OTHER
    assert "Recreated" in told(world)


def test_a_denied_size_is_reported_once_until_another_is_granted() -> None:
    world = running()

    def told_of(denied: str) -> int:
        world.now += 5
        known = world.figures["default/study-0"]
        world.figures["default/study-0"] = replace(known, beat=world.now, denied=denied)
        world.settle()
        assert world.entry().get("denied", "") == denied
        return told(world).count("ResizeDenied")

    assert told_of("") == 0
    assert told_of("at-maximum: 4 already") == 1
    assert told_of("at-maximum: 4 already") == 1
    assert told_of("") == 1
    assert told_of("at-maximum: 4 already") == 2
    note = next(each for each in world.events if each.reason == "ResizeDenied")
    assert note.message == "study-0: at-maximum: 4 already"
    assert note.warning


def test_a_size_that_others_changed_is_never_reset() -> None:
    world = running(ensemble(member(2, spec={"maxSize": 8})))
    world.children[("MiniCluster", "study-0")]["spec"]["size"] = 5
    world.settle()
    assert minicluster(world)["size"] == 5
    assert world.entry()["size"] == 5
    assert "Resized" in told(world)


def test_a_removed_member_is_deleted_and_the_others_stay_unchanged() -> None:
    world = running(ensemble(member(name="a"), member(name="b")))
    before = world.children[("MiniCluster", "study-b")]["metadata"]["uid"]
    world.edit(lambda spec: spec["members"].pop(0))
    world.settle()
    assert [n for k, n in world.children if k == "MiniCluster"] == ["study-b"]
    assert world.children[("MiniCluster", "study-b")]["metadata"]["uid"] == before
    assert world.secrets["study-a-token"] is None
    assert world.children[("Role", "study")]["rules"][0]["resourceNames"] == ["study-b"]
    assert "Pruned" in told(world)


def test_a_changed_configmap_counts_as_a_changed_file() -> None:
    reference = Reference("files", "ensemble.yaml")
    found = ensemble({**member(), "ensembleFrom": {"configMapKeyRef": {"name": "files"}}})
    del found["spec"]["members"][0]["ensemble"]
    world = running(found, files={reference: FILE})
    world.more["files"] = {reference: OTHER}
    world.settle()
    assert world.condition("Updated") == ("False", "RunningOldFile")
    world.more["files"] = {reference: None}
    world.settle()
    assert world.condition("Valid") == ("False", "InvalidFile")
    assert ("MiniCluster", "study-0") in world.children


# -- suspension --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shared", "state", "cancels"),
    [
        (False, {}, True),
        (False, {"claim": "c"}, True),
        (True, {}, True),
        (True, {"claim": "c"}, False),
        (True, {"size": "1Gi"}, False),
    ],
)
def test_a_stopped_run_cancels_its_jobs_if_they_end_with_it(
    shared: bool, state: Any, cancels: bool
) -> None:
    """If Flux ends with the pod, running jobs are lost, but a resume submits cancelled jobs again.
    If the run is outside of the members and its journal in a claim, jobs can continue.
    """
    found = ensemble(member(), state=state, **({"ensemble": FILE} if shared else {}))
    if shared:
        del found["spec"]["members"][0]["ensemble"]
    world = running(found)
    scripts = [c["data"]["start.sh"] for (k, _), c in world.children.items() if k == "ConfigMap"]
    (run,) = [each for each in scripts if "ensemble run " in each]
    assert ("--set on_stop=cancel" in run) == cancels


def test_a_suspended_ensemble_has_no_members_but_its_service_stays() -> None:
    world = running(ensemble(state={"claim": "c"}))
    tag = world.entry()["run"]
    world.edit(lambda spec: spec.update(suspend=True))
    world.settle()
    assert "MiniCluster" not in kinds(world)
    assert world.children[("Deployment", "study")]["spec"]["replicas"] == 1
    assert world.status["phase"] == "Suspended"
    world.edit(lambda spec: spec.update(suspend=False))
    world.settle()
    world.runs("study-0")
    world.settle()
    assert world.condition("Ready")[0] == "True"
    assert world.entry()["run"] == tag, "the same run continues"


# -- one file for all --------------------------------------------------------------------------------


def test_a_shared_file_runs_outside_once_all_members_exist() -> None:
    world = World(shared())
    world.settle()
    assert {n for k, n in world.children if k == "MiniCluster"} == {"study-a", "study-b"}
    assert ("Job", "study-run") not in world.children
    for name in ("study-a", "study-b"):
        world.runs(name)
    world.settle()
    job = world.children[("Job", "study-run")]["spec"]
    assert job["backoffLimit"] == 0
    assert job["template"]["metadata"]["labels"]["job-index"] == "none"
    kept = job["template"]["metadata"]["annotations"]
    assert kept["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    scripts = {n: f["data"]["start.sh"] for (k, n), f in world.children.items() if k == "ConfigMap"}
    assert sum("ensemble member start" in each for each in scripts.values()) == 2
    assert sum("--executor remote" in each for each in scripts.values()) == 1


def test_members_of_a_shared_file_are_deleted_when_its_run_is_over() -> None:
    world = running(ensemble({"minicluster": member()["minicluster"]}, ensemble=FILE))
    world.ends("study-run")
    world.pods["study-run-0"]["status"]["containerStatuses"][0]["name"] = "run"
    world.settle()
    assert world.condition("Finished") == ("True", "Succeeded")
    assert "MiniCluster" not in kinds(world)
    assert ("Job", "study-run") in world.children


# -- few status writes -------------------------------------------------------------------------------


def test_a_member_without_a_pod_is_checked_again_after_a_minute() -> None:
    """Otherwise a quota that blocks its Job would be reported only after ten minutes."""
    world = World(ensemble())
    world.settle()
    world.pods.clear()
    again = world.plan().again
    assert again is not None
    assert 60 < again - world.now < 90


def test_a_heartbeat_alone_writes_nothing_and_figures_at_most_every_30_seconds() -> None:
    world = running()
    world.now += 40
    world.figures["default/study-0"] = Figures(
        world.now, world.figures["default/study-0"].gauges, world.figures["default/study-0"].groups
    )
    assert world.plan().status == world.status
    world.runs("study-0", **{"queue.run": 7})
    world.step()
    assert world.status["running"] == 7
    world.now += 10
    world.runs("study-0", **{"queue.run": 8})
    made = world.plan()
    assert made.status == world.status
    assert made.again == world.written + 30
    world.now += 20
    world.step()
    assert world.status["running"] == 8


def test_a_member_that_its_service_no_longer_hears_is_unreachable() -> None:
    """Not: "no heartbeat yet". After the pod was replaced, the heartbeat is of the earlier one."""
    world = running()
    figures = world.figures["default/study-0"]
    world.figures["default/study-0"] = replace(figures, alive=False)
    world.step()
    assert world.condition("MembersReady") == ("False", "Unreachable")
    world.figures["default/study-0"] = replace(figures, alive=False, beat=figures.beat - 3600)
    world.step()
    assert world.condition("MembersReady") == ("False", "WaitingForFlux")


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
def test_a_member_that_is_heard_is_ready_whatever_the_clock_of_its_service_says(
    ahead: float,
) -> None:
    from ensemble_operator.service_polling import _figures
    from ensemble_service.client import MemberStatus

    now = time.time()
    figures = _figures(MemberStatus(member="a", alive=True, last_beat=now + ahead - 4.0))
    assert abs(figures.beat - now) < 10.0
    assert figures.alive
    gone = _figures(MemberStatus(member="a", alive=False, last_beat=now - 4.0))
    assert (gone.alive, gone.beat) == (False, now - 4.0)


# -- deletion ----------------------------------------------------------------------------------------


def test_deletion_is_left_to_kubernetes_unless_children_should_stay() -> None:
    world = running()
    world.found["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert world.plan().changes == ()
    assert world.plan().status["phase"] == "Terminating"
    assert not world.found["metadata"].get("finalizers")


@pytest.mark.parametrize("limit", [6, -1], ids=["valid", "became invalid"])
def test_with_orphan_children_lose_their_owner_and_stay(limit: int) -> None:
    world = running(ensemble(onDelete="Orphan"))
    assert world.found["metadata"]["finalizers"] == ["ensemble.flux-framework.org/orphan"]
    world.edit(lambda spec: spec["members"][0]["minicluster"]["spec"].update(backoffLimit=limit))
    world.found["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    for _ in range(3):
        world.step()
    assert world.gone
    kept = [*world.children.values(), *filter(None, world.secrets.values())]
    assert kept
    assert not any("ownerReferences" in each["metadata"] for each in kept)


def test_the_finalizer_is_removed_when_it_is_no_longer_requested() -> None:
    world = running(ensemble(onDelete="Orphan"))
    world.edit(lambda spec: spec.update(onDelete="Cancel"))
    world.settle()
    assert world.found["metadata"]["finalizers"] == []


# -- restrictions by administrators -----------------------------------------------------------------------

REACHES = {
    "a path of the node": {"volumes": {"data": {"hostPath": "/etc", "path": "/data"}}},
    "a Secret as files": {"volumes": {"data": {"secretName": "others", "path": "/data"}}},
    "a Secret as a variable": {"secrets": {"KEY": {"name": "others", "key": "key"}}},
    "privileges": {"securityContext": {"privileged": True}},
    "capabilities": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
}


@pytest.mark.parametrize("given", list(REACHES.values()), ids=list(REACHES))
def test_a_restricted_operator_rejects_access_beyond_the_pod(given: Any) -> None:
    found = ensemble(member(spec={"containers": [{"image": "a", **given}]}))
    made = plan(found, Observed(), Settings(restricted=True), 0.0)
    assert made.changes == ()
    (valid, _) = made.status["conditions"]
    assert (valid["status"], valid["reason"]) == ("False", "InvalidMember")
    assert "spec.members[0].minicluster.spec.containers[0]." in valid["message"]
    assert "--restrict-members" in valid["message"]
    assert plan(found, Observed(), Settings(), 0.0).changes


def test_a_restricted_operator_rejects_other_service_accounts_and_host_processes() -> None:
    for pod in ({"serviceAccountName": "admin"}, {"hostPID": True}, {"hostIPC": True}):
        found = ensemble(member(spec={"pod": pod}))
        assert plan(found, Observed(), Settings(restricted=True), 0.0).changes == ()


def test_a_restricted_operator_allows_its_own_members_mounts() -> None:
    made = plan(ensemble(state={"claim": "c"}), Observed(), Settings(restricted=True), 0.0)
    assert made.changes


def test_uids_are_left_to_the_cluster_if_requested() -> None:
    for user in (65532, None):
        made = plan(ensemble(), Observed(), Settings(user=user), 0.0).changes
        (body,) = [c.body for c in made if isinstance(c, Create) and c.body["kind"] == "Deployment"]
        context = body["spec"]["template"]["spec"]["securityContext"]
        assert [context[k] for k in ("runAsUser", "runAsGroup", "fsGroup")] == [user] * 3
        assert context["runAsNonRoot"] is True
