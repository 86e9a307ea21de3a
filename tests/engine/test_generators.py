"""Generators: calls, suggested and ingested points, faults, and switches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from generator_story import Told

from ensemble_core import EnsembleError, Exchange, Generator, Point, Reading
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.engine.generator_state import SuggestCall
from ensemble_core.errors import FileErrors
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Cancel, Log, SetGenerator, Switch
from ensemble_core.model.events import CallFailed, Resumed
from ensemble_core.model.generators import Prune
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.generator_calls import MakeSuggestion

FILE = """
jobs:
  - name: sim
    command: "sim {{x}} {{n}}"
    observe: {{json-lines: {{fields: [energy, peak, epoch]}}}}
    result: {{E: last.energy, peak: max.peak}}
{group}
generators:
  - name: search
    use: {use}
    group: sim
    variables: {{x: [-5.0, 5.0], n: {{values: [8, 16]}}}}
    objectives: {{E: minimize}}
{keys}
{rules}
"""


def text(keys: str, use: str = "random", rules: str = "", group: str = "") -> str:
    indented = "\n".join(f"    {line}" for line in keys.split("\n"))
    return FILE.format(keys=indented, use=use, rules=rules, group=f"    {group}")


def begun(keys: str, **more: str) -> Told:
    told = Told(text(keys, **more))
    told.start()
    told.answer()
    return told


def whole(told: Told, value: Callable[[Any], float] = lambda job: 0.0) -> None:
    """Play the run to its end; ``value`` computes the energy of each job from its parameters."""
    while told.exit_code is None:
        job = told.active()[0]
        told.finish(job, value(told.engine.state.table.records[job].job.parameters))


# -- calls and points ------------------------------------------------------------------------------


def test_points_are_submitted_at_most_at_once_until_the_condition_holds() -> None:
    told = begun("at_once: 3\nuntil: count.done >= 5")
    assert told.active() == ["sim.0", "sim.1", "sim.2"]
    job = told.engine.state.table.records["sim.0"].job
    assert job.command == ("sim", str(job.parameters["x"]), str(job.parameters["n"]))
    whole(told)
    assert told.exit_code == 0
    assert len(told.submitted()) == 7  # two were still active when the fifth was done
    assert (
        told.metric("generator.search.suggested") == told.metric("generator.search.ingested") == 7
    )
    assert told.metric("generator.search.pending") == 0


def test_a_file_needs_a_rule_or_a_generator() -> None:
    registry = discover()
    assert load_text(text("until: count.done >= 5"), registry).rules == ()
    with pytest.raises(FileErrors, match="'rules'"):
        load_text("jobs: [{name: a, command: b}]", registry)


def test_nothing_is_idle_during_a_call_of_a_generator() -> None:
    told = Told(
        text(
            "until: count.done >= 1",
            rules="rules: [{id: over, trigger: idle, action: {name: log, message: over}}]",
        )
    )
    told.start()
    told.answer()
    told.finish("sim.0")
    assert told.fired() == ["over"]
    assert told.calls[-1].options == {
        "suggest": 0,
        "ingest": [{"point": 0, "state": "done", "values": {"E": 0.0}}],
    }


def test_until_may_use_results_and_metrics() -> None:
    told = begun("until: min.E < -7")
    told.finish("sim.0", energy=-6.0)
    told.finish("sim.1", energy=-8.0)
    assert told.exit_code == 0
    told = begun("until: generator.search.best.E < -7 or metric('count.sim.lost') > 3")
    told.finish("sim.0", energy=-8.0)
    assert told.exit_code == 0


def test_the_mean_of_replicas_is_ingested_when_all_are_over() -> None:
    told = begun("replicas: 3\nuntil: count.done >= 3", group="retry: {times: 1}")
    assert told.active() == ["sim.0", "sim.1", "sim.2"]
    told.finish("sim.0", energy=1.0)
    told.finish("sim.1", energy=2.0, status=256)
    told.finish("sim.1-1", energy=3.0)
    assert len(told.calls) == 1
    told.finish("sim.2", energy=9.0, status=256)
    told.finish("sim.2-1", status=256)
    (point,) = told.calls[1].options["ingest"]
    assert point["values"] == {"E": 2.0}
    assert point["errors"] == {"E": 1.0}


def test_a_lost_point_is_ingested_with_the_values_of_failed() -> None:
    told = begun("until: generator.search.suggested >= 2")
    told.finish("sim.0", status=256)
    assert told.calls[1].options["ingest"] == [{"point": 0, "state": "lost"}]
    told = begun("failed: {E: 1e9}\nuntil: generator.search.suggested >= 2")
    told.finish("sim.0", status=256)
    assert told.calls[1].options["ingest"][0]["values"] == {"E": 1e9}
    # A success without a result is a lost point, too.
    told = begun("until: generator.search.suggested >= 2")
    told.play("sim.0")
    told.answer()
    assert told.calls[1].options["ingest"] == [{"point": 0, "state": "lost"}]


@pytest.mark.parametrize(("failed", "exit_code"), [("{E: 1e9}", 0), ("discard", 1)])
def test_a_lost_point_fails_the_run_unless_failed_gives_its_values(
    failed: str, exit_code: int
) -> None:
    told = begun(f"failed: {failed}\nuntil: generator.search.suggested >= 2")
    told.finish("sim.0", status=256)
    told.finish("sim.1", energy=2.0)
    assert told.exit_code == exit_code


def test_a_feasible_best_point_triggers_rules_with_its_values() -> None:
    told = begun(
        "constraints: {peak: '< 2.5'}\nuntil: count.done >= 4",
        rules="""
