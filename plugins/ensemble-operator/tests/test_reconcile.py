"""Tests of ``plan``: the changes that follow from an Ensemble's state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ensemble_operator.changes import Create, Delete, Figures, Keys, Observed
from ensemble_operator.object_names import WITHDRAWS, content
from ensemble_operator.reconcile import plan
from ensemble_operator.resource import Reference
from ensemble_operator.settings import Settings
from ensemble_operator.times import format_time
from fake_namespace import FILE, World, ensemble, member, running

OTHER = FILE.replace("'true'", "'false'")


def kinds(world: World) -> set[str]:
    return {kind for kind, _ in world.children}


def minicluster(world: World, name: str = "study-0") -> dict[str, Any]:
    found: dict[str, Any] = world.children[("MiniCluster", name)]["spec"]
    return found


def told(world: World) -> list[str]:
    return [each.reason for each in world.events]


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


# -- the end -----------------------------------------------------------------------------------------


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


def shared(**spec: Any) -> dict[str, Any]:
    found = ensemble(member(name="a"), member(name="b"), ensemble=FILE, **spec)
    for each in found["spec"]["members"]:
        del each["ensemble"]
    return found


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


# -- errors ------------------------------------------------------------------------------------------


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


def spoil(world: World) -> None:
    """Make the file of the running member invalid."""
    world.edit(lambda spec: spec["members"][0].update(ensemble=OTHER))
    world.more = {"errors": {content(OTHER): ["wrong"]}}
    world.settle()


@pytest.mark.parametrize(("code", "result"), [(0, "Succeeded"), (3, "Failed"), (None, "Lost")])
@pytest.mark.parametrize("policy", ["OnFinish", "Recreate"])
def test_the_end_of_a_run_whose_file_became_invalid_is_recorded(
    code: int | None, result: str, policy: str
) -> None:
    """Otherwise a lost run starts from the beginning, and its members stay ready."""
    world = running(ensemble(updatePolicy=policy))
    spoil(world)
    if code is None:
        world.killed("study-0")
    else:
        world.ends("study-0", code)
    world.settle()
    assert world.condition("Valid") == ("False", "InvalidFile")
    assert world.condition("Finished") == ("True", result)
    good = code == 0
    wanted = ("True", "NotNeeded") if good else ("False", result)
    assert world.condition("MembersReady") == wanted
    assert world.status["phase"] == ("Succeeded" if good else "Failed")
    assert (("MiniCluster", "study-0") in world.children) is (code is not None)
    assert told(world).count("Finished" if good else "Failed") == 1
    world.more = {}
    world.settle()
    assert world.condition("Finished") == ("False", "Running"), "the new file runs"


@pytest.mark.parametrize("ended_before", [True, False])
def test_an_ensemble_whose_file_became_invalid_is_deleted_after_its_time_to_live(
    ended_before: bool,
) -> None:
    """Otherwise it stays, and is reconciled ten times a second."""
    world = running(ensemble(ttlSecondsAfterFinished=60))
    steps = [lambda: world.ends("study-0"), lambda: spoil(world)]
    for step in steps if ended_before else steps[::-1]:
        step()
        world.settle()
    assert world.condition("Valid") == ("False", "InvalidFile")
    again = world.plan().again
    assert again is not None
    assert world.now < again <= world.now + 60
    assert not world.gone
    world.now += 120
    world.step()
    assert world.gone


def test_a_member_whose_file_became_invalid_is_not_ready_if_its_heartbeats_stop() -> None:
    world = running()
    spoil(world)
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
