"""Conditional variables, first points and missing objectives, for every generator."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from generator_story import Told

from ensemble_core import FileErrors
from ensemble_core.cli.toolkit import load_file
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Submit
from ensemble_core.model.events import Resumed
from ensemble_core.plugin.discovery import discover

FILE = """
jobs:
  - name: sim
    command: "sim {{opt}} {{rate}} {{momentum}}"
    observe: {{json-lines: {{fields: [energy]}}}}
    result: {{E: last.energy}}
generators:
  - name: search
    use: {use}
    group: sim
    variables:
      opt: {{values: [adam, sgd]}}
      rate: [0.0, 1.0]
      momentum: {momentum}
    objectives: {{E: minimize}}
    {keys}
"""
MOMENTUM = "{range: [0.0, 0.9], when: opt == 'sgd'}"
END = "until: generator.search.suggested >= 12"
OPTIONS = {"latin-hypercube": "with: {points: 12}", "grid": "with: {points: 2}"}
CONDITIONAL = ["grid", "random", "sobol", "latin-hypercube", "optuna"]


def study(use: str, keys: str = "", momentum: str = MOMENTUM, text: str = FILE) -> str:
    own = OPTIONS.get(use, "")
    ends = END if "until" not in keys else ""
    return text.format(use=use, momentum=momentum, keys="\n    ".join((own, ends, keys)))


def energy(point: dict[str, Any]) -> float:
    return float(sum(value for value in point.values() if isinstance(value, float)))


def played(text: str, *, seed: int | None = None, odd: float | None = None) -> Told:
    """Play a run; with ``seed`` in random order and with kills, with ``odd`` as all energies but
    those of every third job.
    """
    told = Told(text)
    told.start()
    told.answer()
    chance = random.Random(seed)
    played = 0
    while told.exit_code is None:
        job = told.active()[0] if seed is None else chance.choice(told.active())
        parameters = dict(told.engine.state.table.records[job].job.parameters)
        played += 1
        told.finish(job, energy(parameters) if odd is None or played % 3 == 0 else odd)
        if seed is not None and told.exit_code is None and chance.random() < 0.3:
            loaded = load(dump(told.engine), told.ensemble)
            assert loaded is not None
            told.engine = loaded
            told.renew()
            told.tell(Resumed(told.now))
            told.answer()
    return told


@pytest.mark.checkout
@pytest.mark.parametrize("use", CONDITIONAL)
def test_a_variable_has_a_value_only_where_its_condition_holds(use: str) -> None:
    told = played(study(use))
    points = told.parameters()
    assert {opt for opt, _, _ in points} == {"adam", "sgd"}
    for opt, _, momentum in points:
        assert (momentum == "") == (opt == "adam")
        assert momentum == "" or 0 <= momentum <= 0.9
    assert len({*points}) == len(points)
    assert len(points) == (2 + 2 * 2 if use == "grid" else 12)
    commands = [job.command for each in told.decisions for job in getattr(each, "jobs", ())
                if each.type == "submit"]  # fmt: skip
    assert all((each[-1] == "") == (each[1] == "adam") for each in commands)


@pytest.mark.checkout
@pytest.mark.parametrize("use", CONDITIONAL)
def test_the_points_of_a_conditional_space_are_the_same_after_kills(use: str) -> None:
    text = study(use, "at_once: 1\n    first: [{opt: adam, rate: 0.25}]")
    assert played(text, seed=5).parameters() == played(text).parameters()


@pytest.mark.checkout
@pytest.mark.parametrize("use", ["random", "optuna"])
def test_a_finite_conditional_space_has_no_point_twice(use: str) -> None:
    text = FILE.replace("rate: [0.0, 1.0]", "rate: {{values: [1, 2]}}")
    told = played(
        study(use, "until: count.done >= 99", "{values: [0.1, 0.2], when: opt == 'sgd'}", text)
    )
    jobs = told.metric("count.sim.done")
    assert (jobs, told.exit_code) == (2 + 2 * 2, 0)


@pytest.mark.checkout
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("use", [*CONDITIONAL, "nelder-mead"])
def test_first_points_come_first_and_once(use: str, seed: int | None) -> None:
    first = "first: [{rate: 0.5, momentum: 0.25}, {rate: 1, momentum: 0.75}]"
    text = FILE.replace("      opt: {{values: [adam, sgd]}}\n", "").replace("{{opt}}", "")
    told = played(study(use, f"at_once: 3\n    {first}", "[0.0, 1.0]", text), seed=seed)
    points = told.parameters()
    assert points[:2] == [(0.5, 0.25), (1.0, 0.75)]
    ran = told.metric("count.sim.submitted")
    assert ran == told.metric("generator.search.suggested") == len({*points})
    if use in ("random", "sobol"):  # the others are those of a search without first points
        alone = played(study(use, "at_once: 3", "[0.0, 1.0]", text))
        assert points[2:] == alone.parameters()[: len(points) - 2]
    if use == "nelder-mead":
        assert told.exit_code == 0


@pytest.mark.checkout
def test_a_generator_that_learns_knows_the_results_of_first_points() -> None:
    from ensemble_optuna.generator import OptunaGenerator

    told = Told(
        study("optuna", "first: [{opt: sgd, rate: 0.5, momentum: 0.25}, {opt: adam, rate: 0.1}]")
    )
    built: list[Any] = []
    spec = told.ensemble.generators["search"]
    before = spec.build
    object.__setattr__(spec, "build", lambda purpose: built.append(before(purpose)) or built[-1])
    told.start()
    told.answer()
    for _ in range(5):
        told.finish(told.active()[0], 1.5)
    (inner,) = built
    assert isinstance(inner, OptunaGenerator)
    done = [each for each in inner._study.trials if each.state.is_finished()]
    assert [each.values for each in done] == [[1.5]] * 5
    assert [each.params for each in done[:2]] == [
        {"opt": "sgd", "rate": 0.5, "momentum": 0.25}, {"opt": "adam", "rate": 0.1},
    ]  # fmt: skip


def test_first_points_of_a_file_and_more_of_them_after_a_resume(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("opt,rate,momentum\nadam,0.5,\nsgd,0.25,0.125\n")
    path = tmp_path / "e.yaml"
    path.write_text(study("random", "first: points.csv"))
    told = Told(load_file(path, discover()).begun("t", str(tmp_path)))
    told.start()
    told.answer()
    for _ in range(4):
        told.finish(told.active()[0], 1.0)
    before = told.parameters()
    assert before[:2] == [("adam", 0.5, ""), ("sgd", 0.25, 0.125)]
    (tmp_path / "points.csv").write_text(
        "opt,rate,momentum\nadam,0.5,\nsgd,0.25,0.125\nadam,0.75,\n"
    )
    told.ensemble = load_file(path, discover()).begun("t", str(tmp_path))
    told.engine.reconfigure(told.ensemble)
    told.renew()
    for _ in range(3):
        told.finish(told.active()[0], 1.0)
    assert told.parameters()[len(before)] == ("adam", 0.75, "")
    plain = Told(study("random"))
    plain.start()
    plain.answer()
    for _ in range(4):
        plain.finish(plain.active()[0], 1.0)
    own = [each for each in told.parameters()[2:] if each != ("adam", 0.75, "")]
    assert own[:4] == plain.parameters()[:4]


EXTENDED = """
jobs:
  - {name: sim, command: "sim {x}", observe: {json-lines: {fields: [energy]}}, result: {E: last.energy}}
