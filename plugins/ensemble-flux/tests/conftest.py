"""A real Flux instance for the tests that need one.

``flux`` is taken from ``ENSEMBLE_FLUX_PREFIX/bin`` or from the PATH; without it those tests skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SIZE = 4


class Instance:
    """A Flux instance of its own, of ``size`` brokers on this machine."""

    def __init__(self, command: str, *options: str, size: int = SIZE) -> None:
        self.command = command
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

    def flux(self, *words: str, check: bool = True, **options: Any) -> str:
        """What a flux command says of this instance."""
        done = subprocess.run(
            [self.command, *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            **options,
        )
        if check and done.returncode:
            raise AssertionError(f"flux {' '.join(words)}: {done.stderr}")
        return done.stdout

    def active(self) -> list[str]:
        """The ids of jobs that are not over."""
        return self.flux("jobs", "-A", "-no", "{id.f58plain}", "-f", "pending,running").split()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def brokers(self) -> list[int]:
        """The process ids of the brokers, by rank."""
        lines = self.flux("exec", "flux", "getattr", "broker.pid").split()
        return [int(line) for line in lines]

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


def command() -> str | None:
    """The ``flux`` that the tests use."""
    prefix = os.environ.get("ENSEMBLE_FLUX_PREFIX")
    if prefix:
        found = Path(prefix, "bin", "flux")
        if not found.is_file():
            raise RuntimeError(f"ENSEMBLE_FLUX_PREFIX names no installation of Flux: no {found}")
        return str(found)
    return shutil.which("flux")


@pytest.fixture(scope="session")
def flux_command() -> Iterator[str]:
    """Flux is installed, and first on the PATH."""
    found = command()
    if found is None:
        pytest.skip("no Flux: 'flux' is not on the PATH and ENSEMBLE_FLUX_PREFIX is not set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(found).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        patch.delenv("FLUX_URI", raising=False)
        yield found


@pytest.fixture(scope="session")
def shared_instance(flux_command: str) -> Iterator[Instance]:
    """One instance for all tests that leave it as it was."""
    instance = Instance(flux_command)
    yield instance
    instance.close()


@pytest.fixture
def instance(shared_instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """The shared instance, which the test is inside of."""
    monkeypatch.setenv("FLUX_URI", shared_instance.uri)
    return shared_instance


@pytest.fixture
def own_instance(flux_command: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """An instance that the test may break."""
    instance = Instance(flux_command)
    monkeypatch.setenv("FLUX_URI", instance.uri)
    yield instance
    instance.close()