rules:
  - {id: better, trigger: generator-best, name: search, repetitions: unlimited, when: E < 5,
     action: {name: log, message: "{point}: {E} at {n}"}}
""",
    )
    told.finish("sim.0", energy=6.0)
    told.finish("sim.1", energy=1.0, peak=3.0)
    told.finish("sim.2", energy=2.0)
    told.finish("sim.3", energy=3.0)
    assert told.fired() == ["better"]
    assert told.metric("generator.search.best.E") == 2.0
    said = told.messages()
    assert said == [f"2: 2 at {told.parameters()[2][1]}"]


def test_with_several_objectives_the_pareto_front_is_known() -> None:
    told = Told(
        text("until: count.done >= 4").replace("{E: minimize}", "{E: minimize, peak: maximize}")
    )
    told.start()
    told.answer()
    front = told.engine.state.generators["search"]
    for energy, peak, numbers in [
        (1.0, 1.0, [0]),
        (2.0, 2.0, [0, 1]),
        (2.0, 1.0, [0, 1]),
        (1.0, 2.0, [3]),
    ]:
        told.finish(f"sim.{len(told.submitted()) - 1}", energy=energy, peak=peak)
        assert front.front == numbers
    assert told.metric("generator.search.pareto") == 1


def test_a_rule_can_pause_and_continue_a_generator_and_request_points() -> None:
    told = begun(
        "enabled: false\nuntil: count.done >= 5",
        rules="""
rules:
  - {trigger: job-lost, repetitions: 9, action: {name: pause, generator: search}}
  - {trigger: heartbeat, repetitions: 1, action: {name: suggest, generator: search}}
  - {trigger: interval, seconds: 35, action: {name: suggest, generator: search, count: 2}}
