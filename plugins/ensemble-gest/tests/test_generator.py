"""Tests of gest-api generators in a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from ensemble_gest import ensemble_generators
from ensemble_testing import GeneratorContract, PlayedGenerator, build_generator
from generator_story import Told
from gest_api.generator import Generator as Standard

from ensemble_core import Constraint, EnsembleError, Exchange, Point, Variable, Vocs
from ensemble_core.config import load_text
from ensemble_core.model.decisions import Log
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.generator_calls import GeneratorCalls

(GEST,) = ensemble_generators()
build = partial(build_generator, GEST, purpose="run")


class Uniform(Standard):
    """Draws random points with ids, and accepts only its own points."""

    returns_id = True

    def __init__(self, vocs: Any, seed: int = 0) -> None:
        super().__init__(vocs)
        self.vocs, self.drawn, self.count = vocs, np.random.default_rng(seed), 0
        self.known: set[int] = set()
        self.told: list[dict[str, Any]] = []

    def _validate_vocs(self, vocs: Any) -> None:
        if len(vocs.objectives) != 1:
            raise ValueError("one objective, please")

    def suggest(self, num_points: int | None) -> list[dict[str, Any]]:
        if num_points is None:
            raise ValueError("how many?")
        found = []
        for _ in range(num_points):
            point: dict[str, Any] = {"_id": self.count}
            for name, each in self.vocs.variables.items():
                if hasattr(each, "domain"):
                    point[name] = self.drawn.uniform(*each.domain)
                else:
                    point[name] = sorted(each.values)[self.drawn.integers(len(each.values))]
            self.known.add(self.count)
            self.count += 1
            found.append(point)
        return found

    def ingest(self, results: list[dict[str, Any]]) -> None:
        for each in results:
            if "_id" in each and each["_id"] not in self.known:
                raise ValueError(f"I do not know {each['_id']}")
        self.told += results


class Simplex(Uniform):
    """Suggests three points at a time, the next ones after all results of the previous ones."""

    def suggest(self, num_points: int | None) -> list[dict[str, Any]]:
        if num_points is not None or len(self.told) < self.count:
            raise ValueError("it decides how many")
        return super().suggest(3)


class Restless(Uniform):
    """Draws different points each time: it has no seed."""

    def __init__(self, vocs: Any) -> None:
        super().__init__(vocs)
        self.drawn = np.random.default_rng()


class Named(Uniform):
    """Takes only keyword arguments, like Xopt's generators."""

    def __init__(self, *, vocs: Any, seed: int = 0) -> None:
        super().__init__(vocs, seed)


def options(name: str, **keywords: Any) -> dict[str, Any]:
    return {"class": name, "options": keywords}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType("of_the_standard")
    vars(module).update(Uniform=Uniform, Simplex=Simplex, Restless=Restless, Named=Named)
    monkeypatch.setitem(sys.modules, "of_the_standard", module)


class TestUniform(GeneratorContract):
    plugin = GEST
    options: ClassVar[Mapping[str, Any]] = {
        "class": "of_the_standard.Uniform",
        "options": {"seed": 3},
    }


class TestSimplex(GeneratorContract):
    plugin = GEST
    options: ClassVar[Mapping[str, Any]] = {"class": "of_the_standard.Simplex", "options": {}}

    def test_lost_points_do_not_block_it(self) -> None:
        """It waits for lost points, which only the option ``failed`` can report."""


class TestLibensemble(GeneratorContract):
    plugin = GEST
    options: ClassVar[Mapping[str, Any]] = {
        "class": "libensemble.gen_classes.UniformSample",
        "options": {"random_seed": 3},
    }
    vocs = Vocs(
        variables=(Variable(name="x", low=-5.0, high=5.0), Variable(name="y", low=0.0, high=1.0)),
        objectives={"E": "minimize"},
    )

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("libensemble", reason="libEnsemble is not installed")


class TestLibensembleWithOneVariable(TestLibensemble):
    """libEnsemble returns points as arrays of length 1, but accepts only numbers."""

    vocs = Vocs(variables=(Variable(name="x", low=-5.0, high=5.0),), objectives={"E": "minimize"})

    def test_results_are_reported(self) -> None:
        played = PlayedGenerator(lambda: build(self.vocs, self.options), self.vocs, 2)
        played.play(6, lambda point: {"E": 1.0})


PROBLEM = Vocs(
    variables=(
        Variable(name="x", low=1e-5, high=10.0, log=True),
        Variable(name="n", values=(2, 4)),
    ),
    objectives={"E": "maximize"},
    constraints={"c": Constraint(">", 1.0)},
)


