"""Kills and resumes controllers for hours: ``make soak``, or ``scripts/soak.py --help``.

Each round is a run whose controller is killed with SIGKILL at various places or times, and resumed
until the run is over. The run is then compared with the queue's records and with an undisturbed
run. Prints the number of jobs that were lost or submitted twice, of rules that fired again, and of
replays that differ. The exit code is 1 if any of these is not 0. Failed rounds are kept in
``--base``.

``--hours H`` repeats all parts with new seeds until the time is over: kills, power cuts, a queue
with random events, almost valid calls of a service, jobs on this machine, studies and use cases,
and a service with hostile callers. Prints the result of each part, and finally the parts that found
problems.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CRASH = ROOT / "tests" / "journal" / "crash"
BAD = ("lost", "doubled", "fired_again", "replay_differences", "other")
WORDS = {
    "lost": "lost",
    "doubled": "submitted twice",
    "fired_again": "rules fired again",
    "replay_differences": "replays that differ",
    "other": "otherwise wrong",
}
#: Number of ensembles on the file-based queue; each seed is one round of each.
ENSEMBLES = 12
#: Separate programs besides those of executors.
PROGRAMS = {
    "file": CRASH / "rounds.py",
    "power": CRASH / "power_cuts.py",
    "hostile": CRASH / "hostile.py",
    "wire": ROOT / "plugins" / "ensemble-service" / "tests" / "wire_fuzz.py",
    "members": ROOT / "plugins" / "ensemble-service" / "tests" / "kills.py",
    "studies": ROOT / "tests" / "project" / "studies.py",
    "use-cases": ROOT / "tests" / "project" / "use_cases.py",
    "stops": CRASH / "stops.py",
    "stops-slurm": CRASH / "stops.py",
    "stops-flux": CRASH / "stops.py",
    "stops-gridengine": CRASH / "stops.py",
    "stops-pbs": CRASH / "stops.py",
    "algorithms": CRASH / "algorithms.py",
    "generators": CRASH / "generators.py",
    "operator": ROOT / "plugins" / "ensemble-operator" / "tests" / "operator_kills.py",
    "suspends": ROOT / "plugins" / "ensemble-operator" / "tests" / "suspends.py",
    "drains": ROOT / "plugins" / "ensemble-operator" / "tests" / "drains.py",
    "pilot": ROOT / "plugins" / "ensemble-pilot" / "tests" / "kills.py",
    "pilot-slurm": ROOT / "plugins" / "ensemble-pilot" / "tests" / "kills.py",
}
#: The parts of ``--hours``, with the rounds per turn.
PARTS = {"file": 96, "power": 20, "hostile": 50, "wire": 6, "local": 20, "stops": 20,
         "algorithms": 5, "generators": 10, "members": 5, "operator": 2, "suspends": 4,
         "drains": 4, "pilot": 10,
         "studies": 1, "use-cases": 1, "service": 1}  # fmt: skip
#: Queues that are started if needed, with the command that detects a running one.
QUEUES = {"slurm": "sinfo", "gridengine": "qconf -sss", "pbs": "pbsnodes -a",
          # Always the stand-in: never use the cluster of a kubeconfig.
          "kubernetes": "false", "flux": "flux uptime"}  # fmt: skip
#: Exit code if a queue is missing.
NOT_THERE = 77
SERVICE = ROOT / "benchmarks" / "service_hostile.py"
OPTIONS = {
    "local": ["--", "--slots", "8"],
    "slurm": ["--", "-o", "look=1", "-o", "rate=50"],
    "gridengine": ["--", "-o", "poll=1", "-o", "environment=smp"],
    "pbs": ["--", "-o", "poll=1"],
    "kubernetes": ["--", "-o", "image=registry.example/work:1"],
    "power": ["--cuts", "50"],
    "stops": ["--", "--slots", "4"],
    "stops-slurm": ["--on", "slurm", "--", "-o", "look=1", "-o", "rate=50"],
    "stops-flux": ["--on", "flux"],
    "stops-gridengine": ["--on", "gridengine", "--", "-o", "poll=1", "-o", "environment=smp"],
    "stops-pbs": ["--on", "pbs", "--", "-o", "poll=1"],
    "pilot-slurm": [
        "--",
        "-o",
        "queue=slurm",
        "-o",
        'options={"look": 1, "rate": 50}',
        "-o",
        "nodes=2",
    ],
}

for _queue in QUEUES:
    # Examples with known figures, on each queue.
    _words = ["--", "--executor", _queue, *OPTIONS.get(_queue, ())[1:]]
    PROGRAMS[f"studies-{_queue}"] = PROGRAMS["studies"]
    PROGRAMS[f"use-cases-{_queue}"] = PROGRAMS["use-cases"]
    OPTIONS[f"studies-{_queue}"] = ["--short", *_words]
    OPTIONS[f"use-cases-{_queue}"] = ["--short", *_words]


class Soak:
    """The results of all rounds so far, filled by a thread per process."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def take(self, found: dict[str, Any]) -> None:
        with self._lock:
            self.counts["rounds"] += 1
            self.counts["kills"] += len(found["killed"])
            self.counts["jobs"] += found["jobs"]
            for kind in BAD:
                self.counts[kind] += len(found[kind])
            if not found["good"]:
                print(json.dumps(found, indent=1), flush=True)
            # an example's name: these rounds are few and slow
            if isinstance(found.get("round"), str):
                how = "killed" if found["killed"] else "undisturbed"
                seconds = time.monotonic() - self._began
                print(f"{seconds:.0f} s: {found['round']}, {how}: {found['jobs']} jobs", flush=True)
            elif self.counts["rounds"] % 50 == 0:
                print(self, flush=True)

    def follow(self, command: list[str]) -> None:
        """Run a process that prints a line for each round; invalid lines count as bad rounds."""
        try:
            self._follow(command)
        except BaseException:
            with self._lock:
                self.counts["other"] += 1
            raise

    def _follow(self, command: list[str]) -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            good = True
            for line in process.stdout:
                found = json.loads(line)
                good = good and found["good"]
                self.take(found)
        # It ends with 1 after a bad round, and if it fails itself.
        if process.returncode != (0 if good else 1):
            with self._lock:
                self.counts["other"] += 1
                print(f"{' '.join(command)} ended with {process.returncode}", flush=True)

    def __str__(self) -> str:
        told = [f"{self.counts[name]} {name}" for name in ("rounds", "kills", "jobs")]
        told += [f"{self.counts[kind]} {WORDS[kind]}" for kind in BAD]
        return f"{time.monotonic() - self._began:.0f} s: {', '.join(told)}"