logging: {heartbeat: 10}
""",
    )
    assert told.active() == []
    told.wait(10)
    told.answer()
    assert told.active() == ["sim.0"]
    told.finish("sim.0", status=256)
    assert told.active() == []
    told.wait(30)
    told.answer()
    assert told.active() == ["sim.1", "sim.2"]


# -- the built-in ones -----------------------------------------------------------------------------

GENERATORS = {
    "grid": "with: {points: 3}",
    "random": "with: {seed: 3}\nuntil: count.done >= 20",
    "sobol": "with: {seed: 3}\nuntil: count.done >= 20",
    "latin-hypercube": "with: {points: 20, seed: 3}",
}


def test_a_grid_suggests_every_combination_and_ends() -> None:
    told = begun(
        "at_once: 4\nwith: {points: 3}",
        use="grid",
        rules="rules: [{trigger: generator-exhausted, name: search, action: {name: log, message: '{points}'}}]",
    )
    whole(told)
    assert told.parameters() == list(itertools.product([-5.0, 0.0, 5.0], [8, 16]))
    assert told.exit_code == 0
    assert "6" in told.messages()


def test_a_latin_hypercube_has_one_point_in_each_interval_of_every_variable() -> None:
    told = begun("at_once: 5\nwith: {points: 20, seed: 1}", use="latin-hypercube")
    whole(told)
    xs = sorted(x for x, _ in told.parameters())
    assert [int((x + 5) * 2) for x in xs] == list(range(20))
    assert sorted(n for _, n in told.parameters()) == [8] * 10 + [16] * 10


@pytest.mark.parametrize("use", GENERATORS)
def test_the_same_seed_gives_the_same_points_and_at_once_does_not_change_them(use: str) -> None:
    runs = []
    for at_once in (1, 4):
        told = begun(f"{GENERATORS[use]}\nat_once: {at_once}", use=use)
        whole(told)
        runs.append(told.parameters()[:20])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == len(runs[0])


def test_logarithmic_and_stepped_variables_are_sampled_correctly() -> None:
    told = Told(
        text("until: count.done >= 200")
        .replace("x: [-5.0, 5.0]", "x: {from: 1e-5, to: 0.1, log: true}")
        .replace("{values: [8, 16]}", "{from: 4, to: 20, step: 8}")
    )
    told.start()
    told.answer()
    whole(told)
    xs = [x for x, _ in told.parameters()]
    assert 60 < sum(x < 1e-3 for x in xs) < 140
    assert {n for _, n in told.parameters()} == {4, 12, 20}
    assert all(type(n) is int for _, n in told.parameters())


# -- later controllers -----------------------------------------------------------------------------


@pytest.mark.parametrize("use", GENERATORS)
def test_a_run_killed_after_any_event_continues_with_the_same_points(use: str) -> None:
    keys = f"{GENERATORS[use]}\nat_once: 2"
    undisturbed = begun(keys, use=use)
    whole(undisturbed)
    chance = random.Random(use)
    for _ in range(6):
        told = Told(text(keys, use=use))
        told.start()
        stop = chance.randrange(4, 60)
        while told.exit_code is None:
            if told.open and chance.random() < 0.7:
                told.answer()
            elif told.active():
                job = told.active()[0]
                told.begin(job)
                told.observe(job, energy=1.0)
                told.end(job)
            else:
                told.answer()
            if len(told.events) > stop and told.exit_code is None:
                stop += chance.randrange(10, 60)
                engine = load(dump(told.engine), told.ensemble)
                assert isinstance(engine, Engine)
                told.engine = engine
                told.renew()
                told.open = []
                told.tell(Resumed(told.now))
        generator = told.engine.state.generators["search"]
        assert [p.number for p in generator.points] == list(range(len(generator.points)))
        ingested = [p.number for each in generator.exchanges for p in each.ingested]
        assert sorted(ingested) == list(range(len(generator.points)))
        count = len(generator.points)
        assert told.parameters() == undisturbed.parameters()[:count] or (
            told.parameters()[: len(undisturbed.parameters())] == undisturbed.parameters()
        )
        assert len(told.submitted()) == count


# -- faulty generators -----------------------------------------------------------------------------


class Odd(Generator):
    """Generator whose second call has the fault ``does``."""

    def __init__(self, does: str) -> None:
        self.does = does
        self.number = 0

    def suggest(self, count: int) -> Sequence[Any]:
        self.number += 1
        good = {"x": float(self.number), "n": 8}
        if self.number == 1:
            return [good]
        answers: dict[str, Callable[[], Any]] = {
            "raises": lambda: 1 / 0,
            "refuses": _refuse,
            "outside": lambda: [{"x": 7.2, "n": 8}],
            "no-value": lambda: [{"x": 1.0}],
            "unknown": lambda: [{**good, "m": 1}],
            "text": lambda: [{"x": "1.0", "n": 8}],
            "no-such": lambda: [{"x": 1.0, "n": 9}],
            "nan": lambda: [{"x": float("nan"), "n": 8}],
            "many": lambda: [good] * 3,
            "no-list": lambda: 5,
            "none": list,
            "id": lambda: [{**good, "_id": 1}],
        }
        found: Sequence[Any] = answers[self.does]()
        return found

    def ingest(self, points: Sequence[Point]) -> None:
        if self.does == "id":
            self.number = 1

    def prune(self, readings: Sequence[Reading]) -> Sequence[int]:
        return [each.point for each in readings if each.value > 100]


def _refuse() -> Any:
    raise EnsembleError("it has no model yet", code="no-model")


class Resuming(Odd):
    exchanges: Sequence[Exchange] = ()

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        Resuming.exchanges = exchanges
        self.number = 0


def odd(does: str, keys: str = "until: count.done >= 4", kind: type[Odd] = Odd) -> Told:
    ensemble = load_text(text(keys), discover())
    prune = Prune("energy", "epoch") if does == "prunes" else None
    spec = replace(ensemble.generators["search"], build=lambda purpose: kind(does), prune=prune)
    told = Told(replace(ensemble.begun("odd", "/"), generators={"search": spec}))
    told.start()
    told.answer()
    return told


FAULTS = {
    "raises": "raised ZeroDivisionError",
    "refuses": "it has no model yet",
    "outside": "suggested x = 7.2: it is from -5 to 5",
    "no-value": "suggested no value for 'n'",
    "unknown": "suggested 'm', which is not a variable",
    "text": "suggested x = '1.0': it is a number",
    "no-such": "suggested n = 9: it is one of 8, 16",
    "nan": "suggested nan",
    "many": "suggested 3 points, but 1 were requested",
    "no-list": "suggested 5, expected a list of points",
}


@pytest.mark.parametrize("does", FAULTS)
def test_a_failed_generator_is_named_and_the_run_can_be_resumed(
    does: str,
) -> None:
    told = odd(does)
    told.finish("sim.0", energy=1.0)
    assert told.submitted() == ["sim.0"]
    assert told.exit_code == 1
    (error,) = [one for one in told.decisions if isinstance(one, Log) and one.level == "error"]
    assert error.message.startswith(f"generator 'search' {FAULTS[does]}")
    # The next controller builds the generator again, and repeats the ingest of the failed call.
    told.renew()
    told.tell(Resumed(told.now))
    told.answer()
    assert told.engine.state.ended is None
    assert told.submitted() == ["sim.0", "sim.1"]
    assert told.metric("generator.search.ingested") == 1


def test_a_point_with_a_duplicate_id_is_rejected() -> None:
    told = odd("id")
    told.finish("sim.0")
    assert told.submitted() == ["sim.0", "sim.1"]
    told.finish("sim.1")
    assert told.submitted() == ["sim.0", "sim.1"]
    (error,) = [one for one in told.decisions if isinstance(one, Log) and one.level == "error"]
    assert "second point with the _id 1" in error.message


def test_a_generator_that_has_no_more_points_ends_the_run_without_an_error() -> None:
    told = odd("none")
    told.finish("sim.0")
    assert told.exit_code == 0
    assert "generator search has no more points after 1" in [
        one.message for one in told.decisions if isinstance(one, Log)
    ]


def test_active_jobs_end_when_a_generator_hangs() -> None:
    told = odd("none", keys="until: count.done >= 4\ntimeout: 1\nat_once: 2")
    told.begin("sim.0")
    told.end("sim.0")
    call = told.open.pop()
    told.tell(CallFailed(told.now, call.call, "gave no answer within 1 s"))
    assert told.exit_code == 1
    assert told.submitted() == ["sim.0"]
    # A late answer is ignored.
    told.renew()
    late = MakeSuggestion(SuggestCall(call, 1, (), ()), (), 0)
    assert not told.tell(told.maker.outcome(late))


def test_a_run_whose_points_are_all_lost_ends_with_a_reason() -> None:
    told = begun("until: count.done >= 4\nat_once: 2")
    while told.exit_code is None:
        told.finish(told.active()[0], status=256)
    assert told.exit_code == 1
    assert len(told.submitted()) == 21
    errors = [
        one.message for one in told.decisions if isinstance(one, Log) and one.level == "error"
    ]
    (error,) = [each for each in errors if "generator 'search'" in each]  # only once
    assert "lost its first 20 points" in error


def test_a_pruner_gets_rows_of_running_jobs_and_cancels_unpromising_points() -> None:
    told = odd("prunes", keys="until: count.done >= 1")
    told.begin("sim.0")
    told.observe("sim.0", energy=5.0, epoch=1)
    told.answer()
    told.observe("sim.0", energy=500.0, epoch=2)
    told.observe("sim.0", energy=1.0, epoch=3)
    decided = told.answer()
    assert [one.jobs for one in decided if isinstance(one, Cancel)] == [("sim.0",)]
    readings = [call.options.get("readings") for call in told.calls]
    assert readings == [None, [[0, 1.0, 5.0]], [[0, 2.0, 500.0]], [[0, 3.0, 1.0]]]
    told.job("sim.0", "exception", type="cancel", severity=0, note="")
    told.job("sim.0", "finish", status=15)
    told.job("sim.0", "release", "free", "clean")
    assert told.calls[-1].options["ingest"] == [{"point": 0, "state": "pruned"}]


def test_a_rebuilt_generator_gets_all_earlier_calls() -> None:
    told = odd("resume", keys="until: count.done >= 1", kind=Resuming)
    told.renew()
    told.begin("sim.0")
    told.observe("sim.0", energy=1.0)
    told.end("sim.0")
    told.answer()
    (first,) = Resuming.exchanges
    assert [point.number for point in first.suggested] == [0]


# -- switches between generators -------------------------------------------------------------------


class Learning(Generator):
    """Generator that suggests x = 0, 1/8, 2/8 …, and records the points that it ingests."""

    def __init__(self) -> None:
        self.number = 0
        self.told: list[tuple[Any, ...]] = []

    def suggest(self, count: int) -> Sequence[Any]:
        points = [{"x": (self.number + i) / 8, "n": 8} for i in range(count)]
        self.number += count
        return points

    def ingest(self, points: Sequence[Point]) -> None:
        self.told += [(p.number, p.origin, p.state, dict(p.values)) for p in points]

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        super().resume(exchanges)
        self.number = sum(len(each.suggested) for each in exchanges)


SECOND = """
  - {name: near, use: random, group: sim, variables: {x: [-5.0, 5.0], n: {values: [NS]}},
     objectives: {E: minimize}, enabled: false, until: generator.near.suggested >= 3}
