"""Tests of the executor tutorial: its executors, as printed there, keep the contract."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from ensemble_testing import ExecutorSuite, wait_until

from ensemble_core import Executor

PAGE = Path(__file__).parents[3] / "docs" / "executor-tutorial.md"
TSP, TSP_TEST, DASK, DASK_TEST = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S
)


def module_of(name: str, code: str) -> ModuleType:
    """Return the page's code as a module."""
    module = ModuleType(name)
    exec(compile(code, f"{name}.py", "exec"), vars(module))  # noqa: S102  # the page's code
    return module


tsp = module_of("ensemble_tsp", TSP)
dask = None if find_spec("distributed") is None else module_of("ensemble_dask", DASK)


def test_the_page_tests_its_executors_as_we_test_ours() -> None:
    assert "class TestTaskSpooler(ExecutorSuite)" in TSP_TEST
    for words in ('executor = "tsp"', "contains = False", "many = 10"):
        assert words in TSP_TEST
    assert "class TestDask(ExecutorSuite)" in DASK_TEST
    for words in ('executor = "dask"', "contains = False", "forks = False", "many = 10"):
        assert words in DASK_TEST


@pytest.mark.parametrize(("code", "most"), [(TSP, 75), (DASK, 110)], ids=["tsp", "dask"])
def test_executors_of_the_page_are_short(code: str, most: int) -> None:
    lines = [line for line in code.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert len(lines) <= most


@pytest.mark.skipif(shutil.which("tsp") is None, reason="no tsp: apt install task-spooler")
@pytest.mark.timeout(300)
class TestTaskSpooler(ExecutorSuite):
    """Contract, killed controllers, and the same decisions as on this machine."""

    executor = "tsp"
    (plugin,) = tsp.ensemble_executors()
    contains = False
    many = 10

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Start a separate queue with two slots."""
        monkeypatch.setenv("TS_SOCKET", str(tmp_path / "socket"))
        monkeypatch.setenv("TS_SLOTS", "2")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        file = tmp_path / "ensemble_tsp.py"
        file.write_text(TSP)
        self.options = ("--plugin", str(file), "-o", "poll=0.5")
        yield
        subprocess.run(["tsp", "-K"], check=False)

    def make_executor(self) -> Executor:
        executor: Executor = tsp.TaskSpooler(poll=0.5)
        return executor


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Dask cluster with a worker of two threads."""
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    options = ("--no-dashboard", "--scheduler-file", str(file))
    words = [
        ("scheduler", "--host", "127.0.0.1", "--port", "0", *options),
        ("worker", "--nthreads", "2", "--no-nanny", "--local-directory", str(folder), *options),
    ]
    with (folder / "log").open("w") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "dask", *each], stdout=log, stderr=log, cwd=folder
            )
            for each in words
        ]
    try:
        wait_until(lambda: "Registered to" in (folder / "log").read_text(), 120)
        yield json.loads(file.read_text())["address"]
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


@pytest.mark.skipif(dask is None, reason="no Dask: pip install distributed")
@pytest.mark.timeout(300)
class TestDask(ExecutorSuite):
    """The same for a queue that reports changes."""

    executor = "dask"
    contains = False
    forks = False
    many = 10

    @pytest.fixture(autouse=True)
    def _cluster(self, scheduler: str, tmp_path: Path) -> None:
        assert dask is not None
        (self.plugin,) = dask.ensemble_executors()
        self.address = scheduler
        self.build_options = {"scheduler": scheduler}
        file = tmp_path / "ensemble_dask.py"
        file.write_text(DASK)
        self.options = ("--plugin", str(file), "-o", "poll=2", "-o", f"scheduler={scheduler}")

    def make_executor(self) -> Executor:
        assert dask is not None
        executor: Executor = dask.DaskExecutor(scheduler=self.address, poll=2)
        return executor
