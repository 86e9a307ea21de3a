"""Rules with ``each``: separate counters for each job or each combination of parameters."""

from __future__ import annotations

from ensemble_testing import Story

from ensemble_core.model.decisions import Call, Cancel, Fired
from ensemble_core.model.events import CallReturned

GROUPS = """
jobs:
  - name: sim
    command: "sim {T} {seed}"
    parameters: {T: [1, 2], seed: [1, 2]}
    observe: {json-lines: {fields: [E]}}
  - {name: post, command: "post {T}", parameters: {T: [1, 2]}}
"""


def story(rules: str, submit: str = "{name: submit, label: sim}") -> Story:
    told = Story(f"{GROUPS}\nrules:\n  - {{trigger: start, action: {submit}}}\n{rules}")
    told.start()
    return told


def test_each_job_has_separate_repetitions_and_backoff() -> None:
    told = story(
        """
  - {id: hot, trigger: observed, name: sim, each: job, repetitions: 2, backoff: 1, when: E > 3,
     action: {name: log, message: "{job} {E}"}}
"""
    )
    told.begin("sim.0")
    told.begin("sim.1")
    for value in (4.0, 5.0, 6.0, 7.0, 8.0):
        told.observe("sim.0", E=value)
    told.observe("sim.1", E=4.5)
    assert told.messages() == ["sim.0 4", "sim.0 6", "sim.1 4.5"]


def test_each_slice_has_separate_counters_and_statistics() -> None:
    told = story(
        """
  - {id: far, trigger: observed, name: sim, each: [T], when: mean.E > 3 and count.submitted == 2,
     action: {name: log, message: "T={T}: {mean.E:.2f}"}}
"""
    )
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):  # T: 1 1 2 2
        told.begin(job)
    told.observe("sim.0", E=1.0)
    told.observe("sim.2", E=4.0)
    told.observe("sim.3", E=9.0)
    told.observe("sim.1", E=9.0)
    assert told.messages() == ["T=2: 4.00", "T=1: 5.00"]
    fired = [one.each for one in told.decisions if isinstance(one, Fired) and one.rule == "far"]
    assert fired == [{"T": 2}, {"T": 1}]


def test_a_slice_is_idle_before_its_group() -> None:
    told = story(
        """
  - {id: group, trigger: idle, name: sim, action: {name: log, message: group}}
  - {id: poor, trigger: idle, name: sim, each: [T], when: count.done < 2,
     action: {name: log, level: warning, message: "T = {T}: {count.lost} lost"}}
  - {id: good, trigger: idle, name: sim, each: [T], when: count.done >= 2,
     action: {name: log, message: "T = {T}: mean {mean.E:.1f}"}}
"""
    )
    for job, value in (("sim.2", 2.0), ("sim.3", 3.0)):
        told.begin(job)
        told.observe(job, E=value)
        told.end(job)
    assert told.messages() == ["T = 2: mean 2.5"]
    told.play("sim.0")
    told.play("sim.1", status=256)
    assert told.messages() == ["T = 2: mean 2.5", "T = 1: 1 lost", "group"]


def test_an_added_rule_counts_earlier_jobs_of_its_slice() -> None:
    told = Story(
        """
jobs: [{name: sim, command: "sim {T}", parameters: {T: [1, 2]}, count: 3}]
rules:
  - {trigger: start, action: [{name: submit}, {name: custom, label: more}]}
  - {trigger: job-done, name: sim, each: [T], when: mean.duration > 99, action: {name: log, message: x}}
custom: |
  def more(**_): ...
"""
    )
    (call,) = [one for one in told.start() if isinstance(one, Call)]
    told.play("sim.0")
    told.play("sim.1", status=256)
    shown = (
        "T={T}: {count.done} done, {count.lost} lost, {count.open} open; "
        "{count.active} of {count.submitted} active, {count.failed} failed"
    )
    told.tell(
        CallReturned(
            told.now,
            call.call,
            (
                {
                    "rule": {
                        "trigger": "job-done",
                        "name": "sim",
                        "each": ["T"],
                        "action": {"name": "log", "message": shown},
                    }
                },
            ),
        )
    )
    told.play("sim.2")
    told.play("sim.4")
    assert told.messages() == [
        "T=1: 2 done, 1 lost, 0 open; 0 of 3 active, 1 failed",
        "T=2: 1 done, 0 lost, 2 open; 2 of 3 active, 0 failed",
    ]


