"""Tests of the executor suites' messages: they name the attribute that an author forgot to set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ensemble_batch")

SUITE = """
from ensemble_batch import BatchExecutor, CannotTake
from ensemble_core import ExecutorError
from ensemble_core.local.executor import LocalExecutor
from ensemble_testing import CrashSuite, DecisionSuite, ExecutorContract, FaultSuite, StopSuite


class Queue(BatchExecutor):
    def connect(self):
        raise ExecutorError("the queue is away", hint="start it")

    submit_batch = ask = find_batch = end_jobs = None


class Faults(FaultSuite):
    commands = {"connect": "true", "submit": "true -s", "ask": "true", "cancel": "true"}
    away = nothing = ""
    timeout = 20.0

    def make_executor(self, period=1.0):
        return Queue()


class TestNothing(FaultSuite):
    pass


class TestNoAsk(Faults):
    commands = {"connect": "true", "submit": "true", "cancel": "true"}


class TestSame(Faults):
    commands = dict.fromkeys(("connect", "submit", "ask", "cancel"), "true")


class TestNoProgram(Faults):
    commands = {**Faults.commands, "ask": "there-is-no-such-command"}


class TestFinal(Faults):
    pass


class TestNoName(StopSuite):
    pass


class TestNoStop(StopSuite):
    executor = "local"


class TestNoCrash(CrashSuite):
    pass


class TestNoDecision(DecisionSuite):
    ensembles = {"outcomes": "x"}


class TestEnds(ExecutorContract):
    make_executor = LocalExecutor

    def test_wait(self, session):
        job = session.job("true", gpus_per_task=100_000)
        session.submit(job)
        session.wait_for(job, "start")
"""
AT_START = "test_unreachable_queue_at_start_is_an_error_with_a_hint"
STOPPED = "test_second_signal_exits_at_once_without_loss"
MESSAGES = {
    f"TestNothing::{AT_START}": "set the attribute 'commands' of TestNothing: the queue's command",
    f"TestNoAsk::{AT_START}": "add ask to the attribute 'commands' of TestNoAsk",
    f"TestSame::{AT_START}": "'true' is used for 'submit' and for another purpose",
    f"TestNoProgram::{AT_START}": "there-is-no-such-command is not on the PATH",
    f"TestFinal::{AT_START}": "connect() must raise CannotTake(message, hint=...)",
    f"TestNoName::{STOPPED}": "set the attribute 'executor' of TestNoName",
    f"TestNoStop::{STOPPED}": "set the attribute 'on_stop' of TestNoStop",
    "TestNoCrash": "set the attribute 'executor' of TestNoCrash",
    "TestNoDecision": "set the attribute 'executor' of TestNoDecision",
    "TestEnds::test_wait": "t.0 has no event 'start'; its events: submit",
}


def test_each_failure_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(SUITE)
    options = ["-p", "no:cacheprovider", "-o", "addopts=", f"--basetemp={tmp_path / 'tests'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"test_mine.py::{test}" for test in MESSAGES)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert " passed" not in done.stdout
    assert [text for text in MESSAGES.values() if text not in done.stdout] == [], done.stdout
