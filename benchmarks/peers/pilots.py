"""Pilots compared with their peers: the same jobs in allocations of a private Slurm.

Starts a Slurm of four nodes with four cores each on this machine (Debian: slurm-wlm, munge), like
the tests of ensemble-slurm, and an environment for each peer, like the rest of this folder. All
tools have at most four allocations of one node: Ensemble as pilots, Parsl as blocks of its
HighThroughputExecutor, Dask as jobs of SLURMCluster. Works:

- jobs: ``--jobs`` times /bin/true, once all allocations are there: jobs per second, and CPU time of
  all processes of the tool, jobs included. Dask gets a quarter of them. A bare ``sbatch --array``
  of ``--bare`` jobs is measured with Slurm's daemons, which are all that it uses.
- busy: ``--sleeps`` jobs of 1 s: share of slots with a job, from the first to the last job;
- hours: three waves of ``--wave`` jobs of 5 s, the first pause shorter and the second longer than
  the 30 s after which a tool gives back idle allocations: core-hours of allocations, divided by
  those of jobs;
- reaction: a chain of ``--chain`` jobs in which a rule submits each job at the end of the last
  one: from this end to the start, with pilots and with the executor ``local``;
- nodes: CPU time for each job in the part that decides, with 10 to 1,000 simulated nodes full of
  jobs of a minute.

The work ``hours`` waits most of the time, so all tools run it at once, and meanwhile the work
``busy`` runs, one tool after the other. ``--json FILE`` adds the works to those in FILE.

    python benchmarks/peers/pilots.py [--works jobs,busy] [--only NAME,NAME] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from task import Peer

ROOT = Path(__file__).resolve().parents[2]
WORKS = ("jobs", "busy", "hours", "reaction", "nodes")
ALLOCATIONS, CORES = 4, 4
SLOTS = ALLOCATIONS * CORES
#: Seconds without a job after which an allocation is given back; of a job, in ``busy`` and in
#: ``hours``; and of the pauses between the waves.
IDLE, SECOND, LONGER, PAUSES = 30, 1, 5, (15, 45)
#: Jobs that wait until the benchmark has looked at the processes.
GATES = [("/bin/sh", "-c", f"echo >>at{gate}; exec flock -s gate{gate} true") for gate in "01"]
TRUE = ("/bin/true",)
TICK = os.sysconf("SC_CLK_TCK")
PATIENCE = 900.0
#: How many nodes are simulated, how many jobs end in them, and how many seconds each one takes.
SIZES, DECISIONS, LASTING = (10, 100, 1000), 10_000, 60.0

PEERS = (
    Peer(
        name="ensemble",
        packages=(),
        settings="ensemble run --executor pilot -o queue=slurm -o most=4 -o backlog=4",
        output="two files per job; empty ones are removed",
        durable="each event and decision in a journal",
    ),
    Peer(
        name="parsl",
        packages=("parsl",),
        settings="HighThroughputExecutor, SlurmProvider(init_blocks=4, max_blocks=4), python_app "
        "that calls subprocess.run; in 'hours' strategy='htex_auto_scale', max_idletime=30",
    ),
    Peer(
        name="dask-jobqueue",
        packages=("dask-jobqueue",),
        settings="SLURMCluster, scale(jobs=4), client.map of a function that calls subprocess.run; "
        "in 'hours' adapt(minimum_jobs=0, maximum_jobs=4, wait_count=30)",
        fewer=4,
    ),
)
FEWER = {peer.name: peer.fewer for peer in PEERS}
#: In the work ``jobs``, Parsl also runs without the log that it writes by default.
QUIET = "parsl without log"
LEFT_OUT = {"hyperqueue": "PyPI has only its Python package, which has no automatic allocation"}
#: Waves of jobs: how many, of which command, and seconds from the begin of the run.
Waves = Sequence[tuple[int, Sequence[str], float]]
Measured = dict[str, float]


# -- what runs with a tool -------------------------------------------------------------------------


def play(name: str, waves: Waves, elastic: bool) -> None:
    """Run waves of jobs with a tool, which must be installed for this interpreter."""
    tools = {"ensemble": _ensemble, "parsl": _parsl, "dask-jobqueue": _dask, QUIET: _quiet_parsl}
    tools[name](waves, elastic)


def _ensemble(waves: Waves, elastic: bool) -> None:
    jobs, rules, last = [], [], ""
    for number, (count, words, when) in enumerate(waves):
        jobs.append({"name": f"w{number}", "command": list(words), "count": count})
        submit = {"name": "submit", "label": f"w{number}"}
        if not number:
            rules.append({"trigger": "start", "action": submit})
        elif when:
            rules.append({"trigger": "interval", "seconds": when, "action": submit})
        else:
            rules.append({"trigger": "idle", "name": last, "action": submit})
        last = f"w{number}"
    Path("study.yaml").write_text(json.dumps({"jobs": jobs, "rules": rules}))
    words = ["run", "study.yaml", "--state", "state", "--executor", "pilot", "-o", "queue=slurm"]
    words += ["-o", f"cores={CORES}", "-o", f"most={ALLOCATIONS}", "-o", f"backlog={ALLOCATIONS}"]
    words += ["-o", "listen=127.0.0.1", "-o", f"idle={IDLE}" if elastic else "idle=5m"]
    os.execv(sys.executable, [sys.executable, "-m", "ensemble_core.cli", *words])


def run_words(words: Sequence[str], _number: int) -> int:
    """Run one job as a child of this process. Workers get this function without its module."""
    import subprocess

    return subprocess.run(words, check=True, close_fds=False).returncode


def _rounds(waves: Waves, start: Callable[[int, Sequence[str]], Callable[[], object]]) -> None:
    """Start the waves at their times, or, if they have none, when the one before is over."""
    begun, wait = time.monotonic(), lambda: None
    for count, words, when in waves:
        if when:
            time.sleep(max(0.0, begun + when - time.monotonic()))
        else:
            wait()
        wait = start(count, words)
    wait()


def _quiet_parsl(waves: Waves, elastic: bool) -> None:
    _parsl(waves, elastic, initialize_logging=False)


def _parsl(waves: Waves, elastic: bool, **settings: Any) -> None:
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import SlurmProvider

    provider = SlurmProvider(
        partition="all", cores_per_node=CORES, init_blocks=ALLOCATIONS, max_blocks=ALLOCATIONS
    )
    executor = HighThroughputExecutor(
        address="127.0.0.1", provider=provider, max_workers_per_node=CORES
    )
    if elastic:
        settings |= {"strategy": "htex_auto_scale", "max_idletime": float(IDLE)}
    with parsl.load(Config(executors=[executor], **settings)):
        app = parsl.python_app(run_words)

        def start(count: int, words: Sequence[str]) -> Callable[[], object]:
            futures = [app(words, number) for number in range(count)]
            return lambda: [future.result() for future in futures]

        _rounds(waves, start)


def _dask(waves: Waves, elastic: bool) -> None:
    from dask_jobqueue import SLURMCluster
    from distributed import Client

    # A worker is ended if it exceeds this memory. The interpreter needs 200 MB.
    with SLURMCluster(cores=CORES, memory="900MB", interface="lo") as cluster:
        if elastic:
            cluster.adapt(minimum_jobs=0, maximum_jobs=ALLOCATIONS, wait_count=IDLE)
        else:
            cluster.scale(jobs=ALLOCATIONS)
        with Client(cluster) as client:

            def start(count: int, words: Sequence[str]) -> Callable[[], object]:
                futures = client.map(
                    lambda number: run_words(words, number), range(count), pure=False
                )
                return lambda: client.gather(futures)

            _rounds(waves, start)


# -- measuring -------------------------------------------------------------------------------------


class Tool:
    """A tool that runs waves of jobs on a Slurm, in a folder."""

    def __init__(
        self, python: str, name: str, cluster: Any, folder: Path, waves: Waves, *, elastic: bool
    ) -> None:
        self.name, self._folder, self._log = name, folder, folder / "log"
        self._gates = [(folder / f"gate{number}").open("w") for number in range(len(GATES))]
        for file in self._gates:
            fcntl.flock(file, fcntl.LOCK_EX)
        environment = dict(cluster.environment)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
        words = [python, __file__, "--play", name, json.dumps([waves, elastic])]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait(self, done: Callable[[], bool] | None = None) -> None:
        """Wait until something has happened, or else for the end."""
        until = time.monotonic() + PATIENCE
        while not (done and done()):
            code = self._process.poll()
            if code == 0 and done is None:
                return
            if code is not None or time.monotonic() > until:
                text = self._log.read_text("utf-8", errors="replace")[-2000:]
                what = "took too long" if code is None else f"ended with exit code {code}"
                raise RuntimeError(f"{self.name} {what}:\n{text}")
            time.sleep(0.01)

    @contextlib.contextmanager
    def gate(self, number: int, jobs: int) -> Iterator[None]:
        """Wait for so many jobs that wait at a gate; open it at the end."""
        at = self._folder / f"at{number}"
        self.wait(lambda: at.exists() and at.stat().st_size >= jobs)
        yield
        fcntl.flock(self._gates[number], fcntl.LOCK_UN)

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of the tool here, and of its processes in allocations."""
        return cpu(self._process.pid)[:2]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for file in self._gates:
            file.close()


