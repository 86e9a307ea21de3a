"""Tests of clean-up: a failed test of the executor suite leaves no job in the queue.

Otherwise later tests would fail too. Each executor here is faulty, and all its tests share a queue
with one slot.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ensemble_testing import Session
from ensemble_testing.run_process import slots_at_once

from ensemble_core.local.executor import LocalExecutor

SUITE = """
import os

from ensemble_core import ExecutorError
from ensemble_core.local.executor import LocalExecutor
from ensemble_testing import ExecutorContract


class Sound(LocalExecutor):
    def __init__(self):
        super().__init__(slots=1, grace=0.3, pool=os.environ["POOL"])


class KnowsEverybody(Sound):
    def reattach(self, jobs):
        super().reattach(jobs)
        return dict.fromkeys(jobs, True)


class CannotCancel(Sound):
    def cancel(self, jobs):
        raise ExecutorError("cannot cancel")


class Suite(ExecutorContract):
    many = 5
    timeout = 60.0


class TestKnowsEverybody(Suite):
    make_executor = KnowsEverybody


class TestCannotCancel(Suite):
    make_executor = CannotCancel


class TestHangs(Suite):
    make_executor = Sound

    def test_first(self, session):
        session.submit(*(session.job(*self.lasting) for _ in range(4)))
        session.timeout = 1.0
        try:
            session.wait_for(session.job("true"), "start")
        finally:
            session.timeout = self.timeout
"""
FOUND_AGAIN = (
    "jobs_are_reattached_after_a_close",
    "jobs_are_reattached_after_a_kill",
)
CANCELLED = ("cancelling_a_running_job_ends_it", "cancelling_leaves_no_process_behind")
LATER = ("successful_job_emits_its_events_in_order", "time_limit_ends_a_job")


def run_suite(folder: Path, *tests: str) -> str:
    """Return the output of pytest for these tests in this order."""
    (folder / "test_mine.py").write_text(SUITE)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-o", "addopts="),
            f"--basetemp={folder / 'tests'}",
            *(f"test_mine.py::{test}" for test in tests),
        ],
        cwd=folder,
        env={**os.environ, "POOL": str(folder / "pool")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout


def outcomes(output: str) -> dict[str, str]:
    """Return the outcomes of each test. A failed test may also have an error of its fixtures."""
    lines = re.findall(r"^(PASSED|ERROR|FAILED|SKIPPED) \S*::test_(\w+)", output, re.M)
    return {name: outcome for outcome, name in lines}


def check_free(folder: Path) -> None:
    """Check that the queue's slot is free and that no process of the tests remains."""
    executor = LocalExecutor(slots=1, pool=str(folder / "pool"))
    with Session(executor, folder, tidy=True) as session:
        session.run(session.job("true"))
    mine = str(folder / "tests").encode()
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if mine in command and b"supervisor" not in command:
            left.append(command)
    assert left == []


@pytest.mark.parametrize(
    ("mutant", "wrong"), [("KnowsEverybody", FOUND_AGAIN), ("CannotCancel", CANCELLED)]
)
def test_failed_test_leaves_no_job_and_later_tests_pass(
    tmp_path: Path, mutant: str, wrong: tuple[str, ...]
) -> None:
    output = run_suite(tmp_path, *(f"Test{mutant}::test_{name}" for name in (*wrong, *LATER)))
    expected = {**dict.fromkeys(wrong, "FAILED"), **dict.fromkeys(LATER, "PASSED")}
    assert outcomes(output) == expected, output
    check_free(tmp_path)


def test_timeout_lists_the_jobs_in_the_queue(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "TestHangs::test_first")
    assert "start of t.4 did not happen within 1 s" in output
    assert "the queue still holds 4 jobs of test_first (t.0, t.1, t.2, t.3)" in output
    assert outcomes(output) == {"first": "FAILED"}
    check_free(tmp_path)


FULL = """
from ensemble_core import ExecutorPlugin, hookimpl
from ensemble_testing import FakeExecutor


class Full(FakeExecutor):
    def resources(self):
        return {"cores.up": 4.0, "cores.free": 0.0}


@hookimpl
def ensemble_executors():
    return [ExecutorPlugin(name="full", summary="x", build=lambda options: Full())]
"""


def test_queue_without_a_free_slot_is_reported_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "full.py"
    file.write_text(FULL)
    options = ("--plugin", str(file))
    with pytest.raises(pytest.fail.Exception, match="none of the queue's 4 cores became free"):
        slots_at_once("full", options, timeout=0.0)
    file.write_text(FULL.replace("0.0}", "1.0}"))
    assert slots_at_once("full", options) == 4
    with pytest.raises(pytest.fail.Exception, match="cannot start a run on nowhere"):
        slots_at_once("nowhere", ())