def for_hours(hours: float, seed: int, processes: int, base: Path) -> int:
    """Run all parts in turn; return 1 if one found a problem."""
    end, began = time.monotonic() + 3600 * hours, time.monotonic()
    times: Counter[str] = Counter()
    found: list[str] = []
    turn = 0
    while time.monotonic() < end:
        for name, rounds in PARTS.items():
            if time.monotonic() >= end:
                break
            if name == "service":
                command = [sys.executable, str(SERVICE), "--rounds", str(rounds)]
            else:
                command = [
                    sys.executable, __file__, "--executor", name, "--rounds", str(rounds),
                    "--seed", str(seed + turn * rounds), "--processes", str(processes),
                    "--base", str(base / f"{name}-{turn}"),
                ]  # fmt: skip
            print(f"{time.monotonic() - began:.0f} s: {shlex.join(command)}", flush=True)
            times[name] += 1
            if subprocess.run(command, check=False).returncode:
                found.append(shlex.join(command))
        turn += 1
    told = ", ".join(f"{name} {count} times" for name, count in times.items())
    print(f"{time.monotonic() - began:.0f} s in all: {told}; {len(found)} found something")
    for each in found:
        print(f"  {each}")
    return 1 if found else 0


def begin(queue: str, wide: bool) -> str | None:
    """Start a queue as its plugin's tests do, unless this machine belongs to one.

    The queue ends with this process. If it cannot start, return the reason. A ``wide`` queue has
    nodes of four cores on any machine, because waiting jobs do not need real ones.
    """
    if queue not in QUEUES:
        return None
    ask = QUEUES[queue].split()
    if (
        shutil.which(ask[0])
        and not subprocess.run(ask, capture_output=True, check=False).returncode
    ):
        return None
    path = ROOT / "plugins" / f"ensemble-{queue}" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"{queue}_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if queue == "flux":
        command = module.command()
        if command is None:
            return "no Flux: neither on the PATH nor in ENSEMBLE_FLUX_PREFIX"
        os.environ["PATH"] = f"{Path(command).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        instance = module.Instance(command, *(_wide_flux() if wide else ()))
        os.environ.update(instance.environment())
        atexit.register(instance.close)
        return None
    missing = module.programs() if queue == "slurm" else module.lacking()
    if missing is None:
        if wide:
            vars(module)["CORES"] = 4  # of each Slurm node
        cluster = module.Cluster()
        os.environ.update(cluster.environment)
        atexit.register(cluster.close)
    return str(missing) if missing else None


def _wide_flux() -> list[str]:
    """Return options of ``flux start`` for nodes of four cores."""
    folder = tempfile.TemporaryDirectory(prefix="ensemble-soak-flux-")
    atexit.register(folder.cleanup)
    conf = Path(folder.name) / "wide.toml"
    conf.write_text(
        '[resource]\nnoverify = true\n[[resource.config]]\nhosts = "node[0-3]"\ncores = "0-3"\n'
    )
    return ["--test-hosts=node[0-3]", f"--conf={conf}"]