def value(point: Any) -> dict[str, float]:
    return {"E": 1.0, "c": 2.0}


def test_points_are_reported_with_their_ids_and_all_outputs() -> None:
    played = PlayedGenerator(lambda: build(PROBLEM, options("of_the_standard.Uniform")), PROBLEM, 2)
    played.play(4, value)
    told = played.generator._generator.told  # type: ignore[attr-defined]
    assert [each["_id"] for each in told] == [0, 1, 2]
    assert set(told[0]) == {"_id", "x", "n", "E", "c"}
    assert told[0]["x"] < 3  # the generator gets the logarithm
    vocs = played.generator._generator.vocs  # type: ignore[attr-defined]
    assert vocs.objectives["E"].__class__.__name__ == "MaximizeObjective"
    assert vocs.constraints["c"].value == 1.0


def test_if_a_generator_answers_differently_after_a_resume_recorded_points_count_as_foreign() -> (
    None
):
    played = PlayedGenerator(
        lambda: build(PROBLEM, options("of_the_standard.Restless")), PROBLEM, 2
    )
    played.play(6, value)
    played.renew()
    told = played.generator._generator.told  # type: ignore[attr-defined]
    assert len(told) == 5
    assert all("_id" not in each for each in told)
    played.play(4, value)
    assert len(played.points) == 11


def test_a_lost_point_is_reported_only_with_the_values_of_failed() -> None:
    generator = build(PROBLEM, options("of_the_standard.Uniform"))
    first, second = generator.suggest(2)
    generator.ingest([Point(number=0, parameters=first, state="lost")])
    lost = Point(number=1, parameters=second, state="lost", values={"E": -1e9, "c": 2.0})
    generator.ingest([lost])
    assert [each["E"] for each in generator._generator.told] == [-1e9]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "what", "hint"),
    [
        (
            "no_such_library.Nelder",
            "cannot import the module 'no_such_library'",
            "pip install no_such",
        ),
        ("of_the_standard.Nelder", "has no class 'Nelder'", "write its Python import path"),
    ],
)
def test_a_missing_class_is_reported_with_an_install_hint(path: str, what: str, hint: str) -> None:
    with pytest.raises(EnsembleError, match=what) as caught:
        build(PROBLEM, options(path))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


def test_a_problem_that_the_class_rejects_is_reported_in_its_words() -> None:
    several = Vocs(variables=PROBLEM.variables, objectives={"E": "minimize", "F": "minimize"})
    with pytest.raises(EnsembleError, match="one objective, please"):
        build(several, options("of_the_standard.Uniform"))
    for path in ("UniformSample", "a..b", ".a", "a b.C"):
        with pytest.raises(EnsembleError, match="is not the import path of a class"):
            build(PROBLEM, {"class": path, "options": {}})
    with pytest.raises(EnsembleError, match="cannot create Uniform"):
        build(PROBLEM, options("of_the_standard.Uniform", no_such=1))


@pytest.mark.parametrize("path", ["logging.basicConfig", "subprocess.Popen", "os.path.join"])
def test_only_subclasses_of_the_standard_are_built(path: str, tmp_path: Path) -> None:
    """Otherwise a file could call any function with its options."""
    with pytest.raises(EnsembleError, match=r"is not a subclass of gest_api\.generator\.Generator"):
        build(PROBLEM, options(path, filename=str(tmp_path / "made"), args=["true"]))
    assert not (tmp_path / "made").exists()


def test_a_class_with_keyword_only_arguments_is_built() -> None:
    found = build(PROBLEM, options("of_the_standard.Named", seed=4)).suggest(2)
    assert found == build(PROBLEM, options("of_the_standard.Uniform", seed=4)).suggest(2)


def test_foreign_points_are_reported_without_an_id() -> None:
    played = PlayedGenerator(lambda: build(PROBLEM, options("of_the_standard.Uniform")), PROBLEM)
    values = {"E": 2.0, "c": 3.0}
    other = Point(number=3, parameters={"x": 1.0, "n": 2}, state="done", values=values)
    played.learn([other, Point(number=4, parameters={"x": 2.0, "n": 2}, state="lost")])
    played.play(1, lambda parameters: values)
    generator: Any = played.generator
    assert generator._generator.told == [{"x": 0.0, "n": 2, **values}]


