"""Odd events of plugins: the journal can still be read, resumed and replayed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import FakeExecutor
from ensemble_testing.crash import read_rounds

from ensemble_core.config import load_text
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.replay import recover
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import (
    Event,
    JobEvent,
    Observed,
    PluginEvent,
    Problem,
    Requested,
    Resources,
)
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Emit, Run
from ensemble_core.runtime.controller import Runtime
from ensemble_core.runtime.event_check import admitted

REGISTRY = discover(())
CRASH = Path(__file__).parent / "crash"
TEXT = """
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


class Odd(FakeExecutor):
    """A queue that sends an odd event before each job's events."""

    def __init__(self, event: Any) -> None:
        super().__init__(instant=True)
        self._odd = event

    def open(self, run: Run, emit: Emit) -> None:
        super().open(run, emit)
        self._tell_odd = lambda: emit((self._odd,))

    def submit(self, jobs: Sequence[Job]) -> None:
        self._tell_odd()
        super().submit(jobs)


def told(folder: Path, event: Any) -> tuple[list[Event], int]:
    """Return the journaled events and the exit code of a run whose queue sends this event."""
    writer = JournalWriter(folder / NAME)
    writer.describe({"tag": "run"})
    writer.store_file_version("e.yaml", TEXT, ())
    writer.begin(1.0, {})
    runtime = Runtime(
        load_text(TEXT, REGISTRY),
        Odd(event),
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=folder / "output",
        journal=writer,
    )
    code = runtime.run().exit_code
    writer.close()
    with Journal(folder / NAME) as journal:
        replay = recover(journal, lambda text: load_text(text.text, REGISTRY), None)
        assert replay.engine.report() == runtime.engine.report()
        return [row.event() for row in journal.rows()], code


@pytest.mark.parametrize(
    "time",
    ["now", None, True, math.nan, math.inf, 1e300, 10**5000, [1.0], b"1"],
    ids=["text", "None", "True", "nan", "inf", "far", "huge", "list", "bytes"],
)
def test_an_event_with_an_invalid_time_gets_the_time_of_arrival(time: Any, tmp_path: Path) -> None:
    events, code = told(tmp_path, JobEvent(time, "a.0", "memo", {"n": 1}))
    (memo,) = [e for e in events if isinstance(e, JobEvent) and e.name == "memo"]
    assert abs(memo.timestamp - events[0].timestamp) < 1000
    (problem,) = [e for e in events if isinstance(e, Problem)]
    assert "malformed" in problem.message
    assert type(time).__name__ in problem.message
    assert code == 1


@pytest.mark.parametrize(
    "event",
    [
        object(),
        JobEvent(5.0, 7, "memo"),  # type: ignore[arg-type]
        JobEvent(5.0, "a.0", ["finish"]),  # type: ignore[arg-type]
        JobEvent(5.0, "a.0", "finish", None),  # type: ignore[arg-type]
        JobEvent(5.0, "a.0", "memo", {"n": 10**5000}),
        JobEvent(5.0, "a.0", "memo", {"n": "x" * (5 << 20)}),
        JobEvent(5.0, "a.0", "memo", ours="yes"),  # type: ignore[arg-type]
        Resources(5.0, 3.0),  # type: ignore[arg-type]
        Observed(5.0, "a.0", "o", {"T": 2.0}, unreadable=None),  # type: ignore[arg-type]
        Observed(5.0, "a.0", "o", {"T": 2.0}, unreadable=0),  # type: ignore[arg-type]
    ],
    ids=[
        *("object", "job", "name", "no context", "number", "length", "ours", "values"),
        *("unreadable: None", "unreadable: 0"),
    ],
)
def test_an_event_that_cannot_be_stored_is_dropped_and_reported(event: Any, tmp_path: Path) -> None:
    events, code = told(tmp_path, event)
    assert not any(e.timestamp == 5.0 for e in events)
    (problem,) = [e for e in events if isinstance(e, Problem)]
    assert "it is dropped" in problem.message
    assert code == 1


@pytest.mark.parametrize("context", [{"n": {1, 2}}, {"n": (1, 2)}, {1: 2}, {"n": object()}])
def test_the_engine_gets_events_as_the_journal_stores_them(context: Any, tmp_path: Path) -> None:
    events, code = told(tmp_path, JobEvent(5.0, "a.0", "memo", context))
    (memo,) = [e for e in events if isinstance(e, JobEvent) and e.name == "memo"]
    assert memo.context == json.loads(json.dumps(memo.context))
    assert code == 0


@pytest.mark.timeout(300)
def test_a_run_with_a_hostile_executor_can_be_killed_resumed_and_replayed(
    tmp_path: Path,
) -> None:
    program = [sys.executable, str(CRASH / "hostile.py"), "--base", str(tmp_path)]
    found = read_rounds([*program, "--rounds", "8"])
    assert sum(len(each["killed"]) for each in found) > 2


@pytest.mark.parametrize(
    "event",
    [
        JobEvent(1.0, "f1", "depend", ours=False),
        JobEvent(1.0, "f1", "memo", {"largest": 2**64 - 1}, ours=False),
        PluginEvent(1.0, "converged"),
    ],
)
def test_an_unusual_valid_event_is_not_changed(event: Event) -> None:
    """Such as events of foreign jobs, which often have no context."""
    assert admitted(event, 2.0) == (event, "")


def test_an_executor_cannot_send_requests_of_users(tmp_path: Path) -> None:
    events, code = told(tmp_path, Requested(5.0, "root", {"name": "submit", "label": "a"}))
    assert not any(isinstance(e, Requested) for e in events)
    (problem,) = [e for e in events if isinstance(e, Problem)]
    assert "only Ensemble itself can send events of this type" in problem.message
    assert code == 1
