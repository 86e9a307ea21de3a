"""The pytest plugin for rule tests: collects files ``*.ensemble-test.yaml``.

``-p no:ensemble`` disables it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Every pytest run loads this module. It imports other modules only if it finds a rule test.
if TYPE_CHECKING:
    from ensemble_testing.rule_tests.test_file import RuleTest, TestFile

#: Suffix of files with rule tests.
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
            # As with conftest.py, pytest was asked to run the code that a test file names.
            tests = read_tests(str(self.path), purpose="rehearse")
        except EnsembleError as error:
            raise self.CollectError(str(error)) from None
        for test in tests.tests:
            yield RuleTestItem.from_parent(self, name=test.name, tests=tests, test=test)


class _Differs(Exception):
    """A rule test failed; the text is the report."""


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
