"""Tests of the plugin's README."""

from __future__ import annotations

from pathlib import Path

from ensemble_environments import ensemble_environments
from ensemble_testing import ReadmeContract


class TestReadme(ReadmeContract):
    distribution = "ensemble-environments"
    options = {  # noqa: RUF012
        "properties": {
            name: option
            for record in ensemble_environments()
            for name, option in record.options["properties"].items()
        }
    }
    tests = Path(__file__).parent
