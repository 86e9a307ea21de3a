"""Stories of Ensembles beside other objects and users of the cluster.

For example changed files, deleted objects, quotas, policies, autoscalers and other operators. They
use the stand-in or, with ``--kubeconfig FILE``, a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ensemble_operator.api import ApiError
from fake_namespace import FILE, ensemble, member
from kubernetes_stand_in.metrics import GROUP, VERSION, MetricsServer
from operator_kills import free_ports
from story_cluster import Place

Another = Callable[[], Place]
#: Its job never ends, so its pods stay.
LONG = FILE.replace("'true'", "sleep 3600")
OTHER = LONG.replace("name: a", "name: b").replace("label: a", "label: b")
LOCAL = {"compose": "local"}  # jobs need no Flux


def long_member(**more: Any) -> dict[str, Any]:
    return member(**{"ensemble": LONG, "options": LOCAL, **more})


def message(place: Place, name: str, kind: str) -> str:
    conditions = place.status(name).get("conditions", ())
    return next((each["message"] for each in conditions if each["type"] == kind), "")


def uid(place: Place, kind: str, name: str) -> str:
    return str((place.get(kind, name) or {}).get("metadata", {}).get("uid", ""))


def of(place: Place, name: str) -> list[str]:
    """Return the names of the objects of an Ensemble's first member."""
    kinds = ("ConfigMap", "Job", "MiniCluster", "HorizontalPodAutoscaler", "PersistentVolumeClaim")
    there = [each for kind in kinds for each in place.names(kind)]
    return [each for each in there if each.startswith(f"{name}-0")]


def first_pod(place: Place, name: str) -> str:
    """Return the name of a member's running first pod, or an empty string."""
    for pod in place.all("Pod"):
        labels = pod["metadata"].get("labels", {})
        mine = labels.get("job-name") == f"{name}-0"
        if mine and labels.get("batch.kubernetes.io/job-completion-index") == "0":
            runs = pod.get("status", {}).get("phase") == "Running"
            if runs and "deletionTimestamp" not in pod["metadata"]:
                return str(pod["metadata"]["name"])
    return ""


def test_a_changed_file_waits_for_the_end_of_the_run_or_restarts_it(place: Place) -> None:
    _changes(place, long_member(ensemble=OTHER), "RunningOldFile")
    files = [each for each in place.all("ConfigMap") if "ensemble.yaml" in (each.get("data") or {})]
    mine = [each for each in files if each["metadata"]["name"].startswith("changed-0")]
    assert OTHER in [each["data"]["ensemble.yaml"] for each in mine]
    place.delete("Ensemble", "changed")


def test_a_changed_minicluster_waits_for_the_end_of_the_run_or_is_recreated(place: Place) -> None:
    image = {"containers": [{"image": "another"}]}
    _changes(place, long_member(spec=image), "NeedsRecreate")
    made = (place.get("MiniCluster", "changed-0") or {})["spec"]["containers"]
    assert made[0]["image"] == "another"
    place.delete("Ensemble", "changed")


def _changes(place: Place, member: dict[str, Any], reason: str) -> None:
    """Check that a change waits with this reason, and that ``Recreate`` applies it."""

    def pods_of(job: str) -> list[str]:
        pods = [each["metadata"] for each in place.all("Pod")]
        return [pod["name"] for pod in pods if pod.get("labels", {}).get("job-name") == job]

    # The pod of an earlier test may outlive its MiniCluster.
    place.until(lambda: "changed-0" not in place.names("MiniCluster") and not pods_of("changed-0"))
    place.make(ensemble(long_member(), name="changed"))
    place.until(lambda: first_pod(place, "changed"))
    before = uid(place, "MiniCluster", "changed-0")
    place.edit("changed", members=[member])
    place.until(lambda: place.condition("changed", "Updated") == ("False", reason))
    assert uid(place, "MiniCluster", "changed-0") == before
    place.edit("changed", updatePolicy="Recreate")
    place.until(lambda: uid(place, "MiniCluster", "changed-0") not in ("", before))
    place.until(lambda: place.condition("changed", "Updated")[0] == "True")