generators:
  - {name: search, use: USE, group: sim, variables: {x: VALUES}, objectives: {E: minimize}}
rules:
  - {id: all, trigger: generator-exhausted, name: search, repetitions: unlimited,
     action: {name: log, message: all}}
"""


@pytest.mark.checkout
@pytest.mark.parametrize(
    ("use", "before", "after"),
    [
        ("grid", "{values: [1, 2]}", "{values: [3, 1, 2]}"),
        ("grid", "{from: 1, to: 2, step: 1}", "{from: 1, to: 3, step: 1}"),
        ("random", "{values: [1, 2]}", "{values: [1, 2, 3]}"),
        ("optuna", "{values: [1, 2]}", "{values: [1, 2, 3]}"),
        ("random", "{values: [1, 2]}", "{values: [2, 3]}"),
        ("optuna", "{values: [1, 2]}", "{values: [2, 3]}"),
    ],
)
def test_search_that_is_extended_after_its_end_runs_the_new_points_once(
    use: str, before: str, after: str
) -> None:
    def file(values: str) -> str:
        return EXTENDED.replace("USE", use).replace("VALUES", values)

    def play() -> list[object]:
        while told.exit_code is None:
            told.finish(told.active()[0], 1.0)
        jobs = [job for each in told.decisions if isinstance(each, Submit) for job in each.jobs]
        return sorted(job.parameters["x"] for job in jobs)

    told = Told(file(before))
    told.start()
    told.answer()
    assert play() == [1, 2]
    for values, points, times in (
        (before, [1, 2], 1),
        (after, [1, 2, 3], 2),
        (after, [1, 2, 3], 2),
    ):
        told.ensemble = Told(file(values)).ensemble
        told.engine.reconfigure(told.ensemble)
        told.renew()
        told.tell(Resumed(told.now, reopened=True))
        told.answer()
        assert play() == points
        assert told.fired().count("all") == times


def test_generator_that_the_file_has_lost_is_named() -> None:
    told = Told(EXTENDED.replace("USE", "grid").replace("VALUES", "{values: [1, 2]}"))
    told.start()
    told.answer()
    while told.exit_code is None:
        told.finish(told.active()[0], 1.0)
    text = EXTENDED.replace("USE", "grid").replace("VALUES", "{values: [1, 2]}")
    told.ensemble = Told(text.replace("search", "other")).ensemble
    told.engine.reconfigure(told.ensemble)
    told.renew()
    told.tell(Resumed(told.now, reopened=True))
    assert any(
        "no longer has the generator 'search': its points (2)" in one for one in told.messages()
    )


@pytest.mark.checkout
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("use", [*CONDITIONAL, "nelder-mead"])
def test_a_point_without_a_finite_objective_is_lost_never_the_best_and_never_blocks(
    use: str, odd: float
) -> None:
    text = FILE.replace("      opt: {{values: [adam, sgd]}}\n", "").replace("{{opt}}", "")
    told = played(study(use, "at_once: 2", "[0.0, 0.9]", text), odd=odd)
    generator = told.engine.state.generators["search"]
    assert told.exit_code == 0
    assert {each.state for each in generator.points} == {"done", "lost"}
    assert math.isfinite(told.metric("generator.search.best.E"))
    done = [each.values["E"] for each in generator.points if each.state == "done"]
    assert told.metric("generator.search.best.E") == min(done)
    assert generator.pending == 0


@pytest.mark.parametrize(
    ("use", "momentum", "keys", "said"),
    [
        (
            "nelder-mead",
            MOMENTUM,
            "",
            "the generator 'nelder-mead' cannot have variables with 'when'",
        ),
        ("random", "{range: [0, 1], when: opt = 'sgd'}", "", "does not parse"),
        ("random", "{range: [0, 1], when: opd == 'sgd'}", "", "did you mean 'opt'?"),
        ("random", "{range: [0, 1], when: momentum > 0}", "", "'momentum' uses its own value"),
        (
            "random",
            "{range: [0, 1], when: z > 0}\n      z: [0, 1]",
            "",
            "'z', which is not above it",
        ),
        ("random", "{range: [0, 1], from: 0}", "", "has both 'range' and 'from'"),
        ("random", "{range: [1, 0]}", "", "has an empty range: 1 to 0"),
        (
            "random",
            MOMENTUM,
            "first: [{opt: sgd, rate: 7, momentum: 0}]",
            "rate = 7: it is from 0 to 1",
        ),
        ("random", MOMENTUM, "first: [{opt: sgd, rate: 0.5}]", "no value for 'momentum'"),
        (
            "random",
            MOMENTUM,
            "first: [{opt: adam, rate: .nan}]",
            "'rate' is the number .nan, expected a finite number",
        ),
        ("random", MOMENTUM, "first: [{opt: rmsprop, rate: 0.5}]", "it is one of 'adam', 'sgd'"),
        (
            "random",
            MOMENTUM,
            "first: [{opt: adam, rate: 0.5, x: 1}]",
            "'x', which is not a variable",
        ),
        ("random", MOMENTUM, "first: nothing.csv", "there is no file"),
        ("random", MOMENTUM, "first: []", "first"),
    ],
)
def test_invalid_search_spaces_are_errors_at_their_place(
    use: str, momentum: str, keys: str, said: str
) -> None:
    with pytest.raises(FileErrors) as found:
        Told(study(use, keys, momentum))
    assert said in str(found.value)
    assert ":" in str(found.value).partition(" ")[0]
