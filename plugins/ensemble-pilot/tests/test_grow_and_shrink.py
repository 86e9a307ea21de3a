"""Rules grow and shrink a fleet of pilots: rounded up to pilots, answered once, also after a kill."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ensemble_pilot.demand import Demand
from ensemble_pilot.fleet import Fleet, Kind
from ensemble_pilot.grow_and_shrink import Resizes
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from ensemble_testing.processes import run_and_kill
from pilot_sessions import WORK, controller, kill_at_line, new_session

from ensemble_core import Job, ResizeOutcome


def only(fleet: Fleet) -> Demand:
    """Return the demand for the only kind of pilot."""
    (demand,) = fleet.demands.values()
    return demand


def fleet(ready: int, kind: Kind | None = None, *, steered: bool = True) -> tuple[Fleet, Resizes]:
    """Return a fleet with so many ready pilots of two nodes, and the requests of its rules."""
    made = Fleet(kind or Kind(nodes=2, cores=1, most=5, backlog=9))
    made.steered = steered
    only(made).target = ready
    for number in range(1, ready + 1):
        connect(made, number)
    return made, Resizes(made)


def connect(made: Fleet, number: int) -> None:
    pilot = made.pilots.get(number) or made.add_pilot(number, only(made).kind, 0.0)
    for node in pilot.nodes:
        made.connect(node, 1, 0, None, 0.0)


def job(number: int) -> Job:
    return Job(id=f"t.{number}", group="t", index=number, command=("true",))


def ask(rules: Resizes, delta: int, request: str = "r", when_busy: Any = "wait") -> str:
    resize = rules.plan(delta, when_busy)
    if isinstance(resize, str):
        return resize
    rules.begin(request, resize)
    return resize.note


def give_back(made: Fleet) -> list[int]:
    numbers = []
    for pilot in made.surplus(1.0):
        numbers.append(pilot.number)
        made.drain(pilot, "ended")
        pilot.to("fenced")
        for name in [name for node in pilot.nodes for name in node.jobs]:
            made.release(name, 1.0)
        made.end(pilot, 1.0, wanted=True)
    return numbers


def answers(rules: Resizes) -> list[tuple[str, int]]:
    return [(answer.outcome, answer.size) for answer in rules.answers()]


def test_nodes_are_rounded_up_to_pilots_and_the_answer_comes_when_they_are_ready() -> None:
    made, rules = fleet(1)
    assert ask(rules, 3) == "3 nodes rounded up to 2 pilots of 2 nodes"
    assert len(made.requests(0.0)) == 2
    for number in (2, 3):
        assert answers(rules) == []
        connect(made, number)
    assert answers(rules) == [("granted", 6)]
    assert answers(rules) == []
    assert len(made.requests(0.0)) == 0


def test_growth_is_limited_by_most() -> None:
    made, rules = fleet(4)
    assert ask(rules, 6) == "2 of 6 nodes, because 'most' allows only 5 pilots of 2 nodes"
    assert len(made.requests(0.0)) == 1
    assert ask(rules, 1, "s") == "the fleet has 5 pilots of 2 nodes, and 'most' allows no more"


def test_rules_decide_how_many_pilots_there_are_not_the_waiting_jobs() -> None:
    made, rules = fleet(0)
    for number in range(20):
        made.add(job(number), number)
    assert len(made.requests(0.0)) == 1, "jobs wait, so there is one"
    connect(made, 1)
    made.place(0.0)
    assert len(made.requests(0.0)) == 0
    ask(rules, 4)
    assert len(made.requests(0.0)) == 2
    made.steered = False
    assert len(made.requests(0.0)) == 4


def test_shrink_drains_the_pilots_with_the_fewest_jobs_and_is_answered_when_they_are_over() -> None:
    made, rules = fleet(3)
    for number in range(5):
        made.add(job(number), number)
    made.place(0.0)
    made.add(job(5), 5)
    assert ask(rules, -1) == "1 node rounded up to 1 pilot of 2 nodes"
    (leaving,) = [pilot for pilot in made.pilots.values() if pilot.leaving]
    assert leaving.number == 3
    assert made.place(0.0) == [], "a pilot that leaves gets no more jobs"
    assert made.surplus(1e9) == [], "its job goes on"
    assert answers(rules) == []
    (name,) = [name for node in leaving.nodes for name in node.jobs]
    made.release(name, 1.0)
    assert give_back(made) == [3]
    assert answers(rules) == [("granted", 4)]


def test_only_with_force_jobs_end_with_their_pilot() -> None:
    made, rules = fleet(2)
    for number in range(4):
        made.add(job(number), number)
    made.place(0.0)
    assert ask(rules, -2, "a", "skip") == "jobs run in all pilots"
    assert made.surplus(1.0) == []
    assert ask(rules, -2, "b", "force") == ""
    assert [pilot.number for pilot in made.surplus(1.0)] == [2]


def test_one_pilot_stays_while_jobs_wait_and_least_stays_always() -> None:
    made, rules = fleet(2)
    made.add(job(0), 0)
    made.add(job(1), 1)
    assert ask(rules, -9) == (
        "2 of 9 nodes, because jobs wait, so the fleet keeps 1 pilot of 2 nodes"
    )
    assert ask(rules, -1, "s") == "the fleet has 1 pilot of 2 nodes, and jobs wait"
    made, rules = fleet(3, Kind(nodes=2, most=5, least=2))
    assert ask(rules, -9) == "2 of 9 nodes, because 'least' keeps 2 pilots of 2 nodes"
    made, rules = fleet(1)
    assert ask(rules, -2) == ""
    assert give_back(made) == [1]
    assert len(made.requests(1.0)) == 0
    assert answers(rules) == [("granted", 0)]


def test_growth_whose_pilots_end_before_they_are_ready_times_out() -> None:
    made, rules = fleet(1)
    ask(rules, 2)
    for number in range(2, 5):
        assert answers(rules) == []
        assert len(made.requests(0.0)) == 1
        pilot = made.add_pilot(number, only(made).kind, 0.0)
        made.drain(pilot, "ended")
        pilot.to("fenced")
        made.end(pilot, 0.0, wanted=False)
    assert len(made.requests(1e9)) == 0, "it is not requested again by itself"
    (answer,) = rules.answers()
    assert (answer.outcome, answer.size) == ("timeout", 2)
    assert answer.reason == "3 pilots in a row ended before they were ready"


def test_pilots_without_work_stay_until_growth_that_waits_long_in_the_queue_is_answered() -> None:
    made, rules = fleet(1, Kind(nodes=2, most=5, backlog=9, idle=30.0))
    ask(rules, 4)
    assert made.requests(0.0) == [only(made).kind] * 2
    for number in (2, 3):
        made.add_pilot(number, only(made).kind, 0.0)
    assert made.surplus(1000.0) == [], "neither the one that is ready nor those that wait"
    for number in (2, 3):
        connect(made, number)
    assert answers(rules) == [("granted", 6)]
    assert len(made.surplus(1000.0)) == 3


def test_pilot_without_work_is_given_back_and_not_replaced() -> None:
    made, _ = fleet(2, Kind(nodes=2, most=5, idle=30.0))
    assert [pilot.number for pilot in made.surplus(30.0)] == [2, 1]
    assert give_back(made) == []
    made, _ = fleet(2, Kind(nodes=2, most=5, idle=0.5))
    assert give_back(made) == [2, 1]
    made.add(job(0), 0)
    assert len(made.requests(1.0)) == 1


# With real pilots.

LARGE = {"most": 4, "idle": 600}


def outcomes(session: Session) -> list[ResizeOutcome]:
    return [event for event in list(session.events) if isinstance(event, ResizeOutcome)]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", ["g", "a"])
def test_request_is_answered_once_although_the_controller_is_killed(
    folder: Path, kind: str, moment: str
) -> None:
    """Just before and just after the line of the request (g) and of its answer (a) are written.

    The run repeats the request, because it has no answer. The answer is the same ever after.
    """
    first = new_session(folder, **LARGE)

    def control() -> None:
        kill_at_line(kind, moment)
        first.__enter__()
        first.executor.resize("r", 2)
        time.sleep(60)

    run_and_kill(control, folder / "trace")
    with new_session(folder, **LARGE).resume(first) as second:
        second.executor.resize("r", 2)
        wait_until(lambda: bool(outcomes(second)))
        (given,) = outcomes(second)
        assert (given.outcome, given.size) == ("granted", 2)
        assert len(controller(second).fleet.pilots) == 2
        second.executor.resize("r", 2)
        wait_until(lambda: len(outcomes(second)) == 2)
        assert outcomes(second)[1] == given
    with new_session(folder, **LARGE).resume(first) as third:
        third.executor.resize("r", 2)
        wait_until(lambda: bool(outcomes(third)))
        assert outcomes(third) == [given]


def test_shrink_lets_a_running_job_end_and_force_ends_it(folder: Path) -> None:
    with new_session(folder, **LARGE) as session:
        session.executor.resize("grow", 2)
        wait_until(lambda: bool(outcomes(session)))
        jobs = [session.job("sh", "-c", WORK) for _ in range(2)]
        session.submit(*jobs)
        for each in jobs:
            session.wait_for(each, "start")
        session.executor.resize("shrink", -1)
        wait_until(lambda: any(p.leaving for p in controller(session).fleet.pilots.values()))
        assert len(outcomes(session)) == 1, "both jobs run"
        session.executor.resize("force", -1, when_busy="force")
        wait_until(lambda: any("clean" in session.names(each) for each in jobs))
        (ended,) = [each for each in jobs if "clean" in session.names(each)]
        assert session.cause(ended) == "preempted"
        (folder / "go").touch()
        session.wait_clean(*jobs)
        (other,) = [each for each in jobs if each is not ended]
        assert session.cause(other) == "exit"
        wait_until(lambda: len(outcomes(session)) == 3)
        assert {event.outcome for event in outcomes(session)} == {"granted"}
        assert outcomes(session)[-1].size == 0


FILE = """
jobs:
  - {name: sim, count: 3, command: "sh -c 'until [ -e go ]; do sleep 0.05; done'", workdir: "{here}"}
  - {name: go, command: touch go, workdir: "{here}"}
