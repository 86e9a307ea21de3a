"""``ensemble simulate --executor pilot``: pilots that wait in a virtual queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_pilot.simulation import Virtual

from ensemble_core import Job
from ensemble_core.cli.main import main

needs_simulate = pytest.mark.checkout
FILE = """\
jobs:
  - {name: sim, command: ./sim, count: 8}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
simulate:
  jobs: {sim: 10m}
"""


def simulate(folder: Path, text: str, *words: str) -> Result:
    (folder / "e.yaml").write_text(text)
    command = ["simulate", str(folder / "e.yaml"), "--executor", "pilot", "--no-journal", *words]
    return CliRunner().invoke(main, command)


@needs_simulate
def test_jobs_wait_for_pilots_and_pilots_wait_in_the_queue(tmp_path: Path) -> None:
    pilots = ("-o", "cores=1", "-o", "nodes=2", "-o", "most=2", "-o", 'options={"slots": 8}')
    done = simulate(tmp_path, FILE, *pilots, "--wait", "30m")
    assert done.exit_code == 0, done.output
    # Two pilots of two cores run eight jobs in two rounds.
    assert "ended after 50m 00s" in done.output, done.output
    assert "pilot 2 ready after 30m 00s: 2 cores" in done.output
    done = simulate(tmp_path, FILE, *pilots[:4], "-o", "most=1", *pilots[6:], "--wait", "30m")
    assert "ended after 1h 10m" in done.output, done.output


@needs_simulate
def test_many_simulations_have_quantiles_of_the_idle_core_hours(tmp_path: Path) -> None:
    pilots = ("-o", "cores=2", "-o", "idle=1h", "-o", 'options={"slots": 2}')
    done = simulate(tmp_path, FILE, *pilots, "--wait", "uniform(1m, 9m)", "--runs", "4", "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["runs"]) == 1


@needs_simulate
def test_jobs_end_with_their_pilot(tmp_path: Path) -> None:
    text = FILE.replace("10m", "90m").replace("count: 8", "count: 1")
    pilots = ("-o", "cores=1", "-o", "duration=1h", "-o", 'options={"slots": 2}')
    done = simulate(tmp_path, text, *pilots)
    assert done.exit_code == 1, done.output
    assert "preempted" in done.output
    assert "pilot 1 ended after 59m 00s: its time limit" in done.output


@needs_simulate
def test_rules_grow_and_shrink_simulated_pilots(tmp_path: Path) -> None:
    text = """\
jobs:
  - {name: a, command: a}
  - {name: b, command: b, count: 4}
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: idle, name: a, action: {name: grow, value: 3}}
  - {id: more, trigger: resize-granted, repetitions: 1, action: {name: submit, label: b}}
  - {id: less, trigger: idle, name: b, action: {name: shrink, value: 2}}
simulate: {jobs: {a: 1m, b: 1m}}
"""
    pilots = ("-o", "cores=1", "-o", "most=4", "-o", "backlog=4", "-o", 'options={"slots": 4}')
    done = simulate(tmp_path, text, *pilots, "--wait", "5m")
    assert done.exit_code == 0, done.output
    assert "grow 3 granted: size 4" in done.output, done.output
    assert "   shrink 2" in done.output


@needs_simulate
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "3"), "options of the cluster have no effect on pilots"),
        (("-o", "most=0"), "most"),
        (("-o", "moss=1"), "no option 'moss'"),
        (("-o", "least=2"), "'most' is 1, but 'least' is 2"),
        (("--executor", "local"), "'local' are simulated on a cluster"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = simulate(tmp_path, FILE, *words)
    assert done.exit_code == 2 or done.exception is not None
    assert said in (done.output + str(done.exception)), done.output


@needs_simulate
def test_group_that_no_pilot_can_hold_is_refused(tmp_path: Path) -> None:
    text = FILE.replace("count: 8", "tasks: 3")
    done = simulate(tmp_path, text, "-o", "cores=2", "-o", 'options={"slots": 2}')
    assert "the job needs 3 cores on one node" in (done.output + str(done.exception))


def test_pilots_follow_the_clock_of_the_simulation() -> None:
    options: dict[str, Any] = {
        "cores": 1, "most": 3, "idle": "10s", "options": {"slots": 3}, "patience": 0,
    }  # fmt: skip
    virtual = Virtual(options, lambda number: 10.0 * number, False)
    for number in range(3):
        virtual.add(Job(id=f"t.{number}", group="t", index=number, command=("true",)))
    assert virtual.due(100.0) == 100.0
    assert virtual.advance(100.0).started == [], "two pilots are requested"
    assert virtual.due(100.0) == 110.0
    assert virtual.advance(110.0).started == [("t.0", 1)]
    virtual.ended("t.0", 111.0)
    assert virtual.advance(111.0).started == [("t.1", 1)]
    virtual.ended("t.1", 112.0)
    assert virtual.advance(112.0).started == [("t.2", 1)]
    virtual.ended("t.2", 113.0)
    now = 113.0
    while (due := virtual.due(now)) is not None:
        now = due
        virtual.advance(now)
    left = virtual.gauges(now)
    assert (left["pilots.ready"], left["pilots.waiting"], left["cores.up"]) == (0, 0, 0)
    assert now < 134.0, "nothing happens after the last one is given back and 'idle' has passed"


@needs_simulate
def test_messages_of_a_simulation_have_the_hours_of_its_pilots(tmp_path: Path) -> None:
    end = '  - {trigger: end, action: {name: log, message: "{pilots.used_core_hours:.3f} h"}}\nsim'
    text = FILE.replace("count: 8", "count: 2").replace("\nsimulate", f"\n{end}ulate")
    done = simulate(tmp_path, text, "-o", "cores=1", "-o", 'options={"slots": 1}', "--wait", "1m")
    assert done.exit_code == 0, done.output
    assert "log 0.333 h" in done.output, done.output
