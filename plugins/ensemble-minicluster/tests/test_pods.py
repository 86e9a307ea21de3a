"""Tests of growing and shrinking a real Flux instance whose brokers act as pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing.executor import Session, wait_until

from ensemble_core import ResizeOutcome

pytestmark = pytest.mark.checkout


Over = Callable[..., tuple[Any, Any]]


class Run:
    """Open minicluster executor over the pods, with its emitted events."""

    def __init__(self, over_flux: Over, folder: Path) -> None:
        self.executor, self.cloud = over_flux()
        self.session = Session(self.executor, folder, 60.0, tidy=True)

    def outcome(self, request: str) -> ResizeOutcome | None:
        found = [
            e
            for e in list(self.session.events)
            if isinstance(e, ResizeOutcome) and e.request == request
        ]
        assert len(found) < 2
        return found[0] if found else None

    def answer(self, request: str) -> ResizeOutcome:
        self.session.wait(lambda: self.outcome(request) is not None, f"the answer to {request}")
        found = self.outcome(request)
        assert found is not None
        return found

    def resize(self, request: str, delta: int, when_busy: Any = "wait") -> ResizeOutcome:
        self.executor.resize(request, delta, when_busy=when_busy)
        return self.answer(request)


@pytest.fixture
def run(pods: Any, over_flux: Over, tmp_path: Path) -> Iterator[Run]:
    run = Run(over_flux, tmp_path)
    with run.session:
        yield run
        if run.cloud.count != 2:
            run.resize("tidy", 2 - run.cloud.count, "force")
    assert pods.online() == {0, 1}
    assert pods.drained() == set()


def test_a_job_for_more_nodes_than_there_are_starts_once_they_have_come(run: Run) -> None:
    wide = run.session.job("hostname", nodes=4, tasks=4)
    run.session.submit(wide)
    run.session.wait_for(wide, "priority")
    outcome = run.resize("resize-1", 2)
    assert (outcome.outcome, outcome.size, outcome.reason) == ("granted", 4, "")
    assert run.executor.resources()["nodes.up"] == 4  # already when the outcome arrives
    run.session.wait_clean(wide)
    assert run.session.context(wide, "finish")["status"] == 0


def test_a_shrink_waits_for_jobs_on_its_nodes_and_harms_none(run: Run, pods: Any) -> None:
    run.resize("resize-1", 1)
    script = 'until [ -e "$GO" ]; do sleep 0.1; done'
    go = run.session.folder / "go"
    jobs = [
        run.session.job("sh", "-c", script, environment={"GO": str(go)}, cores_per_task=2)
        for _ in range(3)
    ]
    run.session.submit(*jobs)
    for job in jobs:
        run.session.wait_for(job, "start")
    waiting = run.session.job("hostname")
    run.session.submit(waiting)
    run.executor.resize("resize-2", -1)
    wait_until(lambda: pods.drained() == {2})
    assert run.outcome("resize-2") is None
    assert run.cloud.count == 3
    go.touch()
    outcome = run.answer("resize-2")
    assert (outcome.outcome, outcome.size) == ("granted", 2)
    run.session.wait_clean(*jobs, waiting)
    assert [run.session.context(job, "finish")["status"] for job in (*jobs, waiting)] == [0] * 4
    assert pods.online() == {0, 1}


def test_skip_and_force_with_a_job_on_the_last_node(run: Run, pods: Any) -> None:
    run.resize("resize-1", 2)
    jobs = [run.session.job("sleep", "1000", cores_per_task=2) for _ in range(4)]
    run.session.submit(*jobs)
    for job in jobs:
        run.session.wait_for(job, "start")
    spared = run.resize("resize-2", -1, "skip")
    assert (spared.outcome, spared.size) == ("denied", 4)
    assert "rank 3" in spared.reason
    assert pods.drained() == set()
    gone = run.resize("resize-3", -1, "force")
    assert (gone.outcome, gone.size) == ("granted", 3)
    failed = [job for job in jobs if "clean" in run.session.names(job)]
    run.session.wait(
        lambda: any("exception" in run.session.names(job) for job in jobs), "a job that fails"
    )
    assert len(failed) <= 1  # the others continue


def test_a_node_that_returns_under_its_rank_accepts_jobs_again(run: Run, pods: Any) -> None:
    for turn in range(2):
        assert run.resize(f"grow-{turn}", 1).size == 3
        wide = run.session.job("hostname", nodes=3, tasks=3)
        run.session.run(wide)
        assert run.session.context(wide, "finish")["status"] == 0
        assert run.resize(f"shrink-{turn}", -1).size == 2
        assert pods.drained() == set()


def test_a_denied_shrink_leaves_the_node_to_the_jobs(run: Run, pods: Any) -> None:
    run.cloud.smallest = 2
    outcome = run.resize("resize-1", -1)
    assert (outcome.outcome, outcome.size) == ("denied", 2)
    assert pods.drained() == set()
    wide = run.session.job("hostname", nodes=2, tasks=2)
    run.session.run(wide)
