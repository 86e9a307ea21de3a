"""Rules on ``end``, and messages by mail or webhook."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Decision, Log, Notify, Submit, Terminate
from ensemble_core.model.events import Delivered, ExecutorLost, Resumed, StopRequested

NOTIFY = '{name: notify, to: [bell, {mail: me}], message: "{state} {exit_code}: {reason}"}'


def story(rules: str, head: str = "") -> Story:
    return Story(
        f"""
{head}
jobs: [{{name: a, command: x, count: 2, duration: 3600}}]
rules:
  - {{trigger: start, action: {{name: submit, label: a}}}}
{rules}
"""
    )


def sent(decisions: list[Decision]) -> list[str]:
    return [each.message for each in decisions if isinstance(each, Notify)]


def test_a_rule_on_end_gets_the_outcome_and_comes_last() -> None:
    told = story(f"  - {{id: bye, trigger: end, action: {NOTIFY}}}")
    told.start()
    assert sent(told.play("a.0")) == []
    decided = told.play("a.1")
    assert sent(decided) == ["ended 0: nothing more can happen"]
    assert isinstance(decided[-3], Terminate)
    last = decided[-1]
    assert isinstance(last, Notify)
    assert (last.rule, last.to, last.attempt) == ("bye", ("bell", "mail:me"), 1)
    assert told.exit_code == 0


def test_terminate_triggers_rules_on_end() -> None:
    told = story(
        "  - {trigger: job-fail, action: {name: terminate, exit_code: 7}}\n"
        f"  - {{trigger: end, when: exit_code == 7, action: {NOTIFY}}}\n"
        f"  - {{trigger: end, when: state == 'stopped', action: {NOTIFY}}}"
    )
    told.start()
    assert sent(told.play("a.0", status=256)) == ["ended 7: terminated by rule rule-2"]


def test_a_stop_and_the_later_end_each_send_a_message() -> None:
    told = story(f"  - {{trigger: end, action: {NOTIFY}}}")
    told.start()
    stopped = told.engine.handle(StopRequested(5.0, "stop", 5, "keep"))
    assert sent(stopped) == ["stopped 5: stop"]
    told.engine.handle(Delivered(5.5, ("notice-1",), "bell"))
    told.engine.handle(Delivered(5.5, ("notice-1",), "mail:me"))
    assert sent(told.engine.handle(Resumed(6.0))) == []
    told.play("a.0")
    assert sent(told.play("a.1")) == ["ended 0: nothing more can happen"]


def test_repetitions_apply_to_rules_on_end() -> None:
    told = story(f"  - {{trigger: end, repetitions: 1, action: {NOTIFY}}}")
    told.start()
    assert sent(told.engine.handle(StopRequested(5.0, "stop", 5, "keep"))) != []
    told.engine.handle(Resumed(6.0))
    told.play("a.0")
    assert sent(told.play("a.1")) == []


def test_a_limit_that_stops_the_run_is_an_end() -> None:
    told = story(f"  - {{trigger: end, action: {NOTIFY}}}", "limits: {jobs: 1}")
    told.start()
    (message,) = sent(told.play("a.0"))
    assert message.startswith("limited 4: only held jobs are left")


def test_a_lost_queue_stops_the_run() -> None:
    told = story(f"  - {{trigger: end, action: {NOTIFY}}}")
    told.start()
    (message,) = sent(told.engine.handle(ExecutorLost(5.0, "x", "gone")))
    assert message == "stopped 1: executor x lost its queue: gone"


def test_a_rule_on_end_with_exit_code_does_not_handle_failures() -> None:
    told = story(f"  - {{trigger: end, when: exit_code != 0, action: {NOTIFY}}}")
    told.start()
    told.play("a.0", status=256)
    assert sent(told.play("a.1")) == ["ended 1: 1 job failed and no rule handled it"]


def test_idle_does_not_wait_for_a_message() -> None:
    told = story(
        "  - {trigger: job-done, repetitions: 9, action: {name: notify, to: bell, message: done}}\n"
        "  - {trigger: idle, action: {name: log, message: idle}}"
    )
    told.start()
    told.play("a.0")
    decided = told.play("a.1")
    assert "idle" in [each.message for each in decided if isinstance(each, Log)]
    assert told.exit_code == 0


def test_a_resume_repeats_only_unconfirmed_messages() -> None:
    told = story("  - {trigger: start, action: {name: notify, to: [bell, {mail: me}], message: x}}")
    told.start()
    told.engine.handle(Delivered(1.0, ("notice-1",), "bell"))
    (again,) = [each for each in told.engine.handle(Resumed(2.0)) if isinstance(each, Notify)]
    assert (again.notice, again.to, again.attempt) == ("notice-1", ("mail:me",), 2)
    told.engine.handle(Delivered(3.0, ("notice-1",), "mail:me"))
    assert [each for each in told.engine.handle(Resumed(4.0)) if isinstance(each, Notify)] == []


def test_a_resume_after_the_end_repeats_the_last_message() -> None:
    told = story(f"  - {{trigger: end, action: {NOTIFY}}}")
    told.start()
    told.play("a.0")
    told.play("a.1")
    decided = told.engine.handle(Resumed(9.0))
    assert sent(decided) == ["ended 0: nothing more can happen"]
    assert not [each for each in decided if isinstance(each, (Submit, Terminate))]


def test_a_failed_delivery_is_one_warning_without_changing_the_exit_code() -> None:
    told = story("  - {trigger: start, action: {name: notify, to: bell, message: x}}")
    told.start()
    (warning,) = told.engine.handle(Delivered(1.0, ("notice-1",), "bell", "no terminal"))
    assert isinstance(warning, Log)
    assert (warning.level, warning.message) == (
        "warning",
        "cannot deliver a message to bell: no terminal",
    )
    told.play("a.0")
    told.play("a.1")
    assert told.exit_code == 0


def test_an_unknown_confirmation_changes_nothing() -> None:
    told = story("  - {trigger: start, action: {name: notify, to: bell, message: x}}")
    told.start()
    assert told.engine.handle(Delivered(1.0, ("notice-9",), "bell")) == []
    assert told.engine.handle(Delivered(1.0, ("notice-1",), "desktop")) == []
    assert list(told.engine.state.notices) == ["notice-1"]


def test_pending_messages_are_in_a_snapshot() -> None:
    told = story("  - {trigger: start, action: {name: notify, to: [bell, desktop], message: x}}")
    told.start()
    told.engine.handle(Delivered(1.0, ("notice-1",), "bell"))
    state = told.engine.state
    read = load(dump(told.engine), state.ensemble)
    assert read is not None
    answers: list[Any] = []
    for engine in (told.engine, read):
        assert isinstance(engine, Engine)
        answers.append([json.loads(each.to_json()) for each in engine.handle(Resumed(2.0))])
    assert answers[0] == answers[1]
    assert answers[0][0]["to"] == ["desktop"]


@pytest.mark.parametrize("after", ["log", "notify"])
def test_the_end_costs_nothing_without_rules_on_end(after: str) -> None:
    told = story("")
    told.start()
    told.play("a.0")
    decided = told.play("a.1")
    assert after not in [each.type for each in decided]
    assert told.engine.state.firings == 1
