"""States of attempts and indices: the tables drive the engine, and everything kept by state fits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Story
from hypothesis import example, given
from hypothesis import strategies as st

from ensemble_core.engine.job_record import IndexRecord, JobRecord
from ensemble_core.engine.job_states import ATTEMPT, INDEX, ImpossibleMove
from ensemble_core.engine.job_table import JobTable
from ensemble_core.engine.state_validation import InconsistentState, validate
from ensemble_core.model.decisions import Call
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    JobEvent,
    LookedUp,
    Requested,
    Resumed,
    StopRequested,
)

REUSED = """
limits: {submits_per_second: 5}
jobs: [{name: g, command: 'true', count: 2}]
rules: [{trigger: start, action: {name: submit, label: g}}]
"""
FILE = """
limits: {jobs: JOBS, submits_per_second: 2}
jobs:
  - name: g
    command: 'true'
    count: 5
    at_once: 2
    retry: {times: 2, wait: WAIT}
rules:
  - {trigger: start, action: {name: submit}}
  - {trigger: job-finish, when: "index > 0", repetitions: 4, action: {name: custom, label: ask}}
  - {trigger: job-fail, name: g, when: "index == 1", repetitions: 2, action: {name: retry}}
  - {trigger: job-lost, repetitions: 2, action: {name: cancel, label: g}}
custom: |
  def ask(**kwargs):
      return None
"""


class Watched:
    """Story with the calls that were not answered."""

    def __init__(self, text: str) -> None:
        self.story = Story(text)
        self.calls: list[str] = []

    def tell(self, event: Event) -> None:
        for decision in self.story.tell(event):
            if isinstance(decision, Call):
                self.calls.append(decision.call)


EVENTS = ("submit", "depend", "alloc", "start", "suspend", "unsuspend", "requeue", "exception")
EVENTS += ("finish", "free", "clean", "other")
LIFE = ("submit", "start", "finish", "clean")
of_job = (st.integers(0, 9), st.sampled_from([0, 256]), st.booleans())
steps = st.one_of(
    *[st.tuples(st.sampled_from(EVENTS), *of_job)] * 3,
    *[st.tuples(st.just("life"), *of_job)] * 4,
    *[st.tuples(st.sampled_from(["wait", "answer", "answer", "fail"]))] * 2,
    st.tuples(st.just("stop")),
    st.tuples(st.sampled_from(["cancel", "cancel", "end"])),
)


def play(watched: Watched, what: str, pick: int = 0, status: int = 0, cancel: bool = False) -> None:
    story, now = watched.story, watched.story.now
    held = set(watched.story.engine.state.held())
    jobs = [job for job in watched.story.engine.state.table.records if job not in held]
    if what == "life" and jobs:
        job = jobs[pick % len(jobs)]
        for name in LIFE:
            watched.tell(JobEvent(now, job, name, {"status": status} if name == "finish" else {}))
    elif what in EVENTS and jobs:
        context: dict[str, Any] = {"status": status} if what == "finish" else {}
        if what == "exception":
            context = {"type": "cancel" if cancel else "oom", "severity": 0}
        watched.tell(JobEvent(now, jobs[pick % len(jobs)], what, context))
    elif what == "wait":
        story.wait(5)
    elif what in ("answer", "fail") and watched.calls:
        call = watched.calls.pop()
        answered = CallReturned(now, call, ()) if what == "answer" else CallFailed(now, call, "no")
        watched.tell(answered)
    elif what == "cancel":
        watched.tell(Requested(now, "user", {"name": "cancel", "label": "g"}))
    elif what == "stop":
        watched.tell(StopRequested(now, then="cancel"))
        for job in jobs[:1]:
            watched.tell(JobEvent(now, job, "exception", {"type": "cancel", "severity": 0}))
            watched.tell(JobEvent(now, job, "clean"))
        watched.tell(Resumed(now))
    elif what == "end":
        watched.tell(StopRequested(now))


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Set of the changes of states, as pairs, that is filled while the engine works."""
    moves: set[tuple[str, str]] = set()
    move, move_index = JobTable.move, JobTable.move_index

    def noted(table: JobTable, record: JobRecord, *args: Any) -> None:
        before = record.state
        move(table, record, *args)
        moves.add((before, record.state))

    def noted_index(index: IndexRecord, to: Any) -> None:
        before = index.state
        move_index(index, to)
        moves.add((before, to))

    monkeypatch.setattr(JobTable, "move", noted)
    monkeypatch.setattr(JobTable, "move_index", staticmethod(noted_index))
    return moves


