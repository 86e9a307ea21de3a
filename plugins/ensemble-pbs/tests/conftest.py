"""A real PBS for the tests that need one: the complex that this machine submits to.

It is used where ``qstat --version`` says that it is PBS's and where this user may make a queue (a
manager may); elsewhere those tests skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest


def lacking() -> str | None:
    """What is missing for a complex; ``None`` if nothing is."""
    if shutil.which("qstat") is None:
        return "no PBS: qstat is not on the PATH"
    done = subprocess.run(["qstat", "--version"], capture_output=True, text=True, check=False)
    if "pbs_version" not in done.stdout + done.stderr:
        return "no PBS: the qstat on the PATH is another queue's"
    if subprocess.run(["qstat", "-B"], capture_output=True, check=False).returncode:
        return "no PBS: 'qstat -B' reaches no server"
    return None


class Complex:
    """The PBS complex of this machine, and a queue of the tests in it."""

    def __init__(self) -> None:
        self.queue = f"ens{os.getpid()}"
        self.run("qmgr", "-c", f"create queue {self.queue} queue_type=execution")
        self.run("qmgr", "-c", f"set queue {self.queue} enabled=true,started=true")

    def run(self, *words: str) -> str:
        """Return what a command of PBS says."""
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
        if done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.stderr} {done.stdout}")
        return done.stdout

    def jobs(self) -> list[str]:
        """The ids of the tests' jobs that are not over."""
        return self.run("qselect", "-q", self.queue).split()

    def wait_idle(self) -> None:
        end = time.monotonic() + 100
        while jobs := self.jobs():
            assert time.monotonic() < end, f"these jobs do not end: {jobs}"
            time.sleep(0.2)

    @contextmanager
    def limited(self, name: str, value: str) -> Iterator[None]:
        """An attribute of the queue, for a while."""
        self.run("qmgr", "-c", f"set queue {self.queue} {name} = {value}")
        try:
            yield
        finally:
            self.run("qmgr", "-c", f"unset queue {self.queue} {name}")

    def rerun(self, array: str) -> None:
        """Have PBS run the tasks of an array again, as after the death of their node."""
        self.run("qrerun", "-W", "force", f"{array}[]")

    def delete_jobs(self) -> None:
        if jobs := self.jobs():
            with suppress(AssertionError):
                self.run("qdel", "-W", "force", *jobs)

    def close(self) -> None:
        self.delete_jobs()
        self.wait_idle()
        self.run("qmgr", "-c", f"delete queue {self.queue}")


@pytest.fixture(scope="session")
def _pbs() -> Iterator[Complex]:
    reason = lacking()
    if reason is not None:
        pytest.skip(reason)
    try:
        found = Complex()
    except AssertionError as error:
        pytest.skip(f"no PBS in which this user may make a queue: {error}")
    yield found
    found.close()


@pytest.fixture
def pbs(_pbs: Complex) -> Iterator[Complex]:
    """The complex; what a test leaves in its queue goes."""
    yield _pbs
    _pbs.delete_jobs()