rules:
  - {id: over, trigger: metric, name: generator.search.ingested, when: 3,
     action: {name: switch, to: near}}
  - {id: back, trigger: metric, name: generator.near.ingested, when: 2,
     action: {name: switch, to: search}}
"""


class Switched(Told):
    """Study that switches from ``search`` to ``near``, and back."""

    def __init__(self, keys: str = "at_once: 2", ns: str = "8, 16") -> None:
        self.learning: list[Learning] = []
        rules = SECOND.replace("NS", ns)
        ensemble = load_text(
            text(f"{keys}\nuntil: generator.search.suggested >= 7", rules=rules), discover()
        )
        generators = dict(ensemble.generators)
        generators["near"] = replace(generators["near"], build=self.build)
        super().__init__(replace(ensemble.begun("switched", "/"), generators=generators))
        self.start()
        self.answer()

    def build(self, purpose: object = None) -> Generator:
        self.learning.append(Learning())
        return self.learning[-1]

    def points(self, name: str) -> list[Point]:
        return self.engine.state.generators[name].points

    def step(self) -> None:
        """End the first active job. All have a result but sim.2, whose point is therefore lost."""
        job = self.active()[0]
        self.begin(job)
        if job != "sim.2":
            self.observe(job, energy=1.0)
        self.end(job)
        self.answer()

    def handed(self) -> list[tuple[str, int]]:
        """Return the points of other generators that the last generator ingested."""
        return [each[1] for each in self.learning[-1].told if each[0] < 0 and each[1]]


def ended(told: Switched) -> Switched:
    """Play the run to its end."""
    while told.exit_code is None:
        told.step()
    assert told.exit_code == 0
    return told


def test_a_generator_gets_the_points_of_the_one_that_it_replaces() -> None:
    told = ended(Switched())
    steered = [one for one in told.decisions if isinstance(one, SetGenerator)]
    assert [(one.generator, one.pause, one.learns) for one in steered] == [
        ("search", True, ()),
        ("near", False, ("search",)),
        ("near", True, ()),
        ("search", False, ("near",)),
    ]
    # Each ingests its own and the other's points, even of jobs that end after the switch.
    assert told.handed() == [("search", number) for number in range(7)]
    own = [each for each in told.learning[-1].told if each[0] >= 0]
    assert [each[0] for each in own] == list(range(len(told.points("near"))))
    assert [each[2] for each in told.learning[-1].told[:3]] == ["done", "done", "lost"]
    assert told.metric("generator.near.ingested") == len(own)
    assert told.metric("generator.search.ingested") == 7
    first = next(one for one in told.calls if one.name == "near")
    assert first.options["ingest"][:2] == [
        {"of": "search", "point": number, "state": "done", "values": {"E": 1.0}}
        for number in range(2)
    ]


def test_points_invalid_for_the_other_generator_are_not_passed_on() -> None:
    told = ended(Switched(ns="8"))
    fit = [point.number for point in told.points("search") if point.parameters["n"] == 8]
    assert 0 < len(fit) < 7
    assert told.handed() == [("search", number) for number in fit]


def test_after_a_switch_and_a_resume_each_point_is_ingested_once() -> None:
    undisturbed = ended(Switched())
    for stop in range(6, 40, 6):
        told = Switched()
        while told.exit_code is None:
            told.step()
            if len(told.events) >= stop and told.exit_code is None:
                stop += 100
                told.engine = load(dump(told.engine), told.ensemble)  # type: ignore[assignment]
                told.renew()
                told.tell(Resumed(told.now))
                told.answer()
        assert told.learning[-1].told == undisturbed.learning[-1].told
        assert told.submitted() == undisturbed.submitted()


def test_a_switch_may_go_between_an_instance_and_a_generator() -> None:
    """``cancel: true`` cancels waiting jobs of the old one."""
    told = Told(
        text(
            "at_once: 3\nuntil: generator.search.suggested >= 9",
            rules="""
