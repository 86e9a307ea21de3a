"""Tests of triggers: rows of thermo output, and converged replicas."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
from ensemble_lammps.program import ensemble_triggers
from ensemble_testing import Story, TriggerContract

from ensemble_core import EnsembleError, JobEvent, Observed

THERMO, CONVERGED = ensemble_triggers()

MELT = """
jobs:
  - name: melt
    command: lmp -in in.melt -var T {T}
    parameters: {T: [1.0, 2.0]}
    workdir: runs/{index}
    observe: {lammps: {}}
rules:
  - {trigger: start, action: {name: submit, label: melt}}
  - {id: hot, trigger: lammps-thermo, name: melt, when: "WHEN", action: {name: cancel}}
"""
REPLICAS = """
jobs:
  - name: melt
    command: lmp -in in.melt
    count: 3
    workdir: runs/{index}
    observe: {lammps: {converged: {Temp: {error: 0.01}}}}
rules:
  - {trigger: start, action: {name: submit, label: melt}}
  - {id: enough, trigger: lammps-converged, name: melt, replicas: 2, action: {name: terminate}}
"""


def row(observer: str = "lammps", **values: float) -> Observed:
    return Observed(5.0, "melt.0", observer, values, 100.0)


class TestThermo(TriggerContract):
    plugin = THERMO
    name = "melt"
    matching: ClassVar = [
        row(Step=10.0, Temp=1.2),
        row(Temp=1.2),
        row(Step=10.0, Temp=math.nan, NonFinite=1.0),
        row("ensemble-lammps:lammps", Temp=1.2),
        row(Atoms=500.0),
    ]
    rejected: ClassVar = [
        row(LoopTime=1.0, LoopSteps=10.0, StepsPerSecond=10.0),
        row(LoopTime=1.0, Atoms=500.0, Ranks=2.0, NsPerDay=3.0),
        row(WallTime=1.0),
        row(Errors=1.0),
        row("json-lines", Temp=1.2),
        JobEvent(5.0, "melt.0", "finish", {"status": 0}),
    ]


class TestConverged(TriggerContract):
    plugin = CONVERGED
    name = "melt"
    options: ClassVar = {"replicas": 2}
    bad_options: ClassVar = [{"replicas": 0}, {"replicas": "all"}]
    matching: ClassVar = [
        (row(Converged=1.0), {"value": 2.0}),
        (row(Converged=1.0), {"value": 3.0}),
    ]
    rejected: ClassVar = [(row(Converged=1.0), {"value": 1.0}), (row(Converged=-1.0), {})]


def melt(when: str) -> Story:
    story = Story(MELT.replace("WHEN", when))
    story.start()
    story.begin("melt.0")
    story.begin("melt.1")
    return story


def test_a_job_that_runs_hot_is_cancelled_and_no_other() -> None:
    story = melt("Temp > 2 * T")
    assert story.fired(story.observe("melt.1", observer="lammps", Step=10, Temp=2.5)) == []
    (fired, cancel) = story.observe("melt.0", observer="lammps", Step=10, Temp=2.5)
    assert fired.to_dict()["job"] == "melt.0"
    assert cancel.to_dict()["jobs"] == ["melt.0"]


def test_a_condition_can_test_for_values_that_are_not_numbers() -> None:
    story = melt("isnan(PotEng)")
    story.observe("melt.1", observer="lammps", Step=10, PotEng=-5.0)
    assert story.fired() == ["rule-1"]
    story.observe("melt.1", observer="lammps", Step=20, PotEng=math.nan, NonFinite=1.0)
    assert story.fired() == ["rule-1", "hot"]


def test_a_condition_can_use_columns_with_an_index() -> None:
    story = melt("c_msd[4] > 0.5")
    story.observe("melt.1", {"Step": 10, "c_msd[4]": 0.7}, observer="lammps")
    assert story.fired() == ["rule-1", "hot"]


def test_the_end_of_a_run_is_not_a_row() -> None:
    story = melt("index >= 0")
    story.observe("melt.0", observer="lammps", LoopTime=5.0)
    story.observe("melt.0", observer="json-lines", Temp=5.0)
    assert story.fired() == ["rule-1"]


def test_the_trigger_needs_the_observer() -> None:
    with pytest.raises(EnsembleError, match=r"observe: \{lammps: \{\}\}"):
        Story(MELT.replace("WHEN", "Temp > 1").replace("observe: {lammps: {}}", "nodes: 1"))


def replicas() -> Story:
    story = Story(REPLICAS)
    story.start()
    for index in range(3):
        story.begin(f"melt.{index}")
    return story


def test_two_converged_replicas_are_enough() -> None:
    story = replicas()
    story.observe("melt.0", observer="lammps", Step=10, Converged=1.0)
    story.observe("melt.1", observer="lammps", Step=10, Temp=1.0)
    assert story.exit_code is None
    story.observe("melt.2", observer="lammps", Step=10, Converged=1.0)
    assert story.fired()[-1] == "enough"
    assert story.exit_code == 0


def test_a_replica_that_stops_being_converged_does_not_count() -> None:
    story = replicas()
    for mark in (1.0, -1.0):
        story.observe("melt.0", observer="lammps", Step=10, Converged=mark)
    story.observe("melt.1", observer="lammps", Step=10, Converged=1.0)
    assert story.exit_code is None
    story.observe("melt.0", observer="lammps", Step=20, Converged=1.0)
    assert story.exit_code == 0


def test_converged_needs_an_observer_with_that_option() -> None:
    with pytest.raises(EnsembleError, match="Converged") as caught:
        Story(REPLICAS.replace("converged: {Temp: {error: 0.01}}", ""))
    assert "converged" in str(caught.value)


def test_converged_needs_a_group() -> None:
    with pytest.raises(EnsembleError, match="name: GROUP"):
        Story(REPLICAS.replace("lammps-converged, name: melt", "lammps-converged"))


@pytest.mark.parametrize("when", ["LoopTime > 10", "Temp > 5 and Warnings > 3", "NsPerDay < 1"])
def test_a_condition_on_names_that_thermo_rows_never_have_is_rejected(when: str) -> None:
    with pytest.raises(EnsembleError, match="is not a field of 'lammps-thermo' events") as caught:
        melt(when)
    assert "trigger: observed" in str(caught.value)
    Story(MELT.replace("lammps-thermo", "observed").replace("WHEN", when))


def test_a_condition_may_use_the_names_of_thermo_rows() -> None:
    story = melt("NonFinite > 0")
    nan = {"Temp": math.nan, "NonFinite": 1.0}
    assert story.fired(story.observe("melt.0", nan, observer="lammps")) == ["hot"]
