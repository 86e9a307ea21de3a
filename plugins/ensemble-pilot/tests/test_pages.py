"""Tests of the plugin's README, and of the page about pilots."""

from __future__ import annotations

from pathlib import Path

import pytest
from ensemble_pilot import OPTIONS
from ensemble_testing import ReadmeContract
from start_pages import commands_of, run_commands


class TestReadme(ReadmeContract):
    distribution = "ensemble-pilot"
    options = {"properties": {}}  # noqa: RUF012
    executor_options = OPTIONS
    tests = Path(__file__).parent


@pytest.mark.checkout
def test_page_about_pilots(tmp_path: Path) -> None:
    output = run_commands(commands_of("pilots.md"), tmp_path)
    assert "exit code 0" in output, output
