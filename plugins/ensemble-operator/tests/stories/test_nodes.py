"""Stories of members of several nodes, whose pods are processes on a simulated node.

They run the Flux Operator's scripts, and drain and kill first pods. They use the stand-in or, with
``--kubeconfig FILE --play-node``, a control plane with the Flux Operator, but without scheduler and
kubelet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")

from ensemble_testing import wait_until
from operator_kills import JOB, Scene, free_ports
from story_cluster import Place

# The service needs the Kubernetes client, which the operator does not.
pytestmark = pytest.mark.checkout

Make = Callable[..., Scene]
#: Each job waits for the file ``enough``.
HELD = JOB.replace('[ "$1" = grown ] && ', "")
FILE = """\
name: drained
jobs: [{{name: sim, command: '/bin/sh {folder}/job.sh sim {{replica}}', replicas: 6, at_once: 2{retry}}}]
rules: [{{trigger: start, action: {{name: submit, label: sim}}}}]
"""


@pytest.fixture
def make(tmp_path: Path, real_place: Place | None) -> Iterator[Make]:
    """Yield a function that creates an Ensemble of one member on a node.

    With ``shared``, the run is outside of the member.
    """
    made: list[Scene] = []

    def make(
        seconds: float = 0.5,
        shared: bool = False,
        retry: str = "",
        outlived: bool = False,
        job: str = JOB,
        **spec: Any,
    ) -> Scene:
        job = job.format(folder=tmp_path / "scene", seconds=seconds)
        scene = Scene(tmp_path / "scene", job, outlived=outlived, place=real_place)
        made.append(scene)
        ports = free_ports(2)
        cluster = {"size": 1, "containers": [{"image": "any"}], **spec.pop("cluster", {})}
        member = {"minicluster": {"spec": cluster}, "options": {"compose": "local"}}
        (spec if shared else member)["ensemble"] = FILE.format(
            folder=tmp_path / "scene", retry=retry
        )
        found = {
            "apiVersion": "ensemble.flux-framework.org/v1alpha1",
            "kind": "Ensemble",
            "metadata": {"name": "study"},
            "spec": {
                "members": [member],
                "sidecar": {"port": ports[0], "metricsPort": ports[1]},
                "state": {"claim": "journals"},
                **spec,
            },
        }
        scene.stand.apply(found)
        return scene

    yield make
    for each in made:
        print((tmp_path / "scene" / "operator").read_text()[-3000:], each.node.problems[-5:])
        each.close()


def lines(tmp_path: Path, name: str) -> list[str]:
    file = tmp_path / "scene" / name
    return file.read_text().splitlines() if file.exists() else []


def pods(scene: Scene) -> dict[str, dict[str, Any]]:
    """Return the member's pods that are not being deleted, by index."""
    found = [each for each in scene.stand.all("Pod") if each["spec"].get("subdomain")]
    return {
        each["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: each
        for each in found
        if "deletionTimestamp" not in each["metadata"]
    }


def services(scene: Scene) -> list[dict[str, Any]]:
    """Return the service's pods, also those that are being deleted."""
    part = "app.kubernetes.io/component"
    found: list[dict[str, Any]] = scene.stand.all("Pod")
    return [each for each in found if each["metadata"]["labels"].get(part) == "service"]


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def over(scene: Scene) -> bool:
    return scene.stand.condition("study", "Finished")[0] == "True"


def every_job_once(tmp_path: Path) -> bool:
    return Counter(lines(tmp_path, "ended")) == Counter({f"sim {index}": 1 for index in range(6)})


def test_workers_find_their_broker_with_a_service_of_the_user(make: Make, tmp_path: Path) -> None:
    """Such a Service only has addresses of ready pods, so the broker's pod must become ready."""
    scene = make(seconds=3, cluster={"size": 2, "network": {"headlessName": "mine"}})
    wait_until(lambda: scene.node.joined("study-0") == ["study-0-1"])
    assert not (scene.stand.get("Service", "mine") or {})["spec"].get("publishNotReadyAddresses")


def test_workers_find_their_broker_after_a_container_of_the_user_has_ended(
    make: Make, tmp_path: Path
) -> None:
    """A pod is never ready once one of its containers has ended."""
    ends = {"name": "ends", "image": "any", "command": "true"}
    containers = [{"image": "any", "runFlux": True}, ends]
    scene = make(seconds=3, cluster={"size": 2, "containers": containers})
    wait_until(lambda: scene.node.joined("study-0") == ["study-0-1"])
    assert not is_ready(pods(scene)["0"])
    wait_until(lambda: over(scene))
    assert scene.stand.condition("study", "Finished") == ("True", "Succeeded")


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_whose_first_pod_is_drained_continues_and_repeats_no_job(
    make: Make, tmp_path: Path, size: int
) -> None:
    """The pod is drained once it is ready and its workers have found the broker."""
    scene = make(job=HELD, cluster={"size": size})
    wait_until(lambda: len(scene.node.joined("study-0")) == size - 1)
    wait_until(lambda: "0" in pods(scene) and is_ready(pods(scene)["0"]))
    wait_until(lambda: len(lines(tmp_path, "started")) >= 2)
    assert scene.node.drain("study-0")
    wait_until(lambda: len(lines(tmp_path, "started")) >= 4)
    # Its workers come again as well.
    wait_until(lambda: len(scene.node.joined("study-0")) >= 2 * (size - 1))
    (tmp_path / "scene" / "enough").touch()
    wait_until(lambda: over(scene))
    said = json.dumps(scene.stand.status("study"))
    assert scene.stand.condition("study", "Finished") == ("True", "Succeeded"), said
    assert every_job_once(tmp_path)
    wait_until(lambda: pods(scene)["0"]["status"]["phase"] == "Succeeded")


def test_a_run_killed_in_its_container_continues_in_another(make: Make, tmp_path: Path) -> None:
    scene = make(seconds=1.5)
    wait_until(lambda: len(lines(tmp_path, "started")) >= 2)
    assert scene.node.kill_pod("study-0")
    wait_until(lambda: over(scene))
    assert len([each for each in scene.stand.all("Pod") if each["spec"].get("subdomain")]) == 2
    assert set(lines(tmp_path, "ended")) >= {f"sim {index}" for index in range(2, 6)}


def test_a_run_whose_whole_pod_is_killed_submits_unstarted_jobs_and_retries_the_others(
    make: Make, tmp_path: Path
) -> None:
    scene = make(seconds=1.5, retry=", retry: {times: 1}")
    wait_until(lambda: len(lines(tmp_path, "started")) >= 2)
    assert scene.node.kill_container("study-0")
    wait_until(lambda: over(scene))
    said = json.dumps(scene.stand.status("study"))
    assert scene.stand.condition("study", "Finished") == ("True", "Succeeded"), said
    assert every_job_once(tmp_path)
    again = Counter(lines(tmp_path, "started"))
    assert sum(again.values()) <= 6 + 2, "two were at work, and only those began again"


def test_a_member_that_has_grown_keeps_its_size_when_it_is_recreated(
    make: Make, tmp_path: Path
) -> None:
    """Its workers end with their broker, and its Job does not create them again."""
    scene = make(job=HELD, retry=", retry: {times: 3}", cluster={"maxSize": 2})
    wait_until(lambda: len(lines(tmp_path, "started")) >= 2)
    before = scene.stand.get("MiniCluster", "study-0")
    scene.stand.apply({**before, "spec": {**before["spec"], "size": 2}})
    wait_until(lambda: scene.node.joined("study-0") == ["study-0-1"])
    assert scene.node.kill_container("study-0")

    def recreated() -> dict[str, Any] | None:
        found: dict[str, Any] | None = scene.stand.get("MiniCluster", "study-0")
        same = found is None or found["metadata"]["uid"] == before["metadata"]["uid"]
        return None if same else found

    wait_until(lambda: recreated())
    (tmp_path / "scene" / "enough").touch()
    wait_until(lambda: over(scene))
    said = json.dumps(scene.stand.status("study"))
    assert scene.stand.condition("study", "Finished") == ("True", "Succeeded"), said
    after = recreated()
    assert after is not None
    assert after["spec"]["size"] == 2


def test_a_killed_service_starts_again_in_its_pod(make: Make, tmp_path: Path) -> None:
    """So it keeps its records, and carries out no repeated request for nodes a second time."""
    scene = make(seconds=60)
    wait_until(lambda: len(lines(tmp_path, "started")) >= 1)
    (before,) = services(scene)
    assert scene.node.kill_service("study")

    def again() -> bool:
        (pod,) = services(scene)
        (container,) = pod["status"]["containerStatuses"]
        return bool(container["restartCount"] == 1 and is_ready(pod))

    wait_until(again)
    assert services(scene)[0]["metadata"]["uid"] == before["metadata"]["uid"]


def test_workers_of_a_queue_that_outlives_its_container_stay(make: Make, tmp_path: Path) -> None:
    scene = make(seconds=1.5, outlived=True, cluster={"size": 2})
    wait_until(lambda: len(scene.node.joined("study-0")) == 1)
    wait_until(lambda: len(lines(tmp_path, "started")) >= 2)
    worker = pods(scene)["1"]["metadata"]["uid"]
    assert scene.node.kill_pod("study-0")
    wait_until(lambda: over(scene))
    assert scene.stand.condition("study", "Finished") == ("True", "Succeeded")
    assert every_job_once(tmp_path)
    assert pods(scene)["1"]["metadata"]["uid"] == worker
    wait_until(lambda: pods(scene)["1"]["status"]["phase"] == "Succeeded")


def test_temporary_files_of_a_run_are_invisible_to_other_pods(make: Make, tmp_path: Path) -> None:
    """On the simulated node, all pods would otherwise share this machine's folder."""
    scene = make(shared=True)
    noted = tmp_path / "scene" / "node" / "pods"
    wait_until(lambda: list(noted.glob("study-run-*/volumes/tmp/ensemble.pid")))
    assert scene.stand.names("Job").count("study-run") == 1
