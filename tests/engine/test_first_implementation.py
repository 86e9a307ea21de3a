"""Faults of the first implementation (ensemble-python 0.0.16) that must not come back.

One short test for each fault, with the name of the behaviour. Other modules test the details.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from ensemble_testing import Story

from ensemble_core.config import load_text
from ensemble_core.engine.rule_evaluation import RuleObserver
from ensemble_core.errors import FileErrors
from ensemble_core.model.decisions import Call, Cancel, Log, Terminate
from ensemble_core.model.events import CallReturned, JobEvent, Observed, ResizeOutcome, TimerElapsed
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
BUILTIN_TRIGGERS = sorted(
    record.name
    for plugin in REGISTRY.plugins
    if plugin.builtin
    for record in plugin.records.get("trigger", ())
)


def story(rules: str, count: int = 3) -> Story:
    return Story(
        f"""
logging: {{heartbeat: 30}}
jobs: [{{name: sim, command: sim, count: {count}, observe: {{json-lines: {{}}}}}}, {{name: echo, command: echo}}]
rules:
  - {{id: go, trigger: start, action: {{name: submit, label: sim}}}}
{rules}
custom: |
  def again(**kwargs):
      return Action({{"name": "submit", "label": "echo"}})
"""
    )


@pytest.mark.parametrize("trigger", BUILTIN_TRIGGERS)
def test_every_trigger_can_fire(trigger: str) -> None:
    extra = {
        "metric": "name: count.sim.success,",
        "interval": "seconds: 5,",
        "silent": "seconds: 5,",
    }.get(trigger, "")
    rule = f"  - {{id: it, trigger: {trigger}, {extra} action: {{name: log, message: x}}}}"
    told = story("" if trigger.startswith("generator-") else rule)
    told.start()
    event = trigger.removeprefix("job-")
    if trigger.startswith("resize-"):
        grown = story(
            f"  - {{trigger: job-start, action: {{name: grow}}}}\n"
            f"  - {{id: it, trigger: {trigger}, action: {{name: log, message: x}}}}"
        )
        grown.start()
        (asked,) = (one for one in grown.begin("sim.0") if one.type == "resize")
        grown.tell(ResizeOutcome(grown.now, asked.request, event.removeprefix("resize-")))  # type: ignore[attr-defined, arg-type]
        told = grown
    elif trigger == "job-cancel":
        told.job("sim.0", "submit")
        told.cancel("sim.0")
    elif trigger in ("job-fail", "job-lost"):
        told.play("sim.0", status=256)
    elif trigger == "limit":
        told = Story(
            "limits: {jobs: 1}\njobs: [{name: sim, command: x, count: 2}]\n"
            "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
            "  - {id: it, trigger: limit, action: {name: log, message: x}}\n"
        )
        told.start()
    elif trigger.startswith("generator-"):
        told = Story(
            "jobs: [{name: sim, command: 'x {x}', observe: {json-lines: {fields: [E]}}, "
            "result: {E: last.E}}]\n"
            "generators: [{name: search, use: grid, group: sim, variables: {x: {values: [1]}}, "
            "objectives: {E: minimize}}]\n"
            f"rules: [{{id: it, trigger: {trigger}, action: {{name: log, message: x}}}}]\n"
        )
        (call,) = (one for one in told.start() if isinstance(one, Call))
        told.tell(CallReturned(told.now, call.call, ({"point": {"x": 1}},)))
        told.begin("sim.0")
        told.observe("sim.0", E=1.0)
        (call,) = (one for one in told.end("sim.0") if isinstance(one, Call))
        told.tell(CallReturned(told.now, call.call))
    elif trigger in ("idle", "end"):
        for job in ("sim.0", "sim.1", "sim.2"):
            told.play(job)
    else:
        told.job("sim.0", "submit", "validate", "depend", "priority", "alloc", "start")
        if trigger.startswith("job-") and event not in (
            "sched",
            "run",
            "cleanup",
            "inactive",
            "success",
        ):
            told.tell(JobEvent(told.now, "sim.0", event, {"status": 0, "severity": 1}))
        told.tell(Observed(told.now, "sim.0", "json-lines", {"T": 1.0}))
        told.wait(6)
        told.job("sim.0", "finish", status=0)
        told.job("sim.0", "free", "clean")
        told.wait(60)
    assert "it" in told.fired()


def test_a_rule_for_one_group_ignores_other_groups_and_foreign_jobs() -> None:
    told = story("  - {id: it, trigger: job-finish, name: echo, action: {name: log, message: x}}")
    told.start()
    told.play("sim.0")
    told.job("ƒ2kHJ", "start", "finish", ours=False, status=0)
    told.job("echo.5", "start", "finish", "clean", status=0)
    assert "it" not in told.fired()


def test_the_result_of_a_function_is_carried_out_and_the_rule_fires_once() -> None:
    told = story("  - {id: it, trigger: job-success, action: {name: custom, label: again}}")
    told.start()
    decided = told.play("sim.0") + told.play("sim.1")
    calls = [one for one in decided if one.type == "call"]
    assert len(calls) == 1
    from ensemble_core.model.events import CallReturned

    spec = {"action": {"name": "submit", "label": "echo"}}
    done = told.tell(CallReturned(told.now, calls[0].call, (spec,)))  # type: ignore[attr-defined]
    assert told.submitted(done) == ["echo.0"]
    assert told.fired().count("it") == 1


@pytest.mark.parametrize(
    ("when", "value", "holds"),
    [
        ("> 0.5", 0.25, False),
        ("> 1e3", 2, False),
        ("> 5 and < 10", 12, False),
        ("== 5", 5, True),
        ("> -1", 0, True),
    ],
)
def test_a_condition_is_parsed_completely(when: str, value: float, holds: bool) -> None:
    from ensemble_core.model.conditions import parse

    assert parse(when).holds(value, {}, lambda path: None) is holds


def test_a_metric_rule_fires_only_when_its_metric_is_updated() -> None:
    told = story(
        '  - {id: it, trigger: metric, name: count.sim.success, when: ">= 1", repetitions: 3, '
        "action: {name: log, message: x}}"
    )
    told.start()
    told.play("sim.0")
    told.begin("sim.1")
    told.job("sim.1", "memo")
    assert told.fired().count("it") == 1


def test_a_custom_function_under_a_metric_rule_gets_the_event() -> None:
    told = story(
        "  - {trigger: metric, name: count.sim.success, when: 1, action: {name: custom, label: again}}"
    )
    told.start()
    (call,) = (one for one in told.play("sim.0") if one.type == "call")
    assert call.event["name"] == "finish"  # type: ignore[attr-defined]


def test_after_terminate_the_rest_of_the_same_event_submits_nothing() -> None:
    told = story(
        "  - {trigger: job-finish, action: {name: terminate}}\n"
        "  - {trigger: job-finish, action: {name: submit, label: echo}}\n"
    )
    told.start()
    assert told.submitted(told.play("sim.0")) == []


@pytest.mark.parametrize(
    "rule",
    [
        "{trigger: start, action: {}}",
        "{trigger: start, action: {name: submit, label: sim, lable: x}}",
        "{trigger: start, colour: red, action: {name: submit, label: sim}}",
        "{trigger: start, action: {name: submit, label: nobody}}",
        "{trigger: metric, name: count.nobody.success, action: {name: terminate}}",
        "{trigger: metric, name: mean.sim-durration, action: {name: terminate}}",
        "{trigger: job-cnacel, action: {name: terminate}}",
    ],
)
def test_impossible_rules_are_rejected_when_the_file_is_checked(rule: str) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(f"jobs: [{{name: sim, command: sim}}]\nrules: [{rule}]", REGISTRY)
    assert caught.value.exit_code == 2
    assert all(error.where and error.where.line == 2 for error in caught.value.errors)


def test_grow_on_an_executor_without_resize_is_rejected_when_the_file_is_checked() -> None:
    import dataclasses

    local = REGISTRY.executors["local"]
    rigid = dataclasses.replace(local, name="rigid", capabilities=frozenset({"submit", "cancel"}))
    text = "jobs: [{name: a, command: a}]\nrules: [{trigger: start, action: {name: grow}}]"
    with pytest.raises(FileErrors, match="resize") as caught:
        load_text(text, REGISTRY, executor=rigid)
    assert "'rigid' cannot" in str(caught.value)
    assert load_text(text, REGISTRY, executor=local).heartbeat == 60


def test_rules_that_cannot_match_are_not_considered() -> None:
    rules = "\n".join(
        f"  - {{id: r{n}, trigger: metric, name: count.sim.success, when: {n + 1000}, action: {{name: log, message: x}}}}"
        for n in range(500)
    )
    told = story(rules)
    told.start()
    observer = Mock(spec=RuleObserver)
    told.engine.observe(observer)
    for number in range(3):
        told.play(f"sim.{number}")
    assert observer.updated.called
    assert not observer.considered.called


def test_an_exhausted_rule_is_no_longer_scanned() -> None:
    told = story("  - {id: it, trigger: job-start, action: {name: log, message: x}}")
    told.start()
    told.begin("sim.0")
    assert "job-start" not in told.engine.state.rules.index.by_event


def test_fifty_heartbeats_of_three_waiting_jobs_are_three_samples() -> None:
    told = story(
        '  - {trigger: metric, name: max.sim-pending, when: "> 1e9", action: {name: log, message: x}}'
    )
    told.start()
    told.job("sim.0", "submit")
    told.wait(50 * 30)
    assert told.engine.state.metrics.series["sim", "pending"].count == 0
    told.engine.handle(TimerElapsed(told.now, "heartbeat"))
    assert told.engine.state.rules.index.watches["max.sim-pending"].last == pytest.approx(1500)


def test_jobs_cancelled_before_they_start_are_counted_and_forgotten() -> None:
    told = story("")
    told.start()
    for number in range(3):
        told.job(f"sim.{number}", "submit")
        told.cancel(f"sim.{number}")
    assert told.metric("count.sim.cancelled") == 3
    assert told.engine.state.table.records == {}
    assert told.exit_code == 0


def test_durations_of_failures_do_not_mix_with_those_of_successes() -> None:
    told = story(
        '  - {trigger: metric, name: mean.sim-duration.success, when: "> 1e9", action: {name: log, message: x}}'
    )
    told.start()
    told.play("sim.0", duration=10)
    told.play("sim.1", duration=1000, status=256)
    assert told.metric("mean.sim-duration.success") == pytest.approx(10)


def test_terminate_leaves_no_job_running() -> None:
    told = story("  - {trigger: job-finish, action: {name: terminate}}")
    told.start()
    told.begin("sim.0")
    told.begin("sim.1")
    told.job("sim.0", "finish", status=0)
    (end,) = (one for one in told.decisions if isinstance(one, Terminate))
    assert end.cancel == ("sim.1", "sim.2")


def test_failures_set_the_exit_code_and_the_run_ends() -> None:
    told = story("", count=1)
    told.start()
    told.play("sim.0", status=256)
    assert told.exit_code == 1


def test_import_installs_no_signal_handler_and_needs_no_queue(tmp_path: Path) -> None:
    code = (
        "import signal\n"
        "before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]\n"
        "import ensemble_core, ensemble_core.runtime.controller, ensemble_core.cli.main\n"
        "from ensemble_core.plugin.discovery import discover\n"
        "discover()\n"
        "assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=150)


def test_an_endless_loop_of_rules_is_cut() -> None:
    told = story(
        "  - {id: it, trigger: metric, name: count.sim.submitted, repetitions: 1000000, "
        "action: {name: submit, label: sim}}"
    )
    decided = told.start()
    assert any(isinstance(one, Log) and "triggered each other" in one.message for one in decided)
    assert len(told.submitted()) <= 3 * 101


def test_cancel_of_the_events_job_cancels_only_that_job() -> None:
    told = story("  - {trigger: job-start, when: index == 1, action: {name: cancel}}")
    told.start()
    told.begin("sim.0")
    decided = told.begin("sim.1")
    assert [one.jobs for one in decided if isinstance(one, Cancel)] == [("sim.1",)]
