"""``STAT.NAME`` in conditions and messages, and the triggers job-done and job-lost."""

from __future__ import annotations

from ensemble_testing import Story

from ensemble_core.journal.event_encoding import decisions_text

GROUPS = """
jobs:
  - {name: sim, command: sim, count: 2, observe: {json-lines: {fields: [E]}}}
  - {name: post, command: post}
"""


def story(rules: str, submit: str = "sim") -> Story:
    told = Story(
        f"{GROUPS}\nrules:\n  - {{trigger: start, action: {{name: submit, label: {submit}}}}}\n{rules}"
    )
    told.start()
    return told


def test_a_statistic_covers_only_the_events_job() -> None:
    told = story(
        """
  - {trigger: observed, name: sim, repetitions: 9, when: max.E > 3 and count.submitted == 1,
     action: {name: log, message: "{job}: {max.E} {last.E:.1f} {count.open}"}}
"""
    )
    told.begin("sim.0")
    told.begin("sim.1")
    told.observe("sim.0", E=5.0)
    told.observe("sim.1", E=1.0)
    told.observe("sim.0", E=2.0)
    assert told.messages() == ["sim.0: 5 5.0 1", "sim.0: 5 2.0 1"]


def test_nan_and_infinity_are_in_no_statistic() -> None:
    told = story(
        """
  - {trigger: observed, name: sim, repetitions: 9, action: {name: log, message: "{mean.E}"}}
"""
    )
    told.begin("sim.0")
    for value in (1.0, float("nan"), float("inf"), 3.0):
        told.observe("sim.0", E=value)
    assert told.messages() == ["1", "1", "1", "2"]


def test_a_column_with_the_whole_name_takes_precedence() -> None:
    told = Story(
        """
jobs: [{name: sim, command: sim, observe: {json-lines: {}}}]
rules:
  - {trigger: start, action: {name: submit}}
  - {trigger: observed, when: max.E > 3, action: {name: log, message: "{max.E}"}}
"""
    )
    told.start()
    told.begin("sim.0")
    told.observe("sim.0", {"E": 7.0, "max.E": 1.0})
    told.observe("sim.0", {"E": 7.0, "max.E": 4.0})
    assert told.messages() == ["4"]


def test_a_job_is_done_or_lost_after_its_last_event_with_its_columns() -> None:
    told = story(
        """
  - {trigger: job-done, name: sim, when: last.duration == 3, action: {name: log, message: "{job} done {mean.E}"}}
  - {trigger: job-lost, name: sim, action: {name: log, message: "{job} lost: {cause}"}}
"""
    )
    told.begin("sim.0")
    told.observe("sim.0", E=4.0)
    told.job("sim.0", "finish", after=3, status=0)
    assert told.messages() == []
    told.job("sim.0", "clean")
    assert told.messages() == ["sim.0 done 4"]
    told.play("sim.1", status=256)
    assert told.messages() == ["sim.0 done 4", "sim.1 lost: exit"]
    assert told.exit_code == 0, "somebody concerned himself with the failure"


def test_idle_on_a_group_has_the_groups_statistics() -> None:
    told = story(
        """
  - {trigger: idle, name: sim, when: count.done >= 2 and mean.E > 2,
     action: {name: log, message: "{count.done} done, mean {mean.E:.2f}"}}
"""
    )
    told.begin("sim.0")
    told.begin("sim.1")
    told.observe("sim.0", E=4.0)
    told.observe("sim.1", E=3.0)
    told.end("sim.0")
    assert told.messages() == []
    told.end("sim.1")
    assert told.messages() == ["2 done, mean 3.50"]


def test_idle_fires_from_the_narrowest_scope_to_the_whole_run() -> None:
    told = story(
        """
  - {id: run, trigger: idle, action: {name: log, message: run}}
  - {id: both, trigger: idle, name: [sim, post], action: {name: log, message: both}}
  - {id: sim, trigger: idle, name: sim, action: {name: submit, label: post}}
"""
    )
    told.play("sim.0")
    told.play("sim.1")
    assert told.fired() == ["rule-1", "sim"], "the group's submit leaves the wider ones waiting"
    told.play("post.0")
    assert told.fired() == ["rule-1", "sim", "both", "run"]
    assert told.exit_code == 0


def test_an_idle_rule_is_considered_again_at_the_next_idle_state() -> None:
    told = story(
        """
  - {id: more, trigger: job-done, name: sim, when: index == 1, action: {name: submit, label: sim}}
  - {id: over, trigger: idle, name: sim, when: count.done >= 4, action: {name: log, message: over}}
"""
    )
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        told.play(job)
    assert told.fired() == ["rule-1", "more", "over"]


def test_an_idle_rule_that_the_last_job_enables_fires() -> None:
    told = story(
        """
  - {id: late, trigger: idle, name: sim, enabled: false, action: {name: log, message: late}}
  - {trigger: job-done, name: sim, when: index == 1, action: {name: enable, rules: [late]}}
"""
    )
    told.play("sim.0")
    assert told.messages() == []
    told.play("sim.1")
    assert told.messages() == ["late"]


def test_an_idle_rule_for_a_finished_group_fires_at_the_next_end_of_a_job() -> None:
    told = Story("""
jobs: [{name: a, command: x}, {name: b, command: x, count: 3}]
rules:
  - {trigger: start, action: [{name: submit, label: a}, {name: submit, label: b}]}
  - {id: late, trigger: idle, name: a, enabled: false, action: {name: log, message: late}}
  - {trigger: job-start, name: b, when: index == 1, action: {name: enable, rules: [late]}}
  - {trigger: idle, name: b, action: {name: log, message: over}}
""")
    told.start()
    told.play("a.0")
    told.play("b.0")
    told.begin("b.1")
    assert told.messages() == []
    told.begin("b.2")
    told.end("b.2")
    assert told.messages() == ["late"]
    told.end("b.1")
    assert told.messages() == ["late", "over"]


def test_a_metric_rule_has_the_statistics_of_its_group() -> None:
    told = story(
        """
  - {trigger: metric, name: count.sim.done, when: value == 2 and max.E == 4,
     action: {name: log, message: "{min.E}"}}
"""
    )
    for job, value in (("sim.0", 3.0), ("sim.1", 4.0)):
        told.begin(job)
        told.observe(job, E=value)
        told.end(job)
    assert told.messages() == ["3"]


def test_functions_get_statistics_in_a_fixed_order() -> None:
    """The order of a set would differ between processes."""
    names = ["count.active", "count.done", "count.failed", "count.open", "count.submitted"]
    told = story(
        f"""
  - {{trigger: job-finish, name: sim, when: {" + ".join(names)} > 0, action: {{name: custom, label: f}}}}
custom: |
  def f(**_): ...
"""
    )
    told.begin("sim.0")
    text = decisions_text(told.job("sim.0", "finish", status=0))
    assert sorted(names, key=text.index) == names
