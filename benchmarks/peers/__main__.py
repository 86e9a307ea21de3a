"""Ensemble compared with its peers: the same work on the same cores, in alternating rounds.

Makes an environment for each peer below ``build/peers``, from PyPI. If a peer cannot be installed,
it is left out, and the reason is printed. Prints the median, minimum and maximum of each peer, and
its ratio to Ensemble in the same round. ``--json FILE`` adds the works to those in FILE. Works:

- a: ``--jobs`` times /bin/true: the whole command, and per job without the time of a single job;
- b: ``--sleeps`` jobs of 0.1 s: utilisation of the slots;
- c: a chain of ``--chain`` jobs: from a job's time stamp to that of the next;
- d: ``--many`` times /bin/true: time, and peak memory of the controller;
- e: ``--kills`` jobs of 0.1 s, with the controller killed half-way and resumed: time until a new
  job starts, and jobs that were started twice;
- g: cost of an event with 0 to 1,000 rules.

Work f, an adaptive study, is ``examples/ising`` compared with ``ising_by_hand.py``, and
``benchmarks/generators.py``.

CPU time is that of all processes, jobs included. On a busy machine it says more than wall time.

    python benchmarks/peers [--works abceg] [--only NAME,NAME] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import environments
from task import Peer, Task, command

NAMES = (
    "bare", "ensemble", "dask", "parsl", "hyperqueue", "libensemble", "optuna", "snakemake",
    "ensemble-python",
)  # fmt: skip
#: The figures of each work; the first one is compared.
FIGURES = {
    "a": ("wall", "cpu", "per_job_ms", "cpu_per_job_ms", "start", "start_cpu"),
    "b": ("utilisation", "cpu_per_job_ms"),
    "c": ("reaction_ms", "worst_ms", "cpu_per_job_ms"),
    "d": ("wall", "cpu", "peak_mb"),
    "e": ("continues", "again", "lost"),
    "g": ("us_0", "us_10", "us_100", "us_1000"),
}
SECONDS = 0.1
STAMP = ("/bin/sh", "-c", "exec date '+%s.%N {i}' >>stamps")
NAP = ("/bin/sh", "-c", "date '+%s.%N {i}' >>stamps; exec sleep 0.1")
#: Time limit of a command; longer ones are reported as given up.
PATIENCE = 900.0

Measured = dict[str, float]


def peer(name: str) -> Peer:
    found: Peer = import_module(f"run_{name.replace('-', '_')}").PEER
    return found


class TooLongError(Exception):
    """Raised for a command that exceeded its time limit."""


class Contender:
    """A peer with its interpreter; runs each task in a new folder."""

    def __init__(self, about: Peer, python: str) -> None:
        self.about, self.name, self.python = about, about.name, python

    def start(self, task: Task) -> subprocess.Popen[bytes]:
        words = command([self.python], self.name, task)
        environment = {**os.environ, "XDG_CACHE_HOME": f"{task.folder}/cache"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the bytecode was written at installation
        with open(f"{task.folder}/log", "ab") as log:
            return subprocess.Popen(
                words, cwd=task.folder, env=environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def measure(self, task: Task) -> Measured:
        """Return wall and CPU seconds of a whole task, and the peak MB of its controller."""
        before = _cpu()
        began = time.perf_counter()
        process = self.start(task)
        peak = self.wait(process, task)
        wall = time.perf_counter() - began
        _reap()
        own = Path(task.folder, "peak_kb")
        if own.exists():
            peak = int(own.read_text("ascii"))
        return {"wall": wall, "cpu": _cpu() - before, "peak_mb": peak / 1024}

    def warm(self) -> None:
        """Run an uncounted job, to compile modules and cache files."""
        with folder() as where:
            self.measure(Task(1, 1, where, ("/bin/true",)))

    def wait(self, process: subprocess.Popen[bytes], task: Task) -> int:
        """Wait for the end of a command; return its peak memory in KB."""
        until = time.monotonic() + PATIENCE
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > until:
                end(process.pid)
                process.wait()
                raise TooLongError(f"{self.name} took more than {PATIENCE:.0f} s")
            time.sleep(0.002)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            end(process.pid)
            text = Path(task.folder, "log").read_text("utf-8", errors="replace")
            raise RuntimeError(f"{self.name} failed ({process.returncode}):\n{text[-2000:]}")
        return int(usage.ru_maxrss)


def end(session: int) -> None:
    """End all processes of a session that was started here."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _reap() -> None:
    """Reap orphans of a command, such as a supervisor, to include their CPU time."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            time.sleep(0.01)


@contextlib.contextmanager
def folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="ensemble-peers-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def stamps(where: str) -> list[tuple[float, int]]:
    """Return time and number of each started job, in order of time."""
    lines = Path(where, "stamps").read_text("ascii").splitlines()
    return sorted((float(when), int(number)) for when, number in map(str.split, lines))


# -- the works -----------------------------------------------------------------------------------


def no_ops(count: int) -> Callable[[Contender, int], Measured]:
    """Measure works a and d."""

    def measure(one: Contender, slots: int) -> Measured:
        with folder() as where:
            few = one.measure(Task(1, slots, where, ("/bin/true",)))
        jobs = count // one.about.fewer
        with folder() as where:
            all_of = one.measure(Task(jobs, slots, where, ("/bin/true",)))
        each = max(1, jobs - 1)
        return {
            **(all_of if one.about.fewer == 1 else {}),
            "start": few["wall"],
            "start_cpu": few["cpu"],
            "per_job_ms": (all_of["wall"] - few["wall"]) / each * 1e3,
            "cpu_per_job_ms": (all_of["cpu"] - few["cpu"]) / each * 1e3,
        }

    return measure


def utilisation(count: int) -> Callable[[Contender, int], Measured]:
    """Measure work b, from the first start to the last end (0.1 s after the last start)."""

    def measure(one: Contender, slots: int) -> Measured:
        with folder() as where:
            command = tuple(word.replace("stamps", f"{where}/stamps") for word in NAP)
            jobs = count // one.about.fewer
            found = one.measure(Task(jobs, slots, where, command))
            times = [when for when, _ in stamps(where)]
        assert len(times) == jobs, f"{one.name} began {len(times)} jobs"
        span = times[-1] + SECONDS - times[0]
        return {
            "utilisation": jobs * SECONDS / slots / span,
            "cpu_per_job_ms": found["cpu"] / jobs * 1e3,
        }

    return measure


def chain(count: int) -> Callable[[Contender, int], Measured]:
    """Measure work c."""

    def measure(one: Contender, slots: int) -> Measured:
        with folder() as where:
            command = tuple(word.replace("stamps", f"{where}/stamps") for word in STAMP)
            found = one.measure(Task(count, slots, where, command, chain=True))
            begun = stamps(where)
        assert [number for _, number in begun] == list(range(count)), f"{one.name}: {begun}"
        times = [when for when, _ in begun]
        gaps = [(b - a) * 1e3 for a, b in itertools.pairwise(times)]
        return {
            "reaction_ms": statistics.median(gaps),
            "worst_ms": max(gaps),
            "cpu_per_job_ms": found["cpu"] / count * 1e3,
        }

    return measure


def killed(count: int) -> Callable[[Contender, int], Measured]:
    """Measure work e: kill only the started process; resume at once."""

    def measure(one: Contender, slots: int) -> Measured:
        with folder() as where:
            command = tuple(word.replace("stamps", f"{where}/stamps") for word in NAP)
            task = Task(count, slots, where, command, durable=True)
            first = one.start(task)
            until = time.monotonic() + PATIENCE
            while not Path(where, "stamps").exists() or len(stamps(where)) < count // 2:
                if first.poll() is not None or time.monotonic() > until:
                    end(first.pid)
                    raise RuntimeError(f"{one.name} ended before half of its jobs")
                time.sleep(0.01)
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            dead = time.time()
            second = one.start(Task(**{**vars(task), "resume": True}))
            one.wait(second, task)
            end(first.pid)
            end(second.pid)
            _reap()
            begun = stamps(where)
        before = {number for when, number in begun if when <= dead}
        new = [when for when, number in begun if number not in before]
        numbers = {number for _, number in begun}
        return {
            "continues": (min(new) if new else time.time()) - dead,
            "again": len(begun) - count if one.name == "optuna" else len(begun) - len(numbers),
            "lost": 0 if one.name == "optuna" else count - len(numbers),
        }

    return measure


def rules(jobs: int) -> Callable[[Contender, int], Measured]:
    """Measure work g: microseconds of CPU time per event, by the number of rules."""
    sys.path.insert(0, str(environments.ROOT / "benchmarks"))
    engine_rate = import_module("engine_rate")

    def measure(one: Contender, slots: int) -> Measured:
        found = {}
        for count in (0, 10, 100, 1_000):
            if one.name == "ensemble":
                each = engine_rate.measure_engine(count, jobs, False)
            else:
                few = max(20, jobs // max(1, count // 10))
                each = engine_rate.measure_peer(one.python, count, few)
            found[f"us_{count}"] = each / 10 * 1e6
        return found

    return measure


# -- rounds --------------------------------------------------------------------------------------


def rounds(
    work: str,
    measure: Callable[[Contender, int], Measured],
    contenders: Sequence[Contender],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Measure in rounds with rotating order."""
    found: list[dict[str, Measured]] = []
    left_out: dict[str, str] = {}
    if work == "g":  # the others have no rules
        contenders = [one for one in contenders if one.name.startswith("ensemble")]
    for number in range(options.rounds):
        here: dict[str, Measured] = {}
        turn = number % len(contenders)
        for one in (*contenders[turn:], *contenders[:turn]):
            reason = dict(one.about.cannot).get(work)
            if reason:
                left_out[one.name] = reason
            if one.name in left_out:
                continue
            try:
                here[one.name] = measure(one, options.slots)
            except (TooLongError, RuntimeError, AssertionError) as error:
                left_out[one.name] = str(error)
                print(f"{work}: {error}", file=sys.stderr, flush=True)
                continue
            shown = " ".join(f"{key} {value:.4g}" for key, value in here[one.name].items())
            print(f"  {work} round {number + 1} {one.name}: {shown}", flush=True)
        found.append(here)
    return {"rounds": found, "left_out": left_out, "load": [round(x, 1) for x in os.getloadavg()]}


