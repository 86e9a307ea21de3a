"""Limits of jobs, of submits per second, and of chains of firings."""

from __future__ import annotations

from ensemble_testing import Story

from ensemble_core.model.decisions import Call, Cancel, Log, Submit, Terminate
from ensemble_core.model.events import CallReturned

PACED = """
limits: {submits_per_second: 1}
jobs: [{name: a, command: x, count: 4}, {name: b, command: x}]
"""


def test_an_endless_chain_is_cut_with_an_error_that_shows_it() -> None:
    told = Story(
        """
limits: {chain: 10}
jobs: [{name: a, command: x}, {name: b, command: x}]
rules:
  - {id: first, trigger: start, action: {name: submit, label: a}}
  - {id: ab, trigger: metric, name: count.a.submitted, repetitions: 1000000, action: {name: submit, label: b}}
  - {id: ba, trigger: metric, name: count.b.submitted, repetitions: 1000000, action: {name: submit, label: a}}
"""
    )
    decided = told.start()
    errors = [one.message for one in decided if isinstance(one, Log) and one.level == "error"]
    assert len(errors) == 1
    assert "10 rule firings triggered each other" in errors[0]
    assert "first → ab → ba → ab" in errors[0]
    assert len(told.submitted()) == 10
    for job in told.submitted():
        told.play(job)
    assert told.exit_code == 1


def test_a_chain_through_job_events_is_cut() -> None:
    told = Story(
        """
limits: {chain: 5}
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: more, trigger: job-submit, repetitions: 1000000, action: {name: submit, label: a}}
"""
    )
    told.start()
    for number in range(20):
        if f"a.{number}" in told.engine.state.active():
            told.job(f"a.{number}", "submit")
    assert len(told.submitted()) == 5


def test_a_finished_job_interrupts_a_chain() -> None:
    told = Story(
        """
limits: {chain: 5}
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: more, trigger: job-success, repetitions: 50, action: {name: submit, label: a}}
"""
    )
    told.start()
    for number in range(51):
        told.play(f"a.{number}")
    assert len(told.submitted()) == 51
    assert told.exit_code == 0


def test_endless_cancelling_and_resubmitting_is_a_chain() -> None:
    told = Story(
        """
limits: {chain: 8}
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: kill, trigger: job-submit, repetitions: 1000000, action: {name: cancel}}
  - {id: again, trigger: job-cancel, repetitions: 1000000, action: {name: submit, label: a}}
"""
    )
    told.start()
    for number in range(50):
        job = f"a.{number}"
        if job in told.engine.state.active():
            told.job(job, "submit")
            told.cancel(job)
    assert told.exit_code == 1
    assert len(told.submitted()) < 10


def test_a_function_that_returns_a_call_of_itself_is_a_chain() -> None:
    told = Story(
        """
limits: {chain: 6}
jobs: [{name: a, command: x}]
rules:
  - {id: f, trigger: start, action: {name: custom, label: again}}
custom: |
  def again(**kwargs):
      return Action({"name": "custom", "label": "again"})
"""
    )
    decided = told.start()
    calls = 0
    while pending := [one for one in decided if isinstance(one, Call)]:
        calls += 1
        assert calls < 100
        returned = ({"action": {"name": "custom", "label": "again"}},)
        decided = told.tell(CallReturned(told.now, pending[0].call, returned))
    assert calls == 6
    assert told.exit_code == 1


def test_jobs_beyond_limits_jobs_are_held_and_the_exit_code_is_4() -> None:
    told = Story(
        """
limits: {jobs: 5}
jobs: [{name: a, command: x, count: 2}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-success, repetitions: 1000, action: {name: submit, label: a}}
"""
    )
    told.start()
    for number in range(5):
        told.play(f"a.{number}")
    said = [one for one in told.decisions if isinstance(one, Log)]
    assert len(told.submitted()) == 5
    assert [one.level for one in said] == ["warning", *["info"] * 3]
    assert "1 of 2 jobs are held by limits.jobs (5; 5 used, 0 committed)" in said[0].message
    ended = told.decisions[-1]
    assert isinstance(ended, Terminate)
    assert ended.exit_code == 4
    assert (
        "7 jobs of a; limits.jobs is 5, 5 used; they need 7 more: set limits.jobs to 12"
        in ended.reason
    )


