"""Tests with a stand-in for Kubernetes whose answers are missing, late, garbled or empty."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from ensemble_testing import FaultSuite, Session, wait_until

from ensemble_core import Executor, Job

if TYPE_CHECKING:
    from conftest import Cluster

#: Purpose of a request, by its method.
PURPOSES = {"POST": "create", "GET": "list", "DELETE": "delete"}


@pytest.mark.timeout(300)
class TestKubernetes(FaultSuite):
    """The suite's commands are requests here: listing and watching count as one command."""

    commands: ClassVar = {"connect": "list", "submit": "create", "ask": "list", "cancel": "delete"}
    away = nothing = ""
    lists_prove = True

    @pytest.fixture(autouse=True)
    def _programs(self, world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        self.folder, self.ran_in, self.world = tmp_path, tmp_path / "ran", world
        self._lock, self._plans, self._calls = threading.Lock(), {}, {}  # type: ignore[var-annotated]
        world.cluster.trouble = self.trouble

    def make_executor(self, period: float = 1.0) -> Executor:
        return self.world.executor()

    def cancel_from_outside(self, session: Session, *jobs: Job) -> None:
        for job in jobs:
            store = self.world.cluster.store
            store.delete(self.world.jobs, self.world.namespace, session.queue_id(job))

    def plan(self, faults: Mapping[str, str]) -> None:
        with self._lock:
            self._plans = {self.commands[what]: lines.split("\n") for what, lines in faults.items()}
        if "ask" in faults:
            self.world.cluster.cut()  # the executor must list again

    def calls(self, what: str, mode: str) -> int:
        return int(self._calls.get((self.commands[what], mode), 0))

    def trouble(self, method: str, path: str) -> Any:
        """Return the planned faulty answer to this request, or ``None``."""
        if not path.endswith(("/jobs", "/pods", "/events")):
            return None
        name, query = PURPOSES[method], self.world.cluster.asked.query
        if not query and method == "GET":  # the node's own watch
            return None
        watch = query.get("watch") in ("1", "true", "True")
        if watch and "labelSelector" not in query and "fieldSelector" not in query:
            return None
        with self._lock:
            plan = self._plans.get(name, [])
            mode = plan[0] if plan else ""
            if mode.endswith(" always"):
                mode = mode.removesuffix(" always")
            else:
                del plan[:1]
            if not (watch and not mode):  # watches that work are not counted
                self._calls[name, mode] = self._calls.get((name, mode), 0) + 1
        if mode == "slow":
            time.sleep(2)
        version = self.world.cluster.store.version
        empty = {"kind": "List", "items": [], "metadata": {"resourceVersion": str(version)}}
        expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        return {
            "away": (503, "the server is currently unable to handle the request"),
            "lost": "drop",
            "garbled": (200, "%! <<< } 0x1f"),
            "cut": "cut" if not watch else (200, '{"type": "MODI'),
            "nothing": (410, json.dumps(expired)) if watch else (200, json.dumps(empty)),
        }.get(mode)

    def test_queue_outage_loses_no_job(self, session: Session) -> None:
        """Only the API server reports the end of jobs, so it is known after the outage."""
        running, doomed = self.counted(session, 1), session.job("sleep", "600")
        session.submit(running, doomed)
        session.wait_for(running, "start")
        session.wait_for(doomed, "start")
        self.plan(dict.fromkeys(self.commands, "away always"))
        later = [self.counted(session) for _ in range(3)]
        session.submit(*later)
        session.cancel(doomed)
        session.wait(lambda: bool(session.problems()), "a warning")
        wait_until(lambda: sum(self.calls(what, "away") for what in ("submit", "ask")) > 3)
        self.plan({})
        session.wait_clean(running, *later, doomed)
        assert session.exception(doomed) == "cancel"
        self.check(session, running, *later)

    def test_many_jobs_need_few_commands(self, session: Session) -> None:
        """One request creates each Job, and none asks for its state."""
        session.run(self.counted(session))
        before = self.asked()
        jobs = [self.counted(session) for _ in range(40)]
        session.run(*jobs)
        session.executor.forget([job.id for job in jobs])
        wait_until(lambda: self.calls("cancel", "") > 0, self.timeout)
        assert self.calls("submit", "") == 41
        assert self.asked() == before
        assert self.calls("cancel", "") <= 2
        assert sorted(self.ran_in.read_text().split()) == sorted(["t.0", *(job.id for job in jobs)])

    def test_unreported_end_is_found_by_polling(self, session: Session) -> None:
        """The job ends during an outage, after which its versions are expired (410)."""
        gate = self.folder / "gate"
        script = f"echo $ENSEMBLE_JOB_ID >> {self.ran_in}; until [ -e {gate} ]; do sleep 0.1; done"
        job = session.job("sh", "-c", script)
        session.submit(job)
        session.wait_for(job, "start")
        self.plan({"ask": "away always"})
        gate.touch()
        self.world.wait(lambda: not self.world.active())
        self.world.cluster.store.forget()
        asked = self.calls("ask", "")
        self.plan({})
        session.wait_clean(job)
        wait_until(lambda: self.calls("ask", "") >= asked + 2)  # Jobs and pods are listed again
        self.check(session, job, told=(0, 1))
