"""Starts runs in child processes and reads their output, for tests of executors on real queues."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_NOTHING = """
jobs: [{name: none, command: "true"}]
rules: [{trigger: start, action: {name: terminate}}]
"""


def slots_at_once(executor: str, options: Sequence[str], timeout: float = 60.0) -> int | None:
    """Return how many one-core jobs a queue runs concurrently; ``None`` if its gauges do not say.

    Fails if the queue cannot be opened, or has no free slot within ``timeout`` seconds.
    """
    end = time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="ensemble-slots-") as folder:
        file = Path(folder, "nothing.yaml")
        file.write_text(_NOTHING)
        words = ["run", str(file), "--json", "--no-journal", "--executor", executor, *options]
        while True:
            done = _ensemble(words)
            gauges: dict[str, float] = {}
            for line in map(json.loads, done.stdout.splitlines()):
                gauges = line.get("resources") or gauges
            if done.returncode != 0:
                pytest.fail(f"cannot start a run on {executor}:\n{done.stderr}")
            up = gauges.get("cores.up")
            if gauges.get("cores.free", 1) >= 1:
                return None if up is None else int(up)
            if time.monotonic() > end:
                pytest.fail(
                    f"none of the queue's {up:g} cores became free within {timeout:g} s: "
                    "end the queue's jobs"
                )


def held_jobs(state: Path) -> str:
    """Return a message with the number of queued jobs of the runs in a state folder."""
    count = 0
    for run in (state / "runs").glob("*"):
        told = _ensemble(["status", run.name, "--state", str(state), "--json"]).stdout
        with contextlib.suppress(ValueError, KeyError):
            count += json.loads(told)["active"] or 0  # null: the journal cannot be read
    return f"the queue still holds {count} job{'s' * (count != 1)} of the run"


def cancel_runs(state: Path) -> None:
    """Cancel the jobs of all runs in a state folder, after a failed test."""
    for run in (state / "runs").glob("*"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            _ensemble(["cancel", run.name, "--state", str(state)])


def _ensemble(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ensemble_core.cli", *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


class Running:
    """An ``ensemble`` process in ``folder``; its arguments must include ``--json``."""

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = folder / f"errors-{time.monotonic_ns()}"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ensemble_core.cli", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.lines: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def errors(self) -> str:
        """The process's stderr so far."""
        return self._errors.read_text()

    def of(self, **wanted: object) -> list[dict[str, Any]]:
        """Return the lines so far that have these values."""
        with self._news:
            return [
                line
                for line in self.lines
                if all(line.get(key) == value for key, value in wanted.items())
            ]

    def wait_for(self, count: int = 1, timeout: float = 240.0, **wanted: object) -> dict[str, Any]:
        """Wait for ``count`` lines that have these values. Return the last of them."""

        def enough() -> bool:
            return len(self.of(**wanted)) >= count or not self._reader.is_alive()

        with self._news:
            self._news.wait_for(enough, timeout)
        found = self.of(**wanted)
        if len(found) < count:
            last = "\n".join(map(str, self.lines[-10:]))
            what = f"the run printed {len(found)} of {count} lines with {wanted}"
            pytest.fail(f"{what}; its last lines:\n{last}\n{self.errors}")
        return found[-1]

    def ended(self, timeout: float = 240.0) -> int:
        """Wait for the end of the process. Return its exit code."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            last = "\n".join(map(str, self.lines[-10:]))
            what = f"the run did not end within {timeout:g} s"
            pytest.fail(f"{what}; its last lines:\n{last}\n{self.errors}")
        self._reader.join(60)
        return code

    def warnings(self) -> list[str]:
        """Return the warnings so far."""
        return [str(line["message"]) for line in self.of(kind="event", type="problem")]

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Kill the process if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
