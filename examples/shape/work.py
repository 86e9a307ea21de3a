"""Stand-in for a parallel program: it waits as long as such a program would compute.

On one core, 1.2 s (or ``--seconds``). On two, 2.2 times as fast, because the data fits into two
caches. On four, 2.3 times, because memory is the limit. One process is started for each task, as
with MPI; the first one prints {"cores": …, "speedup": …, "efficiency": …}.
"""

import argparse
import json
import os
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seconds", type=float, default=1.2, help="on one core")
given = parser.parse_args()


def told(*names: str) -> int:
    """Return the first of these environment variables of Flux, Slurm or this machine; else 0."""
    return int(next((os.environ[name] for name in names if name in os.environ), 0))


cores = told("FLUX_JOB_SIZE", "SLURM_NTASKS", "ENSEMBLE_TASK_COUNT") or 1
rank = told("FLUX_TASK_RANK", "SLURM_PROCID", "ENSEMBLE_TASK_RANK")
speedup = {1: 1.0, 2: 2.2, 4: 2.3}[cores]
time.sleep(given.seconds / speedup)
if rank == 0:
    print(json.dumps({"cores": cores, "speedup": speedup, "efficiency": speedup / cores}))
