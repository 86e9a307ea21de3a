"""Tests of the operator's rights: they allow all its requests, and none is unused."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import ensemble_operator.main
import pytest
import yaml
from ensemble_operator.main import crd_text, main
from ensemble_operator.object_names import KINDS
from ensemble_operator.resource import read
from ensemble_operator.service_objects import service_objects
from ensemble_operator.settings import Settings
from fake_namespace import FILE, ensemble, member
from operator_cluster import Stand

DEPLOY = Path(__file__).parents[1] / "deploy"
USER = "system:serviceaccount:default:ensemble-operator"
#: Rights that the operator does not use itself. It grants the first to services; the API server
#: checks the second if owner references are protected.
HELD = {("patch", "miniclusters/scale"), ("update", "ensembles/finalizers")}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "one-namespace" / name).read_text(encoding="utf-8")))


def test_the_role_allows_a_whole_lifetime_and_nothing_more(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stand.cluster.store
    for each in documents("access.yaml"):
        plural = {"ServiceAccount": "", "Role": "roles", "RoleBinding": "rolebindings"}[
            each["kind"]
        ]
        kind = store.kinds[
            ("rbac.authorization.k8s.io", plural) if plural else ("", "serviceaccounts")
        ]
        each["metadata"]["namespace"] = "default"
        for subject in each.get("subjects", ()):
            subject["namespace"] = "default"
        store.create(kind, "default", each)
    token = stand.cluster.access.token(USER)
    stand.start(token=token, lease="default")

    def life(name: str, **spec: Any) -> None:
        stand.apply(
            ensemble(
                member(name="a", resize="HPA", autoscaling={"metrics": []}),
                member(),
                name=name,
                **spec,
            )
        )
        stand.until(lambda: stand.ready(name), name)

    # The second Event about the ignored image only increases the count of the first.
    sidecar = {"storage": {"size": "1Gi"}, "image": "upstream/ensemble-python"}
    more = {"sidecar": sidecar, "state": {"size": "1Gi"}}
    life("one", ttlSecondsAfterFinished=0, **more)
    life("kept", onDelete="Orphan", **more)
    # The operator reads foreign objects whose names it needs.
    for kind in KINDS:
        taken = {"MiniCluster": "four", "HorizontalPodAutoscaler": "five"}.get(kind, "two")
        if KINDS[kind].watched and kind not in ("Ensemble", "Pod", "Job", "ConfigMap"):
            for found in stand.all(kind):
                if found["metadata"]["name"].startswith("one"):
                    copy = {k: v for k, v in found.items() if k not in ("metadata", "status")}
                    name = taken + found["metadata"]["name"].removeprefix("one")
                    store.create(stand.kind(kind), "default", {**copy, "metadata": {"name": name}})
    stand.apply(ensemble(member(name="a"), name="four"))
    stand.until(lambda: "MiniCluster four-a" in str(stand.status("four")))
    stand.apply(ensemble(member(name="a", resize="HPA", autoscaling={"metrics": []}), name="five"))
    stand.until(lambda: "HorizontalPodAutoscaler five-a" in str(stand.status("five")))
    shared = ensemble(
        member(name="a", resize="HPA", autoscaling={"metrics": []}),
        name="two",
        ensemble=FILE,
        **more,
    )
    del shared["spec"]["members"][0]["ensemble"]
    stand.apply(shared)
    stand.until(lambda: stand.condition("two", "Valid")[1] == "Conflict")
    # An outside run, a changed file, a foreign Job, a missing file, a removed member, deletion.
    both = ensemble(
        member(), name="both", ensemble=FILE, updatePolicy="Recreate", onDelete="Orphan"
    )
    del both["spec"]["members"][0]["ensemble"]
    stand.apply(both)
    stand.until(lambda: "both-run" in stand.names("Job"))
    both["spec"]["ensemble"] = FILE.replace("'true'", "'false'")
    before = stand.get("Job", "both-run")
    stand.apply(both)
    stand.until(lambda: (stand.get("Job", "both-run") or before) != before)
    theirs = {
        "kind": "Job",
        "metadata": {"name": "three-run"},
        "spec": {"template": {"metadata": {}, "spec": {"containers": []}}},
    }
    store.create(stand.kind("Job"), "default", theirs)
    three = ensemble(member(), name="three", ensemble=FILE)
    del three["spec"]["members"][0]["ensemble"]
    stand.apply(three)
    stand.until(lambda: stand.condition("three", "Valid")[1] == "Conflict")
    reference = ensemble(
        {**member(), "ensembleFrom": {"configMapKeyRef": {"name": "x"}}}, name="ref"
    )
    del reference["spec"]["members"][0]["ensemble"]
    stand.apply(reference)
    stand.until(lambda: stand.condition("ref", "Valid")[1] == "InvalidFile")
    stand.apply(ensemble(member(), name="kept", onDelete="Orphan", **more))
    stand.until(lambda: stand.names("HorizontalPodAutoscaler").count("kept-a") == 0)
    stand.until(lambda: "kept-a-token" not in stand.names("Secret"))
    for name in ("both", "kept"):
        stand.delete("Ensemble", name)
    life("last", onDelete="Orphan")
    stand.delete("Ensemble", "last")
    for job in ("one-a", "one-1"):
        stand.player.end("default", job)
    stand.until(lambda: not {"one", "both", "kept", "last"} & set(stand.names("Ensemble")))

    def requests() -> set[tuple[str, str]]:
        allowed = stand.cluster.access.allowed
        return {(verb, what) for who, verb, what, _ in allowed if who == USER}

    # After a minute, the operator reads the reason why a pod waits.
    monkeypatch.setattr("ensemble_operator.reconcile_loop._STUCK", 1.0)
    monkeypatch.setattr("ensemble_operator.reconcile._STUCK", 1.0)
    stand.player.stuck["late-0"] = {"waiting": {"reason": "ContainerCreating"}}
    stand.apply(ensemble(name="late"))
    stand.until(lambda: ("list", "events") in requests())
    # On a fast machine, the Lease may not have been renewed yet.
    stand.until(lambda: ("patch", "leases") in requests())
    asked = requests()
    role = next(each for each in documents("access.yaml") if each["kind"] == "Role")
    granted = {
        (verb, what)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for what in rule["resources"]
    }
    assert asked - granted == set()
    assert granted - asked == HELD


def test_with_a_cluster_role_it_works_in_every_namespace(stand: Stand) -> None:
    store, group = stand.cluster.store, "rbac.authorization.k8s.io"
    (role,) = [each for each in documents("access.yaml") if each["kind"] == "Role"]
    name = {"metadata": {"name": "ensemble-operator"}}
    store.create(store.kinds[(group, "clusterroles")], "", {**name, "rules": role["rules"]})
    subject = {"kind": "ServiceAccount", "name": "ensemble-operator", "namespace": "default"}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "ensemble-operator"}
    binding = {**name, "roleRef": reference, "subjects": [subject]}
    store.create(store.kinds[(group, "clusterrolebindings")], "", binding)
    store.create(store.kinds[("", "namespaces")], "", {"metadata": {"name": "other"}})
    stand.start(token=stand.cluster.access.token(USER), lease="default", namespaces=())
    for namespace in ("default", "other"):
        found = ensemble()
        found["metadata"]["namespace"] = namespace
        stand.apply(found)
    for namespace in ("default", "other"):
        stand.until(
            lambda: (
                {"Ready": "True"}.items()
                <= {
                    each["type"]: each["status"]
                    for each in stand.status("study", namespace).get("conditions", ())  # noqa: B023
                }.items()
            )
        )


def test_the_operator_has_the_rights_that_it_grants_to_services() -> None:
    """Otherwise the API server would not let it create the services' Role."""
    (role,) = [each for each in documents("access.yaml") if each["kind"] == "Role"]
    held = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    study = read(ensemble(member(), member(name="b")))
    objects = service_objects(study, Settings(), replicas=1)
    (given,) = [each["rules"] for each in objects if each["kind"] == "Role"]
    assert given
    for rule in given:
        assert rule["resourceNames"] == ["study-0", "study-b"]
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                assert {(group, resource, verb) for verb in rule["verbs"]} <= held


