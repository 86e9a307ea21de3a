"""Delay from a row that a job writes to the firing of its rule: inotify compared with polling.

For each of the two, another process writes 100 logs with 10 rows per second each. Prints the time
from writing a row to its arrival in the engine and to the decision of its rule, and the share of a
core that this process uses. Then the same for 99 logs while another one grows by 100 MB/s, and the
cost of 1,000 idle files.

    python benchmarks/follow_rate.py [--logs 100] [--rate 10] [--seconds 8] [--idle 1000]
                                     [--rounds 1]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ensemble_testing import FakeExecutor

from ensemble_core.builtin.observers import JsonLines
from ensemble_core.config import load_text
from ensemble_core.model.decisions import Decision, Log
from ensemble_core.model.events import Event, Observed
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime import output_tracking
from ensemble_core.runtime.controller import Runtime, Watcher
from ensemble_core.runtime.tail import Follower

#: Writes rows with the current time to all logs in turn; optionally 100 MB/s to the last one.
WRITER = """
import os, sys, time
folder, logs, rate, seconds, flood = sys.argv[1], *map(float, sys.argv[2:])
how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
fds = [os.open(f"{folder}/{n}.log", how) for n in range(int(logs))]
if flood:
    block, tide = b'{"x": 1.2345678, "text": "%s"}\\n' % (b"." * 40) * 4096, fds.pop()
begin, written, poured = time.perf_counter(), 0, 0
while (now := time.perf_counter() - begin) < seconds:
    while written < now * rate * len(fds):
        os.write(fds[written % len(fds)], b'{"t": %.6f}\\n' % time.time())
        written += 1
    while flood and poured < now * 100e6:
        poured += os.write(tide, block)
    time.sleep(0.0005)
print(written, poured)
"""

FILE = """
jobs: [{{name: g, command: x, count: {logs}, observe: {{json-lines: {{fields: [t, x]}}}}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: g}}}}
  - {{trigger: metric, name: last.g-t, when: value > 0, repetitions: 1000000000,
      action: {{name: log, message: row}}}}
"""


class Delays(Watcher):
    """Records the age of rows when they reach the engine and when their rule fires."""

    def __init__(self) -> None:
        self.told: list[float] = []
        self.fired: list[float] = []
        self._written = 0.0

    def event(self, event: Event) -> None:
        if isinstance(event, Observed):
            self._written = event.values.get("t", 0.0)
            if self._written:
                self.told.append(time.time() - self._written)

    def decision(self, decision: Decision) -> None:
        if self._written and isinstance(decision, Log) and decision.message == "row":
            self.fired.append(time.time() - self._written)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit("it did not come to pass")
        time.sleep(0.01)


def tell(label: str, delays: list[float]) -> None:
    delays.sort()
    at = [delays[min(int(share * len(delays)), len(delays) - 1)] * 1e3 for share in (0.5, 0.99)]
    print(f"  {label:<28} median {at[0]:7.1f}  p99 {at[1]:7.1f}  max {delays[-1] * 1e3:7.1f} ms")


def growing(name: str, options: argparse.Namespace, *, flood: bool) -> None:
    delays, executor, registry = Delays(), FakeExecutor(), discover()
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(
            load_text(FILE.format(logs=options.logs), registry),
            executor,
            actions=registry.actions,
            observers=registry.observers,
            watchers=[delays],
            folder=Path(folder) / "output",
        )
        thread = threading.Thread(target=runtime.run)
        thread.start()
        until(lambda: len(executor.submitted) == options.logs)
        for number, job in enumerate(list(executor.submitted)):
            executor.start(job.id, workdir=folder, stdout=f"{number}.log")
        time.sleep(0.5)
        cpu, began = time.process_time(), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", WRITER, folder]
            + [str(n) for n in (options.logs, options.rate, options.seconds, int(flood))],
            capture_output=True,
            text=True,
            check=True,
        )
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        rows, poured = map(int, done.stdout.split())
        until(lambda: len(delays.fired) == rows)
        if flood:  # otherwise all of it would be read when the job ends
            (Path(folder) / f"{options.logs - 1}.log").write_text("")
        runtime.stop()
        thread.join()
    beside = f", beside one of {poured / options.seconds / 1e6:.0f} MB/s" if flood else ""
    print(f"{name}: {rows} rows of {options.logs - flood} logs{beside}; {share:.0%} of a core")
    tell("written to known", delays.told)
    tell("written to its rule's firing", delays.fired)


def idle(name: str, options: argparse.Namespace, *, inotify: bool) -> None:
    rounds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(number) for number in range(options.idle)]
        seen: list[Event] = []
        follower = Follower(seen.extend, time.time, inotify=inotify)
        for file in files:
            file.write_text('{"t": 1}\n')
            follower.watch(file.name, "json-lines", JsonLines(), file)
        until(lambda: len(seen) == options.idle)
        time.sleep(2)
        for _ in range(3):
            cpu = time.process_time()
            time.sleep(max(5.0, options.seconds))
            rounds.append((time.process_time() - cpu) / max(5.0, options.seconds) * 60)
        follower.close()
    print(f"{name}: {options.idle} idle files, {statistics.median(rounds):.2f} s of CPU a minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()

    class Looking(Follower):
        """Tracking without inotify."""

        def __init__(self, *args: object, **named: object) -> None:
            super().__init__(*args, **named, inotify=False)  # type: ignore[arg-type]

    for _ in range(options.rounds):
        for flood in (False, True):
            for name, follower in (("inotify", Follower), ("looking", Looking)):
                setattr(output_tracking, "Follower", follower)  # noqa: B010 (not this module's name)
                growing(name, options, flood=flood)
    for name in ("inotify", "looking"):
        idle(name, options, inotify=name == "inotify")


if __name__ == "__main__":
    main()
