"""Rules on job events: the jobs that trigger them, repetitions, backoff and order."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.engine.job_states import OUTCOME_EVENTS, TRANSITIONS, events_of
from ensemble_core.model.decisions import Call, Cancel, Decision, Log, SetGroup, Submit, Terminate
from ensemble_core.model.events import CallReturned

GROUPS = """
jobs:
  - {name: lammps, command: lmp, count: 2}
  - {name: amg, command: amg}
"""


def story(rules: str, head: str = GROUPS) -> Story:
    return Story(
        f"{head}\nrules:\n  - {{trigger: start, action: {{name: submit, label: lammps}}}}\n{rules}"
    )


def test_start_fires_once_and_submits_count_jobs() -> None:
    told = story("")
    assert told.submitted(told.start()) == ["lammps.0", "lammps.1"]


def test_a_job_rule_sees_only_jobs_of_its_group() -> None:
    told = story(
        """
  - {id: more, trigger: job-finish, name: lammps, action: {name: submit, label: amg, repetitions: 9}}
"""
    )
    told.start()
    assert told.submitted(told.play("lammps.0")) == ["amg.0"]
    assert told.submitted(told.play("amg.0")) == []
    assert told.submitted(told.play("lammps.1")) == ["amg.1"]


def test_a_rule_without_a_group_sees_all_our_jobs_but_no_foreign_ones() -> None:
    told = story(
        "  - {id: any, trigger: job-finish, repetitions: 9, action: {name: log, message: seen}}"
    )
    told.start()
    told.job("f23", "submit", "alloc", "start", "finish", "clean", ours=False, status=0)
    assert told.fired() == ["rule-1"]
    told.play("lammps.0")
    assert told.fired() == ["rule-1", "any"]


def test_scope_queue_sees_foreign_jobs() -> None:
    told = story(
        """
  - {id: any, trigger: job-finish, scope: queue, repetitions: 9, action: {name: log, message: x}}
"""
    )
    told.start()
    told.job("f23", "submit", "start", "finish", "clean", ours=False, status=0)
    assert told.fired() == ["rule-1", "any"]
    told.play("lammps.0")
    assert told.fired() == ["rule-1", "any", "any"]


LIFE = ("submit", "validate", "depend", "priority", "alloc", "start")


@pytest.mark.parametrize(
    ("trigger", "fires"),
    [
        ("job-success", ["f1"]),
        ("job-fail", ["f2", "f4"]),
        ("job-cancel", ["f3", "f5"]),
        ("job-sched", ["f1", "f2", "f3", "f4", "f5"]),
        ("job-run", ["f1", "f2", "f3"]),
        ("job-cleanup", ["f1", "f2", "f3"]),
        ("job-inactive", ["f1", "f2", "f3", "f4", "f5"]),
    ],
)
def test_foreign_jobs_have_the_derived_triggers_of_our_jobs(trigger: str, fires: list[str]) -> None:
    rule = "scope: queue, repetitions: 99, action: {name: log, message: '{job}'}"
    told = story(f"  - {{id: any, trigger: {trigger}, {rule}}}")
    told.start()
    fatal = {"severity": 0, "note": ""}

    def live(job: str, *names: str, **context: object) -> None:
        told.job(job, *names, ours=False, **context)

    live("f1", *LIFE, "priority", "finish", "release", "clean", status=0)
    live("f2", *LIFE, "finish", "clean", status=256)
    live("f3", *LIFE)
    live("f3", "exception", type="cancel", **fatal)
    live("f3", "finish", "clean", status=15)
    live("f4", *LIFE[:4])
    live("f4", "exception", type="alloc", **fatal)
    live("f4", "clean")
    live("f5", *LIFE[:4])
    live("f5", "exception", type="cancel", **fatal)
    live("f5", "clean")
    messages = told.messages()
    assert messages == fires


def test_a_condition_may_use_a_foreign_jobs_exit_code() -> None:
    told = story(
        "  - {id: any, trigger: job-fail, scope: queue, when: exit_code == 3,"
        " repetitions: 9, action: {name: log, message: x}}"
    )
    told.start()
    told.job("f1", *LIFE, "finish", "clean", ours=False, status=256)
    assert told.fired() == ["rule-1"]
    told.job("f2", *LIFE, "finish", "clean", ours=False, status=768)
    assert told.fired() == ["rule-1", "any"]


def test_finished_foreign_jobs_are_forgotten() -> None:
    told = story("  - {trigger: job-fail, scope: queue, action: {name: log, message: x}}")
    told.start()
    for number in range(100):
        told.job(f"f{number}", *LIFE, "finish", "clean", ours=False, status=0)
    assert not told.engine.state.foreign_jobs._jobs


def test_a_previous_runs_job_named_like_a_group_is_foreign() -> None:
    told = story("  - {id: any, trigger: job-finish, action: {name: log, message: x}}")
    told.start()
    told.job("lammps.7", "submit", "start", "finish", "clean", status=0)
    assert told.metric("count.lammps.finished") == 0
    assert told.fired() == ["rule-1"]


@pytest.mark.parametrize(
    ("trigger", "event"),
    [
        ("job-submit", "submit"),
        ("job-validate", "validate"),
        ("job-depend", "depend"),
        ("job-priority", "priority"),
        ("job-sched", "priority"),
        ("job-alloc", "alloc"),
        ("job-run", "alloc"),
        ("job-start", "start"),
        ("job-finish", "finish"),
        ("job-cleanup", "finish"),
        ("job-success", "finish"),
        ("job-release", "release"),
        ("job-free", "free"),
        ("job-clean", "clean"),
        ("job-inactive", "clean"),
    ],
)
def test_every_event_and_state_of_a_job_is_a_trigger(trigger: str, event: str) -> None:
    told = story(f"  - {{id: seen, trigger: {trigger}, action: {{name: log, message: x}}}}")
    told.start()
    for name in ("submit", "validate", "depend", "priority", "alloc", "start"):
        decided = told.job("lammps.0", name)
        assert ("seen" in told.fired(decided)) == (name == event)
    for name in ("finish", "release", "free", "clean"):
        decided = told.job("lammps.0", name, status=0)
        assert ("seen" in told.fired(decided)) == (name == event)


def test_the_exit_code_decides_between_job_fail_and_job_success() -> None:
    told = story(
        """
  - {id: bad, trigger: job-fail, name: lammps, repetitions: 9, action: {name: log, message: "{exit_code}"}}
  - {id: good, trigger: job-success, name: lammps, repetitions: 9, action: {name: log, message: ok}}
