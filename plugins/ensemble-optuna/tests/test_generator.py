"""Tests of the Optuna generator, compared with a plain Optuna loop."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
from ensemble_optuna import ensemble_generators
from ensemble_testing import GeneratorContract, PlayedGenerator

from ensemble_core import Constraint, EnsembleError, Exchange, Point, Reading, Variable, Vocs

(OPTUNA,) = ensemble_generators()
OPTIONS = {
    "sampler": "tpe", "seed": 7, "sampler_options": {}, "pruner": "median", "pruner_options": {},
}  # fmt: skip
BRANIN = Vocs(
    variables=(Variable(name="x", low=-5.0, high=10.0), Variable(name="y", low=0.0, high=15.0)),
    objectives={"E": "minimize"},
)


class TestTpe(GeneratorContract):
    plugin = OPTUNA


class TestRandom(GeneratorContract):
    plugin = OPTUNA
    options: ClassVar[Mapping[str, Any]] = {"sampler": "random", "seed": 3}


class TestNsga(GeneratorContract):
    plugin = OPTUNA
    options: ClassVar[Mapping[str, Any]] = {
        "sampler": "nsga2",
        "sampler_options": {"population_size": 8},
    }
    vocs = Vocs(
        variables=(Variable(name="x", low=-5.0, high=5.0), Variable(name="n", values=(1, "b"))),
        objectives={"E": "minimize", "F": "maximize"},
        constraints={"c": Constraint("<", 12.0)},
    )


def branin(x: float, y: float) -> float:
    a = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return a * a + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def built(vocs: Vocs, **options: Any) -> Callable[[], Any]:
    return lambda: OPTUNA.build(vocs, {**OPTIONS, **options})


@pytest.mark.parametrize(
    ("sampler", "kind"),
    [("tpe", optuna.samplers.TPESampler), ("random", optuna.samplers.RandomSampler)],
)
def test_with_at_once_1_the_points_equal_those_of_a_plain_optuna_loop(
    sampler: str, kind: Callable[..., Any]
) -> None:
    study = optuna.create_study(sampler=kind(seed=7))
    plain = []
    for _ in range(40):
        trial = study.ask()
        x, y = trial.suggest_float("x", -5.0, 10.0), trial.suggest_float("y", 0.0, 15.0)
        plain.append({"x": x, "y": y})
        study.tell(trial, branin(x, y))
    played = PlayedGenerator(built(BRANIN, sampler=sampler), BRANIN)
    assert played.play(40, lambda point: {"E": branin(**point)}) == plain


def test_another_version_of_optuna_gets_the_recorded_points() -> None:
    played = PlayedGenerator(built(BRANIN), BRANIN, 2)
    played.play(15, lambda point: {"E": branin(**point)})
    for point in played.points:  # as if the journal had other points
        point.parameters = {"x": point.parameters["x"] / 2, "y": point.parameters["y"]}
    played.renew()
    assert len(played.play(5, lambda point: {"E": branin(**point)})) == 20 + 1


def test_unpromising_jobs_are_pruned() -> None:
    vocs = Vocs(variables=BRANIN.variables, objectives={"E": "minimize"}, prunes=True)
    options: ClassVar[Mapping[str, Any]] = {"n_startup_trials": 2, "n_warmup_steps": 1}
    generator = built(vocs, pruner_options=options)()
    for number in range(3):
        (found,) = generator.suggest(1)
        readings = [Reading(number, step, 1.0 + number) for step in range(4)]
        assert generator.prune(readings) in (set(), {number})
        done: Mapping[str, float] = {"E": 1.0}
        generator.ingest([Point(number=number, parameters=found, state="done", values=done)])
    generator.suggest(2)
    assert generator.prune([Reading(3, 0, 99.0), Reading(4, 0, 0.5)]) == set()
    assert generator.prune([Reading(3, 2, 99.0), Reading(4, 2, 0.5)]) == {3}


def test_what_optuna_does_not_support_is_rejected_with_a_hint() -> None:
    several = Vocs(variables=BRANIN.variables, objectives={"E": "minimize", "F": "minimize"})
    assert OPTUNA.check is not None
    with pytest.raises(EnsembleError, match=r"supports a single objective|needs the library"):
        OPTUNA.check(several, {**OPTIONS, "sampler": "cmaes"})
    pruned = Vocs(variables=several.variables, objectives=several.objectives, prunes=True)
    with pytest.raises(EnsembleError, match="can prune with a single objective"):
        OPTUNA.check(pruned, OPTIONS)
    left = {**OPTIONS, "pruner": "none", "pruner_options": {"min_resource": 2}}
    with pytest.raises(EnsembleError, match=r"cannot be combined with 'pruner_options' \('min_res"):
        OPTUNA.check(BRANIN, left)
    for given, prunes in (("sampler_options", False), ("pruner_options", True)):
        problem = Vocs(variables=BRANIN.variables, objectives=BRANIN.objectives, prunes=prunes)
        with pytest.raises(EnsembleError, match=r"rejected these options: .*'no_such'"):
            OPTUNA.check(problem, {**OPTIONS, given: {"no_such": 1}})


def test_a_library_that_a_sampler_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensemble_optuna.find_spec", lambda name: None)
    assert OPTUNA.check is not None
    with pytest.raises(EnsembleError) as caught:
        OPTUNA.check(BRANIN, {**OPTIONS, "sampler": "gp"})
    assert caught.value.hint == "pip install torch"


def test_points_of_another_generator_become_trials_and_influence_suggestions() -> None:
    def bowl(point: Mapping[str, Any]) -> dict[str, float]:
        return {"E": (point["x"] - 3.0) ** 2 + (point["y"] - 7.0) ** 2}

    other = PlayedGenerator(built(BRANIN, sampler="random"), BRANIN)
    other.play(60, bowl)
    far = []
    for points in ([], other.points):
        played = PlayedGenerator(built(BRANIN), BRANIN)
        played.learn(points)
        found = played.play(8, bowl)
        far.append(sum(bowl(each)["E"] for each in found) / len(found))
    assert far[1] < far[0] / 2  # TPE draws at random until it knows ten trials


@pytest.mark.parametrize("gone", [[0], [2], [0, 1, 2]])
def test_if_a_changed_file_excludes_points_values_stay_with_their_points(
    gone: list[int],
) -> None:
    kind = Variable(name="kind", values=("a", "b"))
    x = BRANIN.variables[0]
    before, after = (
        Vocs(variables=(x, one), objectives={"E": "minimize"})
        for one in (kind, Variable(name="kind", values=("b",)))
    )
    record = [
        Point(number=number, parameters={"x": float(number), "kind": "ab"[number not in gone]})
        for number in range(3)
    ]
    resumed: Any = built(after)()
    resumed.resume([Exchange((), (), tuple(record))])
    (new,) = resumed.suggest(1)
    assert before.refused(new) is None
    left = [each for each in record if each.number not in gone]
    resumed.prune([Reading(2, 0, 1.0)])
    resumed.ingest(
        [
            Point(number=each.number, parameters=each.parameters, values={"E": each.number + 1.0})
            for each in (*left, Point(number=3, parameters=new))
        ]
    )
    done = {trial.value: trial.params for trial in resumed._study.trials if trial.value is not None}
    assert done == {
        4.0: dict(new), **{each.number + 1.0: dict(each.parameters) for each in left}
    }  # fmt: skip


def test_warnings_of_optuna_go_to_its_log_and_not_to_the_terminal(tmp_path: Path) -> None:
    program = (
        "import logging, warnings\n"
        "from ensemble_optuna.generator import OptunaGenerator, _LOG\n"
        "from ensemble_core import Variable, Vocs\n"
        "from test_generator import OPTIONS\n"
        "vocs = Vocs(variables=(Variable(name='x', high=1.0),), objectives={'E': 'minimize'})\n"
        "options = {**OPTIONS, 'sampler_options': {'multivariate': True, 'group': True}}\n"
        "OptunaGenerator(vocs, options).suggest(1)\n"
        "_LOG.warning('of the library')\n"
        "_LOG.addHandler(logging.FileHandler('log'))\n"
        "OptunaGenerator(vocs, options).suggest(1)\n"
        "warnings.warn('of another library')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if "optuna" in line.lower()]
    assert not [line for line in lines if "Experimental" in line or "of the library" in line], lines
    assert "of another library" in done.stderr
    assert "ExperimentalWarning: Argument ``group``" in (tmp_path / "log").read_text()