def cpu(tool: int = 0) -> tuple[float, float, float]:
    """Return the CPU seconds of a tool here, of processes in allocations, and of Slurm's daemons.

    They include children that have ended. All are descendants of this process, which adopts
    orphans.
    """
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    daemons = set()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            name, _, rest = Path(entry.path, "stat").read_text().rpartition(")")
            fields = rest.split()
            parents[pid] = int(fields[1])
            seconds[pid] = sum(map(int, fields[11:15])) / TICK
            if name.partition("(")[2].startswith(("slurm", "munge")):
                daemons.add(pid)
    here = there = slurm = 0.0
    for pid, used in seconds.items():
        over = pid
        while over not in (0, os.getpid(), tool):
            over = parents.get(over, 0)
        if pid in daemons and over:
            slurm += used
        elif over == tool and over:
            here += used
        elif over and over != pid:
            there += used
    return here, there, slurm


@contextlib.contextmanager
def slurm() -> Iterator[Any]:
    """Start a Slurm of four nodes."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import slurm_rate

    module = slurm_rate.fixture()
    if (missing := module.programs()) is not None:
        raise SystemExit(f"{missing} (Debian: apt install slurm-wlm munge)")
    module.CORES = CORES
    cluster = module.Cluster(changes={"MinJobAge=300": "MinJobAge=7200"})
    try:
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def tool(python: str, name: str, cluster: Any, waves: Waves, elastic: bool) -> Iterator[Any]:
    folder = Path(tempfile.mkdtemp(prefix="ensemble-pilots-"))
    started = Tool(python, name, cluster, folder, waves, elastic=elastic)
    try:
        yield started
    finally:
        started.close()
        cluster.run("scancel", "-u", str(os.getuid()), check=False)
        cluster.wait_idle()
        shutil.rmtree(folder, ignore_errors=True)


def no_ops(python: str, name: str, cluster: Any, count: int) -> Measured:
    waves = [(SLOTS, GATES[0], 0.0), (count, TRUE, 0.0), (1, GATES[1], 0.0)]
    with tool(python, name, cluster, waves, False) as one:
        with one.gate(0, SLOTS):
            before = one.cpu()
        began = time.perf_counter()
        with one.gate(1, 1):
            lasted = time.perf_counter() - began
            after = one.cpu()
        one.wait()
    here, there = ((b - a) / count * 1e3 for a, b in zip(before, after, strict=True))
    return {
        "per_second": count / lasted, "cpu_per_job_ms": here + there,
        "controller_ms": here, "allocations_ms": there,
    }  # fmt: skip


def bare(cluster: Any, count: int) -> Measured:
    """Measure ``sbatch --array``. The CPU time is that of Slurm's daemons."""

    def spent() -> float:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # slurmstepd leaves its parent
                pass
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime + cpu()[2]

    before, began = spent(), time.perf_counter()
    cluster.run("sbatch", f"--array=1-{count}", "-o", "/dev/null", "--wrap", "/bin/true")
    cluster.wait_idle()
    lasted = time.perf_counter() - began
    return {"per_second": count / lasted, "cpu_per_job_ms": (spent() - before) / count * 1e3}


