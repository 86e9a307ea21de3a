"""Tests of Jobs and pods that other clients delete, copy or change, on the stand-in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster
from ensemble_kubernetes import kubernetes_run
from ensemble_testing import Session
from kubernetes_stand_in import kubelet
from kubernetes_stand_in.store import now

from ensemble_core import ExecutorError, Job

LASTING = ("sh", "-c", "echo began; until [ -e gate ]; do sleep 0.1; done; echo ended")


def lasting(session: Session, **fields: Any) -> Job:
    return session.job(*LASTING, workdir=str(session.folder), **fields)


def output(session: Session, job: Job) -> str:
    return Path(session.context(job, "start")["stdout"]).read_text()


def pod_of(world: Cluster, session: Session, job: Job) -> str:
    return str(world.kubelet.pod(session.queue_id(job)).name)


def test_a_job_whose_pod_outlives_its_job_ends_with_the_pod(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kubectl delete job --cascade=orphan``: a retry would run beside the pod."""
    monkeypatch.setattr(kubernetes_run, "_GRACE", 0.3)
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    store, name = world.cluster.store, session.queue_id(job)
    store.orphan(store.get(world.jobs, world.namespace, name)["metadata"]["uid"])
    store.delete(world.jobs, world.namespace, name)
    time.sleep(2.0)
    assert "finish" not in session.names(job)
    (session.folder / "gate").touch()
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0
    assert output(session, job) == "began\nended\n"


