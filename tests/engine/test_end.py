"""Ends of runs, and their exit codes."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.model.decisions import Log, Terminate
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    ExecutorLost,
    Problem,
    StopRequested,
)


def story(rules: str = "", head: str = "") -> Story:
    return Story(
        f"""
{head}
jobs: [{{name: sleep, command: sleep 1, count: 2}}, {{name: echo, command: echo}}]
rules:
  - {{trigger: start, action: {{name: submit, label: sleep}}}}
{rules}
"""
    )


def test_a_run_ends_when_nothing_more_can_happen() -> None:
    told = story("  - {trigger: metric, name: count.sleep.success, when: 9, action: {name: grow}}")
    told.start()
    assert told.play("sleep.0") == []
    end = told.play("sleep.1")[-1]
    assert isinstance(end, Terminate)
    assert end.natural
    assert (end.exit_code, end.reason) == (0, "nothing more can happen")


def test_a_run_whose_start_submits_nothing_ends_at_once() -> None:
    told = Story(
        """
jobs: [{name: echo, command: echo}]
rules: [{trigger: start, action: {name: log, message: hello}}]
"""
    )
    told.start()
    assert told.exit_code == 0


def test_unhandled_failures_make_the_exit_code_1() -> None:
    told = story()
    told.start()
    told.play("sleep.0", status=256)
    told.play("sleep.1")
    assert told.exit_code == 1
    assert told.engine.state.ended is not None
    assert told.engine.state.ended.reason == "1 job failed and no rule handled it"


@pytest.mark.parametrize(
    "rule",
    [
        "{trigger: job-fail, action: {name: log, message: x}}",
        "{trigger: job-fail, name: sleep, action: {name: log, message: x}}",
        "{trigger: job-finish, when: exit_code == 1, action: {name: log, message: x}}",
        "{trigger: metric, name: count.sleep.failed, when: 5, action: {name: log, message: x}}",
    ],
)
def test_a_rule_on_failure_handles_failures(rule: str) -> None:
    told = story(f"  - {rule}")
    told.start()
    told.play("sleep.0", status=256)
    told.play("sleep.1")
    assert told.exit_code == 0


def test_a_rule_on_exceptions_handles_a_job_that_could_not_start() -> None:
    told = story(
        "  - {id: it, trigger: job-exception, when: exit_code == 127, action: {name: log, message: x}}"
    )
    told.start()
    told.job("sleep.0", "submit", "validate", "depend", "priority", "alloc")
    told.job("sleep.0", "exception", type="exec", severity=0, note="not found", status=127 << 8)
    told.job("sleep.0", "free", "clean")
    told.play("sleep.1")
    assert "it" in told.fired()
    assert told.metric("count.sleep.failed") == 1
    assert told.exit_code == 0


def test_a_rule_on_failure_gets_the_exit_code_of_a_missing_command() -> None:
    told = story(
        "  - {id: it, trigger: job-fail, when: exit_code == 127, action: {name: log, message: x}}"
    )
    told.start()
    told.job("sleep.0", "submit", "alloc")
    told.job("sleep.0", "exception", type="exec", severity=0, note="not found", status=127 << 8)
    assert "it" in told.fired(told.job("sleep.0", "free", "clean"))


def test_a_failure_that_does_not_match_a_rules_condition_is_unhandled() -> None:
    told = story("  - {trigger: job-fail, when: exit_code == 75, action: {name: log, message: x}}")
    told.start()
    told.play("sleep.0", status=1 << 8)
    told.play("sleep.1", status=75 << 8)
    assert told.engine.state.unhandled_failures == 1
    assert told.exit_code == 1


def test_a_failure_after_the_last_repetition_is_unhandled() -> None:
    told = story(
        "  - {trigger: job-fail, name: sleep, action: {name: submit, label: sleep, with: {count: 1}}}"
    )
    told.start()
    told.play("sleep.0", status=256)
    told.play("sleep.1")
    told.play("sleep.2", status=256)
    assert told.engine.state.unhandled_failures == 1
    assert told.exit_code == 1


def test_a_failure_skipped_by_backoff_is_handled() -> None:
    told = story(
        "  - {trigger: job-fail, repetitions: 9, backoff: 5, action: {name: log, message: x}}"
    )
    told.start()
    told.play("sleep.0", status=256)
    told.play("sleep.1", status=256)
    assert told.exit_code == 0


def test_a_rule_on_another_groups_failures_does_not_handle_them() -> None:
    told = story("  - {trigger: job-fail, name: echo, action: {name: log, message: x}}")
    told.start()
    told.play("sleep.0", status=256)
    told.play("sleep.1")
    assert told.exit_code == 1


def test_the_exit_code_of_terminate_overrides_failures() -> None:
    told = story("  - {trigger: job-finish, action: {name: terminate, exit_code: 7}}")
    told.start()
    told.play("sleep.0", status=256)
    assert told.exit_code == 7


def test_ctrl_c_cancels_active_jobs_and_ends_with_130() -> None:
    told = story("  - {trigger: job-cancel, action: {name: submit, label: echo}}")
    told.start()
    told.begin("sleep.0")
    (end,) = told.tell(StopRequested(told.now))
    assert isinstance(end, Terminate)
    assert end.cancel == ("sleep.0", "sleep.1")
    assert told.cancel("sleep.0") == []
    assert told.cancel("sleep.1") == []
    assert told.exit_code == 130
    assert told.metric("count.sleep.cancelled") == 2


def test_a_run_waits_for_an_interval_that_may_still_fire() -> None:
    told = story(
        "  - {id: again, trigger: interval, seconds: 5, repetitions: 3, action: {name: log, message: x}}"
    )
    told.start()
    told.play("sleep.0")
    told.play("sleep.1")
    assert told.exit_code is None
    told.wait(20)
    assert told.fired().count("again") == 3
    assert told.exit_code == 0


def test_a_run_waits_for_a_heartbeat_rule_only_until_it_is_exhausted() -> None:
    told = story(
        "  - {id: beat, trigger: heartbeat, repetitions: 2, action: {name: log, message: x}}",
        "logging: {heartbeat: 10}",
    )
    told.start()
    told.play("sleep.0")
    told.play("sleep.1")
    assert told.exit_code is None
    told.wait(30)
    assert told.fired().count("beat") == 2
    assert told.exit_code == 0


def test_grow_on_waiting_time_does_not_keep_a_finished_run_alive() -> None:
    told = story(
        '  - {trigger: metric, name: mean.sleep-pending, when: "> 300", action: {name: grow}}'
    )
    assert told.ensemble.heartbeat == 60
    told.start()
    told.play("sleep.0")
    told.play("sleep.1")
    assert told.exit_code == 0


def test_a_missed_interval_is_skipped() -> None:
    told = story(
        "  - {id: again, trigger: interval, seconds: 5, repetitions: 99, action: {name: log, message: x}}"
    )
    told.start()
    told.now += 52
    timer = told.engine.next_timer()
    assert timer is not None
    told.wait(0)
    assert told.fired().count("again") == 1
    told.wait(5)
    assert told.fired().count("again") == 2


def test_a_pending_call_keeps_the_run_alive() -> None:
    told = story(
        """
  - {id: f, trigger: job-success, when: index == 1, action: {name: custom, label: later}}
