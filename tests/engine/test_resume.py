"""Resume: the engine repeats decisions that may not have been carried out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ensemble_testing import Story

from ensemble_core.model.decisions import Call, Cancel, Decision, Resize, Submit
from ensemble_core.model.events import (
    CallReturned,
    Event,
    ExecutorLost,
    JobEvent,
    ResizeOutcome,
    Resumed,
)

START = "{trigger: start, action: {name: submit, label: work}}"


PACED = f"""
limits: {{submits_per_second: 1}}
jobs: [{{name: work, command: x, count: 3}}]
rules: [{START}]
"""


def resume(story: Story, *absent: str) -> list[Decision]:
    return story.tell(Resumed(story.now, {}, absent))


def test_only_jobs_that_never_arrived_are_submitted_again() -> None:
    story = Story(f"jobs: [{{name: work, command: x, count: 3}}]\nrules: [{START}]")
    story.start()
    story.begin("work.0")
    story.job("work.1", "submit")
    decided = resume(story, "work.2")
    (submit,) = [one for one in decided if isinstance(one, Submit)]
    assert [job.id for job in submit.jobs] == ["work.2"]
    assert story.metric("count.work.submitted") == 3
    for job in ("work.1", "work.2"):
        story.play(job)
    story.end("work.0")
    assert story.exit_code == 0
    assert story.metric("count.work.success") == 3


def test_a_job_with_an_event_is_never_submitted_again() -> None:
    story = Story(f"jobs: [{{name: work, command: x}}]\nrules: [{START}]")
    story.start()
    story.job("work.0", "submit")
    assert [one for one in resume(story, "work.0") if isinstance(one, Submit)] == []


def test_a_resume_fires_no_rule_again() -> None:
    story = Story(
        f"""
jobs: [{{name: work, command: x, count: 2}}]
rules:
  - {START}
  - {{trigger: metric, name: count.work.success, when: ">= 1", repetitions: 9,
     action: {{name: log, message: one}}}}
  - {{trigger: metric, name: queue.run, when: ">= 0", repetitions: 9, action: {{name: log, message: x}}}}
"""
    )
    story.start({"queue.run": 0})
    story.play("work.0")
    before = story.engine.state.firings
    resume(story)
    assert story.engine.state.firings == before


def test_a_possibly_lost_cancel_is_repeated() -> None:
    story = Story(
        f"""
jobs: [{{name: work, command: x, count: 3}}]
rules:
  - {START}
  - {{trigger: job-success, action: {{name: cancel, label: work}}}}
"""
    )
    story.start()
    story.begin("work.0")
    story.begin("work.1")
    decided = story.end("work.0")
    (cancel,) = [one for one in decided if isinstance(one, Cancel)]
    assert cancel.jobs == ("work.1", "work.2")
    again = resume(story, "work.2")
    assert [one.jobs for one in again if isinstance(one, Cancel)] == [("work.1",)]
    assert [one for one in again if isinstance(one, Submit)] == []
    assert story.metric("count.work.cancelled") == 1
    story.cancel("work.1")
    assert story.exit_code == 0


def test_a_call_without_a_result_is_repeated_with_its_attempt_number() -> None:
    story = Story(
        """
jobs: [{name: work, command: x}]
rules:
  - {trigger: start, action: [{name: submit, label: work}, {name: custom, label: f}]}
custom: |
  def f(**kwargs):
      return None
"""
    )
    (call,) = [one for one in story.start() if isinstance(one, Call)]
    assert call.attempt == 1
    (again,) = [one for one in resume(story) if isinstance(one, Call)]
    assert again == Decision.from_dict({**call.to_dict(), "attempt": 2})
    (third,) = [one for one in resume(story) if isinstance(one, Call)]
    assert third.attempt == 3
    story.tell(CallReturned(story.now, call.call, ({"action": {"name": "log", "message": "x"}},)))
    assert [one for one in resume(story) if isinstance(one, Call)] == []


def test_a_resize_without_an_answer_is_repeated_under_the_same_id() -> None:
    story = Story(
        """
