"""Causes of a job's end, in conditions such as ``cause == "timeout"``."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.errors import EnsembleError, FileErrors
from ensemble_core.journal.event_encoding import event_text, list_text, rows_of
from ensemble_core.model.causes import CAUSES
from ensemble_core.model.decisions import Call
from ensemble_core.model.events import JobEvent

HEAD = (
    "jobs: [{name: sim, command: x, count: 9, duration: 60s}, {name: free, command: x}]\nrules:\n"
)
START = "  - {trigger: start, action: [{name: submit, label: sim}, {name: submit, label: free}]}\n"
SAY = "action: {name: log, message: '{cause} {limit}'}"


def story(*rules: str, head: str = HEAD) -> Story:
    told = Story(head + START + "".join(f"  - {{{rule}}}\n" for rule in rules))
    told.start()
    return told


def fail(
    told: Story, job: str, status: int | None, *exceptions: dict[str, Any], **more: Any
) -> None:
    """Begin a job, and end it with these exceptions and this status."""
    told.begin(job)
    for exception in exceptions:
        told.job(job, "exception", **{"severity": 0, "note": "", **exception})
    if status is not None:
        told.job(job, "finish", status=status, **more)
    told.job(job, "clean")


@pytest.mark.parametrize(
    ("status", "exceptions", "more", "cause"),
    [
        (3 << 8, [], {}, "exit"),
        (9, [], {}, "signal"),
        (137 << 8, [], {}, "signal"),  # as shells report signal 9
        (160 << 8, [], {}, "exit"),
        (15, [{"type": "timeout"}], {}, "timeout"),
        (15, [{"type": "node-failure"}], {}, "node-failure"),
        (15, [{"type": "out-of-memory"}], {}, "memory"),
        (15, [{"type": "preempted"}], {}, "preempted"),
        (127 << 8, [{"type": "exec"}], {}, "submit"),
        (None, [{"type": "lost"}], {}, "lost"),
        (None, [], {}, "unknown"),
        (9, [{"type": "weather"}], {}, "unknown"),
        # A cause from the executor overrides a derived one.
        (9, [], {"cause": "memory"}, "memory"),
        (1, [{"type": "exec", "cause": "node-failure"}], {}, "node-failure"),
        # The first fatal exception decides the cause.
        (9, [{"type": "timeout"}, {"type": "lost"}], {"cause": "memory"}, "timeout"),
        (9, [{"type": "timeout", "severity": 1}], {}, "signal"),
        # Unknown causes are ignored.
        (9, [], {"cause": "weather"}, "signal"),
        (9, [], {"cause": ["exit"]}, "signal"),
    ],
)
def test_a_condition_may_use_the_cause_of_a_failure(
    status: int | None, exceptions: list[dict[str, Any]], more: dict[str, Any], cause: str
) -> None:
    told = story(
        f"trigger: job-fail, when: cause == '{cause}', {SAY}",
        f"trigger: job-clean, when: cause == '{cause}', {SAY}",
    )
    fail(told, "sim.0", status, *exceptions, **more)
    assert told.messages() == [f"{cause} 60", f"{cause} 60"]


def test_success_has_the_cause_exit_and_a_cancel_the_cause_cancelled() -> None:
    told = story(
        f"trigger: job-success, {SAY}",
        f"trigger: job-cancel, {SAY}",
        f"trigger: job-exception, {SAY}",
    )
    told.play("sim.0")
    told.cancel("sim.1")
    assert told.messages() == ["exit 60", "cancelled 60", "cancelled 60"]


def test_a_cause_may_be_one_of_several() -> None:
    told = story(
        f'trigger: job-fail, repetitions: 9, when: \'cause in ("node-failure", "timeout")\', {SAY}'
    )
    fail(told, "sim.0", 1 << 8)
    fail(told, "sim.1", 15, {"type": "timeout"})
    fail(told, "sim.2", 15, {"type": "node-failure"})
    assert told.messages() == ["timeout 60", "node-failure 60"]


def test_limit_has_no_value_without_a_time_limit() -> None:
    told = story(f"trigger: job-fail, name: free, when: limit > 0 or cause == 'exit', {SAY}")
    fail(told, "free.0", 1 << 8)
    assert told.messages() == ["exit ? (the event has no 'limit')"]


def test_a_rule_about_causes_handles_failures() -> None:
    told = story(f"trigger: job-finish, repetitions: 9, when: cause != 'timeout', {SAY}")
    for index in range(9):
        fail(told, f"sim.{index}", 1 << 8)
    told.play("free.0")
    assert told.exit_code == 0


def test_parameters_override_cause_and_limit() -> None:
    told = story(
        "trigger: job-fail, when: cause == 7 and limit == 8, action: {name: log, message: '{cause}'}",
        f"trigger: job-start, when: cause == 7, {SAY}",
        head="jobs: [{name: sim, command: 'x {cause} {limit}', parameters: {cause: [7], limit: [8]}},"
        " {name: free, command: x}]\nrules:\n",
    )
    fail(told, "sim.0", 9, cause="memory")
    assert told.messages() == ["7 8", "7"]


def test_observed_columns_override_cause_and_limit() -> None:
    told = story(
        f"trigger: observed, name: sim, repetitions: 9, when: cause > 1, {SAY}",
        head="jobs: [{name: sim, command: x, count: 2, duration: 60s, observe: {json-lines: {}}},"
        " {name: free, command: x}]\nrules:\n",
    )
    told.begin("sim.0")
    told.observe("sim.0", cause=2.0, limit=3.0)
    told.observe("sim.0", {"cause": 1.0})
    assert told.messages() == ["2 3"]


def test_failures_are_counted_by_cause() -> None:
    told = story()
    fail(told, "sim.0", 1 << 8)
    fail(told, "sim.1", 15, {"type": "timeout"})
    fail(told, "sim.2", 15, {"type": "timeout"})
    told.play("sim.3")
    told.cancel("sim.4")
    (sim, _) = told.engine.report().groups
    assert dict(sim.causes) == {"exit": 1, "timeout": 2}


def test_foreign_jobs_have_causes() -> None:
    told = story(f"trigger: job-fail, scope: queue, repetitions: 9, when: cause == 'memory', {SAY}")
    told.job("f1", "submit", "start", ours=False)
    told.job("f1", "exception", ours=False, type="out-of-memory", severity=0)
    told.job("f1", "finish", "clean", ours=False, status=9)
    told.job("f2", "submit", "start", ours=False)
    told.job("f2", "finish", "clean", ours=False, status=9)
    assert told.messages() == ["memory ? (the event has no 'limit')"]


@pytest.mark.parametrize(
    ("when", "hint"),
    [
        ("cause == 'timout'", "did you mean 'timeout'?"),
        ("cause in ('node-failure', 'canceled')", "did you mean 'cancelled'?"),
        ("cause == 137", f"one of {', '.join(CAUSES)}"),
    ],
)
def test_unknown_cause_is_rejected(when: str, hint: str) -> None:
    with pytest.raises(FileErrors) as caught:
        story(f'trigger: job-fail, when: "{when}", {SAY}')
    assert hint in str(caught.value)
    assert [error.code for error in caught.value.errors] == ["no-such-cause"]


def test_a_job_that_has_not_ended_has_no_cause() -> None:
    with pytest.raises(EnsembleError) as caught:
        story(f"trigger: job-start, when: cause == 'exit', {SAY}")
    assert "cause" in str(caught.value)


def test_the_journal_keeps_the_executors_cause() -> None:
    event = JobEvent(1.0, "sim.0", "finish", {"status": 9, "cause": "memory"})
    (row,) = rows_of(1, 1, list_text([event_text(event)]))
    assert row.event() == event


def test_functions_get_the_cause() -> None:
    told = story(
        "trigger: job-fail, action: {name: custom, label: look}",
        head="custom: |\n  def look(**kwargs):\n      pass\n" + HEAD,
    )
    fail(told, "sim.0", 15, {"type": "timeout"})
    (call,) = [one for one in told.decisions if isinstance(one, Call)]
    assert call.job is not None
    assert (call.job["cause"], call.job["limit"]) == ("timeout", 60)


def test_the_duration_of_cancelled_jobs_is_a_separate_metric() -> None:
    told = story(
        "trigger: metric, name: max.sim-duration.cancelled, when: '> 4', action: {name: log, message: long}"
    )
    told.play("sim.0", duration=2)
    told.begin("sim.1")
    told.wait(5)
    told.cancel("sim.1")
    told.cancel("sim.2")  # never started, so without a duration
    assert told.metric("max.sim-duration.cancelled") == 5
    assert told.metric("max.sim-duration") == 2
    assert told.messages() == ["long"]