def test_submits_per_second_spreads_submissions_and_loses_none() -> None:
    told = Story(
        """
limits: {submits_per_second: 2}
jobs: [{name: a, command: x, count: 7}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
"""
    )
    assert told.submitted(told.start()) == ["a.0", "a.1"]
    assert told.metric("count.a.submitted") == 7
    assert told.submitted(told.wait(0.4)) == []
    assert told.submitted(told.wait(0.2)) == ["a.2"]
    told.wait(10)
    assert told.submitted() == [f"a.{number}" for number in range(7)]
    for number in range(7):
        told.play(f"a.{number}")
    assert told.exit_code == 0


def test_a_job_held_by_the_rate_limit_can_be_cancelled() -> None:
    told = Story(
        """
limits: {submits_per_second: 1}
jobs: [{name: a, command: x, count: 4}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-start, action: {name: cancel, label: a}}
  - {id: gone, trigger: job-cancel, repetitions: 9, action: {name: log, message: x}}
"""
    )
    told.start()
    decided = told.begin("a.0")
    assert [one.jobs for one in decided if one.type == "cancel"] == [("a.0",)]  # type: ignore[attr-defined]
    assert told.fired(decided).count("gone") == 3
    assert told.metric("count.a.cancelled") == 3
    told.wait(10)
    assert told.submitted() == ["a.0"]
    told.cancel("a.0")
    assert told.exit_code == 0


def test_terminate_drops_jobs_held_by_the_rate_limit() -> None:
    told = Story(
        """
limits: {submits_per_second: 1}
jobs: [{name: a, command: x, count: 4}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-start, action: {name: terminate}}
"""
    )
    told.start()
    told.begin("a.0")
    assert told.engine.next_timer() is None
    assert told.engine.busy == 1
    assert told.metric("count.a.cancelled") == 3


def test_nothing_is_decided_after_a_terminate_caused_by_a_held_jobs_cancel() -> None:
    told = Story(
        PACED
        + """
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-start, action: {name: cancel, label: a}}
  - {trigger: job-cancel, action: {name: terminate, exit_code: 3}}
"""
    )
    told.start()
    decided = told.begin("a.0")
    assert isinstance(decided[-1], Terminate)
    assert decided[-1].cancel == ("a.0",)
    assert [one.jobs for one in decided if isinstance(one, Cancel)] == [("a.0",)]
    assert told.exit_code == 3


def test_held_jobs_that_are_cancelled_and_submitted_again_are_a_chain() -> None:
    told = Story(
        PACED
        + """
rules:
  - {trigger: start, action: [{name: submit, label: a}, {name: cancel, label: a}]}
  - id: again
    trigger: job-cancel
    repetitions: 100000
    action: [{name: submit, label: b}, {name: cancel, label: b}]
"""
    )
    decided = told.start()
    errors = [one.message for one in decided if isinstance(one, Log) and one.level == "error"]
    assert any("triggered each other" in message for message in errors)
    assert not any("raised" in message for message in errors)


def test_rate_limited_jobs_are_all_submitted_at_large_timestamps() -> None:
    told = Story(
        """
limits: {submits_per_second: 3}
jobs: [{name: a, command: x, count: 30}]
rules: [{trigger: start, action: {name: submit, label: a}}]
""",
        now=1.7e9 + 0.1,
    )
    told.start()
    for _ in range(2000):
        timer = told.engine.next_timer()
        if timer is None:
            break
        assert timer.when > told.now, "time stands still"
        told.wait(timer.when - told.now)
    assert [one for one in told.decisions if isinstance(one, Submit)]
    assert len(told.submitted()) == 30


def test_limits_jobs_may_be_reached_exactly() -> None:
    told = Story(
        """
limits: {jobs: 1}
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""
    )
    told.start()
    assert told.submitted() == ["a.0"]


def test_later_jobs_do_not_overtake_rate_limited_ones() -> None:
    told = Story(
        """
limits: {submits_per_second: 1}
jobs: [{name: a, command: x, count: 3}, {name: b, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: interval, seconds: 0.5, action: {name: submit, label: b}}
"""
    )
    told.start()
    told.wait(10)
    assert told.submitted() == ["a.0", "a.1", "a.2", "b.0"]
