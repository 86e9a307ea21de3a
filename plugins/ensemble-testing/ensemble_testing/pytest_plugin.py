"""The pytest plugin of rule tests: files ``*.ensemble-test.yaml`` are collected, each test an item.

The distribution registers it with pytest (entry point ``pytest11``); ``-p no:ensemble`` leaves it
out. What it needs beyond pytest is imported when there is such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ensemble_testing.rule_tests.test_file import RuleTest, TestFile

__all__ = ["SUFFIX", "RuleTestFile", "RuleTestItem", "pytest_collect_file"]

#: What a file of rule tests is known by.
SUFFIX = ".ensemble-test.yaml"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a file of rule tests."""
    if not file_path.name.endswith(SUFFIX):
        return None
    collector: pytest.Collector = RuleTestFile.from_parent(parent, path=file_path)
    return collector


class RuleTestFile(pytest.File):
    """A file of rule tests."""

    def collect(self) -> Iterator[RuleTestItem]:
        from ensemble_core.errors import EnsembleError
        from ensemble_testing.rule_tests.test_file import read_tests

        try:
            # Like conftest.py, what a test file names is code that pytest was asked to run.
            tests = read_tests(str(self.path), purpose="rehearse")
        except EnsembleError as error:
            raise self.CollectError(str(error)) from None
        for test in tests.tests:
            yield RuleTestItem.from_parent(self, name=test.name, tests=tests, test=test)


class _Differs(Exception):
    """A rule test failed; the text says how."""


class RuleTestItem(pytest.Item):
    """One rule test."""

    def __init__(self, *, tests: TestFile, test: RuleTest, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tests = tests
        self._test = test

    def runtest(self) -> None:
        from ensemble_testing.rule_tests.player import play

        played = play(self._tests, self._test)
        if not played.passed:
            raise _Differs("\n".join(played.failures))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, _Differs):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        line = self._test.where.line - 1 if self._test.where else None
        return self.path, line, self.name