def test_an_unlimited_rule_fires_each_time_the_slice_becomes_idle() -> None:
    told = Story(
        """
limits: {jobs: 40}
jobs: [{name: sim, command: "sim {T}", parameters: {T: [1, 2]}}]
rules:
  - {trigger: start, action: {name: submit}}
  - {id: more, trigger: idle, name: sim, each: [T], repetitions: unlimited, when: count.done < 3,
     action: {name: submit, label: sim, with: {parameters: {T: 2}}}}
"""
    )
    told.start()
    told.play("sim.0")  # T = 1 is idle: submits sim.2 with T = 2
    assert told.submitted() == ["sim.0", "sim.1", "sim.2"]
    told.play("sim.1")
    told.play("sim.2")  # T = 2 is idle, and fewer than three are done
    told.play("sim.3")  # three are done
    assert told.submitted() == ["sim.0", "sim.1", "sim.2", "sim.3"]
    assert told.exit_code == 0


def test_cancel_in_a_slice_cancels_its_jobs_and_those_with_the_same_values() -> None:
    told = story(
        """
  - {id: stop, trigger: observed, name: sim, each: [T], when: E > 3,
     action: [{name: cancel, label: sim}, {name: cancel, label: post}]}
""",
        "{name: submit}",
    )
    told.begin("sim.2")
    told.observe("sim.2", E=9.0)
    cancelled = [job for one in told.decisions if isinstance(one, Cancel) for job in one.jobs]
    assert cancelled == ["sim.2", "sim.3", "post.1"]


def test_cancel_of_the_group_in_an_instance_of_a_job_cancels_only_that_job() -> None:
    told = story(
        "  - {trigger: observed, name: sim, each: job, when: E > 3, action: {name: cancel, label: sim}}"
    )
    told.begin("sim.2")
    told.observe("sim.2", E=9.0)
    assert [one.jobs for one in told.decisions if isinstance(one, Cancel)] == [("sim.2",)]


def test_jobs_without_the_parameter_are_in_no_slice_with_one_warning() -> None:
    told = story(
        """
  - {trigger: job-done, name: sim, each: [seed], repetitions: 9, action: {name: log, message: "{seed}"}}
""",
        "{name: submit, label: sim, with: {command: sim, parameters: {T: [1, 2], seed: null}}}",
    )
    told.play("sim.0")
    told.play("sim.1")
    assert len(told.messages()) == 1
    assert "sim.0 has no parameter seed" in told.messages()[0]


def test_a_condition_must_hold_at_consecutive_looks() -> None:
    told = story(
        """
  - {id: late, trigger: interval, seconds: 10, for: 3, when: metric("count.sim.active") > 3,
     action: {name: log, message: late}}
"""
    )
    told.wait(25)  # holds at two checks
    told.play("sim.0")
    told.wait(10)  # does not hold at the third
    assert told.messages() == []
    told = story(
        """
  - {id: late, trigger: interval, seconds: 10, for: 3, when: metric("count.sim.active") > 3,
     action: {name: log, message: late}}
"""
    )
    told.wait(29)
    assert told.messages() == []
    told.wait(2)
    assert told.messages() == ["late"]


def test_looks_of_a_metric_rule_count_updates() -> None:
    told = story(
        """
  - {id: high, trigger: metric, name: last.sim-E, for: 3, when: "> 5", action: {name: log, message: "{value}"}}
"""
    )
    told.begin("sim.0")
    for value in (6.0, 7.0, 1.0, 8.0, 9.0, 10.0):
        told.observe("sim.0", E=value)
    assert told.messages() == ["10"]


def test_a_chain_cuts_only_its_instance() -> None:
    told = Story(
        """
limits: {chain: 3}
jobs: [{name: sim, command: "sim {T}", parameters: {T: [1, 2]}}]
rules:
  - {trigger: start, action: {name: submit}}
  - {id: loop, trigger: job-submit, name: sim, each: [T], repetitions: unlimited, when: T == 1,
     action: {name: submit, label: sim, with: {parameters: {T: 1}}}}
"""
    )
    told.start()
    for number in range(0, 8, 1):
        job = f"sim.{number}"
        if job in told.engine.state.table.records:
            told.job(job, "submit")
    state = told.engine.state.rules.states["loop"]
    assert state.live, "only the instance of T = 1 is cut"
    assert len(told.submitted()) == 4
    assert "switched off" in told.messages()[0]
