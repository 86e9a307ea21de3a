"""The template for plugin packages: its tests pass, and Ensemble discovers it when installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "examples" / "plugin-template"

pytestmark = pytest.mark.checkout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a copy of the template, registered as by an editable installation."""
    folder = tmp_path / "ensemble-ping"
    shutil.copytree(TEMPLATE, folder)
    project = (folder / "pyproject.toml").read_text("utf-8")
    name, version = (
        re.search(rf'^{key} = "(.*)"$', project, re.M)[1] for key in ("name", "version")
    )
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = project.partition("[project.entry-points.")[2].replace('"', "")
    (info / "entry_points.txt").write_text(f"[{points}")
    return folder


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=package,
        env={
            **os.environ,
            "PYTHONPATH": str(package),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )


def test_its_tests_pass(package: Path) -> None:
    done = run(package, "-m", "pytest", "-q")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_its_tests_find_an_action_that_posts_another_event(package: Path) -> None:
    module = package / "ensemble_ping" / "__init__.py"
    source = module.read_text("utf-8")
    assert "dict(context.event)" in source
    module.write_text(source.replace("dict(context.event)", "{}"), encoding="utf-8")
    assert run(package, "-m", "pytest", "-q").returncode == 1


def test_ensemble_finds_it_when_it_is_installed(package: Path) -> None:
    done = run(package, "-m", "ensemble_core.cli", "plugins", "show", "ping")
    assert done.returncode == 0, done.stdout
    assert "from ensemble-ping 0.1.0" in done.stdout
    assert "url" in done.stdout


def test_a_misspelt_option_is_an_error_with_its_place(package: Path) -> None:
    (package / "study.yaml").write_text(
        "jobs: [{name: a, command: a}]\n"
        "rules: [{trigger: start, action: {name: ping, ulr: http://a}}]\n",
        encoding="utf-8",
    )
    done = run(package, "-m", "ensemble_core.cli", "validate", "study.yaml")
    assert done.returncode == 2
    assert "study.yaml:2:47: unknown key 'ulr'" in done.stdout
