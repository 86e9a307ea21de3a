"""LAMMPS logs: speed and memory of the observer, compared with other readers.

Measures MB and rows per second on one log of 200 MB: of the observer ``lammps`` with all columns
and with two, of ``lammps.formats.LogFile`` (part of LAMMPS), of ``lammps-logfile`` from PyPI, and
of ``wc -l``, which only counts lines. Then measures the observer's peak memory for logs of 20, 200
and 1,000 MB. Each reader runs in a separate process; rates are per second of CPU time.

``lammps-logfile`` (GPL, with pandas) is not a dependency: install it in a separate virtual
environment and pass its Python. Its time is quadratic in the log's size, so it reads a log of a
hundredth of the size, with a time limit.

    python benchmarks/lammps_log.py [--megabytes N] [--style one|multi|yaml] [--logfile-python PATH]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 300.0
PIECE = 256 * 1024
NAMES = ("Step", "Temp", "E_pair", "E_mol", "TotEng", "Press")
HEAD = """LAMMPS (22 Jul 2025 - Update 4)
  1 by 1 by 1 MPI processor grid
run 100000000
Per MPI rank memory allocation (min/avg/max) = 3.098 | 3.098 | 3.098 Mbytes
"""
TAIL = """Loop time of 1000.5 on 1 procs for 100000000 steps with 108 atoms

Performance: 5948479.558 tau/day, 13769.629 timesteps/s, 1.487 Matom-step/s
100.1% CPU use with 1 MPI tasks x 1 OpenMP threads
Total wall time: 0:16:41
"""

# Each reads the given file and prints the number of rows and the time.
MEASURE = """
import json, resource, sys, time
began = time.process_time()
rows = read(sys.argv[1])
took = time.process_time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"rows": rows, "seconds": took, "peak": peak}))
"""
OURS = f"""
from ensemble_lammps.thermo import ThermoReader
def read(path, columns=%s, piece={PIECE}):
    observer, rows = ThermoReader(columns), 0
    with open(path, "rb") as file:
        while data := file.read(piece):
            rows += len(observer.feed(data))
    return rows + len(observer.finish())
"""
LOG_FILE = """
from lammps.formats import LogFile
def read(path):
    return sum(len(run["Step"]) for run in LogFile(path).runs)
"""
LOGFILE = """
from lammps_logfile import File
def read(path):
    return len(File(path).get("Step"))
"""
COUNT = """
import resource, subprocess, sys
done = subprocess.run(["wc", "-l", sys.argv[1]], capture_output=True, text=True, check=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
took = max(usage.ru_utime + usage.ru_stime, 1e-3)
print('{"rows": %s, "seconds": %s, "peak": 0}' % (done.stdout.split()[0], took))
"""


def write(path: Path, megabytes: float, style: str) -> None:
    """Write a log in LAMMPS's format."""
    source = random.Random(0)
    spread = ((1, 0.1), (-5, 0.3), (0, 0), (-4, 0.1), (0, 2))
    pool = [[source.gauss(*both) for both in spread] for _ in range(5000)]
    head, row = HEAD, "%10d " + " % -14.8g" * 5 + " \n"
    if style == "one":
        head += " ".join(f"{name:^14}" for name in NAMES) + " \n"
    elif style == "yaml":
        head += "---\nkeywords: [" + "".join(f"'{name}', " for name in NAMES) + "]\ndata:\n"
        row = "  - [%d" + ", %.15g" * 5 + ", ]\n"
    else:
        row = (
            "------------ Step %14d ----- CPU =  0.000602975 (sec) -------------\n"
            "Temp     = %14.4f E_pair   = %14.4f E_mol    = %14.4f \n"
            "TotEng   = %14.4f Press    = %14.4f\n"
        )
    size, step = int(megabytes * 1e6), 0
    with path.open("w") as file:
        written = file.write(head)
        while written < size:
            written += file.write(
                "".join(row % (step + 10 * n, *pool[n]) for n in range(min(5000, size // 100 + 1)))
            )
            step += 50000
        file.write("...\n" * (style == "yaml") + TAIL)


def measured(code: str, log: Path, python: str = sys.executable) -> dict[str, float] | None:
    """Return rows, seconds and peak MB of a reader, or ``None`` if it took too long."""
    whole = code if code == COUNT else code + MEASURE
    try:
        done = subprocess.run(
            [python, "-c", whole, str(log)], stdout=subprocess.PIPE, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"a reader failed with {done.returncode}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def tell(name: str, log: Path, found: dict[str, float] | None) -> None:
    size = log.stat().st_size / 1e6
    if found is None:
        print(f"{name:42} gave no answer within {LIMIT:.0f} s ({size:.0f} MB)")
        return
    print(
        f"{name:42} {size / found['seconds']:8.1f} MB/s {found['rows'] / found['seconds']:12,.0f}"
        f" rows/s   ({found['rows']:,} rows of {size:.0f} MB in {found['seconds']:.2f} s, "
        f"peak {found['peak']:.0f} MB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=200.0, help="size of the log in MB")
    parser.add_argument("--style", choices=("one", "multi", "yaml"), default="one")
    parser.add_argument("--logfile-python", help="a Python that has lammps-logfile")
    parser.add_argument(
        "--memory",
        type=float,
        nargs="*",
        default=[20, 200, 1000],
        help="log sizes in MB to measure the memory with",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ensemble-lammps-") as folder:
        log = Path(folder) / "log.lammps"
        write(log, options.megabytes, options.style)
        tell("wc -l (lines)", log, measured(COUNT, log))
        tell("observer lammps, all columns", log, measured(OURS % "None", log))
        two = OURS % "('Step', 'Temp')"
        tell("observer lammps, two columns", log, measured(two, log))
        if importlib.util.find_spec("lammps") is None:
            print("lammps.formats.LogFile is left out: LAMMPS (lammps[mpi]) is not installed")
        else:
            tell("lammps.formats.LogFile, all columns", log, measured(LOG_FILE, log))
        if options.logfile_python is None:
            print("lammps-logfile is left out: name a Python that has it (--logfile-python)")
        elif options.style != "one":
            print("lammps-logfile is left out: it reads this style as other rows, or none")
        else:
            write(log, options.megabytes / 100, options.style)
            tell("observer lammps, a hundredth of the log", log, measured(OURS % "None", log))
            found = measured(LOGFILE, log, options.logfile_python)
            tell("lammps-logfile, a hundredth of the log", log, found)
        for size in options.memory:
            write(log, size, options.style)
            found = measured(two, log)
            peak = "no answer" if found is None else f"{found['peak']:.1f} MB at its peak"
            print(f"observer lammps, two columns, {size:,.0f} MB: {peak}")


if __name__ == "__main__":
    main()
