"""Tests of crash rounds: they show the faults of an executor, and processes that are left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from ensemble_testing.crash.__main__ import leftover_processes

#: An executor that reports no ``start``.
PLUGIN = """
from ensemble_core import ExecutorPlugin, JobEvent, hookimpl
from ensemble_core.local.executor import OPTIONS, LocalExecutor


class NoStart(LocalExecutor):
    def open(self, run, emit):
        def some(events):
            emit([e for e in events if not (isinstance(e, JobEvent) and e.name == "start")])
        super().open(run, some)


@hookimpl
def ensemble_executors():
    yield ExecutorPlugin(
        name="no-start", summary="Reports no start", build=lambda given: NoStart(**given),
        capabilities=NoStart.capabilities, options=OPTIONS,
    )
"""


def test_a_round_shows_an_executors_breach_of_its_contract(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    command = ["no-start", "--rounds", "0", "--base", str(tmp_path), "--slots", "8"]
    given = ["--", "--plugin", str(tmp_path / "plugin.py"), "--slots", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "ensemble_testing.crash", *command, *given],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert not found["good"]
    fault, *rest = found["other"]
    assert re.search(r"no-start violates its contract: finish of work\.\d came without", fault)
    assert rest == ["the queue still holds 0 jobs of the run", f"see {tmp_path / 'undisturbed'}"]


def test_a_process_of_the_run_that_works_elsewhere_counts_as_left(tmp_path: Path) -> None:
    for mark, count in ((tmp_path.name, 1), (f"{tmp_path.name}-2", 0)):
        environment = {**os.environ, "ENSEMBLE_RUN": mark}
        with subprocess.Popen(["cat"], cwd="/", env=environment, stdin=subprocess.PIPE):
            assert len(leftover_processes(tmp_path / "run", tmp_path.name, 0)) == count


def test_a_stuck_controller_shows_what_its_threads_do(tmp_path: Path) -> None:
    """Without ``start``, and with ``submit`` blocked, nothing ever ends."""
    stuck = PLUGIN.replace(
        "    def open(", "    def submit(self, *args):\n        self.gate.wait()\n\n    def open("
    ).replace(
        "class NoStart(LocalExecutor):",
        "import threading\n\n\nclass NoStart(LocalExecutor):\n    gate = threading.Event()\n",
    )
    (tmp_path / "plugin.py").write_text(stuck)
    command = ["no-start", "--rounds", "0", "--base", str(tmp_path)]
    given = ["--", "--plugin", str(tmp_path / "plugin.py"), "--slots", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "ensemble_testing.crash", *command, *given],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ENSEMBLE_CRASH_PATIENCE": "3"},
    )
    fault = json.loads(done.stdout)["other"][0]
    assert "a controller did not end within 3 s" in fault
    assert "(most recent call first)" in fault
