"""Tests of a simulated study's limits and costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main

STUDY = """
limits: {LIMITS}
jobs:
  - {name: sim, command: ./sim, count: 20, duration: 2h}
  - {name: after, command: ./after, gpus_per_task: 1, count: 2}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: idle, name: sim, action: {name: submit, label: after}}
simulate: {jobs: {sim: 'uniform(30m, 90m)', after: 1h}}
"""


def _simulate(folder: Path, limits: str, *arguments: str, text: str = STUDY) -> Result:
    (folder / "study.yaml").write_text(text.replace("LIMITS", limits))
    machine = ("--cores-per-node", "4", "--gpus-per-node", "1", "--state", str(folder / "state"))
    return CliRunner().invoke(main, ["simulate", str(folder / "study.yaml"), *machine, *arguments])


def _many(folder: Path, limits: str, *arguments: str, text: str = STUDY) -> Any:
    arguments = ("--runs", "30", "--workers", "1", "--json", *arguments)
    result = _simulate(folder, limits, *arguments, text=text)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])["runs"][0]


@pytest.mark.parametrize(
    ("limits", "name", "said"),
    [
        ("jobs: 15", "jobs", "(15) was used up in 100.0% of runs and held jobs temporarily in 0.0%"),
        ("core_hours: 12", "core_hours", "(12) was used up in 100.0% of runs and"),
        ("node_hours: 12", "node_hours", "(12) was used up in 100.0% of runs and"),
        ("gpu_hours: 1", "gpu_hours", "(1) was used up in 100.0% of runs and"),
        ("submits_per_second: 3", "submits_per_second", "(3) held jobs temporarily in 100.0% of runs"),
        ("wall: 2h", "wall", "(2h 00m) was used up in 100.0% of runs"),
    ],
)  # fmt: skip
def test_a_limit_that_applies_is_reported_by_name(
    tmp_path: Path, limits: str, name: str, said: str
) -> None:
    told = _many(tmp_path, limits)
    assert {each: share for each, share in told["limits"].items() if share} == {name: 1.0}
    result = _simulate(tmp_path, limits, "--runs", "3")
    assert f"limits.{name} {said}" in result.stdout


def test_a_limit_that_only_delayed_jobs_was_not_used_up(tmp_path: Path) -> None:
    """The jobs' time limits reserve the whole budget at first, but the jobs end much earlier."""
    text = STUDY.replace("'uniform(30m, 90m)'", "6m")
    told = json.loads(
        _simulate(tmp_path, "core_hours: 12", "--runs", "2", "--json", text=text).stdout
    )["runs"][0]
    assert told["limits"]["core_hours"] == 1.0
    assert told["used_up"]["core_hours"] == 0.0
    result = _simulate(tmp_path, "core_hours: 12", "--runs", "2", text=text)
    said = "limits.core_hours (12) was used up in 0.0% of runs and held jobs temporarily in 100.0%"
    assert said in result.stdout


def test_the_time_limit_of_a_stop_is_not_reported_as_a_limit_of_the_run(
    tmp_path: Path,
) -> None:
    told = _many(tmp_path, "jobs: 15")
    assert set(told["limits"]) == {"jobs", "chain"}
    assert "limits.stop" not in _simulate(tmp_path, "jobs: 15", "--runs", "2").stdout


def test_a_limit_is_used_up_once_the_remaining_jobs_do_not_fit(tmp_path: Path) -> None:
    """Each job takes an hour: after two jobs, half an hour is left."""
    text = STUDY.replace("'uniform(30m, 90m)'", "1h").replace("duration: 2h", "duration: 1h")
    told = _many(tmp_path, "core_hours: 2.5, jobs: 30", text=text)
    assert told["used_up"] == {"jobs": 0.0, "core_hours": 1.0}
    assert told["limits"]["jobs"] == 0.0


def test_a_limit_may_be_reached_in_some_runs_and_another_in_none(tmp_path: Path) -> None:
    """About three of twenty jobs fail and are retried, so a run has about 23 jobs."""
    text = STUDY.replace("duration: 2h", "retry: {times: 1}")
    text = text.replace("'uniform(30m, 90m)'", "{duration: 1h, fail: 0.15}")
    arguments = ("--runs", "40", "--workers", "1", "--json")
    result = _simulate(tmp_path, "jobs: 25, wall: 10d", *arguments, text=text)
    told = json.loads(result.stdout.splitlines()[-1])["runs"][0]
    assert told["limits"]["wall"] == 0
    assert 0.05 < told["limits"]["jobs"] < 0.95
    assert told["limits"]["jobs"] == told["limited"] / 40


