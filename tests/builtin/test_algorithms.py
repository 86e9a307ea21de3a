"""Tests of the six algorithms: they fulfil the contract and behave as documented."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ensemble_testing import AlgorithmContract, Story

from ensemble_core.builtin.algorithms import ensemble_algorithms
from ensemble_core.errors import FileErrors
from ensemble_core.model.events import ResizeOutcome, Resources

ALGORITHMS = {record.name: record for record in ensemble_algorithms()}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "workload-demand": {"groups": ["sim", "post"]},
    "random-selection": {"groups": ["sim", "post"], "at_once": 2},
    "workload-success": {"group": "sim", "successes": 3},
    "avoid-bad-nodes": {"failures": 2, "within": 60, "causes": ["exit"]},
    "select-fastest-runtime": {"groups": ["sim", "post"], "at_once": 2},
    "select-longest-runtime": {"groups": ["sim", "post"], "at_once": 2},
    "cheapest-member": {"members": [{"group": "sim", "price": 1}, {"group": "post", "price": 0}]},
}
BAD = {
    "workload-demand": ({}, {"groups": []}, {"groups": ["smi"]}, {"groups": ["sim"], "checks": 0}),
    "random-selection": ({"groups": ["sim"]}, {"groups": "sim", "at_once": 1}),
    "workload-success": ({"group": "sim"}, {"group": "sim", "successes": 0}),
    "avoid-bad-nodes": (
        *({"failures": 0}, {"within": 0}, {"causes": []}, {"causes": ["bad luck"]}, {"most": 0}),
        {"failures": 2.5},
    ),
    "select-fastest-runtime": ({"groups": ["sim"], "at_once": "two"},),
    "select-longest-runtime": ({"groups": ["sim"], "at_once": 1, "statistic": "maen"},),
    "cheapest-member": ({"members": []}, {"members": [{"group": "smi", "price": 1}]}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_fulfils_the_contract(name: str) -> None:
    slots = ("--slots", "1", "--min-slots", "1", "--max-slots", "4")
    suite = type(
        "Suite",
        (AlgorithmContract,),
        {
            "plugin": ALGORITHMS[name],
            "options": OPTIONS[name],
            "bad_options": BAD[name],
            "example_options": slots if name == "workload-demand" else (),
        },
    )()
    laws = [law for law in dir(suite) if law.startswith("test_")]
    assert len(laws) == 9
    for law in laws:
        getattr(suite, law)()


def story(jobs: str, algorithm: str, options: str, more: str = "") -> Story:
    return Story(
        f"jobs: [{jobs}]\nuse: [{{algorithm: {algorithm}, as: a, with: {{{options}}}}}]\n{more}"
    )


def test_workload_demand_grows_for_the_next_job_with_one_request_at_a_time() -> None:
    told = story(
        "{name: l, command: x, nodes: 8}, {name: s, command: x, nodes: 1, count: 2}",
        "workload-demand",
        "groups: [s, l], order: descending, checks: 3, every: 10, idle: 2",
    )
    told.start({"nodes.up": 4, "nodes.free": 4})
    assert told.submitted() == ["l.0", "s.0", "s.1"]
    asked = told.wait(100)
    resizes = [each for each in told.decisions if each.type == "resize"]
    assert [each.delta for each in resizes] == [4], asked  # type: ignore[attr-defined]
    request = resizes[0].request  # type: ignore[attr-defined]
    told.tell(ResizeOutcome(told.now, request, "denied"))
    told.wait(10)
    assert len([each for each in told.decisions if each.type == "resize"]) == 2


def test_workload_demand_releases_free_nodes_and_ends_after_the_last_job() -> None:
    told = story(
        "{name: s, command: x}",
        "workload-demand",
        "groups: [s], checks: 1, every: 10, idle: 8, min: 2",
    )
    told.start({"nodes.up": 6, "nodes.free": 6})
    told.play("s.0")
    told.wait(40)
    (asked,) = [each for each in told.decisions if each.type == "resize"]
    assert (asked.delta, asked.when_busy) == (-4, "skip")  # type: ignore[attr-defined]
    told.wait(60)
    assert told.exit_code == 0


def test_random_selection_submits_each_job_once_and_respects_at_once() -> None:
    told = story(
        "{name: s, command: 'x {T}', parameters: {T: [1, 2, 3, 4, 5]}}",
        "random-selection",
        "groups: [s], at_once: 2, seed: 3",
    )
    told.start()
    assert len(told.submitted()) == 2
    for number in range(5):
        told.play(f"s.{number}", status=256 if number == 2 else 0)
    taken = [
        job.parameters["T"] for each in told.decisions if each.type == "submit" for job in each.jobs
    ]  # type: ignore[attr-defined]
    assert sorted(taken) == [1, 2, 3, 4, 5]
    assert taken != [1, 2, 3, 4, 5]
    assert told.exit_code == 1, "no rule handled the failure"


def test_workload_success_counts_valid_jobs_and_stops_at_most() -> None:
    options = "group: s, successes: 2, at_once: 2, valid: duration > 5, most: 5"
    told = story("{name: s, command: x}", "workload-success", options)
    told.start()
    for number, seconds in enumerate((9, 1, 9)):
        told.play(f"s.{number}", duration=seconds)
    assert told.exit_code == 0
    spent = story("{name: s, command: x}", "workload-success", options)
    spent.start()
    for number in range(5):
        spent.play(f"s.{number}", duration=1)
    assert spent.submitted() == [f"s.{number}" for number in range(5)]
    assert spent.exit_code == 3


@pytest.mark.parametrize(("name", "then"), [("fastest", "quick"), ("longest", "slow")])
def test_run_times_are_learned_before_the_best_jobs_come_first(name: str, then: str) -> None:
    told = story(
        "{name: slow, command: x, count: 5}, {name: quick, command: x, count: 5}",
        f"select-{name}-runtime",
        "groups: [slow, quick], at_once: 1, samples: 2",
    )
    told.start()
    order = []
    while told.exit_code is None:
        (job,) = told.engine.state.active()
        order.append(job.partition(".")[0])
        told.play(job, duration=9 if job.startswith("slow") else 1)
    assert order[:4] == ["slow", "quick", "slow", "quick"]
    assert order[4:7] == [then] * 3
    assert len(order) == 10


def test_cheapest_member_samples_all_members_before_it_uses_the_cheapest() -> None:
    told = story(
        "{name: dear, command: x, count: 9}, {name: cheap, command: x, nodes: 4, count: 9}",
        "cheapest-member",
        "members: [{group: dear, price: 4}, {group: cheap, price: 0.5}], samples: 1, total: 6",
    )
    told.start()
    order = []
    while told.exit_code is None:
        (job,) = told.engine.state.active()
        order.append(job.partition(".")[0])
        told.play(job, duration=5)
    assert order == ["dear", "cheap", "cheap", "cheap", "cheap", "cheap"]


def test_member_with_a_waiting_job_is_skipped() -> None:
    told = story(
        "{name: dear, command: x, count: 9}, {name: free, command: x, count: 9}",
        "cheapest-member",
        "members: [{group: dear, price: 4}, {group: free, price: 0}], samples: 1, at_once: 2",
    )
    told.start()
    assert told.submitted() == ["dear.0", "free.0"]
    told.play("dear.0")  # free is disconnected: its job waits
    assert told.submitted()[-1] == "dear.1"


def test_jobs_of_a_disconnected_member_do_not_count_against_at_once() -> None:
    told = story(
        "{name: dear, command: x, count: 9}, {name: free, command: x, count: 9}",
        "cheapest-member",
        "members: [{group: dear, price: 4}, {group: free, price: 0}], samples: 1, at_once: 2",
    )
    told.start()
    told.play("dear.0")
    told.play("free.0")
    told.end("dear.1")
    for job in ("free.1", "free.2"):
        told.begin(job)
    assert {*told.engine.state.active()} == {"free.1", "free.2"}
    assert told.submitted(told.tell(Resources(told.now, {"away.free": 1}))) == ["dear.2", "dear.3"]
    told.tell(Resources(told.now, {"away.dear": 1}))
    told.play("dear.2")  # all are disconnected: nothing is submitted
    assert told.submitted()[-1] == "dear.3"
    told.tell(Resources(told.now, {"away.dear": 0, "away.free": 0}))
    told.end("free.1")
    told.end("free.2")
    assert told.submitted()[-1].startswith("free.")


def test_reconnected_member_gets_jobs_again() -> None:
    told = story(
        "{name: dear, command: x, count: 2}, {name: free, command: x, count: 9}",
        "cheapest-member",
        "members: [{group: dear, price: 4}, {group: free, price: 0}], samples: 1, at_once: 2",
    )
    told.start()
    told.begin("dear.0")
    told.tell(Resources(told.now, {"away.free": 1}))
    told.cancel("free.0")
    told.begin("dear.1")
    assert {*told.engine.state.active()} == {"dear.0", "dear.1"}
    told.end("dear.0")
    assert {*told.engine.state.active()} == {"dear.1"}
    assert told.submitted(told.tell(Resources(told.now, {"away.free": 0}))) == ["free.1"]


def test_run_waits_for_a_disconnected_member_with_the_last_jobs() -> None:
    told = story(
        "{name: dear, command: x, count: 1}, {name: free, command: x, count: 9}",
        "cheapest-member",
        "members: [{group: dear, price: 4}, {group: free, price: 0}], samples: 1, at_once: 2",
    )
    told.start()
    told.begin("dear.0")
    told.tell(Resources(told.now, {"away.free": 1}))
    told.cancel("free.0")
    assert told.submitted(told.end("dear.0")) == ["free.1"]
    assert told.exit_code is None
    assert told.submitted(told.tell(Resources(told.now, {"away.free": 0}))) == ["free.2"]


def test_workload_success_rejects_a_group_with_a_sweep() -> None:
    swept = "{name: s, command: 'x {T}', parameters: {T: [1, 2]}}"
    with pytest.raises(Exception, match="has 'parameters', but this algorithm submits jobs"):
        story(swept, "workload-success", "group: s, successes: 2")


def test_workload_success_ignores_the_groups_count() -> None:
    one = "{name: s, command: 'x {T}', count: 10, parameters: {T: 3}}"
    told = story(one, "workload-success", "group: s, successes: 6")
    told.start()
    assert told.submitted() == ["s.0"]


@pytest.mark.parametrize(
    ("name", "options", "word", "told"),
    [
        (
            "workload-success",
            "group: s, successes: 2, valid: 'last.E <'",
            "'last",
            "does not parse",
        ),
        ("workload-success", "group: s, successes: 2, valid: nosuch > 2", "nosuch", "unknown name"),
        ("workload-demand", "groups: [s], grow_by: nxt", "nxt", "did you mean 'next'"),
        ("cheapest-member", "members: [{group: ss, price: 1}]", "ss,", "did you mean 's'"),
    ],
)
def test_wrong_option_is_reported_at_its_place(
    name: str, options: str, word: str, told: str
) -> None:
    with pytest.raises(FileErrors) as caught:
        story("{name: s, command: x}", name, options)
    (error,) = caught.value.errors
    assert told in f"{error.what} {error.hint}"
    assert "invalid output of" not in error.what
    line = f"use: [{{algorithm: {name}, as: a, with: {{{options}}}}}]"
    assert error.where is not None
    assert error.where.column == line.index(word) + 1
