"""Speed of the dashboard: a run of a million jobs, and a live run with three viewers.

``size`` writes the journal of a run of ``--jobs`` jobs, of which those at T = 2.3 fail. It measures

- ``ensemble report``: seconds, peak memory and size of the file;
- the seconds from the command ``ensemble dashboard`` to its first overview;
- the time of the first and of later requests for each view, and the 95th percentile of all;
- the time until the data of each view are available;
- the share of a core that the idle dashboard uses.

``--state`` keeps the run for another round. ``live`` runs jobs with ``--rate`` events per second
and compares the controller's CPU time per event with three active and three paused viewers,
alternately.

    python benchmarks/dashboard_scale.py size [--jobs N] [--state FOLDER]
    python benchmarks/dashboard_scale.py live [--rate N] [--seconds N] [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ensemble_core import JobEvent
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.journal.job_rows import row_of
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.replay import maker_of
from ensemble_core.journal.snapshot_encoding import dump
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Submit
from ensemble_core.model.events import Event, Started
from ensemble_core.plugin.discovery import discover
from ensemble_core.session.kept_run import versions

FILE = """
jobs:
  - {name: sim, command: "run {T} {s}", parameters: {T: [2.0, 2.1, 2.2, 2.3, 2.4], s: %s}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: more, trigger: idle, name: sim, repetitions: 999999999, action: {name: submit, label: sim}}
  - {id: never, trigger: metric, name: mean.sim-duration, when: "> 1e9",
     action: {name: log, message: slow}}
"""
CLI = [sys.executable, "-m", "ensemble_core.cli"]
VIEWS = ("overview", "failures", "costs", "tables", "curves", "firings", "timeline")
PAGES = (
    "jobs?limit=100",
    "jobs?limit=100&sort=duration&descending=1",
    "jobs?limit=100&where=%7B%22outcome%22%3A%22failed%22%7D",
    "jobs?limit=100&text=sim.777",
    "job?group=sim&index=777",
    "log?job=sim.777&stream=stdout",
)


class KeptEngine:
    """Engine that writes a journal, like a controller."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.writer = JournalWriter(folder / NAME)
        registry = discover()
        self.versions = versions(registry)
        text = FILE % list(range(200))
        executor = {"name": "local", "options": {}}
        about = {"tag": folder.name, "shared": False, "executor": executor, "cwd": "."}
        self.writer.describe(about)
        self.writer.store_file_version("study.yaml", text, ())
        self.writer.begin(0.0, self.versions)
        self.writer.perform = lambda _: None
        self.engine = Engine(load_text(text, registry, file="study.yaml"))
        self.engine.state.table.over = []
        self.waiting: list[tuple[str, object]] = []
        self.done = 0
        self.happen(Started(1.0, {}))

    def happen(self, event: Event) -> None:
        decisions = self.engine.handle(event)
        over = self.engine.state.table.over or []
        rows = [row_of(record) for record in over]
        over.clear()
        self.writer.append(event, decisions, (), rows)
        for each in decisions:
            if isinstance(each, Submit):
                self.waiting += [(job.id, job.parameters["T"]) for job in each.jobs]

    def one_job(self, now: float) -> None:
        """Yield the four events of a job."""
        job, value = self.waiting.pop()
        failed = value == 2.3
        self.happen(JobEvent(now, job, "submit"))
        self.happen(JobEvent(now + 0.5, job, "start", {"host": f"node{self.done % 50}"}))
        self.happen(JobEvent(now + 9, job, "finish", {"status": 256 * 3 * failed}))
        self.happen(JobEvent(now + 9, job, "clean"))
        self.done += 1


def make_run(state: Path, jobs: int) -> None:
    """Write the journal of an ended run."""
    kept = KeptEngine(state / "runs" / "huge")
    for number in range(jobs):
        kept.one_job(2.0 + number * 0.01)
    kept.writer.snapshot(maker_of(kept.versions), dump(kept.engine))
    kept.writer.end(kept.done * 0.01 + 20, {"over": True, "exit_code": 0, "reason": "over"})
    kept.writer.close()