def busy(python: str, name: str, cluster: Any, count: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder, "stamps")
        nap = ("/bin/sh", "-c", f"date +%s.%N >>{stamps}; exec sleep {SECOND}")
        with tool(python, name, cluster, [(count, nap, 0.0)], False) as one:
            one.wait()
        starts = sorted(map(float, stamps.read_text("ascii").split()))
    if len(starts) != count:
        raise RuntimeError(f"{name} began {len(starts)} of {count} jobs")
    span = starts[-1] + SECOND - starts[0]
    # Until each slot has had a job, allocations are still being started.
    return {
        "utilisation": count * SECOND / SLOTS / span,
        "start": starts[min(count, SLOTS) - 1] - starts[0],
    }


def hours(python: str, name: str, cluster: Any, count: int) -> Measured:
    nap = ("/bin/sleep", str(LONGER))
    length = count / SLOTS * LONGER
    waves = [(count, nap, 0.0)]
    for pause in PAUSES:
        waves.append((count, nap, waves[-1][2] + length + pause))
    with tool(python, name, cluster, waves, True) as one:
        one.wait()
    given = 0.0
    for line in cluster.run("scontrol", "-o", "show", "job").splitlines():
        record = dict(word.partition("=")[::2] for word in line.split())
        times = (record["StartTime"], record["EndTime"])
        if "Unknown" not in times:
            begin, end = (time.mktime(time.strptime(t, "%Y-%m-%dT%H:%M:%S")) for t in times)
            given += int(record["NumCPUs"]) * max(0.0, end - begin)
    used = len(waves) * count * LONGER
    return {"requested_per_used": given / used, "core_hours": given / 3600}


