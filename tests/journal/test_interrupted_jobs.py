"""Jobs that were suspended or requeued, as a run's journal shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ensemble_testing import FakeExecutor

from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.journal.job_history import Attempts, Jobs, StoredJobs
from ensemble_core.journal.job_rows import row_of
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.replay import recover
from ensemble_core.journal.reusable_jobs import EarlierJobs
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.controller import Runtime

REGISTRY = discover(())
TEXT = """
jobs: [{name: a, command: x, tasks: 2, count: 3}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""
#: The events of each job, with the seconds after its submit.
LIVES = {
    "a.0": (("start", 1), ("suspend", 3), ("unsuspend", 10), ("finish", 14)),
    "a.1": (("start", 1), ("suspend", 2), ("requeue", 5), ("start", 8), ("finish", 11)),
    "a.2": (("start", 1), ("finish", 3)),
}


class Scripted(FakeExecutor):
    """Queue in which the jobs live as above, and that reports it 100 s later."""

    #: Lets 100 s pass on the clock of the run.
    wait: Callable[[], None]

    def submit(self, jobs: Sequence[Job]) -> None:
        begun = self._clock()
        self.wait()
        for job in jobs:
            self._send(JobEvent(begun, job.id, "submit"))
            for name, at in LIVES[job.id]:
                context = {"status": 0} if name == "finish" else {}
                self._send(JobEvent(begun + at, job.id, name, context))
            self._send(JobEvent(begun + 20, job.id, "clean"))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    writer = JournalWriter(tmp_path / NAME)
    writer.describe({"tag": "run"})
    writer.store_file_version("e.yaml", TEXT, ())
    writer.begin(1.0, {})
    runtime = Runtime(
        load_text(TEXT, REGISTRY),
        queue := Scripted(),
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=tmp_path / "output",
        journal=writer,
    )
    queue.wait = lambda: setattr(runtime, "_wall", runtime._wall + 100)
    assert runtime.run().exit_code == 0
    writer.close()
    return tmp_path / NAME


def test_the_table_of_jobs_has_the_time_that_they_ran(journal: Path) -> None:
    with Journal(journal) as read:
        tables: list[Jobs] = [
            StoredJobs(read, ["a"], []),
            Attempts(read, lambda text: load_text(text.text, REGISTRY)),
        ]
        for jobs in tables:
            rows = list(jobs.rows())
            assert [row["duration"] for row in rows] == pytest.approx([2 + 4, 1 + 3, 2])
            assert [row.get("interrupted") for row in rows] == [
                pytest.approx(7),
                pytest.approx(6),
                None,
            ]
            assert [row["core_hours"] * 1800 for row in rows] == pytest.approx([6, 4, 2])
            assert [row["started"] - row["submitted"] for row in rows] == pytest.approx([1, 1, 1])
            jobs.close()


def test_a_resume_recovers_interruptions(journal: Path) -> None:
    with Journal(journal) as read:
        replay = recover(read, lambda text: load_text(text.text, REGISTRY), None)
    assert isinstance(replay.engine, Engine)
    assert replay.engine.state.metric("mean.a-duration") == pytest.approx((6 + 4 + 2) / 3)


def test_an_unfinished_job_that_is_suspended_or_requeued_says_so(journal: Path) -> None:
    with Journal(journal) as read:
        events = [row.event() for row in read.rows()]
    engine = Engine(load_text(TEXT, REGISTRY))
    shown: dict[str, list[object]] = {}
    for event in events:
        engine.handle(event)
        for job, record in engine.state.table.records.items():
            state = row_of(record).columns.get("state")
            if state not in shown.setdefault(job, []):
                shown[job].append(state)
    assert shown == {
        "a.0": [None, "suspended"],
        "a.1": [None, "suspended", "requeued"],
        "a.2": [None],
    }


def test_a_reused_job_has_the_time_that_the_earlier_job_ran() -> None:
    earlier = EarlierJobs()
    active: dict[str, object] = {}
    for name, at in (("submit", 0), *LIVES["a.1"]):
        context = {"status": 0} if name == "finish" else {}
        earlier._apply_event(active, "a.1", name, float(at), context)  # type: ignore[arg-type]
    assert active["a.1"].duration == 1 + 3  # type: ignore[attr-defined]
