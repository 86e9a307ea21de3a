"""Shortened runs of the studies in ``examples/`` reach their figures; some are killed and resumed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ensemble_core.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted([*EXAMPLES.glob("studies/*/ensemble.yaml"), *EXAMPLES.glob("ising/ensemble.yaml")])
NAMES = [file.parent.name for file in FILES]
#: Studies that need a plugin.
PLUGIN = {"bayes"}
#: Studies that are killed here; ``make soak`` kills all of them.
KILLED = ("asha", "restart")
STUDIES = [pytest.param(n, marks=[pytest.mark.checkout] if n in PLUGIN else []) for n in NAMES]

needs_numpy = pytest.mark.skipif(
    importlib.util.find_spec("numpy") is None, reason="no numpy: pip install numpy"
)


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that runs a study, shortened, and returns the result of each round."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import studies

    return lambda name, kills: [*studies.rounds(name, studies.STUDIES[name], tmp_path, kills)]


@needs_numpy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [s for s in STUDIES if s.values[0] not in KILLED])
def test_a_study_reaches_its_figure(name: str, rounds: Callable[..., Any]) -> None:
    (undisturbed,) = rounds(name, 0)
    assert undisturbed["good"], undisturbed
    assert undisturbed["jobs"]


@needs_numpy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_and_resumed_study_reaches_its_figure(
    name: str, rounds: Callable[..., Any]
) -> None:
    undisturbed, killed = rounds(name, 1)
    assert undisturbed["good"], undisturbed
    assert killed["good"], killed
    assert killed["killed"]


@pytest.mark.parametrize("plugin", [False, pytest.param(True, marks=pytest.mark.checkout)])
def test_every_study_is_valid(plugin: bool) -> None:
    files = [str(file) for file in FILES if (file.parent.name in PLUGIN) == plugin]
    done = CliRunner().invoke(main, ["validate", *files])
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_study_has_at_most_thirty_lines_and_no_python(file: Path) -> None:
    text = file.read_text()
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    assert len(lines) <= 30
    assert "custom" not in yaml.safe_load(text)


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_study_has_a_page_with_its_figure_and_the_paper(file: Path) -> None:
    page = (file.parent / "README.md").read_text()
    assert "**The figure.**" in page
    assert "**How it works.**" in page
    if file.parent.parent.name == "studies":
        link = f"({file.parent.name}/README.md)"
        assert link in (EXAMPLES / "studies" / "README.md").read_text()