def test_secrets_cannot_be_listed_and_nothing_is_executed_in_pods() -> None:
    (role,) = [each for each in documents("access.yaml") if each["kind"] == "Role"]
    for rule in role["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        if "secrets" in rule["resources"]:
            assert not {"list", "watch"} & set(rule["verbs"])
        assert "pods/exec" not in rule["resources"]


def test_the_deployed_definition_is_current() -> None:
    assert (DEPLOY / "definition" / "crd.yaml").read_text(encoding="utf-8") == crd_text()


def test_the_definition_is_applied_in_the_same_way_everywhere() -> None:
    """Otherwise another manager would own its fields, and the next apply would be a conflict."""
    plugin = DEPLOY.parent
    texts = [plugin / "README.md", *sorted(DEPLOY.rglob("*.yaml")), *sorted(DEPLOY.rglob("*file"))]
    texts.append(Path(ensemble_operator.main.__file__))
    lines = [line for text in texts for line in text.read_text().splitlines()]
    applied = [
        line
        for line in lines
        if "kubectl apply" in line and "flux-operator" not in line and not line.startswith("|")
    ]
    assert len(applied) >= 5
    assert [line for line in applied if "--server-side" not in line] == []


def test_the_operators_start_command_is_valid() -> None:
    (deployment,) = documents("operator.yaml")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    command = main.commands[container["command"][1]]
    parsed = command.make_context("run", list(container["args"])).params
    assert parsed["leader_elect"] is True
    assert pod["metadata"]["labels"]["job-index"] == "none"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("folder", ["one-namespace", "all-namespaces"])
def test_kustomize_accepts_the_manifests(folder: str) -> None:
    try:
        done = subprocess.run(
            ["kubectl", "kustomize", DEPLOY / folder],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no kubectl here")
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    kinds = [each["kind"] for each in objects]
    assert ("ClusterRole" in kinds) == (folder == "all-namespaces")
    assert "CustomResourceDefinition" not in kinds, "its deletion deletes every Ensemble there is"
    # The rights are the same for one namespace and for all.
    (rights,) = [each["rules"] for each in objects if each["kind"] in ("Role", "ClusterRole")]
    (role,) = [each for each in documents("access.yaml") if each["kind"] == "Role"]
    assert rights == role["rules"]
