"""The allocation in which ``ensemble run`` itself runs: the one pilot with ``queue=here``."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ensemble_core import UsageError

__all__ = ["Allocation", "allocation"]

#: An entry of SLURM_JOB_CPUS_PER_NODE: the number of cores, and of how many nodes.
_CORES = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class Allocation:
    """An allocation. ``cores`` are those of its smallest node; ``left``: seconds (0: no limit).

    ``launcher`` begins a command that starts one task on each node.
    """

    job: str
    nodes: int
    cores: int
    left: float
    launcher: Sequence[str]


def allocation(environment: Mapping[str, str]) -> Allocation:
    """Return the allocation of this process. Raises :class:`UsageError` if it is in none."""
    job = environment.get("SLURM_JOB_ID")
    if not job:
        raise UsageError(
            "queue=here needs an allocation of Slurm, but this process is in none",
            cause="SLURM_JOB_ID is not set",
            hint="run it in a batch script or in salloc, or use -o queue=slurm, which requests "
            "allocations itself",
            code="no-allocation",
        )
    sizes: list[int] = []
    text = environment.get("SLURM_JOB_CPUS_PER_NODE") or environment.get("SLURM_CPUS_ON_NODE", "")
    for cores, times in _CORES.findall(text):
        sizes += [int(cores)] * int(times or 1)
    nodes = int(environment.get("SLURM_JOB_NUM_NODES") or len(sizes) or 1)
    ends = float(environment.get("SLURM_JOB_END_TIME") or 0)
    cores = min(sizes, default=1)
    launcher = (
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={cores}", "--cpu-bind=none", "--mem=0", "--overlap"),
        *("--kill-on-bad-exit=1", "--quiet"),
    )
    # An unlimited job ends in the year 2106, or a year from now.
    left = ends - time.time()
    return Allocation(f"slurm-{job}", nodes, cores, left if 0 < left < 3e7 else 0.0, launcher)
