"""Ended jobs that an executor may forget: soon, at the end of a run, and never before their ends are
in the journal.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from ensemble_testing import FakeExecutor, wait_until

from ensemble_core.config import load_text
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.controller import Runtime

REGISTRY = discover()
TEXT = """
jobs: [{name: work, command: x, count: 3}]
rules: [{trigger: start, action: {name: submit, label: work}}]
"""


class Forgetful(FakeExecutor):
    """Executor that notes which jobs it forgot, and which ends were in the journal then."""

    def __init__(self, journal: Path | None) -> None:
        super().__init__()
        self.forgotten: list[str] = []
        self.recorded: list[bool] = []
        self._journal = journal

    def forget(self, jobs: Sequence[str]) -> None:
        assert not self.closed
        if self._journal is not None:
            with Journal(self._journal) as journal:
                ended = {row.job for row in journal.rows() if row.name == "clean"}
            self.recorded += [job in ended for job in jobs]
        self.forgotten += jobs


@pytest.fixture(params=["with a journal", "without a journal"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> JournalWriter | None:
    return JournalWriter(tmp_path / NAME) if request.param == "with a journal" else None


def run(executor: FakeExecutor, journal: JournalWriter | None, folder: Path) -> threading.Thread:
    runtime = Runtime(
        load_text(TEXT, REGISTRY),
        executor,
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=folder / "out",
        journal=journal,
    )
    if journal is not None:
        journal.begin(0.0, {})
    thread = threading.Thread(target=runtime.run, daemon=True)
    thread.start()
    wait_until(lambda: len(executor.submitted) == 3)
    return thread


def test_ended_jobs_are_forgotten_while_the_run_continues_and_at_its_end(
    tmp_path: Path, journal: JournalWriter | None
) -> None:
    executor = Forgetful(None if journal is None else journal.path)
    thread = run(executor, journal, tmp_path)
    executor.finish("work.0")
    wait_until(lambda: executor.forgotten == ["work.0"])
    executor.finish("work.1")
    executor.finish("work.2")
    thread.join(120)
    assert sorted(executor.forgotten) == ["work.0", "work.1", "work.2"]
    assert all(executor.recorded)
    if journal is not None:
        assert len(executor.recorded) == 3
        journal.close()


def test_ends_that_cannot_be_recorded_are_not_forgotten(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path / NAME)
    executor = Forgetful(journal.path)
    thread = run(executor, journal, tmp_path)

    def broken(*_: object) -> None:
        raise ValueError("no such thing")

    journal._write = broken  # type: ignore[method-assign]
    for number in range(3):
        executor.finish(f"work.{number}")
    thread.join(120)
    assert not thread.is_alive()
    assert executor.forgotten == []
    journal.close()


def test_a_job_that_its_queue_interrupted_is_forgotten_and_its_new_submission_is_not(
    tmp_path: Path, journal: JournalWriter | None
) -> None:
    executor = Forgetful(None)
    thread = run(executor, journal, tmp_path)
    executor.start("work.0")
    executor._send_event("work.0", "exception", type="interrupted", severity=0, note="its pilot")
    executor.finish("work.0", 9)
    wait_until(lambda: "work.0~1" in [job.id for job in executor.submitted])
    wait_until(lambda: executor.forgotten)
    assert executor.forgotten == ["work.0"]
    for job in ("work.0~1", "work.1", "work.2"):
        executor.finish(job)
    thread.join(120)
    assert sorted(executor.forgotten) == ["work.0", "work.0~1", "work.1", "work.2"]
    if journal is not None:
        journal.close()