"""
    )
    told.start()
    decided = told.play("lammps.0", status=3 << 8)
    assert told.fired(decided) == ["bad"]
    assert [one.message for one in decided if isinstance(one, Log)] == ["3"]
    assert told.fired(told.play("lammps.1")) == ["good"]


def test_a_signal_has_the_exit_code_of_a_shell() -> None:
    told = story(
        "  - {id: killed, trigger: job-fail, when: exit_code == 137, action: {name: log, message: x}}"
    )
    told.start()
    assert told.fired(told.play("lammps.0", status=9)) == ["killed"]


def test_a_job_cancelled_before_it_starts_counts_as_cancelled() -> None:
    told = story("  - {id: seen, trigger: job-cancel, action: {name: log, message: x}}")
    told.start()
    told.job("lammps.0", "submit", "validate", "depend", "priority")
    assert told.fired(told.cancel("lammps.0")) == ["seen"]
    assert told.metric("count.lammps.cancelled") == 1
    assert told.metric("count.lammps.finished") == 0
    assert told.engine.state.active() == ["lammps.1"]


def test_a_job_cancelled_while_it_runs_is_not_a_failure() -> None:
    told = story("  - {id: bad, trigger: job-fail, action: {name: log, message: x}}")
    told.start()
    told.begin("lammps.0")
    told.cancel("lammps.0")
    assert told.metric("count.lammps.failed") == 0
    assert told.metric("count.lammps.cancelled") == 1
    assert "bad" not in told.fired()


def test_a_finish_without_a_start_is_counted() -> None:
    told = story("")
    told.start()
    told.job("lammps.0", "submit")
    told.job("lammps.0", "finish", "clean", status=256)
    assert told.metric("count.lammps.failed") == 1
    assert told.metric("mean.lammps-duration") is None


def test_duplicate_events_change_nothing() -> None:
    told = story(
        "  - {id: seen, trigger: job-finish, repetitions: 9, action: {name: submit, label: amg}}"
    )
    told.start()
    told.begin("lammps.0")
    told.job("lammps.0", "start", "start")
    told.job("lammps.0", "finish", "finish", status=0)
    told.job("lammps.0", "clean", "clean", "finish")
    assert told.fired().count("seen") == 1
    assert told.metric("count.lammps.finished") == 1


def test_an_exhausted_rule_leaves_the_index() -> None:
    told = story(
        "  - {id: twice, trigger: job-finish, repetitions: 2, action: {name: submit, label: lammps}}"
    )
    told.start()
    for number in range(4):
        told.play(f"lammps.{number}")
    assert told.fired().count("twice") == 2
    assert "job-finish" not in told.engine.state.rules.index.by_event


@pytest.mark.parametrize(
    ("rule", "action", "fires"),
    [
        ("repetitions: 3, backoff: 2", "", [True, False, False, True, False, False, True]),
        # As in ensemble-python.
        ("name: lammps", ", repetitions: 3, backoff: 1", [True, False, True, False]),
        ("repetitions: 9, backoff: 30s", "", [True, False, False, True, False]),
    ],
    ids=["further matches", "on the action", "seconds"],
)
def test_backoff_skips_matches(rule: str, action: str, fires: list[bool]) -> None:
    told = story(
        f"  - {{id: each, trigger: job-finish, {rule}, action: {{name: log, message: x{action}}}}}",
        f"jobs: [{{name: lammps, command: lmp, count: {len(fires)}}}]",
    )
    told.start()
    played = [told.play(f"lammps.{number}", duration=10) for number in range(len(fires))]
    assert ["each" in told.fired(decided) for decided in played] == fires


def test_rules_on_one_event_fire_in_file_order() -> None:
    told = story(
        """
  - {id: a, trigger: job-success, action: {name: log, message: x}}
  - {id: b, trigger: job-finish, action: {name: log, message: x}}
  - {id: c, trigger: metric, name: count.lammps.success, action: {name: log, message: x}}
  - {id: d, trigger: job-success, name: lammps, action: {name: log, message: x}}