jobs: [{name: work, command: x}]
rules:
  - {trigger: start, action: [{name: submit, label: work}, {name: grow, value: 2}]}
"""
    )
    (resize,) = [one for one in story.start() if isinstance(one, Resize)]
    (again,) = [one for one in resume(story) if isinstance(one, Resize)]
    assert again == replace(resize, attempt=2)
    story.tell(ResizeOutcome(story.now, resize.request, "granted", 3))
    assert [one for one in resume(story) if isinstance(one, Resize)] == []


def test_a_resume_revokes_the_end_by_a_lost_queue() -> None:
    story = Story(PACED)
    story.start()
    story.begin("work.0")
    story.tell(ExecutorLost(story.now, "fake", "it went away"))
    assert story.exit_code == 1
    resume(story)
    assert story.exit_code is None
    assert story.engine.state.errors == 0
    story.end("work.0")
    story.wait(5)
    assert story.submitted() == ["work.0", "work.1", "work.2"]
    for job in ("work.1", "work.2"):
        story.play(job)
    assert story.exit_code == 0


def test_a_resume_of_a_stopping_run_submits_nothing() -> None:
    story = Story(
        f"""
jobs: [{{name: work, command: x, count: 3}}]
rules: [{START}, {{trigger: job-success, action: {{name: terminate, exit_code: 4}}}}]
"""
    )
    story.start()
    story.begin("work.1")
    story.play("work.0")
    assert story.exit_code == 4
    again = resume(story, "work.2")
    assert [type(one) for one in again] == [Cancel]
    assert story.engine.state.active() == ["work.1"]


def test_rate_limited_jobs_stay_held_after_a_resume() -> None:
    story = Story(PACED)
    story.start()
    assert [name for name, _ in story.engine.in_queue()] == ["work.0"]
    resume(story)
    story.wait(5)
    assert story.submitted() == ["work.0", "work.1", "work.2"]


@pytest.mark.parametrize(
    "event",
    [
        Resumed(3.0, {"nodes.up": 2.0}, ("work.0",)),
        CallReturned(1.0, "call-1", ({"action": {"name": "log"}},)),
        JobEvent(2.5, "work.0", "finish", {"status": 9}),
    ],
)
def test_events_survive_a_round_trip(event: Event) -> None:
    assert Event.from_dict(event.to_dict()) == event


# -- a changed file --------------------------------------------------------------------------------

BEFORE = """
jobs: [{name: work, command: x, count: 2}]
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {id: once, trigger: job-success, action: {name: log, message: one}}
  - {trigger: job-fail, repetitions: 5, action: {name: log, message: failed}}
"""


def test_unchanged_rules_keep_their_state_in_a_changed_file() -> None:
    story = Story(BEFORE)
    story.start()
    story.begin("work.1")
    story.play("work.0")
    changed = Story(
        """
jobs: [{name: work, command: y, count: 2}, {name: more, command: z}]
rules:
  - {id: new, trigger: job-success, action: {name: submit, label: more}}
  - {trigger: start, action: {name: submit, label: work}}
  - {id: once, trigger: job-success, action: {name: log, message: two}}
  - {trigger: job-fail, repetitions: 5, action: {name: log, message: failed}}
"""
    )
    story.engine.reconfigure(changed.ensemble)
    fired = {rule.id: rule.fired for rule in story.engine.report().rules}
    assert fired == {"new": 0, "rule-2": 1, "once": 1, "rule-4": 0}
    decided = story.end("work.1")
    assert story.submitted(decided) == ["more.0"]
    assert story.metric("count.work.success") == 2
    assert story.exit_code is None
    story.play("more.0")
    assert story.exit_code == 0


def test_a_changed_group_applies_to_later_jobs_and_unchanged_fields_keep_what_was_set() -> None:
    text = """