use:
  - as: last
    enabled: false
    rules:
      - {id: begin, trigger: start, action: {name: submit, label: sim,
         with: {parameters: {x: 1.0, n: 8}}}}
rules:
  - {trigger: job-success, action: {name: switch, to: last, from: search, cancel: true}}
  - {trigger: job-fail, action: {name: switch, to: search, from: last}}
""",
        )
    )
    told.start()
    told.answer()
    decided = told.play("sim.0")
    steered = [one for one in decided if isinstance(one, (SetGenerator, Switch, Cancel))]
    assert [one.type for one in steered] == ["set-generator", "switch", "cancel"]
    assert isinstance(steered[2], Cancel)
    assert steered[2].jobs == ("sim.1", "sim.2")
    assert told.engine.state.generators["search"].paused
    told.answer()
    told.begin("sim.3")
    decided = told.end("sim.3", status=256)
    steered = [one for one in decided if isinstance(one, (SetGenerator, Switch))]
    assert [one.type for one in steered] == ["switch", "set-generator"]
    assert not told.engine.state.generators["search"].paused


@pytest.mark.parametrize("key", ["replicas", "count"])
def test_more_jobs_for_each_point_do_not_extend_earlier_points_and_a_warning_says_so(
    key: str,
) -> None:
    told = begun("until: count.done >= 9", group=f"{key}: 2")
    told.ensemble = load_text(
        text("until: count.done >= 9", group=f"{key}: 3"), discover(), file="f.yaml"
    )
    told.engine.reconfigure(told.ensemble)
    decided = told.tell(Resumed(told.now))
    warnings = [one.message for one in decided if isinstance(one, Log)]
    assert warnings == [
        "the generator 'search' submits 3 jobs for each further point: its earlier points (1) keep 2"
    ]