def test_deleted_secrets_are_recreated_when_a_pod_waits_for_them(place: Place) -> None:
    place.make(ensemble(long_member(), name="secret", state={"claim": "journals"}))
    place.until(lambda: first_pod(place, "secret"))
    pod = first_pod(place, "secret")
    secrets = {"secret-tls", "secret-0-token"}
    for name in secrets:
        place.delete("Secret", name)
    place.delete("Pod", pod)
    place.until(lambda: secrets <= set(place.names("Secret")))
    place.until(lambda: first_pod(place, "secret") not in ("", pod))
    place.delete("Ensemble", "secret")


def test_a_removed_member_is_deleted_and_the_other_stays(place: Place) -> None:
    members = [long_member(name="a"), long_member(name="b")]
    place.make(ensemble(*members, name="fewer"))
    place.until(lambda: {"fewer-a", "fewer-b"} <= set(place.names("MiniCluster")))
    other = uid(place, "MiniCluster", "fewer-b")
    place.edit("fewer", members=members[1:])
    place.until(lambda: "fewer-a" not in place.names("MiniCluster"))
    left = lambda: [  # noqa: E731
        name
        for kind in ("ConfigMap", "Service", "Secret")
        for name in place.names(kind)
        if name.startswith("fewer-a-")
    ]
    place.until(lambda: not [each for each in left() if "entrypoint" not in each])
    assert uid(place, "MiniCluster", "fewer-b") == other
    place.delete("Ensemble", "fewer")