custom: |
  def later(**kwargs):
      return None
"""
    )
    told.start()
    told.play("sleep.0")
    decided = told.play("sleep.1")
    (call,) = (one for one in decided if one.type == "call")
    assert told.exit_code is None
    told.tell(CallReturned(told.now, call.call, ()))  # type: ignore[attr-defined]
    assert told.exit_code == 0


def test_a_function_that_raises_makes_the_exit_code_1() -> None:
    told = story(
        """
  - {id: f, trigger: job-success, when: index == 0, action: {name: custom, label: later}}
custom: |
  def later(**kwargs):
      return None
"""
    )
    told.start()
    decided = told.play("sleep.0")
    (call,) = (one for one in decided if one.type == "call")
    logged = told.tell(CallFailed(told.now, call.call, "later raised ValueError: no"))  # type: ignore[attr-defined]
    assert [one.message for one in logged if isinstance(one, Log)] == [
        "f: later raised ValueError: no"
    ]
    told.play("sleep.1")
    assert told.exit_code == 1


def test_a_lost_executor_ends_the_run_with_its_reason() -> None:
    told = story()
    told.start()
    decided = told.tell(ExecutorLost(told.now, "flux", "the broker went away", "resume later"))
    assert isinstance(decided[-1], Terminate)
    assert "the broker went away" in decided[-1].reason
    assert told.engine.state.lost
    assert told.exit_code == 1


def test_problems_are_logged_and_errors_change_the_exit_code() -> None:
    told = story()
    told.start()
    told.tell(Problem(told.now, "a file is no file"))
    assert told.engine.state.errors == 0
    told.tell(Problem(told.now, "cancel refused", "error"))
    told.play("sleep.0")
    told.play("sleep.1")
    assert told.exit_code == 1


def _observed(count: int) -> Story:
    told = Story(
        f"""
jobs:
  - name: sim
    command: x
    count: {count}
    observe: {{key-value: {{}}, json-lines: {{}}}}
    result: {{rate: 1 / last.E}}
rules: [{{trigger: start, action: {{name: submit, label: sim}}}}]
"""
    )
    told.start()
    return told


def _over(told: Story, job: str, value: float | None, problem: bool = False) -> list[str]:
    """Play a job that prints ``value``, and return the logged messages.

    With ``problem``, an observer reports that it did not understand the output.
    """
    told.begin(job)
    if value is not None:
        told.observe(job, {"E": value}, observer="key-value")
    if problem:
        told.tell(Problem(told.now, f"job {job} succeeded, and …", jobs=(job,), lasts=True))
    return [one.message for one in told.end(job) if isinstance(one, Log)]


def test_a_missing_result_is_only_explained_by_its_own_jobs_output() -> None:
    told = _observed(4)
    assert not _over(told, "sim.0", 2.0, problem=True)
    # sim.1 has output, so the problem of sim.0 does not explain its missing result. The result of
    # sim.2 is missing for another reason, but its observer reported a problem.
    assert _over(told, "sim.1", 0.0) == ["sim.1: its result 'rate' (1 / last.E) has no value"]
    assert not _over(told, "sim.2", 0.0, problem=True)
    assert told.engine.state.errors == 0
    _over(told, "sim.3", 1.0)
    assert told.exit_code == 0


@pytest.mark.parametrize("named", [True, False])
def test_results_missing_because_of_unreadable_output_are_one_error_per_group(named: bool) -> None:
    told = _observed(4)
    # The observer's problem names the first job. Later jobs only lack values.
    assert not _over(told, "sim.0", 2.0, problem=True)
    (message,) = _over(told, "sim.1", None, problem=named)
    assert message == (
        "sim.1: its result 'rate' (1 / last.E) has no value, because no observer could read its output"
    )
    assert not _over(told, "sim.2", None, problem=True)
    _over(told, "sim.3", 1.0)
    assert told.engine.state.errors == 1
    assert told.exit_code == 1
