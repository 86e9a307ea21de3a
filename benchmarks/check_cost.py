"""Benchmark of the checks on the way in: this checkout against the one before them, in pairs.

Events a second from a member through the service to its run (``service_rate.py``), and jobs a
second of the local executor (``local_rate.py``), each in a process of its own, by turns with the
packages of this checkout and of an earlier revision: the first of a pair is now the one, now the
other. Prints the medians of the ratios; the exit code is 1 where less than 0.95 of the rate is
left. Beside it, how much of the processor's time each took: it says more where the machine is not
idle. What else changed since that revision is in the ratios as well.

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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("", "plugins/ensemble-service")
#: The last revision without the checks: of members' events and their streams, and of the ledger.
BASES = {"events": "a109f59~1", "jobs": "58cf0f6~1"}
LEAST = 0.95
COUNTS = {"events": 400_000, "jobs": 2_000}


def events(count: int) -> tuple[float, float]:
    """Events a second, and seconds of the service's processor time."""
    import service_rate
    from ensemble_service.tokens import TokenFile

    with tempfile.TemporaryDirectory(prefix="ensemble-cost-") as folder:
        state = Path(folder)
        file = TokenFile(state / "tokens.json")
        tokens = {service_rate.MEMBER: file.add("member", service_rate.MEMBER)[0]}
        tokens[service_rate.RUN] = file.add("controller", "default")[0]
        server = service_rate.Server("ours", state, tokens)
        try:
            asyncio.run(service_rate.service_events(server, count // 10))  # warm
            used = server.used()
            return asyncio.run(service_rate.service_events(server, count)), server.used() - used
        finally:
            server.stop()


def jobs(count: int) -> tuple[float, float]:
    """Jobs a second, and seconds of the controller's and the supervisor's processor time."""
    import local_rate

    with tempfile.TemporaryDirectory(prefix="ensemble-cost-") as folder:
        measured = local_rate.executor(count, 2, Path(folder))
    return count / measured.wall, measured.controller + measured.supervisor


def measure(what: str, tree: Path) -> tuple[float, float]:
    """Figures that a process with its packages from this tree measures."""
    paths = [str(tree / package) for package in PACKAGES]
    command = [sys.executable, __file__, "--measure", what]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    rate, used, place = done.stdout.splitlines()[-1].split(" ", 2)
    if not Path(place).is_relative_to(tree):
        raise SystemExit(f"measured was {place}, not what is in {tree}")
    return float(rate), float(used)


def compare(what: str, base: Path, pairs: int) -> bool:
    rates, costs = [], []
    for number in range(pairs):
        order = (ROOT, base) if number % 2 else (base, ROOT)
        found = {tree: measure(what, tree) for tree in order}
        rates.append(found[ROOT][0] / found[base][0])
        costs.append(found[ROOT][1] / found[base][1])
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
    parser.add_argument("--measure", choices=COUNTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        import ensemble_core

        rate, used = {"events": events, "jobs": jobs}[options.measure](COUNTS[options.measure])
        print(rate, used, ensemble_core.__file__)
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