"""
    )
    told.start()
    assert told.fired(told.play("lammps.0")) == ["c", "a", "b", "d"]


def test_nothing_is_submitted_after_terminate_not_even_by_the_same_event() -> None:
    told = story(
        """
  - {trigger: job-finish, action: [{name: terminate, exit_code: 3}, {name: submit, label: amg}]}
  - {trigger: job-finish, action: {name: submit, label: amg}}
"""
    )
    told.start()
    told.begin("lammps.0")
    decided = told.job("lammps.0", "finish", status=0)
    assert told.submitted(decided) == []
    assert isinstance(decided[-1], Terminate)
    assert decided[-1].cancel == ("lammps.1",)
    assert told.exit_code == 3
    assert told.job("lammps.0", "clean") == []


def test_terminate_may_leave_jobs_alone() -> None:
    told = story("  - {trigger: job-finish, action: {name: terminate, cancel: false}}")
    told.start()
    told.begin("lammps.0")
    decided = told.job("lammps.0", "finish", status=0)
    assert isinstance(decided[-1], Terminate)
    assert decided[-1].cancel == ()


def test_cancel_without_a_label_cancels_the_events_job() -> None:
    told = story(
        "  - {trigger: job-start, when: index == 1, repetitions: 1, action: {name: cancel}}"
    )
    told.start()
    assert told.begin("lammps.0") == []
    assert Cancel(rule="rule-2", firing=2, jobs=("lammps.1",)) in told.begin("lammps.1")


def test_cancel_with_a_label_cancels_the_whole_group() -> None:
    told = story("  - {trigger: job-start, action: {name: cancel, label: lammps}}")
    told.start()
    decided = told.begin("lammps.0")
    assert [one.jobs for one in decided if isinstance(one, Cancel)] == [("lammps.0", "lammps.1")]


def test_submit_with_overrides_changes_the_resources_of_its_jobs() -> None:
    told = story(
        """
  - {trigger: job-success, action: {name: submit, label: amg, with: {tasks: 8, count: 2}}}
  - {trigger: job-success, action: {name: submit, label: amg}}
"""
    )
    told.start()
    decided = told.play("lammps.0")
    jobs = [job for one in decided if isinstance(one, Submit) for job in one.jobs]
    assert [(job.id, job.tasks) for job in jobs] == [("amg.0", 8), ("amg.1", 8), ("amg.2", 1)]


def test_set_changes_a_group_for_later_submits() -> None:
    told = story(
        """
  - {trigger: job-success, action: [{name: set, label: amg, with: {tasks: 8}}, {name: submit, label: amg}]}
