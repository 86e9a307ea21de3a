"""Tests of the test suite's ``--kubeconfig`` mode, with the stand-in as the control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RealCluster
from ensemble_testing import Session
from kubernetes_stand_in import Cluster as StandIn
from kubernetes_stand_in import Player, definition
from kubernetes_stand_in.kinds import Kind


def test_the_suites_were_run_on_a_real_control_plane(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--kubeconfig", default=None):
        pytest.skip("no --kubeconfig: the suites were run on the stand-in alone")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealCluster]:
    server = StandIn(definition())
    server.store.kinds["", "nodes"] = Kind(
        "", "v1", "nodes", "Node", namespaced=False, subresources={"status": {}}
    )
    player = Player(server, 0.02, plays_pods=False)
    cluster = RealCluster(tmp_path / "cluster", server.kubeconfig(tmp_path / "admin"))
    server.logs = cluster.kubelet.log
    yield cluster
    cluster.sweep()
    cluster.close()
    player.stop()
    server.stop()


def test_jobs_of_a_run_pass_the_proxy_with_their_faults(real: RealCluster, tmp_path: Path) -> None:
    with Session(real.executor(), tmp_path, 120.0) as session:
        session.run(job := session.job("echo", "words"))
        assert (tmp_path / f"{job.id}.out").read_text() == "words\n"
        running = session.job("sh", "-c", f"until [ -e {tmp_path}/gate ]; do sleep 0.1; done")
        session.submit(running)
        session.wait_for(running, "start")
        real.cluster.trouble = lambda method, path: (503, "away")
        real.cluster.cut()
        session.wait(lambda: bool(session.problems()), "a warning")
        (tmp_path / "gate").touch()
        real.wait(lambda: not real.active())
        real.cluster.store.forget()
        real.cluster.trouble = lambda method, path: None
        session.wait_clean(running)
        assert session.context(running, "finish")["status"] == 0
    assert real.created() == 2


def test_requests_are_classified_by_their_sender(real: RealCluster, tmp_path: Path) -> None:
    with Session(real.executor(), tmp_path, 120.0) as session:
        session.run(session.job("true"))
    used = {
        (verb, what) for user, verb, what, _ in real.cluster.access.allowed if user == real.user
    }
    assert {("create", "jobs"), ("watch", "pods"), ("get", "pods/log")} <= used