def on_each_queue(rounds: int, seed: int, processes: int, base: Path) -> int:
    """Run the same rounds and the examples with known figures on this machine and each queue.

    Skips queues that are not available. Returns 1 if one differs from an undisturbed run.
    """
    wrong = []
    parts = [(queue, rounds) for queue in ("local", *QUEUES)]
    parts += [(f"{name}-{queue}", 1) for queue in QUEUES for name in ("use-cases", "studies")]
    for part, count in parts:
        command = [
            sys.executable, __file__, "--executor", part, "--rounds", str(count),
            "--seed", str(seed), "--processes", str(processes if count > 1 else 1),
            "--base", str(base / part),
        ]  # fmt: skip
        print(f"== {part}: {shlex.join(command)}", flush=True)
        code = subprocess.run(command, check=False).returncode
        if code not in (0, NOT_THERE):
            wrong.append(part)
    print(f"wrong on: {', '.join(wrong)}" if wrong else "the same on each queue that is there")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="number of rounds (1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round (0)")
    parser.add_argument(
        "--executor",
        choices=[*PROGRAMS, "local", *QUEUES, "queues"],
        default="file",
        help="file: a queue in a file (default); local: this machine; slurm, gridengine, pbs, "
        "flux: the queue of this machine, or a temporary one; kubernetes: a stand-in; queues: "
        "rounds on each available queue; power: power cuts of this machine, 50 in each round; "
        "hostile: a queue with random events; wire: almost valid calls of a service; stops: "
        "runs that are stopped by signals and resumed, on this machine or a queue (stops-slurm …); "
        "studies: each study of examples/, undisturbed and killed, compared with its known "
        "figure; use-cases: the same for the use cases; algorithms: runs with algorithms of a "
        "plugin that is replaced during the run; generators: runs with generators, each "
        "killed 10 times; members: runs whose service, member's agent and controller are "
        "killed, up to four times in each round; operator: Ensembles in the stand-in for "
        "Kubernetes, whose operator, service and first pod are killed, ten times in each "
        "round; suspends: Ensembles that are suspended while the operator, the service or the "
        "run are killed, three times in each; drains: Ensembles whose first pod is drained; "
        "pilot, pilot-slurm: runs in pilots, of which parts are killed, on this machine or Slurm",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=2,
        help="concurrent processes (2); with --names and --rounds 0, one for each name",
    )
    parser.add_argument("--base", type=Path, help="folder for the runs")
    parser.add_argument(
        "--kubeconfig", metavar="FILE",
        help="suspends and drains: use a control plane with the Flux Operator and without nodes "
        "instead of the stand-in",
    )  # fmt: skip
    parser.add_argument(
        "--faults",
        action="store_true",
        help="slurm, gridengine, pbs, flux: the queue lists no jobs or only some at times (or "
        "brokers of Flux stop), and jobs are suspended and continued",
    )
    parser.add_argument(
        "--validate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare the engine's state with what it keeps by state after each event of the "
        "controllers that are killed (yes)",
    )
    parser.add_argument("--names", nargs="+", help="studies or use cases to run (all)")
    parser.add_argument("--hours", type=float, help="repeat all parts for this number of hours")
    chosen = parser.parse_args()
    os.environ["ENSEMBLE_VALIDATE"] = "1" if chosen.validate else ""
    base = chosen.base or Path(tempfile.mkdtemp(prefix="ensemble-soak-"))
    if chosen.hours is not None:
        return for_hours(chosen.hours, chosen.seed, chosen.processes, base)
    if chosen.executor == "queues":
        return on_each_queue(chosen.rounds, chosen.seed, chosen.processes, base)
    each = -(-chosen.rounds // chosen.processes)
    if chosen.executor == "file":
        each = -(-each // ENSEMBLES)
    kind, _, queue = chosen.executor.rpartition("-")
    missing = begin(queue, wide=kind == "use-cases")
    if missing is not None:
        print(f"not there, no round was played: {missing}", flush=True)
        return NOT_THERE
    faults = None
    if chosen.faults:
        from queue_faults import QueueFaults

        faults = QueueFaults(queue, chosen.seed)
    names = chosen.names or []
    more = ["--kubeconfig", chosen.kubeconfig] if chosen.kubeconfig else []
    soak = Soak()
    threads = []
    shares = [names] * chosen.processes
    if names and not chosen.rounds:  # otherwise all processes would do the same
        shares = [[name] for name in names]
    for number, share in enumerate(shares):
        program = ["-m", "ensemble_testing.crash", chosen.executor]
        if chosen.executor in PROGRAMS:
            program = [str(PROGRAMS[chosen.executor])]
        command = [
            sys.executable, *program,
            "--seed", str(chosen.seed + number * each), "--rounds", str(each),
            "--base", str(base / str(number)), *share, *more, *OPTIONS.get(chosen.executor, ()),
        ]  # fmt: skip
        threads.append(threading.Thread(target=soak.follow, args=(command,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if faults is not None:
        faults.close()
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.counts.items()))
        print(f"faults: {told}")
        for words, count in faults.refused.items():
            print(f"  {count} times: {words}")
    print(soak)
    wrong = sum(soak.counts[kind] for kind in BAD)
    if wrong:
        print(f"what was wrong is in {base}")
    return 1 if wrong or not soak.counts["rounds"] else 0


if __name__ == "__main__":
    sys.exit(main())
