"""Jobs a second through Grid Engine, beside a bare array job of the same commands in the same cell.

    python benchmarks/gridengine_rate.py [--jobs N] [--rounds N]

It begins a cell of its own (as the plugin's tests do, so as root, with Debian's packages). Each
round runs both in turn: ``qsub -sync y -t 1-N`` of a script that runs ``true``, and the
executor with N jobs that do. What counts is the ratio of the two, and how many commands of Grid
Engine the executor ran for its jobs (the bare array is one).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ensemble_gridengine.executor import GridEngineExecutor

from ensemble_core.testing import Session

ROOT = Path(__file__).resolve().parents[1]


def conftest() -> Any:
    """The cluster of the plugin's tests."""
    path = ROOT / "plugins" / "ensemble-gridengine" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("gridengine_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counting(GridEngineExecutor):
    """Counts the commands that it runs."""

    commands = 0

    def command(self, words: Sequence[str], given: bytes = b"") -> tuple[int, str, str]:
        self.commands += 1
        return super().command(words, given)


def bare(cluster: Any, jobs: int, folder: Path) -> float:
    script = folder / "bare.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    began = time.monotonic()
    cluster.run("qsub", "-sync", "y", "-t", f"1-{jobs}", "-S", "/bin/bash", "-o", "/dev/null",
                "-e", "/dev/null", str(script))  # fmt: skip
    return time.monotonic() - began


def ours(jobs: int, folder: Path) -> tuple[float, int]:
    executor = Counting()
    with Session(executor, folder, 600.0) as session:
        made = [session.job("true") for _ in range(jobs)]
        began, before = time.monotonic(), executor.commands
        session.run(*made)
        took = time.monotonic() - began
        assert all(session.context(job, "finish")["status"] == 0 for job in made)
        return took, executor.commands - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    module = conftest()
    reason = module.lacking()
    if reason is not None:
        sys.exit(reason)
    cluster = module.Cluster()
    try:
        os.environ.update(cluster.environment)
        ratios = []
        with tempfile.TemporaryDirectory() as base:
            bare(cluster, 4, Path(base))  # what is loaded once is loaded
            for number in range(given.rounds):
                folder = Path(base, str(number))
                folder.mkdir()
                alone = bare(cluster, given.jobs, folder)
                took, commands = ours(given.jobs, folder)
                ratios.append(alone / took)
                print(
                    f"bare array {given.jobs / alone:.1f} jobs/s, executor "
                    f"{given.jobs / took:.1f} jobs/s: {ratios[-1]:.2f}; {commands} commands",
                    flush=True,
                )
        print(f"median ratio {statistics.median(ratios):.2f}")
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
