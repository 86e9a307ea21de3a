"""Cost of the Slurm executor, compared with Slurm itself on the same cluster.

Prints ratios, each the median of alternating rounds.

- End to end: jobs per second of `ensemble run` with one group of /bin/true, compared with a bare
  `sbatch --array` of the same number until `squeue` lists none; both include their start-up.
- Latency: from the end of a job's command to our event, compared with a poller that runs `squeue`
  every 30 s for the same jobs.
- Requests to slurmctld (by `sdiag`) per 1,000 jobs of one run, compared with the same jobs through
  PSI/J's Slurm executor (--psij PYTHON, an interpreter with psij-python) and with a bare array.
  Reports of nodes are not counted: they are the same for all.

If SLURM_CONF is not set, a temporary cluster of four slurmds is started on this machine, like in
the plugin's tests (Debian: slurm-wlm, munge).

    python benchmarks/slurm_rate.py [--rounds 3] [--psij PYTHON]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ensemble_slurm.executor import SlurmExecutor

from ensemble_core import Event, Job, JobEvent, Run

_T = TypeVar("_T")
ROOT = Path(__file__).resolve().parents[1]
TRUE = "/bin/true"
#: Substrings of the names of nodes' requests and of the request for statistics.
NODES_OWN = ("COMPLETE", "REGISTRATION", "PING", "STATS_INFO", "ACCT_GATHER", "STEP_")
#: Our own polls, which are not counted.
ASKED: list[int] = []
#: Program for PSI/J: submits single jobs of /bin/true and waits for the last one.
PSIJ = """
import sys
from psij import Job, JobExecutor, JobSpec
executor = JobExecutor.get_instance("slurm")
jobs = [Job(JobSpec(executable="/bin/true")) for _ in range(int(sys.argv[1]))]
for job in jobs:
    executor.submit(job)
for job in jobs:
    job.wait()