def test_a_job_deleted_by_others_has_its_grace_period(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry does not run beside it."""
    monkeypatch.setattr(kubernetes_run, "_GRACE", 0.1)
    script = "trap 'sleep 1.5; echo saved; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    session.submit(job := session.job("sh", "-c", script, grace=30.0))
    session.wait_for(job, "start")
    log = world.kubelet.log("", pod_of(world, session, job))
    world.wait(lambda: log is not None and "ready" in log.read_text())
    world.cluster.store.delete(world.jobs, world.namespace, session.queue_id(job))
    session.wait_clean(job)
    assert session.cause(job) == "cancelled"
    assert session.context(job, "finish")["status"] == 7 << 8


def test_a_pod_deleted_by_others_is_cancelled_although_its_nodes_clock_is_behind(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet, "now", lambda: now(-100))
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    pod = pod_of(world, session, job)
    world.cluster.store.delete(world.pods, world.namespace, pod)
    session.wait_clean(job)
    assert session.cause(job) == "cancelled"


@pytest.mark.parametrize("good", [True, False])
def test_a_pod_that_is_removed_while_the_server_is_away_ends_as_its_job_says(
    world: Cluster, session: Session, good: bool
) -> None:
    """Others delete ended pods, for example Kubernetes' own garbage collection."""
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    name, pod = session.queue_id(job), pod_of(world, session, job)
    world.cluster.trouble = lambda method, path: (
        (503, "away") if method == "GET" and path.endswith(("/jobs", "/pods")) else None
    )
    world.cluster.cut()
    if good:
        (session.folder / "gate").touch()
        world.wait(lambda: name not in world.active())
    world.cluster.store.delete_now(world.pods, world.namespace, pod)
    world.wait(lambda: name not in world.active())
    world.cluster.store.forget()
    world.cluster.trouble = lambda method, path: None
    session.wait_clean(job)
    if good:
        assert session.context(job, "finish")["status"] == 0
        assert any("its pod was deleted before its log was read" in p for p in session.problems())
    else:
        assert session.cause(job) == "lost"


def test_the_output_of_a_job_whose_pod_is_gone_is_reported_as_missing_by_a_resume(
    world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kubernetes_run, "_UNSEEN", 0.3)
    with Session(world.executor(), tmp_path) as first:
        first.submit(job := lasting(first))
        first.wait_for(job, "start")
        name, pod = first.queue_id(job), pod_of(world, first, job)
    (tmp_path / "gate").touch()
    world.wait(lambda: name not in world.active())
    world.cluster.store.delete_now(world.pods, world.namespace, pod)
    with Session(world.executor(), tmp_path, tidy=True).resume(first) as second:
        second.take_over([job.id])
        second.wait_clean(job)
        assert second.context(job, "finish")["status"] == 0
        assert f"the output of {job.id} is incomplete" in " ".join(second.problems())


def test_the_pod_of_a_copy_that_somebody_makes_of_a_job_is_not_the_jobs(
    world: Cluster, session: Session
) -> None:
    """``kubectl get job -o yaml``, another name, ``kubectl create``."""
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    store, name = world.cluster.store, session.queue_id(job)
    found = store.get(world.jobs, world.namespace, name)
    copy = {key: found["metadata"][key] for key in ("labels", "annotations")}
    spec = {key: found["spec"][key] for key in ("template", "backoffLimit")}
    spec["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", "exit 3"]
    store.create(world.jobs, world.namespace, {"metadata": {"name": "again", **copy}, "spec": spec})
    world.wait(lambda: "again" not in world.active())
    (session.folder / "gate").touch()
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0
    assert output(session, job) == "began\nended\n"


@pytest.mark.parametrize("sidecar", ["running", "waiting"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_job_ends_although_a_container_that_a_webhook_has_added_runs_on(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch, code: int, sidecar: str
) -> None:
    """A sidecar of Istio never ends by itself, so neither does the pod. Nor if it cannot start."""
    monkeypatch.setattr(kubernetes_run, "_GRACE", 0.5)

    def end(pod: Any, ended: Any) -> None:
        mine = {"name": "job", "state": {"terminated": {**ended, "finishedAt": now()}}}
        other = {"name": "istio-proxy", "state": {sidecar: {}}}
        pod.say({"phase": "Running", "containerStatuses": [mine, other]})
        if pod.leaving:
            pod._gone()

    monkeypatch.setattr(kubelet._Pod, "_end", end)
    jobs = [session.job("sh", "-c", f"echo done; exit {code}") for _ in range(2)]
    session.submit(*jobs)
    session.wait_clean(*jobs)
    for job in jobs:
        assert session.context(job, "finish")["status"] == code << 8
        assert output(session, job) == "done\n"
    (problem,) = session.problems()
    assert "its pod runs on because of its other containers: istio-proxy" in problem


@pytest.mark.parametrize(
    "ended",
    [
        {"exitCode": 255, "reason": "Unknown", "startedAt": "1970-01-01T00:00:00Z"},
        {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "could not be located"},
    ],
)
def test_a_container_that_vanished_from_its_node_is_a_failure_of_the_node(
    world: Cluster, session: Session, ended: Any
) -> None:
    """As after a reboot: containerd and the kubelet no longer know how it ended."""
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    world.kubelet.pod(session.queue_id(job)).end({"phase": "Failed", "terminated": ended})
    session.wait_clean(job)
    assert session.cause(job) == "node-failure"
    assert "vanished from the node" in session.context(job, "exception")["note"]


def test_a_job_that_a_taint_of_its_node_deletes_has_its_grace_period(
    world: Cluster, session: Session
) -> None:
    """``kubectl taint node … :NoExecute``: the node lives, so a retry would run beside the job."""
    script = "trap 'sleep 1.5; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    session.submit(job := session.job("sh", "-c", script, grace=30.0))
    session.wait_for(job, "start")
    log = world.kubelet.log("", pod_of(world, session, job))
    world.wait(lambda: log is not None and "ready" in log.read_text())
    world.kubelet.pod(session.queue_id(job)).disrupt("DeletionByTaintManager", lost=False)
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0


def test_a_time_limit_that_a_policy_sets_for_jobs_is_reported_as_such(
    world: Cluster, session: Session
) -> None:
    """Kubernetes then deletes the pod, as for a Job's own ``activeDeadlineSeconds``."""
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    store, name = world.cluster.store, session.queue_id(job)
    said = "Job was active longer than specified deadline"
    target = {"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}
    found = store.get(world.jobs, world.namespace, name)
    found["status"] = {
        **found.get("status", {}),
        "conditions": [{**target, "message": said, "lastTransitionTime": now()}],
    }
    store.write(world.jobs, world.namespace, found, part="status")
    store.delete(world.pods, world.namespace, pod_of(world, session, job))
    session.wait_clean(job)
    assert session.cause(job) == "timeout"
    assert said in session.context(job, "exception")["note"]


def test_a_job_that_ends_while_jobs_are_looked_for_is_not_forgotten(
    world: Cluster, session: Session
) -> None:
    """A member's agent looks for the jobs of a resumed run, which it had all along."""
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    run = session.executor._require_open()  # type: ignore[attr-defined]
    run._seeking = True
    (session.folder / "gate").touch()
    world.wait(lambda: run._lives[job.id].complete)
    assert session.executor.reattach({job.id: 0.0}) == {job.id: True}
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0


@pytest.mark.parametrize("accepted", [True, False])
def test_a_resume_in_another_cluster_is_refused(
    world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """After ``kubectl config use-context``. The jobs would count as lost, or be created again."""
    monkeypatch.chdir(tmp_path)
    with Session(world.executor(), tmp_path) as first:
        first.submit(job := lasting(first))
        first.wait_for(job, "start")
    if not accepted:  # the controller was killed before it recorded any event
        (records,) = (tmp_path / "state").rglob("records.jsonl")
        lines = records.read_text().splitlines(keepends=True)
        records.write_text("".join(each for each in lines if each.startswith('["b"')))
    other = Cluster()
    try:
        with Session(other.executor(), tmp_path).resume(first) as second:
            with pytest.raises(ExecutorError, match="none of the 1 unfinished Jobs") as caught:
                second.take_over([job.id])
            assert caught.value.code == "other-cluster"
            assert f"created in namespace {world.namespace} of" in str(caught.value.cause)
    finally:
        other.close()
    with Session(world.executor(), tmp_path, tidy=True).resume(first) as third:
        third.take_over([job.id])
        (tmp_path / "gate").touch()
        third.wait_clean(job)
        assert third.context(job, "finish")["status"] == 0
