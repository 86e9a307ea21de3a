"""Cost of input checks: this checkout compared with the last revision without them.

- Events per second from a member through the service to its run (``service_rate.py``): two services
  run at the same time, one from each revision. One client sends to them alternately in short
  blocks, so a busy machine slows both equally.
- Jobs per second of the local executor (``local_rate.py``): each revision in a separate process, in
  alternating order.

Prints the medians of the ratios and the CPU time of each revision. The exit code is 1 if the rate
is below 0.95 of the earlier one. The ratios include all other changes since that revision.

    python benchmarks/check_cost.py [--pairs 10] [--only events,jobs] [--base REVISION]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("", "plugins/ensemble-service")
#: The last revision without the checks of members' events and streams, and of the ledger.
BASES = {"events": "a109f59~1", "jobs": "58cf0f6~1"}
LEAST = 0.95
COUNTS = {"events": 100_000, "jobs": 2_000}
#: Events per block.
BLOCK = 4_000

#: Rate and CPU seconds, for this checkout and for the earlier one.
Pair = tuple[tuple[float, float], tuple[float, float]]


def events_in_pairs(base: Path, pairs: int) -> Iterator[Pair]:
    """Return events per second and the service's CPU seconds."""
    import service_rate
    from ensemble_service.tokens import TokenFile

    class Server(service_rate.Server):
        """A service that imports its packages from a source tree."""

        def __init__(self, tree: Path, state: Path) -> None:
            self.tree = tree
            file = TokenFile(state / "tokens.json")
            tokens = {service_rate.MEMBER: file.add("member", service_rate.MEMBER)[0]}
            tokens[service_rate.RUN] = file.add("controller", "default")[0]
            super().__init__("ours", state, tokens)

        def _start(self, kind: str, state: Path, theirs: Connection) -> None:
            command = [sys.executable, __file__, "--serve", str(theirs.fileno()), str(state)]
            self._process = subprocess.Popen(
                command, env=environment(self.tree), pass_fds=[theirs.fileno()]
            )

        def stop(self) -> None:
            self._pipe.close()
            self._process.terminate()
            self._process.wait()

    async def measured(servers: list[Server]) -> Pair:
        lines = [service_rate.Relayed() for _ in servers]
        for line, server in zip(lines, servers, strict=True):
            await line.begin(server)
            await line.seconds(BLOCK)  # warm-up
        used = [-server.used() for server in servers]
        seconds: list[list[float]] = [[], []]
        for number in range(COUNTS["events"] // BLOCK):
            for which in (0, 1) if number % 2 else (1, 0):
                seconds[which].append(await lines[which].seconds(BLOCK))
        for which, server in enumerate(servers):
            used[which] += server.used()
            await lines[which].end()
        ours, theirs = (BLOCK / statistics.median(some) for some in seconds)
        return (ours, used[0]), (theirs, used[1])

    for _ in range(pairs):
        with tempfile.TemporaryDirectory(prefix="ensemble-cost-") as folder:
            servers = [Server(tree, Path(folder) / str(n)) for n, tree in enumerate((ROOT, base))]
            try:
                yield asyncio.run(measured(servers))
            finally:
                for server in servers:
                    server.stop()


def serve(pipe: Connection, state: Path) -> None:
    """Run a service with this process's packages."""
    import service_rate

    service_rate.serve("ours", state, pipe)


def jobs(count: int) -> tuple[float, float]:
    """Return jobs per second and the CPU seconds of the controller and the supervisor."""
    import local_rate

    with tempfile.TemporaryDirectory(prefix="ensemble-cost-") as folder:
        measured = local_rate.executor(count, 2, Path(folder))
    return count / measured.wall, measured.controller + measured.supervisor


def jobs_in_pairs(base: Path, pairs: int) -> Iterator[Pair]:
    for number in range(pairs):
        order = (ROOT, base) if number % 2 else (base, ROOT)
        found = {tree: measure(tree) for tree in order}
        yield found[ROOT], found[base]


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a process with its packages from this tree."""
    paths = [str(tree / package) for package in PACKAGES]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def measure(tree: Path) -> tuple[float, float]:
    """Return figures of jobs, measured by a process with its packages from this tree."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure"],
        env=environment(tree),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    rate, used, place = done.stdout.splitlines()[-1].split(" ", 2)
    if not Path(place).is_relative_to(tree):
        raise SystemExit(f"measured was {place}, not what is in {tree}")
    return float(rate), float(used)


def compare(what: str, base: Path, pairs: int) -> bool:
    rates, costs = [], []
    for ours, theirs in {"events": events_in_pairs, "jobs": jobs_in_pairs}[what](base, pairs):
        rates.append(ours[0] / theirs[0])
        costs.append(ours[1] / theirs[1])
    median = statistics.median(rates)
    print(
        f"{what}/s with the checks against those without: median {median:.3f} of {pairs} pairs "
        f"({min(rates):.2f} to {max(rates):.2f}; at least {LEAST}); processor time: "
        f"{statistics.median(costs):.3f} ({min(costs):.2f} to {max(costs):.2f})",
        flush=True,
    )
    return median >= LEAST


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", default="events,jobs")
    parser.add_argument("--base", help="revision to compare with")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Connection(int(options.serve[0])), Path(options.serve[1]))
        return 0
    if options.measure:
        import ensemble_core

        print(*jobs(COUNTS["jobs"]), ensemble_core.__file__)
        return 0
    good = True
    for what in options.only.split(","):
        with tempfile.TemporaryDirectory(prefix="ensemble-base-") as folder:
            base = Path(folder).resolve()
            unpack(options.base or BASES[what], base)
            good = compare(what, base, options.pairs) and good
    return 0 if good else 1


def unpack(revision: str, folder: Path) -> None:
    command = ["git", "-C", str(ROOT), "archive", revision, "ensemble_core", "plugins"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as archive:
        unpacked = subprocess.run(
            ["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=False
        )
    if archive.returncode or unpacked.returncode:
        raise SystemExit(f"revision {revision} is not in this repository: --base names another")


if __name__ == "__main__":
    sys.exit(main())
