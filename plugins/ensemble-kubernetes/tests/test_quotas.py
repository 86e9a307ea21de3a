"""Runs under a quota, and what a run leaves in its namespace."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from ensemble_kubernetes import kubernetes_run
from ensemble_kubernetes.quotas import never_fits
from ensemble_testing import Running, Session
from kubernetes_stand_in.refusals import Refusal, conflict

from ensemble_core import Job
from ensemble_core.cli.main import main

if TYPE_CHECKING:
    from conftest import Cluster

FILE = """
jobs: [{{name: a, command: [sh, -c, '{script}'], replicas: {count}, workdir: {folder}}}]
rules: [{{trigger: start, action: {{name: submit, label: a}}}}]
"""
#: Job 0 ends at once, the others when the file ``gate`` exists.
GATED = "test $ENSEMBLE_INDEX = 0 || until [ -e gate ]; do sleep 0.1; done"
Start = Callable[..., Running]
Ran = Callable[..., Result]


def arguments(world: Cluster, folder: Path, count: int, script: str) -> list[str]:
    """Return the command ``run`` for so many jobs with a script."""
    file = folder / "file.yaml"
    file.write_text(FILE.format(script=script, count=count, folder=folder))
    return ["run", str(file), "--executor", "kubernetes", *world.words]


@pytest.fixture
def ran(world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Return a function that runs jobs to their end in this process."""
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))

    def run(count: int, *words: str) -> Result:
        given = [*arguments(world, tmp_path, count, "true"), *words, "--json"]
        return CliRunner().invoke(main, given)

    return run


def of(run: Result, **wanted: object) -> list[dict[str, Any]]:
    """Return the lines of a run that have these values."""
    lines = map(json.loads, run.stdout.splitlines())
    return [line for line in lines if wanted.items() <= line.items()]


