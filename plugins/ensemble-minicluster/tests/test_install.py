"""Tests of the installed plugin: its entry point, imports and README."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
from ensemble_minicluster import ensemble_executors
from ensemble_minicluster.options import OPTIONS, PASSED_ON

from ensemble_core import Executor
from ensemble_core.config import load_text
from ensemble_core.plugin.discovery import discover

HEAVY = ("flux", "grpc", "google.protobuf", "kubernetes", "cryptography", "ensemble_flux.executor")


def test_the_executor_and_the_resizer_are_found_by_their_names() -> None:
    registry = discover()
    assert registry.lookup("executor", "minicluster").shared
    assert registry.lookup("resizer", "kubernetes").summary
    assert not [plugin for plugin in registry.broken if plugin.name == "minicluster"]


def test_it_is_never_chosen_automatically() -> None:
    (record,) = ensemble_executors()
    assert record.available is not None
    assert record.available()[0] is False


def test_neither_discovery_nor_a_mock_imports_heavy_modules() -> None:
    script = f"""
import sys
from ensemble_core.plugin.discovery import discover
record = discover().lookup("executor", "minicluster")
record.build({{"mock": True, "compose": "local"}})
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=150
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_file_with_grow_is_valid_with_it_but_not_with_flux_alone() -> None:
    text = (
        "jobs: [{name: a, command: 'true'}]\n"
        "rules: [{trigger: start, action: {name: grow, value: 2}}]\n"
    )
    (record,) = ensemble_executors()
    loaded = load_text(text, discover(), file="a.yaml", executor=record)
    assert "a" in loaded.groups


def test_the_record_lists_the_executors_capabilities() -> None:
    (record,) = ensemble_executors()
    executor = record.build({"mock": True, "compose": "local"})
    assert isinstance(executor, Executor)
    assert executor.capabilities == record.capabilities


@pytest.mark.checkout
def test_forwarded_options_exist_in_the_executor_flux() -> None:
    registry = discover()
    if "flux" not in registry.executors:
        pytest.skip("no executor 'flux': pip install ensemble-flux")
    assert set(PASSED_ON) == set(registry.lookup("executor", "flux").options["properties"])


# -- the README ------------------------------------------------------------------------------------


def readme() -> str:
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text("utf-8")
    return str(metadata("ensemble-minicluster").json["description"])  # as built into the wheel


FILES = re.findall(r"^```yaml\n(.*?)^```", readme(), re.M | re.S)


def test_the_readme_has_an_example_file() -> None:
    assert FILES


@pytest.mark.parametrize("number", range(len(FILES)))
def test_an_ensemble_file_in_the_readme_is_valid(number: int) -> None:
    (record,) = ensemble_executors()
    loaded = load_text(FILES[number], discover(), file="README.md", executor=record)
    assert loaded.warnings == ()


def test_the_readme_lists_every_option() -> None:
    text = readme()
    names = [name.replace("_", "-") for name in OPTIONS["properties"] if name not in PASSED_ON]
    assert [name for name in names if f"`{name}" not in text] == []


@pytest.mark.parametrize("name", ["arrival_timeout", "drain_timeout", "settle_time", "max_size"])
def test_the_readme_lists_the_defaults(name: str) -> None:
    default = OPTIONS["properties"][name]["default"]
    row = re.search(rf"^\| `{name.replace('_', '-')}=\w+` \| ([^|]+) \|", readme(), re.M)
    assert row is not None
    assert row[1].split()[0] == str(default)
