"""Tests of a cluster's faults (quotas, policies, images, nodes, namespaces), on the stand-in."""

from __future__ import annotations

import os
import re
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from conftest import ACCESS, IMAGE, MISSING
from ensemble_kubernetes import job_state, kubernetes_run
from ensemble_kubernetes.api import Api
from ensemble_kubernetes.executor import KubernetesExecutor
from ensemble_kubernetes.job_state import Life, Pod, read_pod
from ensemble_kubernetes.kubernetes_run import KubernetesRun
from ensemble_kubernetes.log_copy import LogCopy
from ensemble_kubernetes.manifest import Settings, manifest
from ensemble_testing import Session
from kubernetes_stand_in.refusals import Refusal, conflict
from kubernetes_stand_in.store import now

from ensemble_core import EnsembleError, ExecutorError, Job, JobEvent, UsageError
from ensemble_core.config import load_text
from ensemble_core.model.causes import cause_of
from ensemble_core.plugin.discovery import discover

if TYPE_CHECKING:
    from conftest import Cluster

#: Duration of the API server's outage, in seconds.
AWAY = float(os.environ.get("ENSEMBLE_AWAY", "5"))
LASTING = ("sh", "-c", "until [ -e gate ]; do sleep 0.1; done")


def lasting(session: Session, **fields: Any) -> Job:
    return session.job(*LASTING, workdir=str(session.folder), **fields)


def note(session: Session, job: Job) -> str:
    """Return the reason why a job ended; check that it never started."""
    assert "start" not in session.names(job)
    return str(session.context(job, "exception")["note"])


def refuse_once(world: Cluster, method: str, refusal: Refusal) -> None:
    """Make the API server reject the next request for Jobs with this method."""
    refusals = [refusal]

    def refuse(asked: str, path: str) -> None:
        if asked == method and path.endswith("/jobs") and refusals:
            raise refusals.pop()

    world.cluster.meanwhile = refuse


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(403, 'jobs.batch "x" is forbidden: status unknown for quota: few, resources: pods'),
        conflict("resourcequotas", "", "few"),
    ],
    ids=["not counted yet", "changed meanwhile"],
)
def test_a_job_rejected_while_a_quota_is_counted_is_submitted_again(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    """The API server may reject a Job while it counts a quota (403, 409)."""
    monkeypatch.setattr(kubernetes_run, "_FULL", 0.5)
    refuse_once(world, "POST", refusal)
    session.run(job := session.job("true"))
    assert session.context(job, "finish")["status"] == 0


def test_a_cancellation_that_is_forbidden_for_a_moment_is_repeated(
    world: Cluster, session: Session
) -> None:
    """An API server that has just started may reject what its roles allow."""
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    said = 'jobs.batch is forbidden: User "x" cannot deletecollection resource'
    refuse_once(world, "DELETE", Refusal(403, said))
    session.cancel(job)
    session.wait_clean(job)
    assert session.exception(job) == "cancel"


def test_a_submission_that_is_forbidden_after_others_were_allowed_is_repeated(
    world: Cluster, session: Session
) -> None:
    session.run(session.job("true"))
    said = 'jobs.batch is forbidden: User "x" cannot create resource "jobs" in API group "batch"'
    refuse_once(world, "POST", Refusal(403, said))
    session.run(job := session.job("true"))
    assert session.context(job, "finish")["status"] == 0
    assert "retrying until it works" in session.problems()[0]


def test_without_the_right_to_create_jobs_a_job_fails(world: Cluster, session: Session) -> None:
    said = 'jobs.batch is forbidden: User "x" cannot create resource "jobs" in API group "batch"'

    def refuse(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/jobs"):
            raise Refusal(403, said)

    world.cluster.meanwhile = refuse
    session.run(job := session.job("true"))
    assert session.cause(job) == "submit"
    assert said in note(session, job)


def test_a_pod_rejected_while_a_quota_is_counted_is_created_later(
    world: Cluster, session: Session
) -> None:
    body = {"metadata": {"name": "wide"}, "spec": {"hard": {"pods": "10"}}}
    world.cluster.store.create(world.quotas, world.namespace, body)
    session.run(job := session.job("true"))
    assert session.context(job, "finish")["status"] == 0


def test_a_job_denied_by_a_policy_fails_with_its_message(world: Cluster, session: Session) -> None:
    def deny(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/jobs"):
            raise Refusal(403, 'admission webhook "policy.example" denied the request: no limits')

    world.cluster.meanwhile = deny
    session.run(job := session.job("true"))
    assert session.cause(job) == "submit"
    assert "denied the request: no limits" in note(session, job)


def test_a_job_whose_pod_is_denied_by_a_policy_fails_with_its_message(
    world: Cluster, session: Session
) -> None:
    with world.pods_forbidden():
        session.run(job := session.job("true"))
    assert session.cause(job) == "submit"
    assert 'violates PodSecurity "restricted' in note(session, job)
    world.wait(lambda: not world.active())


def test_an_image_that_cannot_be_pulled_is_reported_and_fails_its_job_within_a_minute(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job_state.STUCK < 60
    monkeypatch.setattr(kubernetes_run, "STUCK", 2.0)
    job = session.job("true", options={"kubernetes": {"image": MISSING}})
    session.run(job)
    assert "ErrImagePull" in session.problems()[0] or "ImagePullBackOff" in session.problems()[0]
    assert session.cause(job) == "submit"
    assert f'failed to resolve reference "{MISSING}": not found' in note(session, job)


@pytest.mark.parametrize(
    ("status", "cause", "words"),
    [
        (
            {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            "memory",
            "OOMKilled",
        ),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource: memory.",
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
                ],
            },
            "node-failure",
            "low on resource: memory",
        ),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "Pod ephemeral local storage usage exceeds the total limit",
            },
            "unknown",
            "local storage usage exceeds",
        ),
        (
            {"phase": "Failed", "reason": "NodeShutdown", "message": "Pod was terminated"},
            "node-failure",
            "NodeShutdown",
        ),
    ],
)
def test_a_job_ends_with_the_reason_in_the_pods_status(
    world: Cluster, session: Session, status: Any, cause: str, words: str
) -> None:
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    world.kubelet.pod(session.queue_id(job)).end(status)
    session.wait_clean(job)
    assert session.cause(job) == cause
    assert words in session.context(job, "exception")["note"]


