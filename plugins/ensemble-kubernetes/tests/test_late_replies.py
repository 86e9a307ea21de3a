"""Tests of requests that were executed although their reply says otherwise, or came too late."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from ensemble_testing import Session
from kubernetes_stand_in.refusals import Refusal

if TYPE_CHECKING:
    from conftest import Cluster

TIMEOUT = Refusal(504, "request did not complete within the allotted timeout")
FULL = Refusal(
    403,
    'jobs.batch "x" is forbidden: exceeded quota: few, requested: count/jobs.batch=1, '
    "used: count/jobs.batch=1, limited: count/jobs.batch=1",
)
POLICY = Refusal(403, 'admission webhook "policy" denied the request: not now')


def refuse_the_second(world: Cluster, refusal: Refusal) -> None:
    """Execute the first creation of a Job but answer that it has failed; refuse the others."""
    asked: list[str] = []

    def before(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/jobs"):
            asked.append(path)
            if len(asked) > 1:
                raise refusal

    def after(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/jobs"):
            raise TIMEOUT

    world.cluster.meanwhile, world.cluster.afterwards = before, after


@pytest.mark.parametrize("refusal", [TIMEOUT, FULL, POLICY])
def test_a_job_that_ended_before_its_creation_was_answered_does_not_run_again(
    world: Cluster, session: Session, refusal: Refusal
) -> None:
    """An overloaded API server answers 504 after it has created the Job."""
    over, said = threading.Event(), threading.Event()

    def answer_late(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/jobs") and not said.is_set():
            over.wait(60)
            said.set()
            raise refusal

    world.cluster.afterwards = answer_late
    created = world.created()
    script = f"echo ran >> {session.folder}/ran"
    session.submit(job := session.job("sh", "-c", script))
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0
    session.executor.forget([job.id])
    world.wait(lambda: not world.cluster.store.all(world.jobs))
    over.set()
    world.wait(said.is_set)
    session.run(session.job("true"), session.job("true"))
    world.wait(lambda: not world.active())
    assert (session.folder / "ran").read_text() == "ran\n"
    assert world.created() == created + 3


def test_a_job_whose_creation_a_quota_rejects_the_second_time_is_not_over_while_it_runs(
    world: Cluster, session: Session
) -> None:
    """The quota already counts the Job that the first request has created."""
    refuse_the_second(world, FULL)
    session.submit(job := session.job("sh", "-c", "until [ -e gate ]; do sleep 0.1; done"))
    session.wait_for(job, "start")
    time.sleep(2.0)  # a second request would come after one
    session.cancel(job)
    session.wait_clean(job)
    assert session.cause(job) == "cancelled"
    world.wait(lambda: not world.active())


def test_a_job_whose_creation_is_refused_the_second_time_does_not_run_on(
    world: Cluster, session: Session
) -> None:
    """A policy has come between, and watches have not reported the Job yet."""
    refuse_the_second(world, POLICY)
    world.cluster.trouble = lambda method, path: (
        (503, "away") if "labelSelector" in world.cluster.asked.query and method == "GET" else None
    )
    world.cluster.cut()
    session.submit(job := session.job("sleep", "600"))
    session.wait_clean(job)
    assert session.cause(job) == "submit"
    world.cluster.trouble = lambda method, path: None
    world.wait(lambda: not world.active())
