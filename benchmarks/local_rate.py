"""Jobs per second of the local executor, compared with bare loops that spawn and wait.

/bin/true jobs, in rounds in which each variant runs in a separate process:

- ``bare``: os.posix_spawn and os.waitpid, and nothing else: the limit of this machine;
- ``floor``: a Python process that does the minimum of a supervisor for each job: it creates two
  output files, removes them because they are empty, starts a session, and watches a pidfd with
  epoll;
- ``executor``: LocalExecutor with a ledger and a consumer that only counts events;
- ``run``: ``ensemble run`` (engine and journal) from start to end, also minus the time of a run of
  one job.

Prints the median ratio of each variant to ``bare``, and CPU microseconds per job: in total, and of
our processes. ``bare`` can use all cores of a small machine; CPU times then show where a variant
spends its time. On a busy machine, they are more reliable than ratios of wall time.

    python benchmarks/local_rate.py [--jobs 2000] [--rounds 5] [--width 2] [--only WAY,WAY]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ensemble_core.local.executor import LocalExecutor
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run

TRUE = "/bin/true"
FILE = """
jobs:
  - {{name: t, command: /bin/true, count: {jobs}}}
rules:
  - trigger: start
    action: {{name: submit, label: t}}
"""


@dataclass
class Measured:
    """Seconds: wall time, and CPU time in total, of the controller and of the supervisor."""

    wall: float
    everything: float = 0.0
    controller: float = 0.0
    supervisor: float = 0.0

    def less(self, other: Measured) -> Measured:
        mine, its = asdict(self), asdict(other)
        return Measured(**{name: mine[name] - its[name] for name in mine})


def bare(jobs: int, width: int, _folder: Path) -> Measured:
    environment = dict(os.environ)
    began = time.perf_counter()
    started = ended = 0
    while ended < jobs:
        while started < jobs and started - ended < width:
            os.posix_spawn(TRUE, [TRUE], environment)
            started += 1
        os.waitpid(-1, 0)
        ended += 1
    return Measured(time.perf_counter() - began)


def floor(jobs: int, width: int, folder: Path) -> Measured:
    environment = dict(os.environ)
    epoll = select.epoll()
    running: dict[int, tuple[int, list[str]]] = {}
    null = os.open(os.devnull, os.O_RDONLY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC
    began = time.perf_counter()
    started = ended = 0
    while ended < jobs:
        while started < jobs and len(running) < width:
            paths = [f"{folder}/{started}.out", f"{folder}/{started}.err"]
            out, err = (os.open(path, flags, 0o666) for path in paths)
            pid = os.posix_spawn(
                TRUE,
                [TRUE],
                environment,
                file_actions=(
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, out, 1),
                    (os.POSIX_SPAWN_DUP2, err, 2),
                ),
                setsid=True,
            )
            os.close(out)
            os.close(err)
            pidfd = os.pidfd_open(pid)
            epoll.register(pidfd, select.EPOLLIN)
            running[pidfd] = (pid, paths)
            started += 1
        for pidfd, _ in epoll.poll():
            pid, paths = running.pop(pidfd)
            epoll.unregister(pidfd)
            os.waitpid(pid, 0)
            os.close(pidfd)
            for path in paths:
                if os.stat(path).st_size == 0:
                    os.unlink(path)
            ended += 1
    return Measured(time.perf_counter() - began)


def _threads_cpu(pid: int) -> float:
    """Return the CPU seconds of a process's threads, without its children."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def executor(jobs: int, width: int, folder: Path) -> Measured:
    local = LocalExecutor(slots=width)
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
                    os._exit(1)

    tag = f"rate-{os.getpid()}"
    local.open(Run(tag=tag, folder=folder, clock=time.time, state=folder / "state"), consume)
    supervisor = _supervisor(tag)
    batch = [Job(id=f"t.{n}", group="t", index=n, command=(TRUE,)) for n in range(jobs)]
    before = time.process_time(), _threads_cpu(supervisor)
    began = time.perf_counter()
    local.submit(batch)
    over.wait()
    measured = Measured(
        time.perf_counter() - began,
        controller=time.process_time() - before[0],
        supervisor=_threads_cpu(supervisor) - before[1],
    )
    local.close()
    return measured


def _supervisor(tag: str) -> int:
    """Return this run's supervisor process: its command line ends with tag and address."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and tag in (entry / "cmdline").read_text().split("\0")[-3:]:
                return int(entry.name)
    raise SystemExit("there is no supervisor")


def run(jobs: int, width: int, folder: Path) -> Measured:
    file = folder / "rate.yaml"
    file.write_text(FILE.format(jobs=jobs))
    command = [sys.executable, "-m", "ensemble_core.cli", "run", str(file), "--slots", str(width)]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    if status:
        raise SystemExit("the run failed")
    return Measured(wall, controller=usage.ru_utime + usage.ru_stime)


def _apart(way: Callable[[int, int, Path], Measured], jobs: int, width: int) -> Measured:
    """Run a variant in a separate process; add the CPU time of processes that it leaves behind."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if not child:
            try:
                measured = way(jobs, width, Path(folder))
                os.write(writer, json.dumps(asdict(measured)).encode())
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(writer)
        while True:  # the child, then its supervisor
            try:
                os.wait()
            except ChildProcessError:
                break
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(reader, "rb") as pipe:
        text = pipe.read()
    if not text:
        raise SystemExit(f"{way.__name__} failed")
    measured = Measured(**json.loads(text))
    measured.everything = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=2)
    parser.add_argument("--only", default="bare,floor,executor,run")
    options = parser.parse_args()
    jobs, width = options.jobs, options.width
    wanted = options.only.split(",")
    ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1), 0, 0, 0)  # supervisors become our children
    rounds: list[dict[str, Measured]] = []
    for _ in range(options.rounds):
        here = {}
        for way in (bare, floor, executor, run):
            if way.__name__ in wanted or way is bare:
                here[way.__name__] = _apart(way, jobs, width)
        if "run" in here:
            here["run, start off"] = here["run"].less(_apart(run, 1, width))
        rounds.append(here)

    def median(name: str, value: Callable[[Measured], float]) -> float:
        return statistics.median(value(here[name]) for here in rounds)

    print(f"{jobs} jobs, {width} wide; CPU in microseconds a job")
    print("                 of bare  jobs/s  CPU: everything  of bare  controller  supervisor")
    for name in rounds[0]:
        ratio = statistics.median(here["bare"].wall / here[name].wall for here in rounds)
        cpu = statistics.median(here["bare"].everything / here[name].everything for here in rounds)
        print(
            f"{name:16s} {ratio:7.2f} {jobs / median(name, lambda m: m.wall):7.0f}"
            f" {median(name, lambda m: m.everything) / jobs * 1e6:16.0f} {cpu:8.2f}"
            f" {median(name, lambda m: m.controller) / jobs * 1e6:11.0f}"
            f" {median(name, lambda m: m.supervisor) / jobs * 1e6:11.0f}"
        )


if __name__ == "__main__":
    main()