@pytest.mark.parametrize("what", ["pods", "jobs"])
def test_a_job_deleted_by_another_client_is_cancelled(
    world: Cluster, session: Session, what: str
) -> None:
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    name = session.queue_id(job)
    pod = world.kubelet.pod(name).name
    kind = world.jobs if what == "jobs" else world.pods
    world.cluster.store.delete(kind, world.namespace, name if what == "jobs" else pod)
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] != 0
    assert session.cause(job) == "cancelled"
    assert "was deleted by another client" in session.context(job, "exception")["note"]


def test_a_job_that_others_suspend_is_reported_once_with_what_resumes_it(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook of the cluster, such as that of Kueue, may suspend each new Job."""
    monkeypatch.setattr(kubernetes_run, "_PATIENCE", 0.3)
    session.submit(wished := session.job("true", urgency=0))
    session.wait_for(wished, "submit")

    def suspended(*about: Any) -> dict[str, Any]:
        body = manifest(*about)
        body["spec"]["suspend"] = True
        return body

    monkeypatch.setattr(kubernetes_run, "manifest", suspended)
    session.submit(*(jobs := [session.job("true") for _ in range(2)]))
    session.wait(session.problems, "a warning")
    (problem,) = session.problems()
    assert "its Job is suspended, but not by this run" in problem
    assert """-p '{"spec":{"suspend":false}}'""" in problem
    for job in jobs:
        found = world.cluster.store.get(world.jobs, world.namespace, session.queue_id(job))
        found["spec"]["suspend"] = False
        world.cluster.store.write(world.jobs, world.namespace, found)
    session.wait_clean(*jobs)
    assert [session.context(job, "finish")["status"] for job in jobs] == [0, 0]
    assert session.problems() == [problem]
    session.cancel(wished)
    session.wait_clean(wished)


def test_a_job_continues_if_a_pod_is_forbidden_for_a_moment_while_another_runs(
    world: Cluster, session: Session
) -> None:
    said = 'pods "x" is forbidden: error looking up service account: "ensemble" not found'
    world.limit("pods", "1")
    session.submit(job := lasting(session, tasks=2))
    session.wait_for(job, "start")
    session.wait(session.problems, "a warning of the quota")
    found = world.cluster.store.get(world.jobs, world.namespace, session.queue_id(job))
    add_event(world, "Job", found, "FailedCreate", f"Error creating: {said}")
    session.wait(lambda: len(session.problems()) > 1, "another warning")
    assert f"{job.id} waits in Kubernetes: Error creating: {said}" in session.problems()[1]
    world.cluster.store.delete(world.quotas, world.namespace, "few")
    (session.folder / "gate").touch()
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0


def test_a_pod_whose_volume_is_missing_is_reported_once(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet says in Events only why it waits, without end, for a missing Secret."""
    monkeypatch.setattr(kubernetes_run, "_LONG", 0.5)
    check = held_check(monkeypatch)
    world.kubelet.lost = True  # it reports no container
    session.submit(*(jobs := [lasting(session) for _ in range(2)]))
    for job in jobs:
        session.wait_for(job, "submit")
        world.wait(partial(tell, world, session.queue_id(job), "FailedMount", _MOUNT))
    check.set()
    session.wait(session.problems, "a warning")
    time.sleep(1.5)
    (problem,) = session.problems()
    assert "waits in Kubernetes: pod " in problem
    assert f"has no running container: FailedMount: {_MOUNT}" in problem
    world.kubelet.lost = False
    session.cancel(*jobs)
    session.wait_clean(*jobs)


def test_a_pod_whose_image_is_pulled_for_long_is_not_reported_with_an_outdated_reason(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_run, "_LONG", 0.5)
    check = held_check(monkeypatch)
    asked = checked_pods(monkeypatch)
    world.kubelet.lost = True
    session.submit(job := lasting(session))
    session.wait_for(job, "submit")
    about = partial(tell, world, session.queue_id(job))
    world.wait(partial(about, "FailedScheduling", "0/1 nodes are available"))
    about("Pulling", "Pulling image", kind="Normal")
    check.set()
    world.wait(lambda: len(asked) > 1)
    assert session.problems() == []
    about("Pulled", "Successfully pulled image", kind="Normal")
    session.wait(session.problems, "a warning")
    (problem,) = session.problems()
    assert "has no running container: see 'kubectl describe' of " in problem
    world.kubelet.lost = False
    session.cancel(job)
    session.wait_clean(job)


def test_a_later_controller_reports_a_pod_whose_volume_is_missing(
    world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world.kubelet.lost = True
    with Session(world.executor(), tmp_path) as first:
        first.submit(job := lasting(first))
        first.wait_for(job, "submit")
        world.wait(partial(tell, world, first.queue_id(job), "FailedMount", _MOUNT))
    monkeypatch.setattr(kubernetes_run, "_LONG", 0.2)
    with Session(world.executor(), tmp_path, tidy=True).resume(first) as second:
        second.take_over([job.id])
        second.wait(second.problems, "a warning")
        (problem,) = second.problems()
        assert f"has no running container: FailedMount: {_MOUNT}" in problem
        world.kubelet.lost = False
        second.cancel(job)
        second.wait_clean(job)


_MOUNT = 'secret "keys" not found'


def held_check(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make checks for unstarted jobs wait until the pods are known and the returned flag is set."""
    flag, real = threading.Event(), KubernetesRun._check_unstarted

    def check(run: KubernetesRun) -> None:
        if flag.is_set() and all(life.pods for life in run._lives.values()):
            real(run)
        else:
            run._tasks.after(0.1, run._check_unstarted)

    monkeypatch.setattr(KubernetesRun, "_check_unstarted", check)
    return flag


def checked_pods(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each answered request for the Events of a pod."""
    asked: list[str] = []
    real = Api.list

    def answer(api: Api, kind: Any, **selectors: str) -> Any:
        found = real(api, kind, **selectors)
        asked.extend(each for each in selectors.values() if "involvedObject.name" in each)
        return found

    monkeypatch.setattr(Api, "list", answer)
    return asked


def tell(world: Cluster, name: str, reason: str, message: str, kind: str = "Warning") -> bool:
    """Add an Event to the pod of a Job, once the pod exists."""
    pods = world.cluster.store.all(world.pods)
    found = [each for each in pods if each["metadata"]["name"].startswith(name)]
    for pod in found:
        add_event(world, "Pod", pod, reason, message, kind)
    return bool(found)


def add_event(
    world: Cluster, what: str, found: Any, reason: str, message: str, kind: str = "Warning"
) -> None:
    store = world.cluster.store
    about = {key: found["metadata"][key] for key in ("name", "namespace", "uid")}
    body = {
        "metadata": {"generateName": f"{about['name']}."},
        "involvedObject": {"kind": what, **about}, "type": kind,
        "reason": reason, "message": message, "lastTimestamp": now(),
    }  # fmt: skip
    store.create(store.kinds[("", "events")], world.namespace, body)


def test_a_job_without_a_pod_is_reported_if_kubernetes_says_nothing(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_run, "_LONG", 0.5)
    with world.pods_forbidden(Refusal(500, "no answer")):
        session.submit(job := session.job("true"))
        session.wait(session.problems, "a warning")
    (problem,) = session.problems()
    assert f"{job.id} waits in Kubernetes: no pod was created for it" in problem
    session.wait_clean(job)


def test_what_kubernetes_said_before_the_pod_was_created_does_not_end_a_later_controllers_job(
    world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy denied the pod while no controller was active, and was removed."""
    monkeypatch.chdir(tmp_path)
    with world.pods_forbidden(), Session(world.executor(), tmp_path) as first:
        monkeypatch.setattr(KubernetesRun, "_on_uncreated_pod", lambda *_: None)
        job = lasting(first)
        first.submit(job)
        first.wait_for(job, "submit")
        world.wait(lambda: any("forbidden" in each["message"] for each in events_of(world)))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    world.wait(lambda: bool(world.cluster.store.all(world.pods)))
    real = Api.list

    def slow(api: Api, kind: Any, **selectors: str) -> Any:
        time.sleep(0.5 if kind == "pods" else 0.0)
        return real(api, kind, **selectors)

    monkeypatch.setattr(Api, "list", slow)
    with Session(world.executor(), tmp_path, tidy=True).resume(first) as second:
        second.take_over([job.id])
        assert isinstance(second.executor, KubernetesExecutor)
        lists = second.executor._require_open()._lists
        world.wait(lambda: lists["events"] > 0)
        second.cancel(job)
        second.wait_clean(job)
        assert second.exception(job) == "cancel", "not the message of the policy"


def events_of(world: Cluster) -> list[dict[str, Any]]:
    store = world.cluster.store
    found: list[dict[str, Any]] = store.all(store.kinds[("", "events")])
    return found


def test_a_later_controller_knows_that_the_run_itself_suspends_a_job(
    world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(world.executor(), tmp_path) as first:
        first.submit(wished := first.job("true", urgency=0))
        first.wait_for(wished, "submit")
    monkeypatch.setattr(kubernetes_run, "_PATIENCE", 0.2)
    with Session(world.executor(), tmp_path, tidy=True).resume(first) as second:
        second.take_over([wished.id])
        time.sleep(1.0)
        assert second.problems() == []
        second.cancel(wished)
        second.wait_clean(wished)


def test_a_running_job_whose_job_others_suspend_is_cancelled_with_that_reason(
    world: Cluster, session: Session
) -> None:
    session.submit(job := lasting(session))
    session.wait_for(job, "start")
    found = world.cluster.store.get(world.jobs, world.namespace, session.queue_id(job))
    found["spec"]["suspend"] = True
    world.cluster.store.write(world.jobs, world.namespace, found)
    session.wait_clean(job)
    assert session.cause(job) == "cancelled"
    assert "its Job was suspended by another client" in session.context(job, "exception")["note"]


def test_when_a_namespace_is_deleted_its_jobs_end_and_later_ones_are_rejected(
    world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store, logs = world.cluster.store, world.cluster.logs
    store.create(world.namespaces, "", {"metadata": {"name": "team"}})
    admin = world.cluster.kubeconfig(tmp_path / "admin")
    node = world.node(tmp_path, "team")
    executor = KubernetesExecutor(kubeconfig=str(admin), namespace="team", image=IMAGE)
    with Session(executor, tmp_path, 60.0) as session:
        running, held = lasting(session), session.job("true", urgency=0)
        session.submit(running, held)
        session.wait_for(running, "start")
        session.wait_for(held, "priority")
        store.delete(world.namespaces, "", "team")
        session.wait_clean(running, held)
        assert session.cause(running) == session.cause(held) == "cancelled"
        assert "deleted by another client" in session.context(held, "exception")["note"]
        world.wait(
            lambda: "team" not in [n["metadata"]["name"] for n in store.all(world.namespaces)]
        )
        later = session.job("true")
        session.run(later)
        assert session.cause(later) == "submit"
        assert 'namespaces "team" not found' in note(session, later)
    node.close()
    world.cluster.logs = logs


@pytest.mark.timeout(120 + AWAY)
def test_a_cluster_that_is_away_for_long_is_reported_once_and_costs_nothing(
    world: Cluster, session: Session
) -> None:
    """Jobs are submitted and cancelled while watches and requests fail."""
    running, doomed = lasting(session), lasting(session)
    session.submit(running, doomed)
    for job in (running, doomed):
        session.wait_for(job, "start")
    pod = world.kubelet.pod(session.queue_id(doomed))
    ours = f"Bearer {yaml.safe_load(world.kubeconfig.read_text())['users'][0]['user']['token']}"

    def away(method: str, path: str) -> Any:
        return (503, "away") if world.cluster.asked.headers.get("Authorization") == ours else None

    world.cluster.trouble = away
    world.cluster.cut()
    later = session.job("true")
    session.submit(later)
    session.cancel(doomed)
    time.sleep(AWAY)
    assert len(session.problems()) == 1
    assert "retrying until it works" in session.problems()[0]
    assert not pod.over
    requests = len(world.cluster.log)
    world.cluster.trouble = lambda method, path: None
    session.wait_clean(later, doomed)
    (session.folder / "gate").touch()
    session.wait_clean(running)
    assert session.context(running, "finish")["status"] == 0
    assert session.context(later, "finish")["status"] == 0
    assert session.exception(doomed) == "cancel"
    session.wait(lambda: len(session.problems()) == 2, "word that all is well")
    assert session.problems()[1:] == ["kubernetes responds again; the run continues"]
    assert requests < 2000


def test_without_the_right_to_list_jobs_the_executor_does_not_open(
    world: Cluster, tmp_path: Path
) -> None:
    token = world.cluster.access.token(f"system:serviceaccount:{world.namespace}:default")
    config = world.cluster.kubeconfig(tmp_path / "config", token)
    session = Session(KubernetesExecutor(kubeconfig=str(config), image=IMAGE), tmp_path)
    with pytest.raises(ExecutorError) as refused, session:
        pass
    assert refused.value.code == "refused"
    assert "deploy/access.yaml" in str(refused.value.hint)


def test_without_a_kubeconfig_the_executor_does_not_open(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    session = Session(KubernetesExecutor(kubeconfig=str(missing), image=IMAGE), tmp_path)
    with pytest.raises(UsageError) as refused, session:
        pass
    assert str(missing) in str(refused.value)


def test_the_documented_rights_are_those_that_are_used(world: Cluster, session: Session) -> None:
    session.run(job := session.job("echo", "a"))
    session.executor.forget([job.id])
    world.wait(lambda: not world.cluster.store.all(world.jobs))
    used = {
        (resource, verb)
        for user, verb, resource, _ in world.cluster.access.allowed
        if user == world.user
    }
    (role,) = [each for each in yaml.safe_load_all(ACCESS.read_text()) if each["kind"] == "Role"]
    allowed = {(name, v) for r in role["rules"] for name in r["resources"] for v in r["verbs"]}
    assert used == allowed


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"options": {"kubernetes": {"image": ""}}}, "no image"),
        ({"workdir": "here"}, "absolute path"),
        ({"stderr": "errors.txt"}, "a pod has only one log"),
        ({"tasks": 4, "nodes": 2}, "as many tasks as nodes"),
        ({"environment": {"A": "\udc80"}}, "not valid UTF-8"),
    ],
)
def test_a_job_that_kubernetes_cannot_run_is_rejected_with_a_hint(
    session: Session, fields: Any, words: str
) -> None:
    session.run(job := session.job("true", **fields))
    assert session.cause(job) == "submit"
    assert words in note(session, job)


def test_command_and_environment_arrive_unchanged(session: Session) -> None:
    """Kubernetes would expand ``$(NAME)`` and ``$$`` in both."""
    script = 'printf "%s\\n" "$A" "$1" "$2"'
    job = session.job("sh", "-c", script, "sh", "$(A)", "$$(A) $$", environment={"A": "$(HOME) $$"})
    session.run(job)
    assert (session.folder / f"{job.id}.out").read_text().splitlines() == [
        "$(HOME) $$", "$(A)", "$$(A) $$",
    ]  # fmt: skip


def test_each_task_is_a_pod_with_its_rank_and_one_failure_ends_the_job(
    session: Session,
) -> None:
    good = session.job("sh", "-c", "echo $ENSEMBLE_TASK_RANK of $ENSEMBLE_TASK_COUNT", tasks=3)
    bad = session.job("sh", "-c", "test $ENSEMBLE_TASK_RANK = 0 && exit 3; sleep 600", tasks=2)
    session.run(good)
    assert (session.folder / f"{good.id}.out").read_text() == "0 of 3\n1 of 3\n2 of 3\n"
    session.run(bad)
    assert session.context(bad, "finish")["status"] != 0


def test_pods_of_a_job_have_host_names_in_the_service_of_the_readme(
    world: Cluster, session: Session
) -> None:
    text = (ACCESS.parents[1] / "README.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    group, service = map(yaml.safe_load, blocks)
    store, own = world.cluster.store, group["options"]["kubernetes"]
    services = store.kinds[("", "services")]
    store.create(services, world.namespace, service)
    session.submit(job := lasting(session, tasks=2, options={"kubernetes": own}))
    world.wait(lambda: len(store.all(world.pods)) == 2)
    pods, selector = store.all(world.pods), service["spec"]["selector"].items()
    (session.folder / "gate").touch()
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0
    names = {(each["spec"]["hostname"], each["spec"]["subdomain"]) for each in pods}
    assert names == {(f"{session.queue_id(job)}-{n}", service["metadata"]["name"]) for n in (0, 1)}
    assert all(selector <= each["metadata"]["labels"].items() for each in pods)
    store.delete(services, world.namespace, service["metadata"]["name"])


def test_tasks_on_separate_nodes_wait_if_there_is_only_one_node(session: Session) -> None:
    job = session.job("true", tasks=2, nodes=2)
    session.submit(job)
    session.wait(lambda: bool(session.problems()) or "clean" in session.names(job), "a warning")
    assert "nodes are available" in session.problems()[0]
    session.cancel(job)
    session.wait_clean(job)


def test_the_log_of_a_job_without_output_is_not_requested(world: Cluster, session: Session) -> None:
    def logs() -> int:
        return sum(what == "pods/log" for _, _, what, _ in world.cluster.access.allowed)

    before = logs()
    session.run(session.job("echo", "words", stdout="/dev/null", stderr="/dev/null"))
    assert logs() == before
    session.run(session.job("echo", "words"))
    assert logs() == before + 1


@pytest.mark.parametrize("cut", [False, True], ids=["", "its log ends early at first"])
def test_output_of_an_observed_job_is_available_while_it_runs(
    world: Cluster, session: Session, cut: bool
) -> None:
    empty = [(200, "")] * cut
    world.cluster.trouble = lambda _, path: empty.pop() if empty and path.endswith("/log") else None
    job, file = observed(session)
    world.wait(lambda: file.exists() and file.read_text() == "one\n")
    assert not empty
    (session.folder / "gate").touch()
    session.wait_clean(job)
    assert file.read_text() == "one\ntwo\n"


_UNREADABLE = [
    "unable to retrieve container logs for containerd://0a1b2c3d",
    (
        'failed to try resolving symlinks in path "/var/log/pods/default_p_1/job/0.log": lstat '
        "/var/log/pods/default_p_1/job/0.log: no such file or directory"
    ),
    (
        'failed to open log file "/var/log/pods/default_p_1/job/0.log": open '
        "/var/log/pods/default_p_1/job/0.log: no such file or directory"
    ),
]


@pytest.mark.parametrize("text", _UNREADABLE)
def test_an_error_that_a_kubelet_sends_in_place_of_a_log_is_no_output(
    world: Cluster, session: Session, text: str
) -> None:
    replies = [(200, text)] * 2
    world.cluster.trouble = lambda _, path: (
        replies.pop() if replies and path.endswith("/log") else None
    )
    job, file = observed(session)
    world.wait(lambda: file.exists() and file.read_text() == "one\n")
    replies += [(200, text)]
    world.cluster.cut()
    world.wait(lambda: not replies)
    (session.folder / "gate").touch()
    session.wait_clean(job)
    assert file.read_text() == "one\ntwo\n"
    assert not any("rotated" in each for each in session.problems())


def test_a_job_may_print_the_text_of_such_an_error(session: Session) -> None:
    session.run(job := session.job("echo", _UNREADABLE[0]))
    assert (session.folder / f"{job.id}.out").read_text() == f"{_UNREADABLE[0]}\n"


@pytest.mark.parametrize("status", [400, 410, 500, 503])
def test_a_log_that_is_refused_while_it_is_followed_is_read_on(
    world: Cluster, session: Session, status: int
) -> None:
    job, file = observed(session)
    world.wait(lambda: file.exists() and file.read_text() == "one\n")
    replies = [(status, "away")] * 2
    world.cluster.trouble = lambda _, path: (
        replies.pop() if replies and path.endswith("/log") else None
    )
    world.cluster.cut()
    world.wait(lambda: not replies)
    (session.folder / "gate").touch()
    session.wait_clean(job)
    assert file.read_text() == "one\ntwo\n"


def test_a_log_that_its_node_rotates_while_the_server_is_away_is_read_from_its_new_start(
    world: Cluster, session: Session
) -> None:
    job, file = observed(session)
    world.wait(lambda: file.exists() and file.read_text() == "one\n")
    pod = world.kubelet.pod(session.queue_id(job)).name
    log = world.cluster.logs(world.namespace, pod)
    assert log is not None
    world.cluster.trouble = lambda _, path: (503, "away") if path.endswith("/log") else None
    world.cluster.cut()
    os.truncate(log, 0)
    (session.folder / "gate").touch()
    world.wait(lambda: log.read_text() == "two\n")
    world.cluster.trouble = lambda _, path: None
    session.wait_clean(job)
    assert file.read_text() == "one\ntwo\n"
    assert any("was rotated on its node" in each for each in session.problems())


def test_a_long_log_is_not_copied_line_by_line(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    append = LogCopy._append
    monkeypatch.setattr(
        LogCopy, "_append", lambda copy, new: written.append(len(new)) or append(copy, new)
    )
    session.run(job := session.job("seq", "20000"))
    assert (session.folder / f"{job.id}.out").read_text().split() == [*map(str, range(1, 20001))]
    assert len(written) < 100


def test_what_was_copied_of_a_log_is_known_again_after_a_rotation(tmp_path: Path) -> None:
    lines = [f"{number} \u00e9\n".encode() for number in range(2000)]
    path = tmp_path / "out"
    copy = LogCopy(str(path), resumed=False)
    assert copy.add(iter([*lines[:1000], lines[1000][:-2]]))  # cut within a character
    assert copy.add(iter(lines[:1500]))
    rotated = b"".join(lines[1200:1800])
    assert not copy.add(iter(lines[1200:1800]))
    assert copy.add_rotated(rotated)
    later = LogCopy(str(path), resumed=True)
    assert not later.add(iter([rotated + lines[1800][:3]]))
    assert later.add_rotated(rotated + lines[1800][:3])
    assert path.read_bytes() == b"".join(lines[:1800]) + lines[1800][:3]
    assert not later.add_rotated(b"".join(lines[1900:]))
    assert later.add(iter(lines[1900:]))
    *_, broken, first = path.read_bytes().split(b"\n")[:-100]
    assert broken == b"180\0 (the pod's log was rotated here)"
    assert first + b"\n" == lines[1900]


def test_a_cancelled_job_that_ends_with_0_is_cancelled_if_its_log_is_gone(
    world: Cluster, session: Session
) -> None:
    script = "trap 'exit 0' TERM; touch ready; while :; do sleep 0.1; done"
    session.submit(job := session.job("sh", "-c", script, workdir=str(session.folder)))
    session.wait_for(job, "start")
    world.wait((session.folder / "ready").exists)
    gone = (404, "its pod is gone")
    world.cluster.trouble = lambda _, path: gone if path.endswith("/log") else None
    session.cancel(job)
    session.wait_clean(job)
    assert session.exception(job) == "cancel"


def test_output_of_an_observed_job_is_available_to_a_later_controller(
    world: Cluster, tmp_path: Path
) -> None:
    with Session(world.executor(), tmp_path, 60.0) as first:
        job, file = observed(first, "sleep 600")
        world.wait(lambda: file.exists() and file.read_text() == "one\n")
    second = Session(world.executor(), tmp_path, 60.0, tidy=True)
    second.resume(first)
    with second:
        assert second.executor.reattach({job.id: 0.0}) == {job.id: True}
        (tmp_path / "gate").touch()
        world.wait(lambda: file.read_text() == "one\ntwo\n")
        second.cancel(job)
        second.wait_clean(job)


def observed(session: Session, last: str = "true") -> tuple[Job, Path]:
    """Start a job that writes a second line once ``gate`` exists; return it and its output file."""
    script = f"echo one; until [ -e gate ]; do sleep 0.1; done; echo two; exec {last}"
    job = session.job("sh", "-c", script, workdir=str(session.folder), observe={"json-lines": {}})
    session.submit(job)
    session.wait_for(job, "start")
    return job, session.folder / f"{job.id}.out"


def _ended_pod(name: str, code: int, finished: str, deleted: str = "") -> Pod:
    metadata = {"name": name}
    if deleted:
        metadata |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": "30"}
    ended = {"exitCode": code, "startedAt": "1970-01-01T00:00:10Z", "finishedAt": finished}
    containers = [{"name": "job", "state": {"terminated": ended}}]
    return read_pod(
        {
            "metadata": metadata,
            "status": {"phase": "Failed", "containerStatuses": containers},
        }
    )


@pytest.mark.parametrize(
    ("pods", "cause"),
    [
        ([(143, "00:01:00", "00:01:30")], "cancelled"),
        ([(3, "00:01:10", "00:01:30")], "cancelled"),  # its answer to SIGTERM
        ([(143, "00:01:00", "")], "signal"),
        ([(3, "00:00:59", "00:01:30")], "exit"),  # deleted after its end
        ([(3, "00:01:00", ""), (143, "00:01:01", "00:01:31")], "exit"),
    ],
)
def test_only_a_pod_that_was_deleted_while_it_ran_is_cancelled(
    pods: list[tuple[int, str, str]], cause: str
) -> None:
    told: list[JobEvent] = []
    life = Life("a.0", "a-0", {"tasks": len(pods)}, told)
    for rank, (code, *times) in enumerate(pods):
        finished, deleted = (f"1970-01-01T{time}Z" if time else "" for time in times)
        life.pods[rank] = _ended_pod(f"pod-{rank}", code, finished, deleted)
    life.tell_end(200.0, live=False)
    exception = next((e.context["type"] for e in told if e.name == "exception"), None)
    (status,) = (e.context["status"] for e in told if e.name == "finish")
    assert cause_of(exception, status) == cause


def test_memory_is_requested_and_limited_for_each_task() -> None:
    job = Job(id="a.0", group="a", index=0, command=("x",), tasks=2, memory_per_task=1 << 30)
    pod = manifest(job, "r", "0123456789abcdef", Settings("image"))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1073741824"}
    assert container["resources"]["limits"] == {"memory": "1073741824"}
    assert {"name": "ENSEMBLE_CORES", "value": "1"} in container["env"]


def test_avoided_nodes_are_added_to_the_user_s_affinity() -> None:
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {kind: {"nodeSelectorTerms": [{"matchExpressions": ["fast"]}, {"matchFields": ["a"]}]}}
    options = {"kubernetes": {"pod": {"affinity": {"nodeAffinity": own}}}}
    job = Job(id="a.0", group="a", index=0, command=("x",), avoid=("n1", "n2"), options=options)
    pod = manifest(job, "r", "0123456789abcdef", Settings("image"))["spec"]["template"]["spec"]
    away = [
        {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2")
    ]
    assert pod["affinity"]["nodeAffinity"][kind]["nodeSelectorTerms"] == [
        {"matchExpressions": ["fast"], "matchFields": away},
        {"matchFields": ["a", *away]},
    ], "a node must satisfy one of the terms, so each has the condition"


def test_environment_from_is_rejected_with_a_hint() -> None:
    """Pods do not inherit the environment of the controller."""
    registry = discover()
    text = (
        "jobs: [{name: g, command: 'true', environment_from: [DB_PASSWORD]}]\n"
        "rules: [{trigger: start, action: {name: submit, label: g}}]\n"
    )
    record = registry.executors["kubernetes"]
    with pytest.raises(EnsembleError, match="cannot be used with the executor kubernetes") as found:
        load_text(text, registry, executor=record)
    assert "name a Secret: options: {kubernetes:" in str(found.value)


def test_image_and_fragments_belong_to_the_identity_of_jobs() -> None:
    registry = discover()
    text = (
        "jobs: [{name: g, command: 'true', options: {kubernetes: {image: 'sim:1'}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: g}}]\n"
    )
    compared = load_text(text, registry).groups["g"].compared["kubernetes"]
    assert [*compared] == ["image", "container", "pod"]