def test_random_events_reach_every_state_and_cause_no_impossible_move(
    moves: set[tuple[str, str]],
) -> None:
    """``Story`` also compares everything that is kept by state with the states."""

    @example(7, 100, [("life", 0, 256), ("stop",)])  # a retry waits
    @example(7, 100, [("life", 0, 0), ("life", 1, 0), ("answer",)])  # a function is running
    @example(0, 100, [(name, 0, 0, False) for name in ("submit", "start", "suspend", "requeue")])
    @given(
        st.sampled_from([0, 7]),
        st.sampled_from([3, 100]),
        st.lists(steps, min_size=10, max_size=60),
    )
    def run(wait: int, jobs: int, told: list[tuple[Any, ...]]) -> None:
        watched = Watched(FILE.replace("WAIT", str(wait)).replace("JOBS", str(jobs)))
        watched.story.start()
        for each in told:
            play(watched, *each)
        said = watched.story.messages()
        assert not [message for message in said if "cannot handle" in message]

    run()
    states = {state for pair in moves for state in pair}
    assert states >= {*ATTEMPT, *INDEX} - {"looking", "reused"}


def test_a_reused_job_goes_through_its_own_states(moves: set[tuple[str, str]]) -> None:
    told = Story(replace(Story(REUSED).ensemble, reuse=("earlier",)))
    told.start()
    record = told.engine.state.table.records["g.0"]
    told.tell(LookedUp(told.now, {"g.0": "earlier/g.0"}, ("g.1",)))
    told.job("g.0", "submit", "start")
    told.job("g.0", "finish", status=0, duration=3.0)
    told.job("g.0", "clean")
    assert record.state == "gone"
    chain = [("new", "looking"), ("looking", "reused"), ("reused", "ended"), ("ended", "gone")]
    assert moves >= {*chain, ("looking", "held"), ("held", "paced"), ("paced", "queued")}


def test_an_impossible_change_is_an_error_and_changes_nothing() -> None:
    told = Story(REUSED)
    told.start()
    table = told.engine.state.table
    record = table.records["g.0"]
    for cause in ("unsuspend", "its turn", "no such cause"):
        with pytest.raises(ImpossibleMove, match=r"g\.0"):
            table.move(record, cause, told.now)
    with pytest.raises(ImpossibleMove, match=r"g\.0"):
        table.move_index(replace_state(record.index, "done"), "open")
    assert record.state == "queued"


def replace_state(index: IndexRecord, state: Any) -> IndexRecord:
    index.state = state
    return index


@pytest.mark.parametrize("broken", ["held", "waiting", "running", "state", "paced", "index"])
def test_a_contradiction_between_an_index_and_a_state_is_found(broken: str) -> None:
    told = Story(REUSED)
    told.start()
    told.begin("g.0")
    state = told.engine.state
    validate(state)
    group, record = state.table.groups["g"], state.table.records["g.0"]
    if broken == "held":
        group.held["g.0"] = record
    elif broken == "waiting":
        group.waiting.clear()
    elif broken == "running":
        group.running += 1
    elif broken == "state":
        record.state = "suspended"
    elif broken == "paced":
        state.rate_limit.held.append((record.job, None, 0))
    else:
        record.index.state = "lost"
    with pytest.raises(InconsistentState):
        validate(state)


def test_the_documented_diagrams_are_current() -> None:
    script = Path(__file__).parents[2] / "scripts" / "job_states.py"
    if not script.exists():
        pytest.skip("the documentation is not beside the tests")
    made = subprocess.run([sys.executable, script, "--check"], check=False)
    assert made.returncode == 0, "run scripts/job_states.py"
