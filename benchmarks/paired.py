"""CPU time of two commands, which run alternately: the median ratio of the first to the second.

CPU time depends less than wall time on what else runs on the machine. It includes all processes
that a command leaves behind, such as the supervisor of a run.

    python benchmarks/paired.py [--rounds N] 'COMMAND' 'COMMAND'
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import tempfile


def cpu(command: str) -> float:
    """Run a command in an empty folder. Return the CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "ENSEMBLE_STATE": folder, "ENSEMBLE_POOL": "none"}
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{command!r} failed")
        while True:  # what the command has left behind
            try:
                os.wait()
            except ChildProcessError:
                break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("commands", nargs=2, metavar="COMMAND")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1), 0, 0, 0)  # processes left behind become ours
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(options.rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for which in order:
            seconds = cpu(options.commands[which])
            if number:  # the first round fills the caches
                found[which].append(seconds)
    ratios = sorted(first / second for first, second in zip(*found, strict=True))
    for which, seconds in enumerate(found):
        middle, least = statistics.median(seconds), min(seconds)
        print(f"command {which + 1}: median {middle:.3f} s of CPU time, at least {least:.3f} s")
    print(
        f"ratio {statistics.median(ratios):.3f} (from {ratios[0]:.3f} to {ratios[-1]:.3f}); of the "
        f"least {min(found[0]) / min(found[1]):.3f}"
    )


if __name__ == "__main__":
    main()
