"""A generator over a finite space runs each point once (``repeat: false``, the default there)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from generator_story import Told

from ensemble_core import Generator, Point
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.events import Resumed

FILE = """
jobs:
  - name: sim
    command: "sim {{n}} {{opt}}"
    observe: {{json-lines: {{fields: [energy]}}}}
    result: {{E: last.energy}}
generators:
  - name: search
    use: {use}
    group: sim
    variables: {{n: {{values: [1, 2, 3]}}, opt: {{values: [adam, sgd]}}}}
    objectives: {{E: minimize}}
    {keys}
"""


def played(use: str, keys: str = "", *, seed: int | None = None) -> Told:
    """Play a run; with ``seed``, in random order, with lost points, snapshots and resumes."""
    told = Told(FILE.format(use=use, keys=keys))
    told.start()
    told.answer()
    chance = random.Random(seed)
    while told.exit_code is None:
        job = told.active()[0] if seed is None else chance.choice(told.active())
        lost = seed is not None and chance.random() < 0.1
        parameters = told.engine.state.table.records[job].job.parameters
        told.finish(job, parameters["n"] + 10 * (parameters["opt"] == "sgd"), status=256 * lost)
        if seed is not None and told.exit_code is None and chance.random() < 0.3:
            loaded = load(dump(told.engine), told.ensemble)
            assert loaded is not None
            told.engine = loaded
            told.renew()
            told.tell(Resumed(told.now))
            told.answer()
    return told


ALL = [(n, opt) for n in (1, 2, 3) for opt in ("adam", "sgd")]


def jobs(told: Told) -> list[tuple[object, ...]]:
    found = [
        tuple(job.parameters.values())
        for each in told.decisions
        for job in getattr(each, "jobs", ())
        if each.type == "submit"
    ]
    return sorted(found, key=ALL.index)


@pytest.mark.checkout
@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("use", ["random", "optuna"])
def test_each_combination_runs_once_and_then_the_generator_has_no_more_points(
    use: str, at_once: int
) -> None:
    told = played(use, f"at_once: {at_once}")
    assert jobs(told) == ALL
    assert told.exit_code == 0
    assert told.metric("generator.search.suggested") == 6
    assert told.metric("generator.search.ingested") == 6
    assert told.metric("generator.search.best.E") == 1
    generator = told.engine.state.generators["search"]
    _, rows = generator.table(told.ensemble.generators["search"].vocs)
    assert len(rows) == 6
    assert len(generator.points) == 6 + generator.repeated > 6
    assert all(
        each.values == generator.points[each.repeats].values
        for each in generator.points
        if each.repeats is not None
    )


@pytest.mark.checkout
@pytest.mark.parametrize("seed", range(4))
def test_lost_points_snapshots_and_resumes_repeat_no_point_and_the_journal_replays(
    seed: int,
) -> None:
    use = ("random", "optuna")[seed % 2]
    told = played(use, f"at_once: {1 + seed}", seed=seed)
    assert jobs(told) == ALL
    again = Told(FILE.format(use=use, keys=f"at_once: {1 + seed}"))
    for event in told.events:
        again.tell(event)
    assert [each.to_dict() for each in again.decisions] == [
        each.to_dict() for each in told.decisions
    ]


def test_steps_of_a_range_are_a_finite_space_unless_they_are_very_many() -> None:
    text = FILE.replace("{{values: [1, 2, 3]}}", "{{from: 1, to: TO, step: 1}}")
    told = Told(text.replace("TO", "3").format(use="random", keys="with: {seed: 1}"))
    told.start()
    told.answer()
    while told.exit_code is None:
        job = told.active()[0]
        told.finish(job, told.engine.state.table.records[job].job.parameters["n"])
    assert Counter(jobs(told)) == Counter(ALL)
    text = text.replace("TO", "100000").format(use="random", keys="until: count.done >= 3")
    assert Told(text).ensemble.generators["search"].repeat


def test_repeated_points_run_if_the_file_says_so_and_in_a_space_with_a_range() -> None:
    told = played("random", "repeat: true\n    until: generator.search.suggested >= 12")
    assert len(jobs(told)) == 12
    text = FILE.replace("{{values: [1, 2, 3]}}", "[1.0, 2.0]")
    search = Told(text.format(use="random", keys="until: count.done >= 3")).ensemble.generators
    assert search["search"].repeat


class _Stubborn(Generator):
    """Suggests two points again and again."""

    quick = True

    def __init__(self) -> None:
        self.told: list[tuple[int, Mapping[str, float]]] = []

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        return [{"n": 1 + n % 2, "opt": "sgd"} for n in range(count)]

    def ingest(self, points: Sequence[Point]) -> None:
        self.told += [(each.number, each.values) for each in points]


def test_generator_that_repeats_100_points_has_no_more() -> None:
    told = Told(FILE.format(use="random", keys="at_once: 2"))
    spec = told.ensemble.generators["search"]
    stubborn = _Stubborn()
    object.__setattr__(spec, "build", lambda purpose: stubborn)
    told.renew()
    told.start()
    told.answer()
    while told.exit_code is None:
        told.finish(told.active()[0])
    assert jobs(told) == [(1, "sgd"), (2, "sgd")]
    assert told.exit_code == 0
    assert 100 <= told.engine.state.generators["search"].repeated < 320
    numbers = [number for number, _ in stubborn.told]
    assert len({*numbers}) == len(numbers)  # each point is reported once
