"""Fixtures: a real PBS, the complex that this machine submits to.

Tests are skipped unless ``qstat`` belongs to PBS and this user may create a queue (as a manager).
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
    """Return why no complex can be used, or ``None``."""
    if shutil.which("qstat") is None:
        return "no PBS: qstat is not on the PATH"
    done = subprocess.run(["qstat", "--version"], capture_output=True, text=True, check=False)
    if "pbs_version" not in done.stdout + done.stderr:
        return "no PBS: the qstat on the PATH belongs to another queue"
    if subprocess.run(["qstat", "-B"], capture_output=True, check=False).returncode:
        return "no PBS: 'qstat -B' reaches no server"
    return None


class Complex:
    """PBS complex of this machine, with a queue for the tests."""

    def __init__(self) -> None:
        self.queue = f"ens{os.getpid()}"
        self.run("qmgr", "-c", f"create queue {self.queue} queue_type=execution")
        self.run("qmgr", "-c", f"set queue {self.queue} enabled=true,started=true")

    def run(self, *words: str) -> str:
        """Run a PBS command and return its output."""
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
        if done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.stderr} {done.stdout}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the ids of the tests' unfinished jobs."""
        return self.run("qselect", "-q", self.queue).split()

    def wait_idle(self) -> None:
        end = time.monotonic() + 100
        while jobs := self.jobs():
            assert time.monotonic() < end, f"these jobs did not end: {jobs}"
            time.sleep(0.2)

    @contextmanager
    def limited(self, name: str, value: str) -> Iterator[None]:
        """Set an attribute of the queue within the context."""
        self.run("qmgr", "-c", f"set queue {self.queue} {name} = {value}")
        try:
            yield
        finally:
            self.run("qmgr", "-c", f"unset queue {self.queue} {name}")

    def rerun(self, array: str) -> None:
        """Make PBS rerun the tasks of an array, as after a node failure."""
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
        pytest.skip(f"no PBS in which this user may create a queue: {error}")
    yield found
    found.close()


@pytest.fixture
def pbs(_pbs: Complex) -> Iterator[Complex]:
    """Yield the complex; delete remaining jobs after the test."""
    yield _pbs
    _pbs.delete_jobs()
