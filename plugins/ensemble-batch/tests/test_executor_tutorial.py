"""Tests of the executor tutorial: runs the tests that the page prints on its executors."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
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


#: Folder with the page's files.
FOLDER = tempfile.TemporaryDirectory(prefix="ensemble-tutorial-")


def module_of(name: str, code: str) -> ModuleType:
    """Return the page's code as a module."""
    module = ModuleType(name)
    file = Path(FOLDER.name, f"{name}.py")
    file.write_text(code)
    module.__file__ = str(file)
    exec(compile(code, file, "exec"), vars(module))  # noqa: S102  # the page's code
    return module


tsp = module_of("ensemble_tsp", TSP)
with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "ensemble_tsp", tsp)
    tsp_test = module_of("test_ensemble_tsp", TSP_TEST)
dask = None if find_spec("distributed") is None else module_of("ensemble_dask", DASK)


def test_the_page_tests_its_executors_as_we_test_ours() -> None:
    suites = {name for name in vars(tsp_test) if name.startswith("Test")}
    assert suites == {"TestTaskSpooler", "TestStops", "TestFaults"}  # run by the classes below
    assert "class TestDask(ExecutorSuite)" in DASK_TEST
    for words in ('executor = "dask"', "contains = False", "forks = False", "many = 10"):
        assert words in DASK_TEST


@pytest.mark.parametrize(("code", "most"), [(TSP, 80), (DASK, 110)], ids=["tsp", "dask"])
def test_executors_of_the_page_are_short(code: str, most: int) -> None:
    lines = [line for line in code.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert len(lines) <= most


@pytest.mark.skipif(shutil.which("tsp") is None, reason="no tsp: apt install task-spooler")
@pytest.mark.timeout(300)
class TaskSpoolerServer:
    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        yield from inspect.unwrap(tsp_test.server)(tmp_path, monkeypatch)


class TestTaskSpooler(TaskSpoolerServer, tsp_test.TestTaskSpooler):  # type: ignore[misc,name-defined]
    """Contract tests, killed controllers, and the same decisions as with local jobs."""


class TestStops(TaskSpoolerServer, tsp_test.TestStops):  # type: ignore[misc,name-defined]
    """Stopped runs continue where they stopped."""

    ends_with_allocation = True


class TestFaults(TaskSpoolerServer, tsp_test.TestFaults):  # type: ignore[misc,name-defined]
    """A task-spooler that is unreachable, slow, prints garbage or forgets jobs."""


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
            process.wait(120)


@pytest.mark.skipif(dask is None, reason="no Dask: pip install distributed")
@pytest.mark.timeout(300)
class TestDask(ExecutorSuite):
    """Contract tests of the queue that reports changes."""

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