def table(work: str, measured: dict[str, Any]) -> str:
    """Return the table of a work: medians with minimum and maximum, and the ratio to Ensemble."""
    lines = []
    for figure in FIGURES[work]:
        lines.append(f"{work}  {figure:20s} {'median':>10} {'min':>10} {'max':>10}   of ensemble")
        for name in NAMES:
            values = [r[name][figure] for r in measured["rounds"] if figure in r.get(name, {})]
            if not values:
                continue
            pairs = [
                r[name][figure] / r["ensemble"][figure]
                for r in measured["rounds"]
                if name in r and "ensemble" in r and r["ensemble"][figure]
            ]
            ratio = (
                f"{statistics.median(pairs):8.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
                if pairs
                else ""
            )
            lines.append(
                f"   {name:20s} {statistics.median(values):10.4g} {min(values):10.4g} "
                f"{max(values):10.4g}   {ratio}"
            )
    lines += [f"   {name} left out: {why}" for name, why in measured["left_out"].items()]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(pages / 2**30),
        "system": f"Linux {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", default="abceg")
    parser.add_argument("--only", default=",".join(NAMES), help="peers, by name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--sleeps", type=int, default=1_000)
    parser.add_argument("--chain", type=int, default=200)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1), 0, 0, 0)  # orphans become our children
    contenders, versions, skipped = [], {}, {}
    for name in options.only.split(","):
        if name not in NAMES:
            parser.error(f"unknown peer {name!r}; expected one of {', '.join(NAMES)}")
        about = peer(name)
        try:
            python, versions[name] = environments.python(about)
        except RuntimeError as error:
            skipped[name] = str(error)
            print(f"{name} is skipped: {error}", file=sys.stderr)
            continue
        contenders.append(Contender(about, python))
        if not dict(about.cannot).get("a"):
            contenders[-1].warm()
    works: dict[str, Callable[[], Callable[[Contender, int], Measured]]] = {
        "a": lambda: no_ops(options.jobs),
        "b": lambda: utilisation(options.sleeps),
        "c": lambda: chain(options.chain),
        "d": lambda: no_ops(options.many),
        "e": lambda: killed(options.kills),
        "g": lambda: rules(options.jobs),
    }
    sizes = {"a": options.jobs, "b": options.sleeps, "c": options.chain, "d": options.many,
             "e": options.kills, "g": options.jobs}  # fmt: skip
    kept: dict[str, Any] = {"works": {}}
    if options.json and options.json.exists():
        kept = json.loads(options.json.read_text("utf-8"))
    for work in options.works:
        if work not in works:
            parser.error(f"unknown work {work!r}; expected some of {''.join(works)}")
        measured = rounds(work, works[work](), contenders, options)
        measured |= {"size": sizes[work], "slots": options.slots}
        measured["date"] = time.strftime("%Y-%m-%d")
        print(table(work, measured), flush=True)
        kept["works"][work] = measured
        if options.json:
            kept |= {"machine": machine(), "versions": versions, "skipped": skipped}
            options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