jobs: [{name: work, command: x}, {name: other, command: x}]
rules:
  - {trigger: start, action: [{name: set, label: work, with: {nodes: 4}},
     {name: set, label: other, with: {nodes: 4}}, {name: submit, label: work}]}
  - {trigger: job-success, repetitions: 9,
     action: [{name: submit, label: work}, {name: submit, label: other}]}
"""
    story = Story(text)
    story.start()
    story.engine.reconfigure(Story(text.replace("work, command: x", "work, command: y")).ensemble)
    story.play("work.0")
    jobs = {job.id: job for one in story.decisions if isinstance(one, Submit) for job in one.jobs}
    assert jobs["work.1"].command == ("y",)
    assert (jobs["work.1"].nodes, jobs["other.0"].nodes) == (4, 4)


def test_a_new_rule_fires_if_its_metric_already_matches() -> None:
    story = Story(BEFORE)
    story.start()
    story.begin("work.1")
    story.play("work.0")
    more = "  - {trigger: metric, name: count.work.success, when: 1, action: {name: terminate}}"
    story.engine.reconfigure(Story(BEFORE + more).ensemble)
    resume(story)
    assert story.exit_code == 0
    assert story.engine.state.ended is not None
    assert not story.engine.state.ended.natural


def test_heartbeat_and_intervals_of_a_changed_file_take_effect() -> None:
    story = Story(BEFORE)
    story.start()
    more = "  - {trigger: interval, seconds: 5, action: {name: log, message: tick}}"
    story.engine.reconfigure(Story(BEFORE + more).ensemble)
    timer = story.engine.next_timer()
    assert timer is not None
    assert (timer.kind, timer.when) == ("interval", story.now + 5)
    story.engine.reconfigure(Story(BEFORE).ensemble)
    assert story.engine.next_timer() is None


def test_an_added_rule_that_does_not_fit_a_changed_file_is_named() -> None:
    story = Story(
        """
jobs: [{name: work, command: x}, {name: more, command: y}]
rules:
  - {trigger: start, action: [{name: submit, label: work}, {name: custom, label: f}]}
custom: |
  def f(**kwargs):
      return None
"""
    )
    (call,) = [one for one in story.start() if isinstance(one, Call)]
    rules = (
        {
            "rule": {
                "id": "later",
                "trigger": "job-fail",
                "action": {"name": "submit", "label": "more"},
            }
        },
        {
            "rule": {
                "id": "stays",
                "trigger": "job-success",
                "action": {"name": "log", "message": "x"},
            }
        },
    )
    story.tell(CallReturned(story.now, call.call, rules))
    text = "jobs: [{name: work, command: x}]\nrules: [{trigger: start, action: {name: submit, label: work}}]"
    assert story.engine.reconfigure(Story(text).ensemble) == ["later"]
    assert list(story.engine.state.rules.states) == ["rule-1", "stays"]


# -- a lost queue --------------------------------------------------------------------------------------


def test_jobs_waiting_in_a_lost_queue_are_submitted_again() -> None:
    story = Story(f"jobs: [{{name: work, command: x, count: 3, at_once: 2}}]\nrules: [{START}]")
    story.start()
    story.begin("work.0")
    story.job("work.1", "submit")
    decided = story.tell(Resumed(story.now, {}, gone=("work.1",)))
    (submit,) = [one for one in decided if isinstance(one, Submit)]
    assert [job.id for job in submit.jobs] == ["work.1"]
    story.end("work.0")
    for job in ("work.1", "work.2"):
        story.play(job)
    assert story.exit_code == 0
    assert story.metric("count.work.success") == story.metric("count.work.submitted") == 3


def test_a_job_whose_queue_is_lost_twice_is_submitted_once_each_time() -> None:
    story = Story(f"jobs: [{{name: work, command: x}}]\nrules: [{START}]")
    story.start()
    for _ in range(2):
        story.job("work.0", "submit")
        decided = story.tell(Resumed(story.now, {}, gone=("work.0",)))
        assert [one.jobs[0].id for one in decided if isinstance(one, Submit)] == ["work.0"]
    story.play("work.0")
    assert story.exit_code == 0
