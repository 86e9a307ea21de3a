"""Tests of the observer: entry point and contract."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar

import ensemble_lammps
from ensemble_testing import ObserverContract

from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import ObserverPlugin
from ensemble_core.plugin.observer import Row

NAN = float("nan")
LOG = b"""LAMMPS (22 Jul 2025)
Per MPI rank memory allocation (min/avg/max) = 3.1 | 3.1 | 3.1 Mbytes
   Step          Temp          v_eper        c_msd[4]     \x20
         0   1.44          -5.03          0            \x20
        10   1.13          -nan           0.1          \x20
Loop time of 0.5 on 1 procs for 10 steps with 108 atoms
Total wall time: 0:00:01
"""
MULTI = b"""Per MPI rank memory allocation (min/avg/max) = 3.1 | 3.1 | 3.1 Mbytes
------------ Step              0 ----- CPU =            0 (sec) -------------
TotEng   =        -4.6334 KinEng   =         2.1400 Temp     =         1.4400\x20
Press    =        -5.0309
------------ Step             10 ----- CPU =  0.000602975 (sec) -------------
TotEng   =        -4.6336 KinEng   =         1.6839 Temp     =         1.1331\x20
Press    =        -2.6265
"""
YAML = b"""---
keywords: ['Step', 'Temp', 'c_msd[4]', ]
data:
  - [0, 1.44, 0, ]
  - [10, 1.13, inf, ]
...
Loop time of 0.5 on 1 procs for 10 steps with 108 atoms
"""


def unasked(options: Mapping[str, Any]) -> Mapping[str, str]:
    assert plugin().unasked is not None
    return plugin().unasked(options)


def plugin() -> ObserverPlugin:
    (record,) = ensemble_lammps.ensemble_observers()
    return record


class TestLammps(ObserverContract):
    plugin = plugin()
    sample = LOG
    rows: ClassVar = [
        Row({"Step": 0, "Temp": 1.44, "v_eper": -5.03, "c_msd[4]": 0}, 0),
        Row({"Step": 10, "Temp": 1.13, "v_eper": NAN, "c_msd[4]": 0.1, "NonFinite": 1}, 10),
        Row({"LoopTime": 0.5, "LoopSteps": 10, "StepsPerSecond": 20, "Atoms": 108}, 10),
        Row({"WallTime": 1}, None),
    ]
    samples = (MULTI, YAML)
    bad_options: ClassVar = [{"log": ""}, {"log": 3}, {"columns": []}, {"columns": "Temp"}]


class TestLammpsWithChosenColumns(ObserverContract):
    plugin = plugin()
    options: ClassVar = {"log": "run.log", "columns": ["Temp", "LoopTime"]}
    sample = LOG
    rows: ClassVar = [
        Row({"Temp": 1.44}, 0),
        Row({"Temp": 1.13}, 10),
        Row({"LoopTime": 0.5}, 10),
    ]


class TestLammpsUntilConverged(ObserverContract):
    plugin = plugin()
    options: ClassVar = {
        "columns": ["Temp"],
        "converged": {"c_msd[4]": {"within": 0.5, "window": 1}},
    }
    sample = LOG
    rows: ClassVar = [
        Row({"Temp": 1.44, "c_msd[4]": 0, "c_msd[4].mean": 0}, 0),
        Row(
            {
                "Temp": 1.13,
                "c_msd[4]": 0.1,
                "c_msd[4].mean": 0.05,
                "c_msd[4].drift": 0.05,
                "Converged": 1,
            },
            10,
        ),
    ]


def test_ensemble_finds_the_plugin_by_its_entry_point() -> None:
    (entry,) = (e for e in entry_points(group="ensemble") if e.name == "lammps")
    assert entry.load() is ensemble_lammps


def test_the_default_log_is_lammps_default() -> None:
    job = Job(id="melt.3", group="melt", index=3, command=("lmp",), parameters={"T": 1.5})
    assert plugin().build(job, {}).path == "log.lammps"
    assert plugin().build(job, {"log": "logs/{T}.{index}.lammps"}).path == "logs/1.5.3.lammps"
    assert plugin().build(job, {"log": None}).path is None


def test_columns_determine_the_possible_metrics_beforehand() -> None:
    variables = plugin().variables
    assert variables is not None
    assert variables({}) is None
    assert variables({"columns": ["Temp"]}) == frozenset({"Temp"})
    converged = {"Press": {"error": 0.1, "within": 0.1, "window": 100}}
    assert variables({"columns": ["Temp"], "converged": converged}) == frozenset(
        {"Temp", "Press", "Press.mean", "Press.error", "Press.drift", "Converged"}
    )


def test_names_that_need_another_option_have_a_hint() -> None:
    assert "'converged'" in unasked({})["Converged"]
    assert "add Temp" in unasked({})["Temp.mean"]
    assert "add Temp" in unasked({"converged": {"Press": {"error": 0.1}}})["Temp.mean"]
    assert "Press a window" in unasked({"converged": {"Press": {"error": 0.1}}})["Press.drift"]
    assert "'columns'" in unasked({"columns": ["Temp"]})["LoopTime"]
    for name in ("LoopTime", "Temp", "c_msd[4]"):
        assert unasked({}).get(name) is None
    asked = {"columns": ["LoopTime"], "converged": {"Press": {"error": 0.1}}}
    for name in ("LoopTime", "Press", "Press.mean", "Converged"):
        assert unasked(asked).get(name) is None
    assert "Converged" in set(unasked({}))
    assert len(unasked({})) == 1
