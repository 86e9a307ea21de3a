"""The plugin's README: its ensemble files are valid, and it names every option there is."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
from ensemble_flux.options import JOB_OPTIONS, OPTIONS

from ensemble_core.config import load_text
from ensemble_core.plugin.discovery import discover


def readme() -> str:
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text("utf-8")
    return str(metadata("ensemble-flux").json["description"])  # as it was built into the wheel


FILES = re.findall(r"^```yaml\n(.*?)^```", readme(), re.M | re.S)


@pytest.mark.parametrize("number", range(len(FILES)))
def test_an_ensemble_file_in_the_readme_is_valid(number: int) -> None:
    assert load_text(FILES[number], discover(), file="README.md").warnings == ()


def test_the_readme_shows_every_option_of_the_executor_and_of_a_job_group() -> None:
    text = readme()
    assert [name for name in OPTIONS["properties"] if f"| `{name}=" not in text] == []
    shown = "".join(block for block in FILES if "\n      flux:\n" in block)
    keys = re.findall(r"^ {8}([a-z_]+):", shown, re.M)
    assert sorted(keys) == sorted(JOB_OPTIONS["properties"])


def test_the_batch_script_in_the_readme_has_the_directives_of_the_example() -> None:
    example = Path(__file__).parents[3] / "examples" / "flux-batch.sh"
    assert set(re.findall(r"^#flux: .*", example.read_text(), re.M)) == set(
        re.findall(r"^#flux: .*", readme(), re.M)
    )
