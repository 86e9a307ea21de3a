"""Tests of the README and of ``docs/start-flux.md``: files and options are valid, commands run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ensemble_flux import JOB_OPTIONS, OPTIONS
from ensemble_testing import ReadmeContract
from start_pages import commands_of, run_commands

from ensemble_core.config import load_text
from ensemble_core.plugin.discovery import discover


def start_page() -> str:
    return (Path(__file__).parents[3] / "docs" / "start-flux.md").read_text("utf-8")


class TestReadme(ReadmeContract):
    distribution = "ensemble-flux"
    options = JOB_OPTIONS
    executor_options = OPTIONS
    tests = Path(__file__).parent

    def test_the_batch_script_in_the_readme_has_the_directives_of_the_example(self) -> None:
        example = Path(__file__).parents[3] / "examples" / "flux-batch.sh"
        assert set(re.findall(r"^#flux: .*", example.read_text(), re.M)) == set(
            re.findall(r"^#flux: .*", self.readme(), re.M)
        )


@pytest.mark.checkout
def test_the_page_get_started_names_options_and_files_that_exist() -> None:
    """This test needs no Flux."""
    page = start_page()
    options = set(re.findall(r"`-o (\w+)=", page))
    assert options >= {"uri", "queue", "bank"}
    assert options <= set(OPTIONS["properties"])
    (of_group,) = re.findall(r"`(options: .*?)` in the group", page)
    start = "rules: [{trigger: start, action: {name: submit}}]\n"
    fields = "tasks: 8, nodes: 2"
    assert all(f"`{field}`" in page for field in fields.split(", "))
    group = f"jobs: [{{name: a, command: 'true', {fields}, {of_group}}}]\n"
    assert load_text(group + start, discover(), file="e.yaml").warnings == ()


@pytest.mark.checkout
@pytest.mark.timeout(300)
def test_the_commands_of_the_page_get_started_run_the_study_on_flux(
    flux_command: str, tmp_path: Path
) -> None:
    """The first command opens a shell in an instance. Here that shell runs the other commands."""
    begin, _, commands = commands_of("start-flux.md").partition("\n")
    output = run_commands(commands, tmp_path, begin.split())
    assert "executor flux" in output
    assert " exit code 0" in output