def reaction(cluster: Any, count: int) -> dict[str, Measured]:
    import pilot_rate

    pilots = ("-o", "queue=slurm", "-o", f"cores={CORES}", "-o", "listen=127.0.0.1")
    ways = {
        "ensemble": ("--executor", "pilot", *pilots),
        "local": ("--executor", "local", "--slots", str(CORES)),
    }
    found = {}
    os.environ.update({key: cluster.environment[key] for key in ("SLURM_CONF", "PATH")})
    for name, words in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            pilot_rate.run(pilot_rate.CHAIN.format(count=count), words, Path(folder))
            found[name] = {"reaction_ms": pilot_rate.times(Path(folder))["end to next start"] * 1e3}
    return found


def decisions(count: int, jobs: int) -> float:
    """Return the microseconds of CPU time for each job that ends in a fleet of full nodes."""
    from ensemble_pilot.fleet import Fleet, Kind

    from ensemble_core import Job

    fleet = Fleet(Kind(cores=CORES, most=count, backlog=count))
    for number in range(jobs + CORES * count):
        fleet.add(Job(id=f"t.{number}", group="t", index=number, command=TRUE), number)
    for number in range(count):
        pilot = fleet.add_pilot(number, next(iter(fleet.demands.values())).kind, 0.0)
        fleet.connect(pilot.nodes[0], CORES, 0, None, 0.0)
    running = [job.id for job, _ in fleet.place(0.0)]
    began, decided = time.process_time(), -math.inf
    for turn in range(jobs):
        # A turn of the controller after the end of a job.
        now = turn * LASTING / (CORES * count)
        fleet.started(running[turn], now)
        fleet.release(running[turn], now)
        running += [job.id for job, _ in fleet.place(now)]
        if now >= decided + fleet.pause:
            decided = now
            fleet.requests(now)
            fleet.surplus(now)
            fleet.wake_time(now)
            fleet.gauges(now)
    return (time.process_time() - began) / jobs * 1e6


# -- rounds ----------------------------------------------------------------------------------------


