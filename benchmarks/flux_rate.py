"""Cost of the Flux executor, compared with Flux itself in the same instance.

Prints ratios, each the median of alternating rounds.

- Submission: jobs per second until the last one is accepted, compared with a bare loop of
  flux.job.submit_async with one prepared jobspec. The jobs have urgency 0, so they do not start.
- End to end: jobs per second of `ensemble run` with one group of /bin/true, compared with
  `flux submit --cc --wait` of the same number of jobs; both include their start-up.
- Latency: from the finish of a job to the accepted submit of the next, by the instance's time
  stamps: a rule that submits at each finish, compared with a bare callback of Flux's journal that
  submits the same jobspec.
- With --peer PYTHON, an interpreter with ensemble-python 0.0.16: 500 jobs in 10 groups with 20
  rules, run by both; wall time and CPU seconds of the controller.

    flux start --test-size=4 python benchmarks/flux_rate.py [--rounds 5] [--peer PYTHON]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ensemble_flux import bindings
from ensemble_flux.executor import FluxExecutor
from ensemble_flux.job_output import Output
from ensemble_flux.jobspec import Jobspecs, limits

from ensemble_core import Event, Job, JobEvent, Run

TRUE = "/bin/true"


def median(pairs: Sequence[tuple[float, float]]) -> str:
    ratio = statistics.median(ours / other for ours, other in pairs)
    return (
        f"{ratio:.2f}  ({statistics.median(ours for ours, _ in pairs):.4g} against "
        f"{statistics.median(other for _, other in pairs):.4g}; rounds "
        + " ".join(f"{ours / other:.2f}" for ours, other in pairs)
        + ")"
    )


def drain() -> None:
    """Cancel waiting jobs, and wait until no job is active."""
    subprocess.run(["flux", "cancel", "--all"], check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["flux", "queue", "idle", "--quiet"], check=True)


def written(folder: Path) -> str:
    """Return the jobspec that our executor writes for /bin/true."""
    job = Job(id="t.0", group="t", index=0, command=(TRUE,))
    output, _, _ = Output(str(folder), "files").prepare(job, str(folder))
    return Jobspecs("bare", "0", os.environ, str(folder), rlimits=limits()).write(job, output)


def bare_submission(flux: Any, jobs: int, folder: Path) -> float:
    handle = flux.Flux()
    jobspec = written(folder)
    began = time.perf_counter()
    futures = [flux.job.submit_async(handle, jobspec, urgency=0) for _ in range(jobs)]
    for future in futures:
        future.get_id()
    rate = jobs / (time.perf_counter() - began)
    drain()
    return rate


def our_submission(jobs: int, folder: Path) -> float:
    executor = FluxExecutor()
    left = jobs
    accepted = threading.Event()

    def consume(events: Sequence[Event]) -> None:
        nonlocal left
        for event in events:
            if isinstance(event, JobEvent) and event.name == "submit" and event.ours:
                left -= 1
                if not left:
                    accepted.set()

    executor.open(Run(tag=f"rate-{time.time()}", folder=folder, clock=time.time), consume)
    batch = [Job(id=f"t.{n}", group="t", index=n, command=(TRUE,), urgency=0) for n in range(jobs)]
    began = time.perf_counter()
    executor.submit(batch)
    accepted.wait()
    rate = jobs / (time.perf_counter() - began)
    executor.close()
    drain()
    return rate


def bare_run(jobs: int) -> float:
    began = time.perf_counter()
    subprocess.run(
        ["flux", "submit", f"--cc=1-{jobs}", "--wait", "--quiet", "-N1", TRUE],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return jobs / (time.perf_counter() - began)


def our_run(jobs: int, folder: Path) -> float:
    file = folder / "true.yaml"
    file.write_text(
        f"jobs: [{{name: t, command: {TRUE}, count: {jobs}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: t}}]\n"
    )
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", "run", "--executor", "flux", "-q", str(file)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return jobs / (time.perf_counter() - began)


def latencies(steps: Sequence[tuple[str, float]]) -> float:
    """Return the median seconds from a finish to the next submit."""
    waits = []
    finished: float | None = None
    for name, timestamp in steps:
        if name == "finish":
            finished = timestamp
        elif name == "submit" and finished is not None:
            waits.append(timestamp - finished)
            finished = None
    return statistics.median(waits)


def bare_chain(flux: Any, jobs: int, folder: Path) -> float:
    handle = flux.Flux()
    jobspec = written(folder)
    steps: list[tuple[str, float]] = []
    journal = flux.job.JournalConsumer(handle, full=False).start()
    left = jobs

    def submit() -> None:
        nonlocal left
        left -= 1
        flux.job.submit_async(handle, jobspec).then(lambda future: future.get_id())

    def told(event: Any) -> None:
        if event is None:
            return
        if event.name in ("submit", "finish"):
            steps.append((event.name, event.timestamp))
        if event.name == "finish":
            if left:
                submit()
            else:
                handle.reactor_stop()

    journal.set_callback(told)
    submit()
    handle.reactor_run()
    return latencies(steps)


def our_chain(flux: Any, jobs: int, folder: Path) -> float:
    file = folder / "chain.yaml"
    file.write_text(
        f"jobs: [{{name: t, command: {TRUE}}}]\n"
        "limits: {chain: 100000}\n"
        "rules:\n"
        "  - {trigger: start, action: {name: submit, label: t}}\n"
        "  - trigger: job-finish\n"
        f"    repetitions: {jobs - 1}\n"
        "    action: {name: submit, label: t}\n"
    )
    before = time.time()
    command = [sys.executable, "-m", "ensemble_core.cli", "run", "--executor", "flux", "-q"]
    subprocess.run([*command, str(file)], check=True, stdout=subprocess.DEVNULL)
    journal = flux.job.JournalConsumer(flux.Flux(), full=True, since=before, include_sentinel=True)
    journal.start()
    steps = []
    while not (event := journal.poll(60)).is_empty():
        # The last job of the previous round may not have finished yet.
        if event.name == "submit" or (event.name == "finish" and steps):
            steps.append((event.name, event.timestamp))
    assert len(steps) == 2 * jobs
    return latencies(steps)


def study(groups: int, jobs: int) -> str:
    """Return the ensemble file for the comparison, which both programs read."""
    lines = ["logging: {debug: false, heartbeat: 0}", "jobs:"]
    lines += [
        f"  - {{name: g{n}, command: {TRUE}, count: {jobs}, nodes: 1}}" for n in range(groups)
    ]
    lines += ["rules:", "  - trigger: start", "    action: {name: submit, label: g0}"]
    for n in range(groups):
        lines += ["  - trigger: metric", f"    name: count.g{n}.success", f"    when: {jobs}"]
        last = n == groups - 1
        action = "name: terminate" if last else f"name: submit, label: g{n + 1}"
        lines += [f"    action: {{{action}}}"]
    for n in range(groups - 1):
        lines += ["  - trigger: metric", f"    name: mean.g{n}-duration", '    when: "> 1000"']
        lines += ["    action: {name: submit, label: g0}"]
    return "\n".join(lines) + "\n"


def timed(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Return wall time and CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout.decode()[-2000:])
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peer(python: str, folder: Path, rounds: int) -> None:
    file = folder / "study.yaml"
    file.write_text(study(10, 50))
    ours = [sys.executable, "-m", "ensemble_core.cli", "run", "--executor", "flux", str(file)]
    theirs = [str(Path(python).parent / "ensemble"), "run", "--executor", "flux", str(file)]
    walls, cpus = [], []
    for _ in range(rounds):
        mine, other = timed(ours, folder), timed(theirs, folder)
        walls.append((mine[0], other[0]))
        cpus.append((mine[1], other[1]))
    print(f"500 jobs, 10 groups, 20 rules, wall time over 0.0.16's:   {median(walls)}")
    print(f"500 jobs, 10 groups, 20 rules, CPU seconds over 0.0.16's: {median(cpus)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000, help="jobs of a submission round")
    parser.add_argument("--run", type=int, default=200, help="jobs of an end-to-end round")
    parser.add_argument("--chain", type=int, default=40, help="jobs of a latency round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="an interpreter with ensemble-python 0.0.16")
    parser.add_argument("--only", choices=["submission", "run", "latency", "peer"])
    options = parser.parse_args()
    if "FLUX_URI" not in os.environ:
        parser.error("not inside a Flux instance: flux start --test-size=4 python " + sys.argv[0])
    flux = bindings.bindings()
    print(f"Flux {bindings.version(flux)}, {os.cpu_count()} cores")

    def compare(
        part: str, title: str, ours: Callable[[], float], other: Callable[[], float]
    ) -> None:
        if options.only in (None, part):
            pairs = []
            for turn in range(options.rounds):
                # Alternate the order, because an instance becomes slightly slower with each job.
                if turn % 2:
                    second = other()
                    pairs.append((ours(), second))
                else:
                    first = ours()
                    pairs.append((first, other()))
            print(f"{title} {median(pairs)}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compare(
            "submission",
            "submitted jobs/s over bare submit_async:      ",
            lambda: our_submission(options.jobs, folder),
            lambda: bare_submission(flux, options.jobs, folder),
        )
        compare(
            "run",
            "end-to-end jobs/s over flux submit --cc --wait:",
            lambda: our_run(options.run, folder),
            lambda: bare_run(options.run),
        )
        compare(
            "latency",
            "finish to next submit over a bare callback:    ",
            lambda: our_chain(flux, options.chain, folder),
            lambda: bare_chain(flux, options.chain, folder),
        )
        if options.peer and options.only in (None, "peer"):
            peer(options.peer, folder, max(1, options.rounds // 2))


if __name__ == "__main__":
    main()
