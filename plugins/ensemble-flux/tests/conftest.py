"""Fixtures for tests on a real Flux instance.

``flux`` comes from ``ENSEMBLE_FLUX_PREFIX/bin`` or the PATH. Without it the tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Running
from ensemble_testing.processes import processes_of_session

SIZE = 4

# The test process may ignore signals (nohup, "&"), but its children must not.
for _signal in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(
            _signal, signal.default_int_handler if _signal is signal.SIGINT else signal.SIG_DFL
        )


class Instance:
    """A separate Flux instance of ``size`` brokers on this machine."""

    def __init__(self, command: str, *options: str, size: int = SIZE) -> None:
        self.command = command
        self.size = size
        self._process = subprocess.Popen(
            [command, "start", f"--test-size={size}", *options, "sh", "-c", "echo $FLUX_URI; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.uri = self._process.stdout.readline().strip()
        if not self.uri:
            raise RuntimeError("flux start gave no URI")

    def environment(self) -> dict[str, str]:
        return {**os.environ, "FLUX_URI": self.uri}

    def flux(self, *words: str, check: bool = True) -> str:
        """Return the output of a flux command in this instance."""
        done = subprocess.run(
            [self.command, *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        if check and done.returncode:
            raise AssertionError(f"flux {' '.join(words)}: {done.stderr}")
        return done.stdout

    def active(self) -> list[str]:
        """Return the ids of unfinished jobs."""
        return self.flux("jobs", "-A", "-no", "{id.f58plain}", "-f", "pending,running").split()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def brokers(self) -> list[int]:
        """Return the process ids of the brokers, by rank."""
        lines = self.flux("exec", "-l", "flux", "getattr", "broker.pid").splitlines()
        return [int(line.partition(":")[2]) for line in sorted(lines)]

    def jobs(self, *options: str) -> list[dict[str, Any]]:
        """Return all jobs, including finished ones, as in ``flux jobs --json``."""
        text = self.flux("jobs", "-A", "-a", "-c", "0", "--json", *options)
        found = json.loads(text or "{}").get("jobs", [])
        assert isinstance(found, list)
        return found

    def submit(self, *words: str) -> list[str]:
        """Submit foreign jobs; return their ids."""
        return self.flux("submit", *words).split()

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        # A killed broker leaves the processes of its jobs behind.
        for pid in processes_of_session(self._process.pid):
            with suppress(ProcessLookupError):  # it may have ended
                os.kill(pid, signal.SIGKILL)


def command() -> str | None:
    """Return the path of ``flux``, or ``None``."""
    prefix = os.environ.get("ENSEMBLE_FLUX_PREFIX")
    if prefix:
        found = Path(prefix, "bin", "flux")
        if not found.is_file():
            raise RuntimeError(f"ENSEMBLE_FLUX_PREFIX names no installation of Flux: no {found}")
        return str(found)
    return shutil.which("flux")


@pytest.fixture(scope="session")
def flux_command() -> Iterator[str]:
    """Put Flux first on the PATH; skip the test if it is not installed."""
    found = command()
    if found is None:
        pytest.skip("no Flux: 'flux' is not on the PATH and ENSEMBLE_FLUX_PREFIX is not set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(found).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        patch.delenv("FLUX_URI", raising=False)
        yield found


@pytest.fixture(scope="session")
def shared_instance(flux_command: str) -> Iterator[Instance]:
    """Start one instance for all tests that leave it unchanged."""
    instance = Instance(flux_command)
    yield instance
    instance.close()


@pytest.fixture
def instance(shared_instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """Return the shared instance, with ``FLUX_URI`` set."""
    monkeypatch.setenv("FLUX_URI", shared_instance.uri)
    return shared_instance


@pytest.fixture
def make_instance(flux_command: str) -> Iterator[Callable[..., Instance]]:
    """Yield a function that starts instances with options of ``flux start``.

    They end after the test.
    """
    instances: list[Instance] = []

    def make(*options: str, size: int = SIZE) -> Instance:
        # The instance survives the death of any broker except the first.
        ending = ("--test-exit-timeout=2s", "--test-exit-mode=leader")
        instance = Instance(flux_command, *ending, *options, size=size)
        instances.append(instance)
        return instance

    yield make
    for instance in instances:
        instance.close()


@pytest.fixture
def own_instance(
    make_instance: Callable[..., Instance], monkeypatch: pytest.MonkeyPatch
) -> Instance:
    """Start an instance that the test may break, and set ``FLUX_URI``."""
    instance = make_instance()
    monkeypatch.setenv("FLUX_URI", instance.uri)
    return instance


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Yield a function that starts ``ensemble run`` with the text of a file.

    The runs end after the test.
    """
    runs: list[Running] = []

    def run(text: str, *options: str, **environment: str) -> Running:
        file = tmp_path / f"run{len(runs)}.yaml"
        file.write_text(text)
        words = ["run", "--json", "--executor", "flux", "--output", str(tmp_path / "output")]
        words += [*options, str(file)]
        running = Running(words, tmp_path, {**os.environ, **environment})
        runs.append(running)
        return running

    yield run
    for running in runs:
        running.close()