class Figures:
    """The figures of the works, as in the file of ``benchmarks/peers``."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.kept: dict[str, Any] = {"works": {}}
        if path and path.exists():
            self.kept = json.loads(path.read_text("utf-8"))
        self._new: dict[str, Any] = {}
        self._lock = threading.Lock()

    def add(self, work: str, number: int, name: str, found: Measured, size: int) -> None:
        with self._lock:
            new = self._new.setdefault(work, {"rounds": [], "left_out": {}})
            while len(new["rounds"]) <= number:
                new["rounds"].append({})
            new["rounds"][number][name] = found
            new |= {"size": size, "slots": SLOTS, "date": time.strftime("%Y-%m-%d")}
            new["load"] = [round(each, 1) for each in os.getloadavg()]
            if work in WORKS[:3]:
                new["left_out"] |= LEFT_OUT
            shown = " ".join(f"{key} {value:.4g}" for key, value in found.items())
            print(f"{work} round {number + 1} {name}: {shown} (load {new['load'][0]})", flush=True)
            self.kept["works"][f"pilots {work}"] = new
            if self._path:
                self._path.write_text(json.dumps(self.kept, indent=1) + "\n", encoding="utf-8")

    def leave_out(self, work: str, name: str, why: str) -> None:
        print(f"{work}: {why}", file=sys.stderr, flush=True)
        with self._lock:
            new = self._new.setdefault(work, {"rounds": [], "left_out": {}})
            new["left_out"][name] = why.partition("\n")[0]


def in_turn(
    work: str,
    measure: Callable[[str, str, Any, int], Measured],
    tools: Mapping[str, str],
    figures: Figures,
    number: int,
    size: int,
) -> None:
    """Measure one tool after the other on one Slurm."""
    names = list(tools)
    turn = number % len(names)
    with slurm() as cluster:
        for name in names[turn:] + names[:turn]:
            try:
                count = size // FEWER.get(name, 1) if work == "jobs" else size
                figures.add(work, number, name, measure(tools[name], name, cluster, count), size)
            except RuntimeError as error:
                figures.leave_out(work, name, str(error))


def at_once(tools: Mapping[str, str], figures: Figures, number: int, size: int) -> Any:
    """Start to measure the core-hours of all tools, each on a Slurm of its own."""

    def one(name: str) -> None:
        only = {name: tools[name]}
        in_turn("hours", hours, only, figures, number, size)

    threads = [threading.Thread(target=one, args=(name,)) for name in tools]
    for thread in threads:
        thread.start()
    return threads


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--only", default=",".join(peer.name for peer in PEERS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--bare", type=int, default=500)
    parser.add_argument("--sleeps", type=int, default=2_000)
    parser.add_argument("--wave", type=int, default=384)
    parser.add_argument("--chain", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        name, given = options.play
        play(name, *json.loads(given))
        return
    ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1), 0, 0, 0)  # orphans become our children
    os.environ["ENSEMBLE_POOL"] = "none"
    compare(options)


def compare(options: argparse.Namespace) -> None:
    import environments

    works, tools = options.works.split(","), {}
    figures = Figures(options.json)
    versions = figures.kept.setdefault("versions", {})
    for peer in PEERS:
        if peer.name in options.only.split(","):
            try:
                tools[peer.name], versions[peer.name] = environments.python(peer)
            except RuntimeError as error:
                figures.kept.setdefault("skipped", {})[peer.name] = str(error)
                print(f"{peer.name} is skipped: {error}", file=sys.stderr)
    for number in range(options.rounds):
        if "jobs" in works:
            quiet = {QUIET: tools["parsl"]} if "parsl" in tools else {}
            in_turn("jobs", no_ops, {**tools, **quiet}, figures, number, options.jobs)
            with slurm() as cluster:
                figures.add(
                    "jobs", number, "sbatch --array", bare(cluster, options.bare), options.jobs
                )
        waiting = at_once(tools, figures, number, options.wave) if "hours" in works else ()
        if "busy" in works:
            in_turn("busy", busy, tools, figures, number, options.sleeps)
        for thread in waiting:
            thread.join()
        if "reaction" in works:
            with slurm() as cluster:
                for name, found in reaction(cluster, options.chain).items():
                    figures.add("reaction", number, name, found, options.chain)
        if "nodes" in works:
            found = {f"us_{count}": decisions(count, DECISIONS) for count in SIZES}
            figures.add("nodes", number, "ensemble", found, DECISIONS)


if __name__ == "__main__":
    main()
