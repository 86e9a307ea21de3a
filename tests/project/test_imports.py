"""Imports are fast and have no side effects; checked in fresh interpreters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import ensemble_core
from ensemble_core.plugin.record_validation import HOOKS

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


#: Modules that a command without errors does not need, and that would delay its start.
NOT_TO_HELP = {
    "asyncio", "concurrent", "email", "ensemble_flux", "ensemble_lammps", "ensemble_service",
    "jsonschema_rs", "logging", "pluggy", "socket", "sqlite3", "subprocess", "tempfile",
    "urllib", "yaml",
}  # fmt: skip
NOT_TO_VALIDATE = {
    "asyncio", "concurrent", "ctypes", "hashlib", "importlib.metadata", "logging",
    "sqlite3", "subprocess", "tempfile",
    "ensemble_core.engine", "ensemble_core.journal", "ensemble_core.local.supervisor",
    "ensemble_core.model.decisions", "ensemble_core.model.events", "ensemble_core.runtime",
    "ensemble_flux.executor", "ensemble_lammps.thermo", "ensemble_service.client",
    "ensemble_slurm.executor",
}  # fmt: skip
NOT_TO_RUN = {
    "asyncio", "concurrent", "ctypes", "importlib.metadata", "subprocess", "tempfile",
    "ensemble_core.local.supervisor", "ensemble_testing", "ensemble_flux.executor",
    "ensemble_lammps.thermo", "ensemble_service.client", "ensemble_slurm.executor",
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "needless"),
    [
        (["--help"], NOT_TO_HELP),
        (["validate", str(EXAMPLES / "hello-world.yaml")], NOT_TO_VALIDATE),
        (
            ["run", "--executor", "local", "--state", "state", str(EXAMPLES / "hello-world.yaml")],
            NOT_TO_RUN,
        ),
    ],
    ids=["help", "validate", "run"],
)
def test_a_command_loads_only_what_it_needs(
    command: list[str], needless: set[str], tmp_path: Path
) -> None:
    code = MAIN.format(command) + "; import sys, json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert set(json.loads(done.stdout.splitlines()[-1])) & needless == set()


def test_discovery_does_not_load_river() -> None:
    assert not loaded("from ensemble_core.plugin.discovery import discover; discover()") & {
        "river",
        "numpy",
        "rich",
        "yaml",
        "grpc",
        "pytest",
    }


#: Runs ``ensemble`` with these arguments.
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


def test_few_values_of_quantiles_load_neither_river_nor_numpy(tmp_path: Path) -> None:
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


def test_all_public_names_exist() -> None:
    for name in ensemble_core.__all__:
        assert getattr(ensemble_core, name) is not None
    assert set(ensemble_core.__all__) <= set(dir(ensemble_core))
    assert ensemble_core.__version__ == version("ensemble-core")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trigguer'"):
        ensemble_core.Trigguer  # type: ignore[attr-defined]  # noqa: B018  # on purpose


def without_plugins(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that cannot import plugins."""
    hide = (
        "import sys\nfrom importlib.machinery import PathFinder\n"
        "known = PathFinder.find_spec\n"
        "def find(name, path=None, target=None):\n"
        "    other = name.startswith('ensemble_') and not name.startswith('ensemble_core')\n"
        "    return None if other else known(name, path, target)\n"
        "PathFinder.find_spec = find\n"
    )
    return subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True)


def test_all_public_names_can_be_imported_without_plugins() -> None:
    done = without_plugins("from ensemble_core import *\nassert Rule")
    assert done.returncode == 0, done.stderr


def test_the_core_knows_no_plugin_by_name() -> None:
    """Names of plugins' packages and distributions are in a data file, not in code.

    The package ``ensemble_environments`` has the name of a hook.
    """
    core = Path(ensemble_core.__file__).parent
    known = json.loads((core / "plugin" / "known_distributions.json").read_text())
    names = "|".join(
        rf"\b{re.escape(name)}\b"
        for each in known
        for name in {each, each.replace("-", "_")} - {*HOOKS}
    )
    found = {
        f"{file.relative_to(core)}: {line.strip()}"
        for file in core.rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(names, line)
    }
    assert found == set()
