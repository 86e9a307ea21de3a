"""Signals stop a run regardless of what the main thread does; handlers are restored afterwards."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ensemble_core.journal.run_folder import HALT, STOP
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


def test_a_signal_stops_the_run_while_the_main_thread_is_blocked() -> None:
    result = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=150
    )
    assert result.stdout.split() == ["SIGTERM", "143", "drain"], result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM])
def test_previous_handlers_are_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stops: queue.Queue[tuple[str, int, str]] = queue.Queue()
    with Interrupts(lambda *stop: stops.put(stop)):
        assert signal.getsignal(number) is not before
        os.kill(os.getpid(), number)
        how = "drain" if number == signal.SIGTERM else "stop"
        assert stops.get(timeout=150)[1:] == (128 + number, how)
    assert signal.getsignal(number) is before
    assert "ensemble-signals" not in {thread.name for thread in threading.enumerate()}
    woken = signal.set_wakeup_fd(-1)
    assert woken == -1


def test_a_key_press_that_arrives_twice_counts_once() -> None:
    stops: queue.Queue[tuple[str, int, str]] = queue.Queue()
    with Interrupts(lambda *stop: stops.put(stop)):
        os.kill(os.getpid(), signal.SIGINT)
        stops.get(timeout=150)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(queue.Empty):
            stops.get(timeout=0.2)


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(lambda *stop: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("asked", "how", "code"), [(HALT, "stop", 5), (STOP, "end", 130)])
def test_requests_of_other_processes_are_passed_on(
    tmp_path: Path, asked: str, how: str, code: int
) -> None:
    stops: queue.Queue[tuple[str, int, str]] = queue.Queue()
    with Interrupts(lambda *stop: stops.put(stop), tmp_path):
        (tmp_path / asked).write_text("ada on here\n")
        reason, *told = stops.get(timeout=150)
    assert told == [code, how]
    assert reason.endswith("by ada on here")
