"""Costs of pilots: whole runs of ``ensemble run`` with and without them.

    python benchmarks/pilot_rate.py [--jobs 2000] [--chain 200] [--rounds 3] [--only local,pilot]

Each round has these runs, one after the other:

- ``local``: the executor ``local``;
- ``pilot``: pilots that are jobs of the executor ``local``, so that all is on this machine. There
  are ``--pilots`` of them, and together they have as many slots as ``local``.

A first run has ``--jobs`` jobs of /bin/true; the CPU time of each kind of process is sampled from
/proc, so a process may have used up to a sample more. A second run is a chain: a rule submits each
job at the end of the last one. A third compares the executor ``local`` with and without a fence, in
which each start waits for a sync of the disk. Prints medians. On a busy machine, CPU times are more
reliable than those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ensemble_core.local import supervisor_client
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run

MANY = """
jobs: [{{name: t, command: /bin/true, count: {count}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: t}}}}
"""
CHAIN = """
jobs: [{{name: t, command: /bin/true}}]
rules:
  - {{trigger: start, action: {{name: submit, label: t}}}}
  - {{trigger: job-finish, name: t, repetitions: {count}, action: {{name: submit, label: t}}}}
"""
#: Seconds between two samples.
_SAMPLE = 0.05
_TICK = os.sysconf("SC_CLK_TCK")


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _part(words: Sequence[bytes], state: bytes) -> str:
    """Return which process of a run this is."""
    if b"ensemble_pilot.node" in words and state in words[-2]:
        return "relay"
    if any(b"supervisor import main" in word for word in words):
        return "supervisor" if words[-2].endswith(b"/fence") else "local supervisor"
    return ""


class Sampler:
    """Samples the CPU times of the processes of a run."""

    def __init__(self, tag: str, state: Path) -> None:
        self._tag, self._state = tag.encode(), os.fsencode(state)
        self._known: dict[int, str] = {}
        self._last: dict[int, float] = {}

    def sample(self) -> None:
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            pid = int(entry.name)
            try:
                if pid not in self._known:
                    text = Path(entry.path, "cmdline").read_bytes()
                    ours = self._tag in text or self._state in text
                    self._known[pid] = _part(text.split(b"\0"), self._state) if ours else ""
                if self._known[pid]:
                    self._last[pid] = _cpu(pid)
            except OSError:
                continue

    def totals(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for pid, seconds in self._last.items():
            found[self._known[pid]] += seconds
        return found


def run(text: str, options: Sequence[str], folder: Path) -> dict[str, float]:
    """Run an ensemble. Return the seconds of the clock, and the CPU seconds of each part."""
    file, tag = folder / "e.yaml", f"rate-{os.getpid()}-{time.monotonic_ns()}"
    file.write_text(text)
    words = ("run", "-q", str(file), "--tag", tag, "--state", str(folder / "state"), *options)
    sampler = Sampler(tag, folder / "state")
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "ensemble_core.cli", *words], cwd=folder)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        sampler.sample()
        time.sleep(_SAMPLE)
    if status:
        raise SystemExit(f"the run failed: {words}")
    wall = time.perf_counter() - began
    return {"wall": wall, "controller": usage.ru_utime + usage.ru_stime, **sampler.totals()}


def times(folder: Path) -> dict[str, float]:
    """Return latencies of the last run, from its journal, in seconds."""
    words = ("events", "last", "--json", "--state", str(folder / "state"))
    command = [sys.executable, "-m", "ensemble_core.cli", *words]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    events = [json.loads(line) for line in told.splitlines()]
    starts, ends, first, requested = {}, {}, 0.0, 0.0
    for event in events:
        when = event.get("timestamp", 0.0)
        if event.get("type") == "start":
            first = when
        elif event.get("type") == "problem" and "requested" in event["message"]:
            requested = requested or when
        elif event.get("type") == "job" and event["name"] in ("start", "finish"):
            number = int(event["job"].partition(".")[2])
            (starts if event["name"] == "start" else ends)[number] = when
    gaps = [starts[n + 1] - ends[n] for n in ends if n + 1 in starts]
    return {
        "end to next start": statistics.median(gaps) if gaps else 0.0,
        "begin to first job": min(starts.values()) - first,
        **({"request to first job": min(starts.values()) - requested} if requested else {}),
    }


def fence(jobs: int, folder: Path, *, fenced: bool) -> dict[str, float]:
    """Run jobs of the executor ``local`` in this process. Return CPU and clock seconds."""
    tag, state = f"fence-{os.getpid()}-{fenced}", folder / f"state-{fenced}"
    local = LocalExecutor(slots=2)
    over, left = threading.Event(), [jobs]

    def consume(events: Sequence[Event]) -> None:
        left[0] -= sum(isinstance(e, JobEvent) and e.name == "clean" for e in events)
        if not left[0]:
            over.set()

    started = supervisor_client.StartedSupervisor
    if fenced:
        supervisor_client.StartedSupervisor = lambda *given, **more: started(  # type: ignore[misc,assignment]
            *given, **{**more, "fence": folder / "fence"}
        )
    try:
        local.open(Run(tag=tag, folder=folder, clock=time.time, state=state), consume)
    finally:
        supervisor_client.StartedSupervisor = started  # type: ignore[misc]
    (pid,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if tag.encode() in path.read_bytes().split(b"\0")[-4:]
    ]
    before, began = _cpu(pid), time.perf_counter()
    local.submit(
        [Job(id=f"t.{n}", group="t", index=n, command=("/bin/true",)) for n in range(jobs)]
    )
    over.wait()
    found = {"wall": time.perf_counter() - began, "supervisor": _cpu(pid) - before}
    local.close()
    return found


def _median(rounds: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median(each.get(name, 0.0) for each in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--chain", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pilots", type=int, default=2)
    parser.add_argument("--only", default="local,pilot,fence")
    chosen = parser.parse_args()
    slots = 2 * chosen.pilots
    ways = {
        "local": ("--executor", "local", "--slots", str(slots)),
        "pilot": (
            *("--executor", "pilot", "-o", "cores=2", "-o", f"most={chosen.pilots}"),
            *("-o", f"backlog={chosen.pilots}"),
            *("-o", f'options={{"slots": {slots}, "pool": "none"}}'),
        ),
    }
    os.environ["ENSEMBLE_POOL"] = "none"
    rounds: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(chosen.rounds):
        for name in chosen.only.split(","):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                if name == "fence":
                    for fenced in (False, True):
                        shown = "with a fence" if fenced else "without"
                        rounds[shown].append(fence(chosen.jobs, folder, fenced=fenced))
                    continue
                found = run(MANY.format(count=chosen.jobs), ways[name], folder)
            with tempfile.TemporaryDirectory() as place:
                run(CHAIN.format(count=chosen.chain), ways[name], Path(place))
                found |= times(Path(place))
            rounds[name].append(found)
    parts = ("controller", "relay", "supervisor", "local supervisor")
    print(
        f"{chosen.jobs} jobs, {slots} slots; CPU in microseconds a job; medians of {chosen.rounds}"
    )
    print(f"{'':14s}{'jobs/s':>8s}" + "".join(f"{part:>18s}" for part in parts))
    for name, each in rounds.items():
        cpu = [1e6 * _median(each, part) / chosen.jobs for part in parts]
        rate = chosen.jobs / _median(each, "wall")
        print(f"{name:14s}{rate:8.0f}" + "".join(f"{value:18.0f}" for value in cpu))
    for name in ("local", "pilot"):
        for what in ("end to next start", "begin to first job", "request to first job"):
            if any(what in each for each in rounds.get(name, ())):
                print(f"{name}: {what}: {1000 * _median(rounds[name], what):.1f} ms")


if __name__ == "__main__":
    main()