def measured(command: list[str]) -> tuple[float, float]:
    """Return the seconds of a command and its peak memory in MB."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return time.monotonic() - began, usage.ru_maxrss / 1000


@contextlib.contextmanager
def dashboard(state: Path, run: str) -> Iterator[tuple[str, str, int]]:
    """A dashboard: its address, its token and its process."""
    words = ["dashboard", run, "--no-open", "--no-socket", "--state", str(state)]
    with subprocess.Popen([*CLI, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(each for each in process.stdout if each.startswith("Dashboard: "))
        base, _, token = line.split()[1].partition("#token=")
        try:
            yield f"{base}api/runs/{run}/", token, process.pid
        finally:
            process.terminate()


def asked(base: str, token: str, view: str) -> tuple[float, bytes | None]:
    """Return the seconds of a request and its answer, ``None`` while the run is being read."""
    request = urllib.request.Request(base + view, headers={"Authorization": f"Bearer {token}"})
    began = time.monotonic()
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
    return time.monotonic() - began, None if answer.status == 202 else text


def processor(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def size(chosen: argparse.Namespace) -> None:
    with contextlib.ExitStack() as held:
        kept = chosen.state or held.enter_context(tempfile.TemporaryDirectory())
        state = Path(kept)
        if not (state / "runs" / "huge").exists():
            began = time.monotonic()
            make_run(state, chosen.jobs)
            print(f"run of {chosen.jobs:,} jobs made in {time.monotonic() - began:.0f} s")
        page = state / "report.html"
        words = ["report", "huge", "--state", str(state), "-o", str(page)]
        seconds, memory = measured([*CLI, *words])
        print(f"report: {seconds:.1f} s, {memory:.0f} MB, {page.stat().st_size / 1e6:.2f} MB large")
        began = time.monotonic()
        with dashboard(state, "huge") as (base, token, pid):
            while asked(base, token, "overview")[1] is None:
                time.sleep(0.1)
            used = processor(pid)
            print(f"dashboard: first overview after {time.monotonic() - began:.2f} s (CPU {used})")
            times: list[float] = []
            for view in (*VIEWS, *PAGES):
                first, text = asked(base, token, view)
                while text is None:  # not counted: a repeated request
                    time.sleep(0.3)
                    _, text = asked(base, token, view)
                there = time.monotonic() - began
                later = [asked(base, token, view)[0] for _ in range(5)]
                times += [first, *later]
                print(
                    f"  {view[:44]:44} first {first * 1000:5.0f} ms, there after {there:4.1f} s, "
                    f"later {statistics.median(later) * 1000:5.1f} ms, {len(text) / 1000:,.0f} kB"
                )
            times.sort()
            print(f"requests: 95th percentile {times[int(0.95 * len(times))] * 1000:.0f} ms")
            print(f"all views took {processor(pid):.1f} s of CPU time")
            before = processor(pid)
            time.sleep(20)
            print(f"without viewers: {(processor(pid) - before) / 0.2:.2f} % of a core")


LIVE = """
limits: {submits_per_second: %s}
jobs:
  - {name: sim, command: "test {T}.{s}", parameters: {T: [2.0, 2.1, 2.2, 2.3, 2.4], s: %s}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""
#: A viewer: requests the overview and another view each second, like the page.
VIEWER = """
import itertools, sys, time
sys.path.insert(0, sys.argv[1])
import dashboard_scale as d
for view in itertools.cycle(d.VIEWS[1:]):
    d.asked(sys.argv[2], sys.argv[3], "overview")
    d.asked(sys.argv[2], sys.argv[3], view)
    time.sleep(1)
"""


def events_of(state: Path, run: str) -> int:
    """Return the number of events in a run's journal, 0 if it does not exist yet."""
    path = state / "runs" / run / NAME
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
        try:
            return int(journal.execute("SELECT max(last) FROM event_lists").fetchone()[0] or 0)
        except sqlite3.OperationalError:  # it is being created
            return 0


def live(chosen: argparse.Namespace) -> None:
    phases = 2 * chosen.rounds
    #: A job of this machine has about fourteen events.
    jobs = chosen.rate / 14
    enough = int(jobs * (phases * (chosen.seconds + 2) + 60) / 5)
    with contextlib.ExitStack() as held:
        state = Path(held.enter_context(tempfile.TemporaryDirectory()))
        file = state / "live.yaml"
        file.write_text(LIVE % (jobs, list(range(enough))))
        words = ["run", str(file), "--executor", "local", "--tag", "live", "--quiet"]
        controller = subprocess.Popen([*CLI, *words, "--state", str(state)])
        held.callback(controller.wait)
        held.callback(controller.terminate)
        while events_of(state, "live") < chosen.rate and controller.poll() is None:
            time.sleep(0.1)
        base, token, _ = held.enter_context(dashboard(state, "live"))
        own = str(Path(__file__).parent)
        viewers = [
            subprocess.Popen([sys.executable, "-c", VIEWER, own, base, token]) for _ in range(3)
        ]
        for viewer in viewers:
            held.callback(viewer.wait)
            held.callback(viewer.kill)
        time.sleep(5)
        changes = []
        for number in range(chosen.rounds):
            spent = {}
            for looks in (True, False) if number % 2 else (False, True):
                for viewer in viewers:
                    viewer.send_signal(signal.SIGCONT if looks else signal.SIGSTOP)
                time.sleep(1)
                used, events = processor(controller.pid), events_of(state, "live")
                time.sleep(chosen.seconds)
                used, events = (
                    processor(controller.pid) - used,
                    events_of(state, "live") - events,
                )
                spent[looks] = 1e6 * used / events
                print(
                    f"{3 * looks} viewers: {events / chosen.seconds:.0f} events/s, "
                    f"{spent[looks]:.0f} us each",
                    flush=True,
                )
            changes.append(100 * (spent[True] / spent[False] - 1))
        if controller.poll() is not None:
            raise SystemExit("the run ended too early")
    low, middle, high = statistics.quantiles(changes)
    print(
        f"CPU time of the controller with three viewers: {middle:+.1f} % (median of "
        f"{len(changes)} pairs; half of them {low:+.1f} to {high:+.1f} %; "
        f"mean {statistics.mean(changes):+.1f} +- "
        f"{statistics.stdev(changes) / len(changes) ** 0.5:.1f} %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of the dashboard")
    parser.add_argument("part", choices=("size", "live"))
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--state")
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    {"size": size, "live": live}[chosen.part](chosen)


if __name__ == "__main__":
    main()
