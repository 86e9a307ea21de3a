"""Test of the plugin's README."""

from __future__ import annotations

from pathlib import Path

from ensemble_optuna import ensemble_generators
from ensemble_testing import ReadmeContract


class TestReadme(ReadmeContract):
    distribution = "ensemble-optuna"
    options = next(iter(ensemble_generators())).options
    tests = Path(__file__).parent
