"""Tests of the README: its ensemble files are valid, and it lists every option."""

from __future__ import annotations

from pathlib import Path

from ensemble_gridengine import JOB_OPTIONS, OPTIONS
from ensemble_testing import ReadmeContract


class TestReadme(ReadmeContract):
    distribution = "ensemble-gridengine"
    options = JOB_OPTIONS
    executor_options = OPTIONS
    tests = Path(__file__).parent
