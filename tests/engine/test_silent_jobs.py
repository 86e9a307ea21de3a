"""Trigger ``silent``: a running, observed job has printed no row for a given time."""

from __future__ import annotations

from ensemble_testing import Story

from ensemble_core.model.decisions import Cancel
from ensemble_core.model.events import Resumed

GROUPS = """
jobs:
  - {name: sim, command: sim, count: 3, observe: {json-lines: {}}}
  - {name: blind, command: blind}
rules:
  - {trigger: start, action: {name: submit}}
"""
HUNG = """
  - {id: hung, trigger: silent, name: sim, seconds: 1m, repetitions: 9,
     action: [{name: log, message: "{job}"}, {name: cancel}]}
"""


def story(rules: str = HUNG) -> Story:
    told = Story(GROUPS + rules)
    told.start()
    return told


def test_a_job_without_a_row_since_its_start_is_silent_and_cancelled() -> None:
    told = story()
    told.begin("sim.0")
    told.wait(59)
    assert told.messages() == []
    told.wait(1)
    assert told.messages() == ["sim.0"]
    assert [one.jobs for one in told.decisions if isinstance(one, Cancel)] == [("sim.0",)]


def test_each_row_restarts_the_clock_and_a_job_is_reported_once_per_attempt() -> None:
    told = story(HUNG.replace(", {name: cancel}", ""))
    told.begin("sim.0")
    for _ in range(5):
        told.wait(50)
        told.observe("sim.0", E=1.0)
    assert told.messages() == []
    told.wait(60)
    assert told.messages() == ["sim.0"]
    told.observe("sim.0", E=1.0)
    told.wait(600)
    assert told.messages() == ["sim.0"]


def test_waiting_ended_and_unobserved_jobs_are_never_silent() -> None:
    told = story(
        "  - {trigger: silent, seconds: 60, repetitions: 9, action: {name: log, message: '{job}'}}"
    )
    told.job("sim.0", "submit", "depend")
    told.play("sim.1", duration=30)
    told.begin("blind.0")
    told.wait(600)
    assert told.messages() == []
    assert told.engine.next_timer() is None


def test_one_timer_per_group_reports_each_job_in_time() -> None:
    told = story(HUNG.replace(", {name: cancel}", ""))
    told.begin("sim.0")
    told.wait(20)
    told.begin("sim.1")
    told.wait(20)
    told.begin("sim.2")
    told.observe("sim.0", E=1.0)
    told.wait(39)
    assert told.messages() == []
    told.wait(1)  # sim.1 began 60 s ago
    assert told.messages() == ["sim.1"]
    told.wait(20)  # sim.2 began, and sim.0 printed its row, 60 s ago
    assert told.messages() == ["sim.1", "sim.2", "sim.0"]


def test_rules_with_different_times_are_separate() -> None:
    told = story(
        """
  - {trigger: silent, name: sim, seconds: 30, action: {name: log, message: "short"}}
  - {trigger: silent, name: sim, seconds: 90, action: {name: log, message: "long"}}
"""
    )
    told.begin("sim.0")
    told.wait(40)
    told.observe("sim.0", E=1.0)
    told.wait(89)
    assert told.messages() == ["short"]
    told.wait(1)
    assert told.messages() == ["short", "long"]


def test_a_resume_restarts_the_clock() -> None:
    told = story()
    told.begin("sim.0")
    told.now += 3600
    told.tell(Resumed(told.now, {}))
    told.wait(59)
    assert told.messages() == []
    told.wait(1)
    assert told.messages() == ["sim.0"]