@pytest.mark.parametrize(
    ("more", "spec", "words"),
    [
        (
            {"resize": "HPA", "autoscaling": {"metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]}},
            {},
            "metrics[0].resource.target",
        ),
        ({}, {"state": {"size": "1GB"}}, "state.size"),
        ({"spec": {"sizee": 3}}, {}, "sizee"),
        ({"spec": {"containers": [{"image": "a", "imagePul": "b"}]}}, {}, "containers[0].imagePul"),
        ({"spec": {"containers": [{"image": "a", "volumes": {"My_data": {"path": "/a"}}}]}}, {}, "My_data"),
        ({"options": {"arival_timeout": "1"}}, {}, "arival_timeout"),
    ],
    ids=[
        "metrics", "a claim's size", "an unknown field", "an unknown field of a container",
        "a volume's name", "an unknown option",
    ],
)  # fmt: skip
def test_a_member_with_an_invalid_part_is_not_created_until_it_is_corrected(
    place: Place, more: dict[str, Any], spec: dict[str, Any], words: str
) -> None:
    refused = ""
    try:
        place.make(ensemble(long_member(**more), name="partly", **spec))
    except ApiError as error:
        refused = error.message
    if refused:  # the API server's schema rejects it
        assert words in refused
        return
    place.until(lambda: place.condition("partly", "Valid") == ("False", "InvalidMember"))
    assert words in message(place, "partly", "Valid")
    assert place.condition("partly", "Ready")[0] == "False"
    assert of(place, "partly") == []
    right = {"members": [long_member()], "state": None}
    place.edit("partly", **right)
    place.until(lambda: "partly-0" in place.names("MiniCluster"))
    place.until(lambda: place.condition("partly", "Valid")[0] == "True")
    place.delete("Ensemble", "partly")
    place.until(lambda: place.get("Ensemble", "partly") is None and not of(place, "partly"))


def test_a_file_for_members_of_another_namespace_is_rejected_with_the_known_names(
    place: Place,
) -> None:
    text = FILE.replace("command: 'true'", "command: 'true', executor: elsewhere/named-0")
    found = member()
    del found["ensemble"]
    place.make(ensemble(found, name="named", ensemble=text))
    place.until(lambda: place.condition("named", "Valid") == ("False", "InvalidFile"))
    told = message(place, "named", "Valid")
    assert "unknown member 'elsewhere/named-0'; members are named-0" in told
    assert of(place, "named") == []
    place.delete("Ensemble", "named")


def test_an_autoscaler_without_a_metrics_server_leaves_the_size_alone(place: Place) -> None:
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    scaling = {"metrics": [{"type": "Resource", "resource": cpu}]}
    wide = {"size": 1, "maxSize": 3}
    found = long_member(spec=wide, resize="HPA", autoscaling=scaling)
    place.make(ensemble(found, name="scaled"))
    place.until(lambda: first_pod(place, "scaled"))
    if place.stand is None:  # the stand-in has no autoscaler
        scaler = lambda: place.get("HorizontalPodAutoscaler", "scaled-0") or {}  # noqa: E731
        conditions = lambda: scaler().get("status", {}).get("conditions") or ()  # noqa: E731
        place.until(lambda: any(each["status"] == "False" for each in conditions()))
    assert (place.get("MiniCluster", "scaled-0") or {})["spec"]["size"] == 1
    assert place.condition("scaled", "Valid")[0] == "True"
    assert "scaled-0" in place.names("HorizontalPodAutoscaler")
    place.delete("Ensemble", "scaled")
    place.until(lambda: "scaled-0" not in place.names("HorizontalPodAutoscaler"))


def test_an_autoscaler_with_metrics_sets_the_size_until_they_fail(
    place: Place, tmp_path: Path
) -> None:
    if place.stand is not None or not place.plays_node:
        pytest.skip("needs --kubeconfig and --play-node: the stand-in has no autoscaler")
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    scaling = {"metrics": [{"type": "Resource", "resource": cpu}]}
    asked = {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}
    wide = {"size": 1, "maxSize": 3, "containers": [{"image": "any", "resources": asked}]}
    scaler = lambda: place.get("HorizontalPodAutoscaler", "metered-0") or {}  # noqa: E731
    conditions = lambda: scaler().get("status", {}).get("conditions") or ()  # noqa: E731
    active = lambda: [c["status"] for c in conditions() if c["type"] == "ScalingActive"]  # noqa: E731
    with metrics(place, tmp_path) as server:
        place.make(
            ensemble(long_member(spec=wide, resize="HPA", autoscaling=scaling), name="metered")
        )
        place.until(lambda: first_pod(place, "metered"))
        place.until(lambda: active() == ["True"])
        assert (place.get("MiniCluster", "metered-0") or {})["spec"]["size"] == 1
        server.cpu = "100m"
        place.until(lambda: (place.get("MiniCluster", "metered-0") or {})["spec"]["size"] == 3)
        place.until(lambda: place.status("metered")["members"][0]["size"] == 3)
        server.cpu = None
        place.until(lambda: active() == ["False"])
        assert (place.get("MiniCluster", "metered-0") or {})["spec"]["size"] == 3
        assert place.condition("metered", "Valid")[0] == "True"
    place.delete("Ensemble", "metered")
    place.until(lambda: "metered-0" not in place.names("HorizontalPodAutoscaler"))


@contextmanager
def metrics(place: Place, folder: Path) -> Iterator[MetricsServer]:
    """Yield a metrics server for the pods of a place, registered with its API server."""
    server = MetricsServer(folder, lambda: place.all("Pod"))
    version, name = f"{VERSION}.{GROUP}", "metrics"
    registered = "/apis/apiregistration.k8s.io/v1/apiservices"
    ports = [{"port": server.port}]
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": ports}
    place.make({"kind": "Service", "metadata": {"name": name}, "spec": spec})
    service = {"namespace": place.namespace, "name": name, "port": server.port}
    priorities = {"groupPriorityMinimum": 100, "versionPriority": 100}
    about = {"service": service, "group": GROUP, "version": VERSION, "insecureSkipTLSVerify": True}
    place("POST", registered, {"metadata": {"name": version}, "spec": {**about, **priorities}})
    try:
        yield server
    finally:
        place("DELETE", f"{registered}/{version}")
        place.delete("Service", name)
        server.shutdown()


def test_a_deny_all_policy_of_the_namespace_coexists_with_the_services_policy(
    place: Place,
) -> None:
    deny = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    place.make({"kind": "NetworkPolicy", "metadata": {"name": "deny-all"}, "spec": deny})
    place.make(ensemble(long_member(), name="policed"))
    place.until(lambda: "policed-0" in place.names("MiniCluster"))
    assert {"deny-all", "policed"} <= set(place.names("NetworkPolicy"))
    own = (place.get("NetworkPolicy", "policed") or {})["spec"]
    place.until(lambda: first_pod(place, "policed"))
    pods = labelled(place, "policed")
    assert selected(own, pods) == {"service"}
    callers = [each for each in own["ingress"][0]["from"] if "namespaceSelector" not in each]
    assert set().union(*(selected(each, pods) for each in callers)) == {"service", "member"}
    place.delete("Ensemble", "policed")
    place.until(lambda: "policed" not in place.names("NetworkPolicy"))
    assert "deny-all" in place.names("NetworkPolicy")
    place.delete("NetworkPolicy", "deny-all")


def labelled(place: Place, name: str) -> dict[str, dict[str, str]]:
    """Return the labels of the pods of an Ensemble's service and of its first member."""
    service = (place.get("Deployment", name) or {})["spec"]["template"]["metadata"]["labels"]
    pods = {each["metadata"]["name"]: each for each in place.all("Pod")}
    member = pods[first_pod(place, name)]["metadata"]["labels"]
    return {"service": service, "member": member}


def selected(rule: dict[str, Any], pods: dict[str, dict[str, str]]) -> set[str]:
    wanted = rule["podSelector"]["matchLabels"].items()
    return {what for what, labels in pods.items() if wanted <= labels.items()}


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ("count/jobs.batch", "the Flux Operator has not created Job limited-0"),
        ("pods", "exceeded quota: few"),
    ],
)
def test_an_exhausted_quota_is_a_condition_while_it_lasts(
    another: Another, counted: str, words: str
) -> None:
    place = another()
    place.make(ensemble(long_member(), name="limited"))
    place.until(lambda: (place.get("Deployment", "limited") or {}).get("status"))
    place.until(lambda: place.names("Job"))  # later, the quota would miss it
    place.edit("limited", suspend=True)
    place.until(lambda: "limited-0" not in place.names("MiniCluster"))
    place.until(lambda: not place.names("Job"))
    there = str(len(place.names("Pod")) if counted == "pods" else 0)
    quotas = f"/api/v1/namespaces/{place.namespace}/resourcequotas"
    place("POST", quotas, {"metadata": {"name": "few"}, "spec": {"hard": {counted: there}}})
    place.until(lambda: place.stand or "hard" in place("GET", f"{quotas}/few").get("status", {}))
    place.edit("limited", suspend=False)
    place.until(lambda: "limited-0" in place.names("MiniCluster"))
    if counted == "pods":
        # The first refusal may only say that the quota has not been counted yet.
        place.until(lambda: any(words in each["message"] for each in place.all("Event")))
    place.minutes_pass()
    place.until(lambda: words in message(place, "limited", "Ready"))
    assert place.condition("limited", "MembersReady") == ("False", "WaitingForPods")
    place("DELETE", f"{quotas}/few")
    place.until(lambda: first_pod(place, "limited"))
    place.until(lambda: words not in message(place, "limited", "Ready"))