def test_if_a_changed_file_drops_points_values_stay_with_their_points() -> None:
    problem = Vocs(variables=(Variable(name="x", low=0.0, high=1.0),), objectives={"E": "minimize"})
    make = lambda: build(problem, options("of_the_standard.Uniform", seed=5))  # noqa: E731
    given = make().suggest(3)
    before = [Point(number=number, parameters=each) for number, each in enumerate(given)]
    resumed = make()
    resumed.resume([Exchange((), (), tuple(before[1:]))])  # the file dropped the first
    new = resumed.suggest(2)
    resumed.ingest([Point(number=3, parameters=new[0], state="done", values={"E": 1.0})])
    (told,) = resumed._generator.told  # type: ignore[attr-defined]
    assert told["x"] == new[0]["x"]


def test_a_simplex_of_xopt_continues_with_the_same_points_after_a_resume() -> None:
    pytest.importorskip("xopt", reason="Xopt is not installed (it brings torch)")
    problem = Vocs(
        variables=(Variable(name="x", low=-2.0, high=2.0), Variable(name="y", low=-1.0, high=2.0)),
        objectives={"E": "minimize"},
    )
    path = "xopt.generators.sequential.neldermead.NelderMeadGenerator"
    given = options(path, initial_point={"x": -1.0, "y": 0.0})

    def bowl(point: Any) -> dict[str, float]:
        return {"E": (point["x"] - 1.0) ** 2 + (point["y"] - 0.5) ** 2}

    found = []
    for stops in ((30,), (3, 9, 18)):
        played = PlayedGenerator(lambda: build(problem, given), problem)
        for calls in stops:
            points = played.play(calls, bowl)
            played.renew()
        found.append(points)
    assert found[0] == found[1]
    assert min(bowl(point)["E"] for point in found[0]) < 0.5


def test_a_variable_with_more_steps_than_the_standard_can_list_is_rejected() -> None:
    problem = Vocs(
        variables=(Variable(name="x", low=0, high=10**9, step=1),), objectives={"E": "minimize"}
    )
    with pytest.raises(EnsembleError, match="'x' has 1000000001 values; the limit for gest-api is"):
        GEST.build(problem, options("of_the_standard.Uniform"))


SEARCH = """
jobs:
  - {{name: sim, command: "sim {{x}}", observe: {{json-lines: {{fields: [energy]}}}}, result: {{E: last.energy}}}}
generators:
  - name: search
    use: gest
    group: sim
    variables: {{x: [0.0, 1.0]}}
    objectives: {{E: minimize}}
    at_once: 3
    until: generator.search.suggested >= 12
    with: {{class: of_the_standard.{kind}}}
    {keys}
"""


def searched(kind: str, odd: float | None, keys: str = "") -> Told:
    """Play a search in which only every third job has a finite energy."""
    told = Told(load_text(SEARCH.format(kind=kind, keys=keys), discover(), purpose="run"))
    told.maker = GeneratorCalls(
        told.ensemble.generators, lambda event: None, lambda: told.now, "run"
    )
    told.start()
    told.answer()
    played = 0
    while told.exit_code is None:
        played += 1
        job = told.active()[0]
        told.begin(job)
        if played % 3 == 0:
            told.observe(job, energy=float(played))
        elif odd is not None:
            told.observe(job, energy=odd)
        told.end(job)
        told.answer()
    return told


@pytest.mark.checkout
@pytest.mark.parametrize("odd", [None, math.nan, math.inf, -math.inf])
def test_a_point_without_a_finite_objective_is_lost_never_the_best_and_never_blocks(
    odd: float | None,
) -> None:
    told = searched("Uniform", odd)
    search = told.engine.state.generators["search"]
    assert Counter(each.state for each in search.points) == {"done": 4, "lost": 8}
    assert (search.pending, told.exit_code) == (0, 0)
    assert told.metric("generator.search.best.E") == 3.0


@pytest.mark.checkout
@pytest.mark.parametrize("odd", [None, math.nan])
def test_a_generator_that_waits_for_lost_points_ends_and_says_what_to_do(
    odd: float | None,
) -> None:
    told = searched("Simplex", odd)
    assert told.engine.state.generators["search"].pending == 0
    said = [each.message for each in told.decisions if isinstance(each, Log)]
    assert any("'failed: {E: VALUE}' gives it values" in each for each in said)
    told = searched("Simplex", odd, "failed: {E: 1e9}")
    assert told.engine.state.generators["search"].suggested >= 12
    assert told.metric("generator.search.best.E") == 3.0