@pytest.fixture
def start(world: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts ``ensemble run`` or, without a count, resumes the last run."""
    runs: list[Running] = []
    state = {**os.environ, "ENSEMBLE_STATE": str(tmp_path / "state")}

    def begin(count: int = 0) -> Running:
        given = arguments(world, tmp_path, count, GATED) if count else ["resume", "last"]
        runs.append(Running([*given, "--json"], tmp_path, state))
        return runs[-1]

    yield begin
    for each in runs:
        each.close()


def warnings(run: Result) -> list[dict[str, Any]]:
    return of(run, kind="event", type="problem")


def left(world: Cluster) -> list[str]:
    """Return the names of the Jobs and pods in the namespace."""
    store = world.cluster.store
    found = [each for kind in (world.jobs, world.pods) for each in store.all(kind, world.namespace)]
    return [each["metadata"]["name"] for each in found]


def clean(count: int) -> dict[str, Any]:
    return {"count": count, "kind": "event", "type": "job", "name": "clean"}


@pytest.mark.parametrize(
    ("quota", "words"),
    [("count/jobs.batch", ()), ("count/pods", ("--no-journal",)), ("pods", ())],
)
def test_a_run_with_more_jobs_than_its_quota_ends_and_leaves_nothing(
    world: Cluster, ran: Ran, quota: str, words: tuple[str, ...]
) -> None:
    world.limit(quota, "2")
    run = ran(5, *words)
    assert run.exit_code == 0, run.output
    assert sum("exceeded quota: few" in each["message"] for each in warnings(run)) == 1
    world.wait(lambda: not left(world))  # the cluster deletes pods after their Job


def test_a_job_that_can_never_fit_into_a_quota_fails(
    world: Cluster, session: Session, ran: Ran
) -> None:
    world.limit("count/jobs.batch", "0")
    run = ran(1)
    assert run.exit_code == 1
    (failure,) = of(run, kind="event", type="job", name="exception")
    assert failure["context"]["type"] == "submit"
    assert "limited: count/jobs.batch=0" in failure["context"]["note"]
    world.cluster.store.delete(world.quotas, world.namespace, "few")
    world.limit("requests.cpu", "500m")
    session.run(job := session.job("true"))
    assert session.cause(job) == "submit"
    assert "limited: requests.cpu=500m" in session.context(job, "exception")["note"]


@pytest.mark.parametrize(
    ("requested", "limited", "never"),
    [("pods=1", "pods=1", False), ("memory=2Gi", "memory=2G", True), ("cpu=900m", "cpu=1", False),
     ("a=1,cpu=2", "a=5,cpu=1500m", True), ("cpu=2", "cpu=1.5k", False), ("cpu=?", "cpu=!", False)],
)  # fmt: skip
def test_quantities_of_a_quota_are_compared(requested: str, limited: str, never: bool) -> None:
    words = f"exceeded quota: q, requested: {requested}, used: pods=9, limited: {limited}"
    assert never_fits(words) is never


def test_jobs_whose_pods_are_rejected_by_a_quota_wait(
    world: Cluster, session: Session, tmp_path: Path
) -> None:
    world.limit("pods", "1")
    script = ("sh", "-c", "until [ -e gate ]; do sleep 0.1; done")
    jobs: list[Job] = [session.job(*script, workdir=str(tmp_path)) for _ in range(2)]
    session.submit(*jobs)
    session.wait(lambda: bool(session.problems()), "a warning")
    assert "waits in Kubernetes" in session.problems()[0]
    assert "exceeded quota: few" in session.problems()[0]
    assert sum("start" in session.names(job) for job in jobs) <= 1
    world.cluster.store.delete(world.quotas, world.namespace, "few")
    (tmp_path / "gate").touch()
    session.wait_clean(*jobs)
    assert [session.context(job, "finish")["status"] for job in jobs] == [0, 0]


def test_tasks_whose_pods_are_rejected_by_a_quota_are_reported(
    world: Cluster, session: Session, tmp_path: Path
) -> None:
    """Tasks may wait for one another, so a job with some of its pods may never end."""
    world.limit("pods", "1")
    script = ("sh", "-c", "until [ -e gate ]; do sleep 0.1; done")
    session.submit(job := session.job(*script, workdir=str(tmp_path), tasks=2))
    session.wait_for(job, "start")
    session.wait(lambda: bool(session.problems()), "a warning")
    (problem,) = session.problems()
    assert f"{job.id} waits in Kubernetes" in problem
    assert "exceeded quota: few" in problem
    (tmp_path / "gate").touch()
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0


def test_each_quota_that_holds_back_jobs_is_reported_once(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_run, "_FULL", 0.1)
    quotas = ["gpus", "gpus", "cpus", "gpus", "cpus"]

    def refuse(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/jobs") and quotas:
            about = f"exceeded quota: {quotas.pop()}, requested: a=1, used: a=2, limited: a=2"
            raise Refusal(403, f'jobs.batch "x" is forbidden: {about}')

    world.cluster.meanwhile = refuse
    session.run(job := session.job("true"))
    assert session.context(job, "finish")["status"] == 0
    said = [re.findall("exceeded quota: ([a-z]*)", each) for each in session.problems()]
    assert said == [["cpus"], ["gpus"]]


def test_a_quota_that_is_used_up_and_counted_is_reported_once(
    world: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_run, "_FULL", 0.1)
    refusals = [
        Refusal(403, 'jobs.batch "x" is forbidden: status unknown for quota: few, resources: pods'),
        conflict("resourcequotas", "", "few"),
        Refusal(403, "exceeded quota: few, requested: a=1, used: a=2, limited: a=2"),
    ]

    def refuse(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/jobs") and refusals:
            raise refusals.pop()

    world.cluster.meanwhile = refuse
    session.run(job := session.job("true"))
    assert session.context(job, "finish")["status"] == 0
    (problem,) = session.problems()
    assert "exceeded quota: few" in problem


def test_finished_jobs_are_deleted_while_the_run_continues(
    world: Cluster, start: Start, tmp_path: Path
) -> None:
    run = start(3)
    run.wait_for(**clean(1))
    world.wait(lambda: sum("-a-0-" in name for name in left(world)) == 0)
    assert run.process.poll() is None
    (tmp_path / "gate").touch()
    assert run.ended() == 0, run.errors
    world.wait(lambda: not left(world))


def test_jobs_of_a_killed_controller_are_deleted_by_the_resume(
    world: Cluster, start: Start, tmp_path: Path
) -> None:
    """The controller is killed after it recorded the end of a job, and before it deleted its Job."""
    deletions = []

    def refuse(method: str, path: str) -> None:
        if method == "DELETE":
            deletions.append(path)
            raise Refusal(503, "away")

    world.cluster.meanwhile = refuse
    run = start(3)
    world.wait(lambda: bool(deletions))
    run.signal(signal.SIGKILL)
    run.ended()
    world.cluster.meanwhile = lambda method, path: None
    assert any("-a-0-" in name for name in left(world))
    (tmp_path / "gate").touch()
    resumed = start()
    assert resumed.ended() == 0, resumed.errors
    world.wait(lambda: not left(world))


def test_a_run_that_cannot_delete_its_jobs_says_so_and_fails(world: Cluster, ran: Ran) -> None:
    said = 'jobs.batch is forbidden: User "x" cannot deletecollection resource "jobs"'

    def refuse(method: str, path: str) -> None:
        if method == "DELETE":
            raise Refusal(403, said)

    world.cluster.meanwhile = refuse
    run = ran(2)
    assert run.exit_code == 1
    last = warnings(run)[-1]["message"]
    assert f"2 Jobs of this run remain in namespace {world.namespace}" in last
    assert said in last
    assert f"kubectl -n {world.namespace} delete jobs -l" in last
    assert len(world.cluster.store.all(world.jobs, world.namespace)) == 2
