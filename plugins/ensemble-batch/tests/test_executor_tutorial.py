"""The tutorial of executors: what stands in it, as it stands there, keeps the contract."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ensemble_testing import ExecutorSuite

from ensemble_core import Executor

PAGE = Path(__file__).parents[3] / "docs" / "executor-tutorial.md"
CODE, TEST = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)

tsp = ModuleType("ensemble_tsp")
exec(compile(CODE, "ensemble_tsp.py", "exec"), vars(tsp))  # noqa: S102  # what the page has


def test_the_page_tests_the_executor_as_we_do() -> None:
    assert "class TestTaskSpooler(ExecutorSuite)" in TEST
    for words in ('executor = "tsp"', "contains = False", "many = 10"):
        assert words in TEST


@pytest.mark.skipif(shutil.which("tsp") is None, reason="no tsp: apt install task-spooler")
@pytest.mark.timeout(300)
class TestTaskSpooler(ExecutorSuite):
    """Its contract, runs whose controllers are killed, and decisions as on this machine."""

    executor = "tsp"
    (plugin,) = tsp.ensemble_executors()
    contains = False
    many = 10

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """A queue of its own, of two slots."""
        monkeypatch.setenv("TS_SOCKET", str(tmp_path / "socket"))
        monkeypatch.setenv("TS_SLOTS", "2")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        file = tmp_path / "ensemble_tsp.py"
        file.write_text(CODE)
        self.options = ("--plugin", str(file), "-o", "poll=0.5")
        yield
        subprocess.run(["tsp", "-K"], check=False)

    def make_executor(self) -> Executor:
        executor: Executor = tsp.TaskSpooler(poll=0.5)
        return executor
