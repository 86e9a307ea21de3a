"""Reuse in the engine: look-ups, their answers, and rules on reused jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_testing import Story
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_core.config import load_text
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Cancel, Decision, Log, LookUp, Submit, Terminate
from ensemble_core.model.events import JobEvent, LookedUp, Resumed
from ensemble_core.plugin.discovery import discover

FILE = """
jobs:
  - {name: g, command: x, count: COUNT, observe: {json-lines: {fields: [u]}}, result: {U: mean.u}}
rules:
  - {trigger: start, action: {name: submit, label: g}}
"""
RULES = """
  - {trigger: observed, name: g, when: u > 3, repetitions: 99, action: {name: log, message: "{u}"}}
  - {trigger: observed, name: g, each: job, when: mean.u > 2, repetitions: 9,
     action: {name: log, message: "{job} {mean.u}"}}
  - {trigger: job-success, name: g, repetitions: 99, action: {name: log, message: "{duration}"}}
  - {trigger: job-done, name: g, repetitions: 99, action: {name: log, message: "{mean.U}"}}
  - {trigger: metric, name: mean.g-duration, when: value > 4, repetitions: 9,
     action: {name: log, message: "{value}"}}
  - {trigger: idle, name: g, action: {name: log, message: "{mean.U} {count.success}"}}
"""


def story(text: str, *, reuse: bool, count: int = 1) -> Story:
    source = load_text(text.replace("COUNT", str(count)), discover())
    return Story(source.begun("story", "/story", ("r1",) if reuse else ()))


def of(kind: type[Decision], decisions: Sequence[Decision]) -> list[Decision]:
    return [each for each in decisions if isinstance(each, kind)]


def stand_in(told: Story, job: str, rows: Sequence[float], duration: float) -> list[Decision]:
    """Send the events of a reused job, and return the decisions."""
    found = told.tell(JobEvent(told.now, job, "submit", {"reused": f"r1/{job}"}))
    found += told.tell(JobEvent(told.now, job, "start"))
    for u in rows:
        found += told.observe(job, {"u": u}, observer="json-lines")
    found += told.tell(JobEvent(told.now, job, "finish", {"status": 0, "duration": duration}))
    return found + told.tell(JobEvent(told.now, job, "clean"))


def balanced(told: Story) -> bool:
    count = {name: told.metric(f"count.g.{name}") or 0 for name in ("submitted", "finished")}
    return count["submitted"] == count["finished"] + sum(
        told.metric(f"count.g.{name}") or 0 for name in ("cancelled", "active")
    )


def test_jobs_are_looked_up_before_they_are_submitted_and_only_misses_are_submitted() -> None:
    told = story(FILE, reuse=True, count=3)
    decided = told.start()
    assert [job.id for each in of(LookUp, decided) for job in each.jobs] == ["g.0", "g.1", "g.2"]
    assert not of(Submit, decided)
    answered = told.tell(LookedUp(told.now, {"g.1": "r1/g.7"}, ("g.0", "g.2")))
    assert [job.id for each in of(Submit, answered) for job in each.jobs] == ["g.0", "g.2"]
    assert told.metric("used.jobs") == 2
    assert balanced(told)


def test_at_once_holds_only_misses() -> None:
    told = story(FILE.replace("count: COUNT", "count: 4, at_once: 1"), reuse=True)
    told.start()
    answered = told.tell(LookedUp(told.now, {"g.0": "r1/g.0"}, ("g.1", "g.2", "g.3")))
    assert [job.id for each in of(Submit, answered) for job in each.jobs] == ["g.1"]
    assert not of(Submit, stand_in(told, "g.0", [1], 5))
    told.begin("g.1")
    ended = told.end("g.1")
    assert [job.id for each in of(Submit, ended) for job in each.jobs] == ["g.2"]


def test_a_group_that_excludes_reuse_is_submitted_at_once() -> None:
    decided = story(FILE.replace("command: x", "command: x, reuse: false"), reuse=True).start()
    assert of(Submit, decided)
    assert not of(LookUp, decided)


def test_a_resume_repeats_only_unanswered_look_ups() -> None:
    told = story(FILE, reuse=True, count=3)
    told.start()
    told.tell(LookedUp(told.now, {"g.0": "r1/g.0"}, ()))
    again = told.tell(Resumed(told.now))
    assert [job.id for each in of(LookUp, again) for job in each.jobs] == ["g.1", "g.2"]


def test_the_end_of_the_run_cancels_jobs_that_are_looked_up() -> None:
    rule = "  - {trigger: observed, name: g, action: {name: terminate, exit_code: 3}}\n"
    told = story(FILE + rule, reuse=True, count=3)
    told.start()
    told.tell(LookedUp(told.now, {"g.0": "r1/g.0"}, ("g.1",)))
    told.begin("g.1")
    (end,) = of(Terminate, told.observe("g.1", {"u": 1}, observer="json-lines"))
    assert isinstance(end, Terminate)
    assert end.cancel == ("g.1",)  # the others were not submitted to the queue
    assert told.engine.state.table.records["g.0"].cancelling
    assert "g.2" not in told.engine.state.table.records
    assert balanced(told)


def test_a_job_that_is_looked_up_can_be_cancelled_without_the_queue() -> None:
    rule = "  - {trigger: observed, name: g, action: {name: cancel, label: g}}\n"
    told = story(FILE + rule, reuse=True, count=3)
    told.start()
    told.tell(LookedUp(told.now, {"g.0": "r1/g.0"}, ("g.1",)))
    told.begin("g.1")
    cancels = of(Cancel, told.observe("g.1", {"u": 1}, observer="json-lines"))
    assert [each.jobs for each in cancels] == [("g.1",)]
    assert told.metric("count.g.cancelled") == 1
    late = told.tell(LookedUp(told.now, {"g.2": "r1/g.2"}, ()))
    assert late == []


def test_a_snapshot_keeps_pending_look_ups_and_reused_jobs() -> None:
    told = story(FILE, reuse=True, count=2)
    told.start()
    told.tell(LookedUp(told.now, {"g.0": "r1/g.0"}, ()))
    again = load(dump(told.engine), told.engine.state.ensemble)
    assert again is not None
    assert list(again.state.table.looking) == ["g.1"]
    assert list(again.state.table.reused_from) == ["r1/g.0"]
    assert again.state.table.records["g.0"].reused == "r1/g.0"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 9)), min_size=1))
def test_a_reused_job_triggers_the_same_rules_as_a_real_one(
    jobs: list[tuple[list[int], int]],
) -> None:
    real, reused = (story(FILE + RULES, reuse=how, count=len(jobs)) for how in (False, True))
    real.start()
    reused.start()
    names = [f"g.{number}" for number in range(len(jobs))]
    reused.tell(LookedUp(reused.now, {name: f"r1/{name}" for name in names}, ()))
    first: list[Decision] = []
    second: list[Decision] = []
    for name, (rows, duration) in zip(names, jobs, strict=True):
        first += real.begin(name)
        for u in rows:
            first += real.observe(name, {"u": u}, observer="json-lines")
        first += real.end(name, duration=duration)
        second += stand_in(reused, name, rows, duration)
        assert balanced(reused)
    assert of(Log, first) == of(Log, second)
    assert reused.metric("count.g.reused") == len(jobs)
    assert reused.metric("used.jobs") == 0
    assert reused.metric("used.core_hours") == 0
