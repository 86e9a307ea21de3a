"""Tests of queue commands: time limit, rate limit, and no command after the run has ended."""

from __future__ import annotations

import threading
import time

import pytest
from ensemble_batch.command import QueueCommands

from ensemble_core import ExecutorError


def test_a_command_that_does_not_answer_is_killed_in_time() -> None:
    with pytest.raises(ExecutorError, match=r"did not answer within 0\.3 s") as caught:
        QueueCommands().run(["sh", "-c", "sleep 30"], deadline=0.3)
    assert caught.value.transient


@pytest.mark.parametrize("given", [b"", b"script"])
def test_a_command_that_says_that_it_retries_is_killed(given: bytes) -> None:
    script = "cat; echo full, sleeping and retrying >&2; sleep 30"
    began = time.monotonic()
    code, out, err = QueueCommands().run(["sh", "-c", script], given, kill_on=b"and retrying")
    assert (code, out, err) == (-9, given.decode(), "full, sleeping and retrying\n")
    assert time.monotonic() - began < 25
    done = QueueCommands().run(["sh", "-c", "sleep 0.3; echo 7"], given, kill_on=b"and retrying")
    assert done == (0, "7\n", "")


def test_a_missing_command_is_an_error_with_a_hint() -> None:
    with pytest.raises(ExecutorError, match="cannot run /no/such/command") as caught:
        QueueCommands().run(["/no/such/command"])
    assert not caught.value.transient
    assert caught.value.hint


def test_a_command_may_have_its_own_environment() -> None:
    assert QueueCommands().run(["/bin/sh", "-c", "echo $A"], environment={"A": "a"})[1] == "a\n"


def test_commands_beyond_a_burst_are_rate_limited() -> None:
    commands = QueueCommands(rate=10.0)
    began = time.monotonic()
    for _ in range(13):
        commands.run(["true"])
    assert time.monotonic() - began > 0.25  # the burst is ten


def test_two_commands_run_side_by_side_and_both_end_when_the_queue_is_closed() -> None:
    commands = QueueCommands()
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(commands.run(["sleep", "60"])[0]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    while len(commands._running) < 2:
        time.sleep(0.01)
    commands.kill()
    for thread in threads:
        thread.join(120)
    assert codes == [-9, -9]
    with pytest.raises(ExecutorError, match="executor is closed"):
        commands.run(["true"])
