"""Commands of a queue: given up in time, not too many a second, and none after the run has ended."""

from __future__ import annotations

import threading
import time

import pytest
from ensemble_batch.command import QueueCommands

from ensemble_core import ExecutorError


def test_a_command_that_does_not_answer_is_given_up_in_time() -> None:
    with pytest.raises(ExecutorError, match=r"no answer within 0\.3 s") as caught:
        QueueCommands().run(["sh", "-c", "sleep 30"], deadline=0.3)
    assert caught.value.transient


def test_a_command_that_is_not_there_is_an_error_with_what_to_do() -> None:
    with pytest.raises(ExecutorError, match="/no/such/command cannot be run") as caught:
        QueueCommands().run(["/no/such/command"])
    assert not caught.value.transient
    assert caught.value.hint


def test_a_command_may_have_an_environment_of_its_own() -> None:
    assert QueueCommands().run(["/bin/sh", "-c", "echo $A"], environment={"A": "a"})[1] == "a\n"


def test_commands_beyond_a_burst_keep_to_their_rate() -> None:
    commands = QueueCommands(rate=10.0)
    began = time.monotonic()
    for _ in range(13):
        commands.run(["true"])
    assert time.monotonic() - began > 0.25  # three more than ten


def test_two_commands_run_side_by_side_and_both_end_when_the_run_lets_the_queue_go() -> None:
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
        thread.join(30)
    assert codes == [-9, -9]
    with pytest.raises(ExecutorError, match="let the queue go"):
        commands.run(["true"])
