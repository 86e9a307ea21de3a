"""The last value that a job printed counts, also if it is nan or infinite."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ensemble_testing import Story

from ensemble_core.cli.main import main
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.model.events import Observed

NAN, INF = math.nan, math.inf


def study(*rules: str, more: str = "", head: str = "") -> Story:
    listed = "".join(f"\n  - {rule}" for rule in rules)
    return Story(
        f"""
{head}
jobs:
  - name: sim
    command: run {{x}}
    parameters: {{x: [1, 2]}}
    observe: {{key-value: {{fields: [E]}}}}
    {more}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}{listed}
"""
    )


def print_values(told: Story, job: str, *values: float) -> list[str]:
    """Let a job print these values. Return the rules that fired."""
    fired = []
    for value in values:
        fired += told.fired(told.observe(job, E=value))
    return fired


def logged(told: Story) -> list[str]:
    return told.messages()


@pytest.mark.parametrize("last", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "rule",
    [
        "{id: odd, trigger: job-success, name: sim, when: isnan(last.E) or isinf(last.E), ACT}",
        "{id: odd, trigger: job-done, name: sim, when: isnan(last.E) or isinf(last.E), ACT}",
        "{id: odd, trigger: observed, name: sim, when: isnan(last.E) or isinf(last.E), ACT}",
        "{id: odd, trigger: metric, name: last.sim-E, when: isnan(value) or isinf(value), ACT}",
        "{id: odd, trigger: job-success, name: sim, each: [x], when: isnan(last.E) or isinf(last.E), ACT}",
        "{id: odd, trigger: job-success, name: sim, when: 'abs(metric(\"last.sim-E\")) != 1', ACT}",
    ],
)
def test_rules_see_a_last_value_that_is_not_finite(rule: str, last: float) -> None:
    told = study(rule.replace("ACT", "action: {name: log, message: odd}"))
    told.start()
    told.begin("sim.0")

    print_values(told, "sim.0", -1.0, -50.0)
    told.wait(1)
    assert not told.fired()[1:]
    print_values(told, "sim.0", last)
    told.end("sim.0")

    assert told.fired()[1:] == ["odd"]


def test_a_later_finite_value_replaces_nan() -> None:
    told = study(
        "{id: odd, trigger: job-success, name: sim, when: isnan(last.E), "
        "action: {name: log, message: odd}}"
    )
    told.start()
    told.begin("sim.0")
    print_values(told, "sim.0", NAN, 2.0)
    told.end("sim.0")

    assert told.fired()[1:] == []
    assert told.metric("last.sim-E") is None or told.metric("last.sim-E") == 2.0


def test_other_statistics_skip_what_is_not_finite() -> None:
    names = ("mean", "max", "min", "sum", "median", "ewma", "last", "change")
    rule = "{id: all, trigger: job-success, name: sim, when: '%s', action: {name: terminate}}"
    told = study(rule % " + ".join(f"{name}.E" for name in names))
    told.start()
    told.begin("sim.0")
    scope = told.engine.state.table.records["sim.0"].index

    def read() -> dict[str, Any]:
        return {name: scope.read(name, "E", told.now) for name in names}

    print_values(told, "sim.0", 1.0, 3.0)
    finite = read()
    print_values(told, "sim.0", NAN, INF)
    after = read()

    assert finite == {**finite, "mean": 2.0, "max": 3.0, "min": 1.0, "last": 3.0, "change": 2.0}
    assert after == {**finite, "last": INF, "change": None}
    print_values(told, "sim.0", 8.0)
    assert read()["change"] is None, "the value before it is infinite"
    print_values(told, "sim.0", 9.0)
    assert read()["change"] == 1.0


@pytest.mark.parametrize("last", [NAN, INF, -INF])
def test_a_result_of_a_last_value_that_is_not_finite_is_missing(last: float) -> None:
    rule = "{id: best, trigger: job-done, name: sim, when: E < 0, action: {name: log, message: x}}"
    told = study(rule, more="result: {E: last.E}")
    told.start()
    told.begin("sim.0")
    print_values(told, "sim.0", -1.0, -50.0, last)
    told.end("sim.0")

    (message,) = [each for each in logged(told) if "has no value" in each]
    assert f"last.E is {last}" in message
    assert told.fired()[1:] == []


def test_a_search_does_not_choose_a_point_whose_last_value_is_nan(tmp_path: Path) -> None:
    program = "echo E=-{x}; [ {x} -lt 3 ] || echo E=nan"
    file = tmp_path / "search.yaml"
    file.write_text(
        f"""