rules:
  - {trigger: start, action: [{name: grow, value: 3}, {name: submit, label: sim}]}
  - {trigger: resize-granted, action: {name: submit, label: go}}
"""


def run(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", "--executor", "pilot"]
    done = subprocess.run(
        [*command, "--state", "state", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


SMALL = ("-o", 'options={"slots": 8, "pool": "none"}', "-o", "cores=1", "-o", "most=4")


def test_the_output_says_to_what_size_a_rule_has_grown_the_fleet(folder: Path) -> None:
    (folder / "e.yaml").write_text(FILE)
    said = run(folder, *SMALL, "-o", "nodes=2")
    assert "grow 3 granted: size 4: 3 nodes rounded up to 2 pilots of 2 nodes" in said, said
    assert said.count(" ready after ") == 2, said


DEMAND = """
jobs:
  - {name: small, command: sleep 0.2, count: 12}
use:
  - algorithm: workload-demand
    with: {groups: [small], every: 0.1, checks: 2, idle: 5}
"""


def test_the_algorithm_workload_demand_works_on_pilots(folder: Path) -> None:
    (folder / "e.yaml").write_text(DEMAND.replace("sleep 0.2", "sleep 1"))
    said = run(folder, *SMALL)
    assert "pilot 2 ready" in said, said
    assert "grow 1 granted: size 2" in said, said