"""


def fixture() -> ModuleType:
    """Start the cluster of the plugin's tests."""
    path = ROOT / "plugins" / "ensemble-slurm" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("slurm_cluster", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def median(pairs: Sequence[tuple[float, float]]) -> str:
    ratio = statistics.median(ours / other for ours, other in pairs)
    return (
        f"{ratio:.2f}  ({statistics.median(ours for ours, _ in pairs):.4g} against "
        f"{statistics.median(other for _, other in pairs):.4g}; rounds "
        + " ".join(f"{ours / other:.2f}" for ours, other in pairs)
        + ")"
    )


def requests() -> int:
    """Return the number of requests to slurmctld."""
    text = subprocess.run(["sdiag"], check=True, capture_output=True, text=True).stdout
    count = 0
    counting = False
    for line in text.splitlines():
        if "by message type" in line:
            counting = True
        elif counting and "count:" not in line:
            break
        elif counting and not any(word in line for word in NODES_OWN):
            count += int(line.partition("count:")[2].split()[0])
    return count


def settle() -> int:
    """Wait until no job is left; return the number of polls."""
    asked = 1
    while subprocess.run(["squeue", "-h"], capture_output=True, check=False).stdout.strip():
        time.sleep(0.2)
        asked += 1
    return asked


def bare_run(jobs: int) -> float:
    began = time.perf_counter()
    subprocess.run(
        ["sbatch", f"--array=1-{jobs}", "-o", "/dev/null", "--wrap", TRUE],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    ASKED.append(settle())  # sbatch --wait would poll every few seconds only
    return jobs / (time.perf_counter() - began)


def our_run(jobs: int, folder: Path) -> float:
    file = folder / "true.yaml"
    file.write_text(
        f"jobs: [{{name: t, command: {TRUE}, count: {jobs}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: t}}]\n"
    )
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", "run", "--executor", "slurm", "-q", str(file)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return jobs / (time.perf_counter() - began)


def psij_run(python: str, jobs: int, folder: Path) -> float:
    script = folder / "peer.py"
    script.write_text(PSIJ)
    began = time.perf_counter()
    subprocess.run([python, str(script), str(jobs)], check=True, cwd=folder, timeout=900)
    return jobs / (time.perf_counter() - began)


def latencies(jobs: int, folder: Path) -> tuple[list[float], list[float]]:
    """Return the seconds from each job's end to our event, and to a poller's next poll."""
    told: dict[str, float] = {}
    over = threading.Event()

    def consume(events: Sequence[Event]) -> None:
        now = time.time()
        for event in events:
            if isinstance(event, JobEvent) and event.name == "finish":
                told[event.job] = now
        if len(told) == jobs:
            over.set()

    executor = SlurmExecutor()
    executor.open(Run(tag=f"latency-{time.time()}", folder=folder, clock=time.time), consume)
    began = time.time()
    executor.submit(
        [
            Job(
                id=f"t.{n}", group="t", index=n,
                command=("bash", "-c", f"sleep 0.{n % 10}; date +%s.%N > {folder}/end.{n}"),
            )
            for n in range(jobs)
        ]
    )  # fmt: skip
    over.wait()
    executor.close()
    ends = {f"t.{n}": float((folder / f"end.{n}").read_text()) for n in range(jobs)}
    period = 30.0
    return (
        [told[job] - end for job, end in ends.items()],
        [period - (end - began) % period for end in ends.values()],
    )


def counted(what: Callable[[], _T], jobs: int) -> tuple[_T, float]:
    """Return the result, and the requests per 1,000 jobs without our own polls."""
    settle()
    before = requests()
    settle()
    look = requests() - before
    ASKED.clear()
    before = requests()
    result = what()
    asked = settle() + sum(ASKED)
    return result, (requests() - before - look * asked) * 1000 / jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200, help="jobs of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--psij", help="an interpreter that has psij-python")
    options = parser.parse_args()
    cluster = None
    if "SLURM_CONF" not in os.environ:
        module = fixture()
        missing = module.programs()
        if missing is not None:
            print(f"skipped: {missing} (Debian: apt install slurm-wlm munge)")
            return
        cluster = module.Cluster()
        os.environ.update({k: cluster.environment[k] for k in ("SLURM_CONF", "PATH")})
    try:
        with tempfile.TemporaryDirectory() as name:
            measure(options, Path(name))
    finally:
        if cluster is not None:
            cluster.close()


def measure(options: argparse.Namespace, folder: Path) -> None:
    jobs = options.jobs
    version = subprocess.run(["sbatch", "--version"], capture_output=True, text=True, check=True)
    print(f"{version.stdout.strip()}, {os.cpu_count()} cores, {jobs} jobs")
    runs = {"ours": partial(our_run, jobs, folder), "bare": partial(bare_run, jobs)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(options.rounds):
        for name in sorted(runs, reverse=not turn % 2):
            found[name].append(counted(runs[name], jobs))
    rates = [(ours, bare) for (ours, _), (bare, _) in zip(*found.values(), strict=True)]
    ours, bare = (statistics.median(asked for _, asked in each) for each in found.values())
    print(f"end-to-end jobs/s over a bare sbatch --array: {median(rates)}", flush=True)
    print(f"requests to slurmctld for 1,000 jobs: {ours:.0f}; a bare array: {bare:.0f}", flush=True)
    ours_late, poller_late = latencies(min(jobs, 100), folder)
    print(
        "from a job's end to its event, median: "
        f"{statistics.median(ours_late) * 1000:.1f} ms (longest {max(ours_late) * 1000:.0f} ms); "
        f"a poller of every 30 s: {statistics.median(poller_late):.1f} s",
        flush=True,
    )
    if options.psij is None:
        print("PSI/J was not measured: --psij PYTHON names an interpreter that has psij-python")
        return
    few = min(jobs, 60)
    _, theirs = counted(lambda: psij_run(options.psij, few, folder), few)
    print(f"requests to slurmctld for 1,000 jobs over PSI/J's: {ours / theirs:.2f} ({theirs:.0f})")


if __name__ == "__main__":
    main()