"""
    )
    told.start()
    decided = told.play("lammps.0")
    assert any(isinstance(one, SetGroup) for one in decided)
    assert [job.tasks for one in decided if isinstance(one, Submit) for job in one.jobs] == [8]


def test_two_rules_that_set_a_field_at_one_event_cause_a_warning() -> None:
    told = story(
        """
  - {id: one, trigger: job-success, repetitions: 9, action: {name: set, label: amg, with: {tasks: 8, environment: {A: b}}}}
  - {id: two, trigger: job-success, repetitions: 9, action: {name: set, label: amg, with: {tasks: 4, environment: {B: b}}}}
  - {id: same, trigger: job-success, action: {name: set, label: amg, with: {tasks: 4}}}
"""
    )
    told.start()
    (warning,) = (one for one in told.play("lammps.0") if isinstance(one, Log))
    assert warning.message == (
        "amg: rule 'one' sets tasks to 8, and rule 'two' sets it to 4 at the same event: the last "
        "one holds"
    )
    assert not [one for one in told.play("lammps.1") if isinstance(one, Log)]


def test_rules_can_be_enabled_and_disabled_while_running() -> None:
    told = story(
        """
  - {id: later, trigger: job-success, enabled: false, repetitions: 9, action: {name: log, message: x}}
  - {trigger: job-start, action: {name: enable, rules: later}}
  - {trigger: job-success, when: index == 0, action: {name: disable, rules: [later]}}
"""
    )
    told.start()
    assert "later" in told.fired(told.play("lammps.0"))
    assert "later" not in told.fired(told.play("lammps.1"))


def test_a_rule_disabled_by_an_earlier_rule_on_the_same_event_does_not_fire() -> None:
    told = story(
        """
  - {id: first, trigger: job-success, when: index == 0, action: {name: disable, rules: [second]}}
  - {id: second, trigger: job-success, repetitions: 9, action: {name: log, message: x}}
  - {id: again, trigger: job-start, when: index == 1, action: {name: enable, rules: [second]}}
"""
    )
    told.start()
    assert told.fired(told.play("lammps.0")) == ["first"]
    assert told.fired(told.play("lammps.1")) == ["again", "second"]


def test_events_of_lists_every_event_that_can_cause_a_trigger_event() -> None:
    """The engine skips all other events."""
    for name, step in TRANSITIONS.items():
        for match in (*step.trigger_events, *step.moving):
            assert name in events_of(match), (name, match)
    for match in OUTCOME_EVENTS.values():
        assert {"finish", "clean"} <= set(events_of(match))
    assert list(events_of("job-of-a-plugin")) == ["of-a-plugin"]
    assert not list(events_of("heartbeat"))


def test_a_condition_may_use_parameters_of_the_sweep() -> None:
    told = story(
        """
  - {id: hot, trigger: job-success, when: T > 1, repetitions: 9, action: {name: log, message: "{T}"}}
""",
        "jobs: [{name: lammps, command: 'lmp {T}', parameters: {T: [0.5, 1.5]}}]",
    )
    told.start()
    assert told.fired(told.play("lammps.0")) == []
    assert told.fired(told.play("lammps.1")) == ["hot"]


def test_an_observed_row_triggers_rules_with_its_columns() -> None:
    told = story(
        "  - {id: hot, trigger: observed, name: lammps, when: Temp > 2, action: {name: cancel}}",
        """
jobs:
  - {name: lammps, command: lmp, count: 2, observe: {json-lines: {}}}
""",
    )
    told.start()
    told.begin("lammps.0")
    told.begin("lammps.1")
    assert told.observe("lammps.0", Temp=1.0) == []
    decided = told.observe("lammps.1", Temp=3.0)
    assert [one.jobs for one in decided if isinstance(one, Cancel)] == [("lammps.1",)]


def test_a_function_gets_the_job_whose_end_another_function_delayed() -> None:
    told = Story(
        """
jobs: [{name: sim, command: x, count: 2}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-success, name: sim, action: {name: custom, label: look}}
  - {trigger: job-done, name: sim, repetitions: 2, action: {name: custom, label: done}}
custom: |
  def look(**_): ...
  def done(**_): ...
"""
    )
    told.start()
    (look,) = calls(told.play("sim.0"))
    (second,) = calls(told.play("sim.1"))
    (first,) = calls(told.tell(CallReturned(told.now, look.call)))
    assert (look.name, second.name, first.name) == ("look", "done", "done")
    assert [call.event["job"] for call in (look, second, first)] == ["sim.0", "sim.1", "sim.0"]


def calls(decisions: list[Decision]) -> list[Call]:
    return [each for each in decisions if isinstance(each, Call)]
