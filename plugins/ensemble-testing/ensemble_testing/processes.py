"""Processes of this machine: read from ``/proc``, or killed by a test."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

#: Seconds after which a process that is to be killed has to be.
_LONGEST = 600.0


def process_files(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the id of each process and the content of its file, such as ``environ``.

    A process that ends meanwhile, or whose file cannot be read, is left out.
    """
    # A pattern such as ``[0-9]*/environ`` raises ProcessLookupError if a process ends meanwhile.
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            content = (folder / name).read_bytes()
        except OSError:
            continue
        yield int(folder.name), content


def processes_of_session(session: int) -> list[int]:
    """Return the ids of a session's processes without those that are dead but not reaped."""
    found = []
    for pid, stat in process_files("stat"):
        words = stat.rpartition(b")")[2].split()
        if int(words[3]) == session and words[0] != b"Z":
            found.append(pid)
    return found


def run_and_kill(control: Callable[[], None], trace: Path) -> None:
    """Run ``control`` in a separate process and kill it.

    A fork can hang: a lock that another thread of this process held stays locked in it. After ten
    minutes it shows what its threads do, and ends. Raises :class:`AssertionError`.
    """
    with trace.open("w") as errors:
        child = os.fork()
        if child == 0:
            try:
                faulthandler.enable(errors)
                control()
            except BaseException:  # also pytest's own exceptions: nothing may leave this function
                with contextlib.suppress(Exception):
                    traceback.print_exc(file=errors)
                    errors.flush()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        stuck = time.monotonic() + _LONGEST
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
            if time.monotonic() > stuck:
                os.kill(child, signal.SIGABRT)
                stuck += 10
    assert not (shown := trace.read_text()), shown
