"""Memory: bytes that the engine keeps for each finished job, over a million jobs.

Runs jobs, a thousand at a time, through an engine with ten groups, metric rules and every
statistic. Prints the process's resident size at intervals, and its slope from the end of the first
tenth, when buffers are full, to the end.

    python benchmarks/memory.py [--jobs N]
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path
from typing import Any

from engine_rate import END, GROUPS, LIFE, ensemble

from ensemble_core.engine.engine import Engine
from ensemble_core.model.decisions import Submit
from ensemble_core.model.events import JobEvent, Observed, PluginEvent, Started
from ensemble_core.model.rules import BoundAction, BoundRule, Trigger

WAVE = 1_000


def resident() -> int:
    """Return this process's resident size in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def again() -> BoundRule:
    """Return a rule that submits all groups again."""

    def submit(firing: Any, options: Any) -> Any:
        for group in GROUPS:
            yield firing.submit(group)

    return BoundRule(
        id="again",
        trigger=Trigger(events=("again",)),
        actions=(BoundAction(name="submit", plan=submit),),
        repetitions=10**9,
    )


def main() -> None:
    """Run the jobs and print the memory in use."""
    parser = argparse.ArgumentParser(description="bytes kept for each finished job")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    jobs = parser.parse_args().jobs
    import dataclasses

    base = ensemble(100, WAVE)
    engine = Engine(dataclasses.replace(base, rules=(*base.rules, again())), all_statistics=True)
    now = 1000.0
    decided = engine.handle(Started(now))
    done, marks = 0, []
    while done < jobs:
        ids = [job.id for one in decided if isinstance(one, Submit) for job in one.jobs]
        for job in ids:
            for name in LIFE:
                now += 0.001
                engine.handle(JobEvent(now, job, name, {}))
            engine.handle(Observed(now, job, "bench", {"Temp": now % 7}))
            engine.handle(JobEvent(now + 1, job, "finish", {"status": 256 * (done % 7 == 0)}))
            if job is ids[-1]:
                decided = engine.handle(PluginEvent(now, "again"))
            for name in END:
                engine.handle(JobEvent(now + 1, job, name, {}))
            done += 1
        if done % (jobs // 10) < WAVE:
            gc.collect()
            marks.append((done, resident()))
            print(f"{done:10,d} jobs  {resident() / 2**20:7.1f} MiB", flush=True)
    (first, before), (last, after) = marks[0], marks[-1]
    print(f"bytes per finished job, from {first:,d} on: {(after - before) / (last - first):.2f}")


if __name__ == "__main__":
    main()
