"""Simulation: events per second compared with the engine alone, memory, and many runs.

Simulates a study of ``--jobs`` jobs in ten groups, each submitted by the previous one, on a virtual
cluster. Then passes the events of that run to a new engine. The ratio of the two times, measured in
one process, is the cost of the virtual queue and the model. ``--memory N`` simulates a run of N
jobs in a separate process and prints its peak memory. ``--runs N`` simulates a study of 100 jobs N
times, like ``ensemble simulate --runs``.

    python benchmarks/simulate_rate.py [--jobs N] [--rounds N] [--memory N] [--runs N]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import statistics
import time

from ensemble_simulate.executor import Machine, Simulator
from ensemble_simulate.forecast import Study, play, simulate_all
from ensemble_simulate.model_file import read
from ensemble_simulate.virtual_runtime import VirtualRuntime

from ensemble_core.config import load_text
from ensemble_core.config.yaml_reader import read_document
from ensemble_core.engine.engine import Engine
from ensemble_core.model.events import Event
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.watcher import Watcher

#: Statistics that rules use, with thresholds that are not reached.
WATCHED = (
    "mean.g{}-duration, when: '> 1e9', action: {{name: log, message: long}}",
    "p95.g{}-pending, when: '> 1e9', action: {{name: log, message: slow}}",
    "max.g{}-duration, when: '> 1e9', action: {{name: log, message: longest}}",
)


def study(jobs: int, groups: int = 10, nodes: int = 100, *, watched: bool = False) -> Study:
    """Return a study of ``groups`` of equal size, each submitted after half of the previous one.

    If ``watched``, rules also use statistics of each group, as in most studies.
    """
    each = max(1, jobs // groups)
    lines = ["limits: {chain: 100000}", "jobs:"]
    lines += [f"  - {{name: g{number}, command: x, count: {each}}}" for number in range(groups)]
    lines += ["rules:", "  - {trigger: start, action: {name: submit, label: g0}}"]
    for number in range(1, groups):
        when = max(1, each // 2)
        lines.append(
            f"  - {{trigger: metric, name: count.g{number - 1}.success, when: {when}, "
            f"action: {{name: submit, label: g{number}}}}}"
        )
    for number in range(groups) if watched else ():
        lines += [f"  - {{trigger: metric, name: {path.format(number)}}}" for path in WATCHED]
    lines += ["simulate:", "  jobs:"]
    lines += [f"    g{number}: 'lognormal(10m, 0.5)'" for number in range(groups)]
    return _study("\n".join(lines), nodes)


def _study(text: str, nodes: int) -> Study:
    registry = discover()
    ensemble = load_text(text, registry)
    model = read(read_document(text, "bench.yaml"), ensemble, registry, ("simulate",))
    return Study(ensemble, registry, model, Machine(nodes, 16))


def waves(jobs: int, each: int = 1000) -> Study:
    """Return a study with ``each`` active jobs at a time, to measure memory."""
    text = f"""
jobs: [{{name: g, command: x, count: {each}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: g}}}}
  - {{trigger: idle, name: g, repetitions: {jobs // each - 1}, action: {{name: submit, label: g}}}}
simulate: {{jobs: {{g: 'lognormal(10m, 0.5)'}}}}
"""
    return _study(text, 100)


class _Kept(Watcher):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)


def ratio(jobs: int, *, watched: bool) -> tuple[float, float, int]:
    """Return the seconds of a simulated run and of the engine alone, and the number of events."""
    about = study(jobs, watched=watched)
    kept = _Kept()

    def runtime(*watchers: Watcher) -> VirtualRuntime:
        simulator = Simulator(about.machine, about.model)
        return VirtualRuntime(
            about.ensemble, simulator, actions=about.registry.actions, watchers=watchers
        )

    runtime(kept).run()
    # Both are created before the measurement and freed after it.
    run, engine = runtime(), Engine(about.ensemble)
    began = time.process_time()
    run.run()
    simulated = time.process_time() - began
    began = time.process_time()
    for event in kept.events:
        engine.handle(event)
    return simulated, time.process_time() - began, len(kept.events)


def memory(jobs: int) -> None:
    """Return the peak MB of a process that simulates a number of jobs."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    figures = play(waves(jobs), 0)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{figures.jobs} jobs: peak {peak:.0f} MB ({before:.0f} before), {seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--runs", type=int, default=0)
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 20)  # as in the command line, where loaded modules are frozen
    discover()
    gc.freeze()
    for watched in (False, True) if options.rounds else ():
        found = []
        for _ in range(options.rounds):
            simulated, alone, events = ratio(options.jobs, watched=watched)
            found.append(alone / simulated)
            print(
                f"{events} events: simulated {events / simulated:.0f}/s, "
                f"engine alone {events / alone:.0f}/s, ratio {alone / simulated:.2f}"
            )
        rules = "rules with statistics" if watched else "rules that only count"
        print(f"{rules}: median ratio {statistics.median(found):.2f} (at least 0.5)")
    if options.runs:
        began = time.perf_counter()
        workers = len(os.sched_getaffinity(0))
        about = study(100, nodes=2)
        count = sum(len(each) for _, each in simulate_all([about], range(options.runs), workers))
        print(f"{count} runs of 100 jobs, {workers} workers: {time.perf_counter() - began:.1f} s")
    if options.memory:
        process = multiprocessing.get_context("spawn").Process(
            target=memory, args=(options.memory,)
        )
        process.start()
        process.join()


if __name__ == "__main__":
    main()
