"""Tests of resuming a run whose queue was lost, for example with a killed pod."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from ensemble_testing import FakeExecutor, wait_until

from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.controller import Outcome, Runtime

REGISTRY = discover()
FILE = """
jobs: [{{name: a, command: x, replicas: 5{retry}}}]
rules: [{{trigger: start, action: {{name: submit, label: a}}}}]
"""


class Anew(FakeExecutor):
    """New queue that replaces a lost one."""

    queue_is_new = True  # type: ignore[assignment]


def taken_up(
    folder: Path, *, retry: str = "", queue: type[FakeExecutor] = Anew
) -> tuple[FakeExecutor, Outcome]:
    """Resume a run that lost its controller and queue while one of five jobs ran.

    Return the jobs submitted to the next queue, and the outcome.
    """
    ensemble = load_text(FILE.format(retry=retry), REGISTRY)
    first = FakeExecutor()
    engine = Engine(ensemble)
    more = {"actions": REGISTRY.actions, "observers": REGISTRY.observers, "folder": folder}
    before = Runtime(ensemble, first, engine=engine, **more)  # type: ignore[arg-type]
    threading.Thread(target=before.run, daemon=True).start()
    wait_until(lambda: len(first.submitted) == 5)
    first.start("a.0")
    wait_until(lambda: engine.state.table.records["a.0"].started is not None)
    first._emit = None
    second = queue(instant=True)
    after = Runtime(ensemble, second, engine=engine, **more)  # type: ignore[arg-type]
    return second, after.run()


@pytest.mark.parametrize(
    ("retry", "exit_code", "handed_on"),
    [("", 1, 4), (", retry: {times: 1, when: 'cause == \"node-failure\"'}", 0, 5)],
    ids=["without a retry", "with a retry of node failures"],
)
def test_waiting_jobs_of_a_lost_queue_are_resubmitted_and_running_ones_fail(
    tmp_path: Path, retry: str, exit_code: int, handed_on: int
) -> None:
    queue, outcome = taken_up(tmp_path, retry=retry)
    assert len(queue.submitted) == handed_on
    assert {job.index for job in queue.submitted} >= {1, 2, 3, 4}
    assert outcome.exit_code == exit_code


def test_forgotten_jobs_are_never_submitted_twice(tmp_path: Path) -> None:
    queue, outcome = taken_up(tmp_path, queue=FakeExecutor)
    assert queue.submitted == []
    assert outcome.exit_code == 1