def test_two_operators_work_in_separate_namespaces(place: Place, another: Another) -> None:
    other = another()
    for each in (place, other):
        ports = free_ports(2)
        side = {"port": ports[0], "metricsPort": ports[1]}
        each.make(ensemble(long_member(), name="twin", sidecar=side))
    for each in (place, other):
        each.until(lambda: "twin-0" in each.names("MiniCluster"))  # noqa: B023
    kept = uid(other, "MiniCluster", "twin-0")
    place.delete("Ensemble", "twin")
    place.until(lambda: "twin-0" not in place.names("MiniCluster"))
    service = uid(other, "Service", "twin-grpc")
    other.delete("Service", "twin-grpc")
    other.until(lambda: uid(other, "Service", "twin-grpc") not in ("", service))
    assert uid(other, "MiniCluster", "twin-0") == kept


def test_a_second_operator_takes_over_when_the_first_is_killed(
    another: Another,
) -> None:
    place = another()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{place.namespace}/leases"
    words = ("--leader-elect", "--lease-namespace", place.namespace)
    place.operators[0].terminate()  # the one without leader election
    place.operators[0].wait(60)
    first = place.operate(*words)
    place.until(lambda: place("GET", lease)["items"])
    place.operate(*words)
    place.until(lambda: "another operator is active" in place.said)
    place.make(ensemble(long_member(), name="led"))
    # Events follow the creation with a short delay.
    place.until(lambda: place.events().count("Created") == 2)
    made = uid(place, "MiniCluster", "led-0")
    first.kill()
    first.wait()
    place.delete("Service", "led-grpc")
    place.until(lambda: "led-grpc" in place.names("Service"))
    assert uid(place, "MiniCluster", "led-0") == made
    assert place.events().count("Created") == 2, "a Deployment and a MiniCluster, once each"