jobs:
  - {{name: sim, command: [sh, -c, "{program}"], observe: {{key-value: {{}}}}, result: {{E: last.E}}}}
generators:
  - {{name: search, use: grid, group: sim, variables: {{x: {{values: [1, 2, 3]}}}},
     objectives: {{E: minimize}}}}
""",
        encoding="utf-8",
    )

    ran = CliRunner().invoke(main, ["run", "--executor", "local", "--json", str(file)])
    shown = CliRunner().invoke(main, ["results", "last", "search", "--json"])
    points = {row["x"]: row for row in json.loads(shown.stdout)}
    jobs = CliRunner().invoke(main, ["results", "last", "--csv"])
    metric = CliRunner().invoke(main, ["metrics", "last", "last.sim-E"])

    assert "last.E is nan" in ran.stdout + ran.stderr
    assert [points[x]["state"] for x in (1, 2, 3)] == ["done", "done", "lost"]
    assert [points[x].get("E") for x in (1, 2, 3)] == [-1, -2, None]
    assert "nan" in jobs.stdout
    assert metric.exit_code == 0, metric.output


def test_a_snapshot_keeps_the_last_value() -> None:
    told = study(
        "{id: odd, trigger: job-success, name: sim, when: isnan(last.E) and change.E > 0, "
        "action: {name: log, message: odd}}",
        "{id: metric, trigger: metric, name: last.sim-E, when: '> 5', "
        "action: {name: log, message: high}}",
    )
    told.start()
    told.begin("sim.0")
    print_values(told, "sim.0", 1.0, NAN)

    again = snapshot.load(snapshot.dump(told.engine), told.ensemble)

    assert again is not None
    found = again.state.table.records["sim.0"].index.read("last", "E", told.now)
    assert str(found) == "nan"


def test_an_attempt_that_continues_keeps_the_last_value_of_the_earlier_one() -> None:
    told = study(
        "{id: odd, trigger: job-success, name: sim, when: isnan(last.E), "
        "action: {name: log, message: odd}}",
        more="retry: {times: 1, continue: true}",
    )
    told.start()
    told.begin("sim.0")
    print_values(told, "sim.0", 1.0, NAN)
    told.end("sim.0", status=256)
    told.play("sim.0-1")

    assert told.fired()[1:] == ["odd"]


@pytest.mark.parametrize(
    "rule",
    [
        "{id: odd, trigger: metric, name: unreadable.sim-E, when: '>= 2', ACT}",
        "{id: odd, trigger: job-success, name: sim, when: unreadable.E == 2, ACT}",
        "{id: odd, trigger: job-success, name: sim, each: [x], when: unreadable.E == 2, ACT}",
    ],
)
def test_rules_see_how_many_values_could_not_be_read(rule: str) -> None:
    told = study(rule.replace("ACT", "action: {name: log, message: odd}"))
    told.start()
    told.begin("sim.0")
    for value, unread in ((1.0, False), (NAN, True), (NAN, False), (NAN, True), (2.0, False)):
        names = ("E",) if unread else ()
        told.tell(Observed(told.now, "sim.0", "key-value", {"E": value}, unreadable=names))
    told.end("sim.0")

    assert told.fired()[1:] == ["odd"]


def test_a_run_counts_values_that_could_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "overflow.yaml"
    file.write_text(
        r"""
jobs:
  - name: sim
    command: [printf, 'E= 1.5\nE=*****\nE= nan\nE= 0,253\n']
    observe: {key-value: {fields: [E]}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: odd, trigger: job-success, name: sim, when: unreadable.E == 2 and isnan(last.E),
     action: {name: log, message: "{unreadable.E} of {job}"}}
""",
        encoding="utf-8",
    )

    ran = CliRunner().invoke(main, ["run", "--executor", "local", str(file)])
    replayed = CliRunner().invoke(main, ["replay", "last"])
    metric = CliRunner().invoke(main, ["metrics", "last", "unreadable.sim-E"])

    assert "2 of sim.0" in ran.stdout
    assert (
        "E could not be read in 2 of 4 lines, first: '*****' in line 2" in ran.stdout + ran.stderr
    )
    assert replayed.exit_code == 0, replayed.output
    assert "2" in metric.stdout
