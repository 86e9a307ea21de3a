"""Tests of the README: its ensemble files are valid, and it lists every option."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

from ensemble_kubernetes import JOB_OPTIONS, OPTIONS

from ensemble_core.config import load_text
from ensemble_core.plugin.discovery import discover


def readme() -> str:
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text("utf-8")
    return str(metadata("ensemble-kubernetes").json["description"])  # of the wheel


def test_the_ensemble_file_in_the_readme_is_valid_and_shows_every_option() -> None:
    text = readme()
    (file,) = re.findall(r"^   ```yaml\n(.*?)^   ```", text, re.M | re.S)
    assert load_text(file, discover(), file="README.md").warnings == ()
    assert [name for name in JOB_OPTIONS["properties"] if f"{name}:" not in file] == []
    assert [name for name in OPTIONS["properties"] if f"| `{name}=" not in text] == []
