"""Importing costs next to nothing and changes nothing: checked in fresh interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import ensemble_core

HEAVY = (
    "river", "numpy", "scipy", "pandas", "rich", "jsonschema_rs", "yaml", "grpc",
    "kubernetes", "flux", "pytest", "inotify_simple",
)  # fmt: skip
EXAMPLES = Path(__file__).parents[2] / "examples"
REPORT = "; import sys, json; print(json.dumps([m for m in sys.modules if '.' not in m]))"


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import ensemble_core",
        "from ensemble_core import *",
        "import ensemble_core.plugin.discovery",
        "import ensemble_core.builtin.statistics, ensemble_core.builtin.observers",
        "from ensemble_core.plugin.discovery import GROUP",
    ],
)
def test_import_loads_nothing_heavy(code: str) -> None:
    assert not loaded(code) & set(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['ensemble', '--help']\nfrom ensemble_core.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n0"
    )
    assert not loaded(code) & set(HEAVY)


def test_discovery_does_not_load_river() -> None:
    assert not loaded("from ensemble_core.plugin.discovery import discover; discover()") & {
        "river",
        "numpy",
        "rich",
        "yaml",
        "grpc",
        "pytest",
    }


#: Does as ``ensemble`` does, and says at the end which modules were loaded.
MAIN = (
    "import sys\nsys.argv = ['ensemble', *{!r}]\nfrom ensemble_core.cli.main import main\n"
    "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\nprint()"
)


def test_a_plain_run_loads_neither_river_nor_numpy() -> None:
    run = ["run", "--executor", "local", "--no-journal", str(EXAMPLES / "hello-world.yaml")]
    assert not loaded(MAIN.format(run)) & {"river", "numpy", "narwhals", "scipy", "pandas", "grpc"}


QUANTILES = """
jobs: [{name: quick, command: "true", count: 30}]
rules:
  - {trigger: start, action: {name: submit, label: quick}}
  - {trigger: job-finish, name: quick, action: {name: custom, label: look}}
  - {trigger: metric, name: p90.quick-duration, when: "> 1e9", action: {name: terminate}}
custom: |
  def look(metrics, **kwargs):
      metrics["iqr.quick-duration"], metrics["ewma.quick-pending"]
"""


def test_quantiles_and_functions_load_neither_before_there_are_many_values(tmp_path: Path) -> None:
    file = tmp_path / "quantiles.yaml"
    file.write_text(QUANTILES, encoding="utf-8")
    run = ["run", "--executor", "local", "--no-journal", str(file)]
    assert not loaded(MAIN.format(run)) & {"river", "numpy", "narwhals", "scipy", "pandas"}


def test_import_installs_no_signal_handler() -> None:
    code = (
        "import signal\n"
        "def handlers(): return {s: signal.getsignal(s) for s in signal.valid_signals()}\n"
        "before = handlers()\n"
        "import ensemble_core\n"
        "from ensemble_core import *\n"
        "from ensemble_core.plugin.discovery import discover\n"
        "discover()\n"
        "assert handlers() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_all_there() -> None:
    for name in ensemble_core.__all__:
        assert getattr(ensemble_core, name) is not None
    assert set(ensemble_core.__all__) <= set(dir(ensemble_core))
    assert ensemble_core.__version__ == version("ensemble-core")


def test_what_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trigguer'"):
        ensemble_core.Trigguer  # type: ignore[attr-defined]  # noqa: B018  # that is the point
