"""Contract, decision, stop and crash tests on the stand-in for Kubernetes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from conftest import IMAGE
from ensemble_kubernetes import ensemble_executors
from ensemble_testing import CrashSuite, DecisionSuite, ExecutorContract, Session, StopSuite

from ensemble_core import Cause, Executor

if TYPE_CHECKING:
    from conftest import Cluster


#: Prints the numbers of threads and descriptors after each of four sessions.
OPEN_AND_CLOSE = """
import gc, json, os, sys, threading
from pathlib import Path
from ensemble_kubernetes.executor import KubernetesExecutor
from ensemble_testing import Session
counts = []
for _ in range(4):
    with Session(KubernetesExecutor(kubeconfig=sys.argv[1], image=sys.argv[2]), Path()) as session:
        session.run(session.job("true"), session.job("there-is-no-such-command"))
    gc.collect()  # connections in reference cycles
    counts.append([threading.active_count(), len(os.listdir("/proc/self/fd"))])
print(json.dumps(counts))
"""


class TestKubernetes(ExecutorContract):
    (plugin,) = ensemble_executors()
    slots = 4
    many: ClassVar[int] = 20

    @pytest.fixture(autouse=True)
    def _inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Cluster) -> None:
        monkeypatch.chdir(tmp_path)
        self.world = world

    def make_executor(self) -> Executor:
        return self.world.executor()

    def test_jobs_inherit_the_environment_of_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unlike elsewhere, they do not: pods have the environment of the image and of the job."""
        monkeypatch.setenv("DB_PASSWORD", "s3cret")
        with self.new_session(tmp_path) as session:
            script = 'echo "password: $DB_PASSWORD"'
            session.run(session.job("sh", "-c", script, workdir=str(tmp_path), stdout="told.txt"))
        assert (tmp_path / "told.txt").read_text() == "password: \n"

    def test_close_releases_threads_and_descriptors(self, tmp_path: Path) -> None:
        """Count in a separate process, because this one runs the cluster's threads."""
        done = subprocess.run(
            [sys.executable, "-c", OPEN_AND_CLOSE, str(self.world.kubeconfig), IMAGE],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=self.timeout,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        _, first, *others = json.loads(done.stdout)  # the first session imports modules
        for each in others:
            assert each[0] <= first[0], (first, others)
            assert each[1] <= first[1], (first, others)

    def end_by_memory(self, session: Session) -> Cause:
        killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        return self._ended(session, lambda pod: pod.end(killed))

    @pytest.mark.parametrize("code", [0, 1])
    def test_a_job_that_lost_a_process_to_the_kernel_has_failed(
        self, session: Session, code: int
    ) -> None:
        killed = {"terminated": {"exitCode": code, "reason": "OOMKilled"}}
        assert self._ended(session, lambda pod: pod.end(killed)) == "memory"

    def end_by_node_failure(self, session: Session) -> Cause:
        return self._ended(session, lambda pod: pod.disrupt("DeletionByTaintManager"))

    def end_by_preempted(self, session: Session) -> Cause:
        return self._ended(session, lambda pod: pod.disrupt("PreemptionByScheduler"))

    def _ended(self, session: Session, how: object) -> Cause:
        """Apply ``how`` to the pod of a running job; return the cause of the job's end."""
        job = session.job(*self.lasting, grace=1.0)
        session.submit(job)
        session.wait_for(job, "start")
        how(self.world.kubelet.pod(session.queue_id(job)))  # type: ignore[operator]
        session.wait_clean(job)
        assert session.context(job, "finish")["status"] != 0
        return session.cause(job)

    def end_by_lost(self, session: Session) -> Cause:
        """Delete a job during an outage of Kubernetes."""
        job = session.job(*self.lasting, urgency=0)
        session.submit(job)
        session.wait_for(job, "priority")
        cluster = self.world.cluster
        cluster.trouble = lambda method, path: (503, "away")
        cluster.cut()
        session.wait(lambda: bool(session.problems()), "a warning")
        cluster.store.delete(self.world.jobs, self.world.namespace, session.queue_id(job))
        cluster.store.forget()
        cluster.trouble = lambda method, path: None
        session.wait_clean(job)
        return session.cause(job)


@pytest.mark.timeout(300)
class TestDecisions(DecisionSuite):
    executor = "kubernetes"

    @pytest.fixture(autouse=True)
    def _cluster(self, world: Cluster) -> None:
        self.options = world.words


class TestStops(StopSuite):
    executor = "kubernetes"
    on_stop = "keep"
    slots = 4

    @pytest.fixture(autouse=True)
    def _cluster(self, world: Cluster) -> None:
        self.options = world.words


@pytest.mark.timeout(600)
class TestCrashes(CrashSuite):
    executor = "kubernetes"
    slots = 4

    @pytest.fixture(autouse=True)
    def _cluster(self, world: Cluster) -> None:
        self.world, self.options = world, world.words

    def submitted(self) -> int:
        """Return the number of Jobs created."""
        return self.world.created()

    def active(self) -> int:
        self.world.wait(lambda: not self.world.active())
        return len(self.world.active())
