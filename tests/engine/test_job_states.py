"""States of attempts and indices: random events cause only transitions of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Story
from hypothesis import example, given
from hypothesis import strategies as st

from ensemble_core.engine.job_completion import JobCompletion
from ensemble_core.engine.job_states import ATTEMPT, INDEX, States
from ensemble_core.engine.job_table import JobTable
from ensemble_core.engine.records import Index, JobRecord
from ensemble_core.engine.state import State
from ensemble_core.model.decisions import Call
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    JobEvent,
    Requested,
    Resumed,
    StopRequested,
)

PAGE = Path(__file__).parents[2] / "docs" / "job-states.md"

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


def attempt_state(table: JobTable, job: str, paced: Iterable[str] = ()) -> str:
    record = table.records.get(job)
    if record is None:
        return "gone"
    if job in table.groups[record.job.group].held:
        return "held"
    if job in paced:
        return "paced"
    if record.outcome is not None:
        return "ended"
    if record.suspended is not None:
        return "suspended"
    return "queued" if record.started is None else "running"


def index_state(table: JobTable, index: Index) -> str:
    if index.over:
        return "done" if index.record.outcome == "success" and not index.dropped else "lost"
    if index.record.job.id in table.records:
        return "open"
    return "called" if index.calls else "waiting"


def reachable(states: States, start: str) -> set[str]:
    """Return all states that are reachable from ``start``."""
    found, seek = {start}, [start]
    while seek:
        following = {each for ways in states[seek.pop()].values() for each in ways}
        seek += following - found
        found |= following
    return found


class Watched:
    """Story that checks every change of a state against the tables."""

    def __init__(self, text: str) -> None:
        self.story = Story(text)
        self.indices: dict[int, Index] = {}
        self.before: dict[Any, str] = {}
        self.calls: list[str] = []
        self.seen: set[tuple[str, str]] = set()

    @property
    def state(self) -> State:
        return self.story.engine.state

    def states(self) -> Iterator[tuple[Any, str]]:
        table = self.state.table
        paced = {job.id for job, _, _ in self.state.rate_limit.held}
        for job in {*table.records, *(each for each in self.before if isinstance(each, str))}:
            yield job, attempt_state(table, job, paced)
        for record in table.records.values():
            self.indices[record.job.index] = record.index
        for number, index in self.indices.items():
            yield number, index_state(table, index)

    def tell(self, event: Event) -> None:
        for decision in self.story.tell(event):
            if isinstance(decision, Call):
                self.calls.append(decision.call)
        self.compare()

    def compare(self) -> None:
        for what, now in list(self.states()):
            states, first = (ATTEMPT, "new") if isinstance(what, str) else (INDEX, "open")
            before = self.before.get(what, first)
            assert now in reachable(states, before), f"{what}: {before} → {now}"
            self.before[what] = now
            self.seen.add((before, now))


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
    held = set(watched.state.held())
    jobs = [job for job in watched.state.table.records if job not in held]
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
        watched.compare()
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
def wrong(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List of the transitions that the tables do not allow.

    An exception would not do: the engine would catch it.
    """
    wrong: list[str] = []
    take, settle_index = JobTable.take, JobCompletion.settle_index

    def checked_take(table: JobTable, record: JobRecord, event: JobEvent) -> tuple[str, ...] | None:
        before = attempt_state(table, event.job)
        found = take(table, record, event)
        ways = ATTEMPT[before].get(event.name, (before,))
        after = attempt_state(table, event.job)
        if after not in ((before,) if found is None else ways):
            wrong.append(f"{event.job}: {before} → {after} by {event.name}")
        return found

    def checked_settle(self: JobCompletion, index: Index, event: Event) -> Any:
        table = self.state.table
        before, idle = index_state(table, index), not index.waits
        found = settle_index(self, index, event)
        after = index_state(table, index)
        settled = {*INDEX["open"]["attempt over"]} - {"called"}
        if after not in (settled if before == "waiting" and idle else (before,)):
            wrong.append(f"index {index.record.job.index}: {before} → {after}")
        return found

    monkeypatch.setattr(JobTable, "take", checked_take)
    monkeypatch.setattr(JobCompletion, "settle_index", checked_settle)
    return wrong


def test_attempts_and_indices_change_state_as_in_the_tables(wrong: list[str]) -> None:
    seen: set[tuple[str, str]] = set()

    @example(7, 100, [("life", 0, 256), ("stop",)])  # a retry waits
    @example(7, 100, [("life", 0, 0), ("life", 1, 0), ("answer",)])  # a function is running
    @example(0, 100, [(name, 0, 0, False) for name in ("submit", "start", "suspend", "requeue")])
    @given(
        st.sampled_from([0, 7]),
        st.sampled_from([3, 100]),
        st.lists(steps, min_size=10, max_size=60),
    )
    def moves(wait: int, jobs: int, told: list[tuple[Any, ...]]) -> None:
        watched = Watched(FILE.replace("WAIT", str(wait)).replace("JOBS", str(jobs)))
        watched.story.start()
        watched.compare()
        for each in told:
            play(watched, *each)
            assert not wrong
        seen.update(watched.seen)

    moves()
    everything = {*ATTEMPT, *INDEX} - {"new"}
    assert {state for moved in seen for state in moved} >= everything  # every state occurred


def drawn(states: States) -> str:
    """Return the states as a Mermaid diagram."""
    lines = ["stateDiagram-v2"]
    for state, ways in states.items():
        for what, following in ways.items():
            lines += [f"    {state} --> {each}: {what}" for each in following]
    return "\n".join(lines)


@pytest.mark.parametrize("states", [ATTEMPT, INDEX], ids=["attempt", "index"])
def test_the_documented_diagrams_match_the_tables(states: States) -> None:
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the tests")
    assert f"```mermaid\n{drawn(states)}\n```" in PAGE.read_text("utf-8"), drawn(states)
