"""Tests of the plugin's README."""

from __future__ import annotations

from pathlib import Path

import pytest
from ensemble_gest import ensemble_generators
from ensemble_testing import ReadmeContract


class TestReadme(ReadmeContract):
    distribution = "ensemble-gest"
    options = next(iter(ensemble_generators())).options
    tests = Path(__file__).parent

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("libensemble", reason="libEnsemble is not installed")
