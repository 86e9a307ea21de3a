"""A run in a process of its own, and what it says: for tests of executors on real queues."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Running"]


class Running:
    """An ``ensemble`` with these words (among them ``--json``), in ``folder``."""

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
        """The program's stderr so far."""
        return self._errors.read_text()

    def of(self, **wanted: object) -> list[dict[str, Any]]:
        """The lines so far that have these values."""
        with self._news:
            return [
                line
                for line in self.lines
                if all(line.get(key) == value for key, value in wanted.items())
            ]

    def wait_for(self, count: int = 1, timeout: float = 100.0, **wanted: object) -> dict[str, Any]:
        """Wait for lines that have these values; the last of them."""

        def enough() -> bool:
            return len(self.of(**wanted)) >= count or not self._reader.is_alive()

        with self._news:
            self._news.wait_for(enough, timeout)
        found = self.of(**wanted)
        if len(found) < count:
            last = "\n".join(map(str, self.lines[-10:]))
            pytest.fail(f"{len(found)} of {count} {wanted} came; last:\n{last}\n{self.errors}")
        return found[-1]

    def ended(self, timeout: float = 100.0) -> int:
        """Wait until it has ended; its exit code."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            last = "\n".join(map(str, self.lines[-10:]))
            pytest.fail(f"it did not end within {timeout:g} s; last:\n{last}\n{self.errors}")
        self._reader.join(10)
        return code

    def warnings(self) -> list[str]:
        """The warnings so far."""
        return [str(line["message"]) for line in self.of(kind="event", type="problem")]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