def test_distant_limits_are_reported_as_such(tmp_path: Path) -> None:
    result = _simulate(tmp_path, "jobs: 100, wall: 10d", "--runs", "3")
    assert (
        "limits.jobs (100) was used up in 0.0% of runs and held jobs temporarily in 0.0%"
        in result.stdout
    )
    assert "limits.wall (10d" in result.stdout
    assert "limits.chain" not in result.stdout


def test_a_chain_that_is_cut_is_reported(tmp_path: Path) -> None:
    text = """
limits: {chain: 10}
jobs: [{name: a, command: x}]
rules:
  - {id: begin, trigger: start, action: {name: submit, label: a}}
  - {id: more, trigger: job-submit, name: a, repetitions: unlimited, action: {name: submit, label: a}}
simulate: {jobs: {a: 1m}}
"""
    result = _simulate(tmp_path, "", "--runs", "2", text=text)
    assert "limits.chain (10) disabled rules in 100.0% of runs" in result.stdout


@pytest.mark.parametrize("stop", ["keep", "cancel"])
def test_a_runs_time_limit_stops_it(tmp_path: Path, stop: str) -> None:
    text = STUDY + f"\non_stop: {stop}\n"
    result = _simulate(tmp_path, "wall: 100m", "--tag", "one", text=text)
    assert result.exit_code == 5, result.output
    assert "after 1h 40m" in result.stdout
    assert "time limit reached" in result.stdout
    assert "ensemble resume" not in result.output  # a simulated run cannot be resumed


def test_the_cost_of_a_run_has_quantiles_and_is_compared(tmp_path: Path) -> None:
    cost = ("--cost", "2 * core_hours + 10 * gpu_hours + 0 * (jobs + hours + offered_core_hours)")
    told = _many(tmp_path, "jobs: 100", *cost)["quantiles"]
    assert told["GPU-hours"] == [2.0, 2.0, 2.0]
    assert told["node-hours"] == pytest.approx(told["core-hours"])
    assert told["cost"] == pytest.approx([2 * hours + 20 for hours in told["core-hours"]])
    (tmp_path / "other.yaml").write_text(
        STUDY.replace("LIMITS", "").replace("count: 20", "count: 10")
    )
    result = _simulate(
        tmp_path, "", "--runs", "20", "--vs", str(tmp_path / "other.yaml"), *cost, "--json"
    )
    mean, half = json.loads(result.stdout.splitlines()[-1])["difference"]["cost"]
    assert mean + half < -15  # ten jobs fewer, each about one core-hour at a cost of 2
    assert "cost" not in _many(tmp_path, "jobs: 100")["quantiles"]


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        ("2 * core_hour", "did you mean 'core_hours'?"),
        ("2 *", "--cost: "),
        ("1 / (gpu_hours - 2)", "has no finite value for the run with seed 0"),
    ],
)
def test_an_invalid_cost_is_rejected(tmp_path: Path, cost: str, said: str) -> None:
    result = _simulate(tmp_path, "", "--runs", "2", "--cost", cost)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_an_action_that_is_not_carried_out_is_named_after_a_single_run(tmp_path: Path) -> None:
    plugin = tmp_path / "outside.py"
    plugin.write_text("""
from ensemble_core import ActionPlugin, hookimpl


@hookimpl
def ensemble_actions():
    return [ActionPlugin(name="outside", summary="writes a letter", run=lambda context: None)]
""")
    text = """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-success, name: a, action: {name: outside}}
simulate: {jobs: {a: 1m}}
"""
    for more in ((), ("--runs", "2")):
        result = _simulate(tmp_path, "", "--plugin", str(plugin), *more, text=text)
        assert result.exit_code == 0, result.output
        assert "actions not carried out: outside" in result.stdout


