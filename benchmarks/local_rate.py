"""How many jobs a second the local executor runs, against a bare posix_spawn loop.

Prints one ratio: /bin/true jobs per second through LocalExecutor, its events going to a consumer
that only counts, over a bare loop of os.posix_spawn and os.waitpid that is as wide, in the same
process. The two take turns; the ratio is the median over the rounds.

    python benchmarks/local_rate.py [--jobs 2000] [--rounds 5] [--width 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ensemble_core.local.executor import LocalExecutor
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run

TRUE = "/bin/true"


def bare(jobs: int, width: int) -> float:
    environment = dict(os.environ)
    began = time.perf_counter()
    started = ended = 0
    while ended < jobs:
        while started < jobs and started - ended < width:
            os.posix_spawn(TRUE, [TRUE], environment)
            started += 1
        os.waitpid(-1, 0)
        ended += 1
    return jobs / (time.perf_counter() - began)


def ours(jobs: int, width: int, folder: Path) -> float:
    executor = LocalExecutor(slots=width)
    left = jobs
    over = threading.Event()

    def consume(events: Sequence[Event]) -> None:
        nonlocal left
        for event in events:
            if isinstance(event, JobEvent):
                if event.name == "clean":
                    left -= 1
                    if not left:
                        over.set()
                elif event.name == "finish" and event.context["status"]:
                    raise SystemExit("a job failed")

    executor.open(Run(tag="rate", folder=folder, clock=time.time), consume)
    batch = [Job(id=f"t.{n}", group="t", index=n, command=(TRUE,)) for n in range(jobs)]
    began = time.perf_counter()
    executor.submit(batch)
    over.wait()
    rate = jobs / (time.perf_counter() - began)
    executor.close()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=2)
    options = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            floor = bare(options.jobs, options.width)
            pairs.append((ours(options.jobs, options.width, Path(folder)), floor))
    ratio = statistics.median(rate / floor for rate, floor in pairs)
    rate = statistics.median(rate for rate, _ in pairs)
    floor = statistics.median(floor for _, floor in pairs)
    print(
        f"local executor: {ratio:.2f} of a bare posix_spawn loop, {options.width} wide"
        f" ({rate:.0f} against {floor:.0f} jobs/s)"
    )


if __name__ == "__main__":
    main()
