"""An example that runs for real decides the same when it is simulated with a model of that run.

Here those whose decisions do not depend on how fast the machine is. All examples, five times each,
with their lengths: ``make soak``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "same_as_simulated.py"

pytestmark = pytest.mark.checkout


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("same_as_simulated", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "example", ["hello-world.yaml", "custom-action.yaml", "failure-handling.yaml"]
)
def test_a_simulated_example_decides_what_the_real_one_did(
    script: ModuleType, tmp_path: Path, example: str
) -> None:
    assert script.compare(example, tmp_path).difference == ""


def test_every_example_that_runs_here_is_compared(script: ModuleType) -> None:
    """What is said of one by its name is of a file that there is."""
    found = script.local()
    assert {"hello-world.yaml", "chain/ensemble.yaml", "studies/asha/ensemble.yaml"} <= set(found)
    assert set(script.SPECIAL) <= set(found)
    assert all((script.EXAMPLES / name).exists() for name in script.ELSEWHERE)


def test_a_difference_is_seen_and_a_race_is_none(script: ModuleType) -> None:
    def told(*entries: tuple[float, str]) -> list[object]:
        return [script.Decided(at, (what,)) for at, what in entries]

    real = told((0.0, "a"), (1.0, "b"), (1.01, "c"), (2.0, "d"))
    assert script.difference(real, told((0.0, "a"), (1.0, "c"), (1.0, "b"), (2.0, "d"))) == ""
    assert "at 1.000 s" in script.difference(real, told((0.0, "a"), (1.0, "c"), (2.0, "d")))
    assert "at 1.000 s" in script.difference(
        real, told((0.0, "a"), (1.0, "d"), (1.0, "c"), (2.0, "b"))
    )
    assert "not in the run" in script.difference(real, [*real, *told((3.0, "e"))])