BIG = """
logging: {heartbeat: 1m}
jobs: [{name: a, command: x, observe: {json-lines: {fields: [E]}}}]
rules:
  - {id: begin, trigger: start, action: {name: submit, label: a}}
  - {id: now-and-then, trigger: interval, seconds: 60, repetitions: unlimited,
     action: {name: log, message: hm}}
simulate: {jobs: {a: {duration: 1h, rows: {every: 10s, columns: {E: 1}}}}}
"""


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--nodes 1000000000", "--nodes is 1000000000, expected 1000000 at most"),
        ("--max-nodes 1000000000", "--max-nodes is 1000000000, expected 1000000 at most"),
        ("--cores-per-node 1000000000", "--cores-per-node is 1000000000, expected 100000 at most"),
        ("--gpus-per-node 1000000000", "--gpus-per-node is 1000000000, expected 100000 at most"),
        ("--runs 1000000000", "--runs is 1000000000, expected 100000 at most"),
        ("--workers 1000000000", "--workers is 1000000000, expected 1024 at most"),
        ("--workers 0", "--workers is 0, expected 1 at least"),
    ],
)  # fmt: skip
def test_an_option_that_needs_too_much_memory_is_rejected(
    tmp_path: Path, option: str, said: str
) -> None:
    result = _simulate(tmp_path, "", *option.split(), text=BIG)
    assert result.exit_code == 2, result.output
    assert said in result.output


@pytest.mark.parametrize(
    ("before", "after", "place", "said"),
    [
        (
            "heartbeat: 1m",
            "heartbeat: 1ms",
            "2:22",
            "the heartbeat would occur too often: 1e+11 times",
        ),
        (
            "seconds: 60",
            "seconds: 0.001",
            "6:5",
            "rule 'now-and-then' would occur too often: 1e+11 times",
        ),
        ("every: 10s", "every: 1e-12", "8:51", "each job of 'a' would print 3.6e+15 rows"),
        ("every: 10s", "every: 'index / 1e12 + 1e-12'", "8:22", "a.0 would print 3.6e+15 rows"),
    ],
)
def test_a_simulation_that_would_take_years_is_rejected_with_its_place(
    tmp_path: Path, before: str, after: str, place: str, said: str
) -> None:
    text = BIG.replace(before, after)
    for more in ((), ("--runs", "2", "--workers", "1")):
        result = _simulate(tmp_path, "", "--for", "100000000", *more, text=text)
        assert result.exit_code == 2, result.output
        assert f"study.yaml:{place}: {said}" in result.output
        assert "hint: " in result.output


def test_a_short_heartbeat_is_simulated_for_a_short_run(tmp_path: Path) -> None:
    text = BIG.replace("heartbeat: 1m", "heartbeat: 1ms").replace("1h", "1s")
    result = _simulate(tmp_path, "", "--for", "2", text=text)
    assert result.exit_code == 6, result.output
    result = _simulate(tmp_path, "", "--quiet", text=text + "limits: {wall: 2}\n")
    assert result.exit_code == 5, result.output


def test_rows_of_a_job_cancelled_long_before_its_end_are_not_computed(
    tmp_path: Path,
) -> None:
    """The job would run for 95 years. Rows are computed only for the simulated time."""
    text = BIG.replace("duration: 1h", "duration: 3e9")
    result = _simulate(tmp_path, "", "--for", "10m", text=text)
    assert result.exit_code == 6, result.output


def test_rules_that_loop_without_time_advancing_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_simulate.virtual_runtime._MOST_AT_ONCE", 1000)
    text = """
jobs: [{name: a, command: x}]
rules:
  - {id: begin, trigger: start, action: {name: submit, label: a}}
  - {id: again, trigger: job-finish, name: a, repetitions: unlimited,
     action: {name: submit, label: a}}
simulate: {jobs: {a: 0}}
"""
    result = _simulate(tmp_path, "", "--runs", "2", "--workers", "1", text=text)
    assert result.exit_code == 1, result.output
    assert "the virtual time stood still at 0 s" in result.stdout
    assert "rules in an endless loop: again" in result.stdout
    result = _simulate(tmp_path, "", text=text)
    assert result.exit_code == 6, result.output


def test_a_negative_duration_of_a_function_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text("def train(group, index, metrics, results): return []\n")
    text = """
custom: functions.py
jobs: [{name: a, command: x}]
rules:
  - {id: begin, trigger: start, action: {name: submit, label: a}}
  - {trigger: job-finish, name: a, action: {name: custom, label: train}}
simulate: {jobs: {a: 1m}, functions: {train: 'normal(-10, 1)'}}
"""
    result = _simulate(tmp_path, "", "--runs", "2", "--workers", "1", "--run-code", text=text)
    assert result.exit_code == 2, result.output
    assert "invalid duration of a call of 'train' in the model: -" in result.output
