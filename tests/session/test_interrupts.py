"""Signals become stops, whatever the main thread is doing, and leave no trace afterwards."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ensemble_core.journal.run_store import HALT, STOP
from ensemble_core.session.interrupts import Interrupts

BLOCKED = """
import os, signal, threading
from ensemble_core.session.interrupts import Interrupts

over = threading.Lock()
over.acquire()
with Interrupts(lambda reason, code, how: (print(reason, code, how), over.release())):
    # A lock that is taken without noticing signals: the main thread gets to no handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    over.acquire()
"""


def test_a_signal_stops_the_run_although_the_main_thread_notices_none() -> None:
    result = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=150
    )
    assert result.stdout.split() == ["SIGTERM", "143", "stop"], result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM])
def test_the_handlers_of_before_are_back_afterwards(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stops: queue.Queue[tuple[str, int, str]] = queue.Queue()
    with Interrupts(lambda *stop: stops.put(stop)):
        assert signal.getsignal(number) is not before
        os.kill(os.getpid(), number)
        assert stops.get(timeout=150)[1:] == (128 + number, "stop")
    assert signal.getsignal(number) is before
    assert "ensemble-signals" not in {thread.name for thread in threading.enumerate()}
    woken = signal.set_wakeup_fd(-1)
    assert woken == -1


def test_one_key_press_that_arrives_twice_is_one() -> None:
    stops: queue.Queue[tuple[str, int, str]] = queue.Queue()
    with Interrupts(lambda *stop: stops.put(stop)):
        os.kill(os.getpid(), signal.SIGINT)
        stops.get(timeout=150)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(queue.Empty):
            stops.get(timeout=0.2)


def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(lambda *stop: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("asked", "how", "code"), [(HALT, "stop", 5), (STOP, "end", 130)])
def test_what_another_process_asks_for_is_heard(
    tmp_path: Path, asked: str, how: str, code: int
) -> None:
    stops: queue.Queue[tuple[str, int, str]] = queue.Queue()
    with Interrupts(lambda *stop: stops.put(stop), tmp_path):
        (tmp_path / asked).write_text("ada on here\n")
        reason, *told = stops.get(timeout=150)
    assert told == [code, how]
    assert reason.endswith("by ada on here")
