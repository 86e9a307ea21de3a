"""``submit-next``: submits the jobs of sweeps once each, some at a time, in a given order."""

from __future__ import annotations

import json

import pytest
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Log, Submit
from ensemble_core.model.events import Requested, Resumed, TimerElapsed


def story(options: str, more: str = "") -> Story:
    return Story(f"""
jobs:
  - {{name: a, command: "x {{T}} {{p}}", parameters: {{T: [1, 2, 3], p: [5, 6]}}, replicas: 2, nodes: 2}}
  - {{name: b, command: x, count: 4, nodes: 1, duration: 5}}
  - {{name: c, command: x, nodes: 4, duration: 9}}
rules:
  - {{id: next, trigger: heartbeat, repetitions: 1000, action: {{name: submit-next, {options}}}}}
{more}
logging: {{heartbeat: 10}}
""")


def submits(told: Story) -> list[str]:
    return told.submitted(told.wait(10))


def test_every_element_of_a_sweep_is_submitted_once_in_its_order() -> None:
    told = story("groups: a, count: 5")
    told.start()
    assert told.metric("backlog.a") == 12
    assert submits(told) == [f"a.{index}" for index in range(5)]
    assert told.metric("backlog.a") == 7
    submits(told)
    assert submits(told) == ["a.10", "a.11"]
    assert submits(told) == []
    group = told.ensemble.groups["a"]
    records = told.engine.state.table.records
    whole = [job.command for job in group.jobs(0)]
    assert [records[f"a.{index}"].job.command for index in range(12)] == whole
    assert [records[f"a.{index}"].job.replica for index in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_random_order_depends_only_on_the_seed(seed: int) -> None:
    def commands() -> list[tuple[str, ...]]:
        told = story(f"groups: [a, b], count: 3, order: random, seed: {seed}")
        told.start()
        for _ in range(7):
            submits(told)
        records = told.engine.state.table.records.values()
        return [
            (record.job.group, *record.job.command, str(record.job.replica)) for record in records
        ]

    taken = commands()
    assert len(taken) == 16
    group = story("").ensemble.groups["a"]
    expected = [("a", *job.command, str(job.replica)) for job in group.jobs(0)]
    assert sorted(each for each in taken if each[0] == "a") == sorted(expected)
    assert [each for each in taken if each[0] == "a"] != expected
    assert taken == commands()


@pytest.mark.parametrize(
    ("order", "first"),
    [("ascending", "b"), ("descending", "c"), ("shortest", "b"), ("longest", "c"), ("given", "a")],
)
def test_the_order_decides_which_group_comes_first(order: str, first: str) -> None:
    told = story(f"order: {order}")
    told.start()
    assert submits(told) == [f"{first}.0"]


def test_shortest_uses_the_mean_duration_of_finished_jobs() -> None:
    told = story("order: shortest, groups: [b, c]")
    told.start()
    assert submits(told) == ["b.0"]
    told.begin("b.0")
    told.end("b.0", duration=100)
    assert submits(told)[0] == "c.0"


def test_other_submits_do_not_change_the_backlog_gauge() -> None:
    told = story(
        'groups: b, count: "= max(backlog.b - queue.active, 0)"',
        "  - {trigger: start, action: {name: submit, label: b, with: {count: 1}}}",
    )
    told.start()
    assert told.metric("backlog.b") == 4
    assert submits(told) == ["b.1", "b.2", "b.3"]
    assert submits(told) == []


def test_an_empty_backlog_triggers_a_rule() -> None:
    told = story(
        "groups: b, count: 3",
        "  - {id: over, trigger: metric, name: backlog.b, when: 0, action: {name: log, message: x}}",
    )
    told.start()
    assert "over" not in told.fired(told.wait(10))
    assert "over" in told.fired(told.wait(10))


def test_a_resumed_run_continues_the_backlog() -> None:
    told = story("groups: [a, b], count: 3, order: random")
    told.start()
    submits(told)
    again = load(dump(told.engine), told.ensemble)
    assert isinstance(again, Engine)
    event = TimerElapsed(told.now + 10, "heartbeat", "")
    assert again.handle(event) == told.engine.handle(event)


TEXT = """
jobs: [{name: sim, command: "x {T}", parameters: {T: [1, 2, 3, 4]}}]
rules:
  - {trigger: interval, seconds: 10, repetitions: 99, action: {name: submit-next, groups: sim, ORDER}}
  - {trigger: metric, name: backlog.sim, when: "== 1", repetitions: 99, action: {name: log, message: last}}
"""


@pytest.mark.parametrize("order", ["count: 1", "order: random, seed: 3", "order: random, seed: 4"])
@pytest.mark.parametrize("way", ["file", "request"])
def test_every_combination_of_a_sweep_that_changes_is_submitted_once(order: str, way: str) -> None:
    text = TEXT.replace("ORDER", order)
    told = Story(text)
    told.start()
    for sweep in ("[1, 2, 3, 4]", "[0.5, 4, 3, 2, 1.0, 5]", "[2, 7]", "[1, 2, 3, 0.5, 7, 8, 4]"):
        if way == "file":
            told.engine.reconfigure(Story(text.replace("[1, 2, 3, 4]", sweep)).ensemble)
            told.tell(Resumed(told.now))
        else:
            fields = {"parameters": {"T": json.loads(sweep)}}
            told.tell(Requested(told.now, "a", {"name": "set", "label": "sim", "with": fields}))
        submits(told)
        submits(told)
        told.engine = load(dump(told.engine), told.engine.state.ensemble)
    for _ in range(9):
        submits(told)
    made = [
        job.parameters["T"]
        for each in told.decisions
        if isinstance(each, Submit)
        for job in each.jobs
    ]
    assert len(made) == len({*made})
    assert {0.5, 1, 2, 3, 4, 7, 8} <= {*made}
    assert told.metric("backlog.sim") == 0


def test_values_added_to_the_sweep_of_an_ended_run_are_submitted_or_named() -> None:
    text = TEXT.replace("interval, seconds: 10", "job-done, name: sim").replace("ORDER", "count: 1")
    text += "  - {trigger: start, action: {name: submit-next, groups: sim}}\n"
    watch = "  - {trigger: metric, name: backlog.sim, when: '> 0', action: {name: submit-next, groups: sim}}\n"
    for more, new in (("", []), (watch, ["sim.4", "sim.5"])):
        told = Story(text)
        told.start()
        for index in range(4):
            told.play(f"sim.{index}")
        assert told.exit_code == 0
        told.engine.reconfigure(Story(text.replace("4]", "4, 5, 6]") + more).ensemble)
        decided = told.tell(Resumed(told.now, reopened=True))
        message = "sim: 2 jobs of the changed sweep wait for a rule with 'submit-next'"
        assert message in [each.message for each in decided if isinstance(each, Log)]
        if new:
            decided += told.play("sim.4")
        assert told.submitted(decided) == new
