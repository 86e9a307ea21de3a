"""Jobs per second through Grid Engine, compared with a bare array job in the same cell.

    python benchmarks/gridengine_rate.py [--jobs N] [--rounds N]

Starts a temporary cell with eight slots, like the plugin's tests (as root, with Debian's packages).
Each round runs ``qsub -sync y -t 1-N`` of a script that runs ``true``, and the executor with N of
these jobs. Prints

- the ratio of the two rates;
- the requests to qmaster per 1,000 jobs, counted by qmaster, with and without the reports of nodes,
  minus those of an idle cell;
- the number of Grid Engine commands that the executor ran (the bare array is one);
- the delay from the end of a job's command to our event.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ensemble_gridengine.executor import GridEngineExecutor
from ensemble_testing import Session

from ensemble_core import Emit, Event, JobEvent, Run

ROOT = Path(__file__).resolve().parents[1]


def conftest() -> Any:
    """Start the cluster of the plugin's tests."""
    path = ROOT / "plugins" / "ensemble-gridengine" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("gridengine_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counting(GridEngineExecutor):
    """Executor that counts its commands and the delays of its events."""

    commands = 0

    def open(self, run: Run, emit: Emit) -> None:
        self.late: list[float] = []

        def hear(events: Sequence[Event]) -> None:
            now = time.time()
            for event in events:
                if isinstance(event, JobEvent) and event.name == "finish":
                    self.late.append(now - event.timestamp)
            emit(events)

        super().open(run, hear)

    def command(self, words: Sequence[str], given: bytes = b"") -> tuple[int, str, str]:
        self.commands += 1
        return super().command(words, given)


#: Messages in qmaster's monitor: requests, acknowledgements, event clients, nodes' reports.
_LISTENED = re.compile(
    r"listener\d+: .*in \(g:([\d.]+) a:([\d.]+) e:([\d.]+) r:([\d.]+)\)/s.* time: ([\d.]+)s"
)


def monitored(cluster: Any) -> None:
    """Make qmaster log its incoming messages every second."""
    lines = (line for line in cluster.run("qconf", "-sconf").splitlines() if line[:1] != "#")
    file = cluster.base / "global"
    params = "MONITOR_TIME=0:0:1,LOG_MONITOR_MESSAGE=1"
    file.write_text(conftest().replaced("\n".join(lines) + "\n", qmaster_params=params))
    cluster.run("qconf", "-Mconf", str(file))


def came_in(cluster: Any) -> tuple[float, float]:
    """Return the number of messages to qmaster: those from clients, and all."""
    time.sleep(3.0)  # the monitor writes with a delay
    text = (cluster.base / "spool" / "messages").read_text(errors="replace")
    clients = everybody = 0.0
    for found in _LISTENED.finditer(text):
        *rates, seconds = map(float, found.groups())
        clients += sum(rates[:3]) * seconds
        everybody += sum(rates) * seconds
    return clients, everybody


class Counted:
    """Messages of qmaster during a measurement, per 1,000 jobs, minus those of an idle cell."""

    def __init__(self, cluster: Any, jobs: int) -> None:
        self._cluster = cluster
        self._jobs = jobs
        before, began = came_in(cluster), time.monotonic()
        time.sleep(12.0)
        self._before = came_in(cluster)
        self._began = time.monotonic()
        seconds = self._began - began
        self._idle = [(b - a) / seconds for a, b in zip(before, self._before, strict=True)]

    def __call__(self, what: Callable[[], Any]) -> tuple[Any, float, float]:
        before, began = self._before, self._began
        result = what()
        self._before, self._began = came_in(self._cluster), time.monotonic()
        after, seconds = self._before, self._began - began
        clients, everybody = (
            (b - a - idle * seconds) * 1000 / self._jobs
            for a, b, idle in zip(before, after, self._idle, strict=True)
        )
        return result, clients, everybody


def bare(cluster: Any, jobs: int, folder: Path) -> float:
    script = folder / "bare.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    began = time.monotonic()
    words = ["qsub", "-sync", "y", "-t", f"1-{jobs}", "-S", "/bin/bash"]
    subprocess.run(
        [*words, "-o", "/dev/null", "-e", "/dev/null", str(script)],
        env=cluster.environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.monotonic() - began


def ours(jobs: int, folder: Path) -> tuple[float, int, list[float]]:
    executor = Counting()
    with Session(executor, folder, 600.0) as session:
        made = [session.job("true") for _ in range(jobs)]
        began, before = time.monotonic(), executor.commands
        session.run(*made)
        took = time.monotonic() - began
        assert all(session.context(job, "finish")["status"] == 0 for job in made)
        return took, executor.commands - before, executor.late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    module = conftest()
    reason = module.lacking()
    if reason is not None:
        sys.exit(reason)
    cluster = module.Cluster()
    try:
        os.environ.update(cluster.environment)
        ratios, asked = [], []
        with tempfile.TemporaryDirectory() as base:
            bare(cluster, 4, Path(base))  # warm-up
            monitored(cluster)
            counted = Counted(cluster, given.jobs)
            for number in range(given.rounds):
                folder = Path(base, str(number))
                folder.mkdir()
                alone, *theirs = counted(partial(bare, cluster, given.jobs, folder))
                (took, commands, late), *mine = counted(partial(ours, given.jobs, folder))
                ratios.append(alone / took)
                asked.append((mine[0] / theirs[0], mine[1] / theirs[1]))
                print(
                    f"bare array {given.jobs / alone:.1f} jobs/s, executor "
                    f"{given.jobs / took:.1f} jobs/s: {ratios[-1]:.2f}; {commands} commands; for "
                    f"1,000 jobs {mine[0]:.0f} requests of clients over {theirs[0]:.0f}, with "
                    f"nodes {mine[1]:.0f} over {theirs[1]:.0f}; an end is known after "
                    f"{statistics.median(late):.2f} s (longest {max(late):.2f} s)",
                    flush=True,
                )
        print(
            f"ratio {statistics.median(ratios):.2f} (at least 0.9 is asked); requests of clients "
            f"{statistics.median(each[0] for each in asked):.2f} of the bare array's, with nodes "
            f"{statistics.median(each[1] for each in asked):.2f} (at most 2)"
        )
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
