"""The plugin's README: its ensemble file is valid and shows every option."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
from ensemble_gest import ensemble_generators

from ensemble_core.config import load_text
from ensemble_core.plugin.discovery import discover


def readme() -> str:
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text("utf-8")
    return str(metadata("ensemble-gest").json["description"])  # as it was built into a wheel


def test_the_ensemble_file_in_the_readme_is_valid_and_shows_every_option() -> None:
    (file,) = re.findall(r"^```yaml\n(.*?)^```", readme(), re.M | re.S)
    if "libensemble" in file:
        pytest.importorskip("libensemble", reason="libEnsemble is not installed")
    assert load_text(file, discover(), file="README.md").warnings == ()
    (record,) = ensemble_generators()
    assert [name for name in record.options["properties"] if f"{name}:" not in file] == []
