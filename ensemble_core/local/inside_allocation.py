"""The allocation of a queue in which this process runs, if any.

When it ends, all its processes end. Local jobs are among them, so they must not outlive it. Those
that have not ended must run later.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from ensemble_core.local.process_tree import parent_of

#: Signals that a queue sends to all processes of an allocation that ends, and that end a process.
ALLOCATION_END = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGQUIT),
)

#: How many seconds the end of a job by such a signal waits for the same signal to this process. A
#: queue, or the shutdown of a machine, signals one process after another.
SAME_SIGNAL = 5.0
#: The codes with which a job may end after such a signal.
SIGNAL_CODES = frozenset(128 + number for number in ALLOCATION_END)
#: Variables that queues set in an allocation: Slurm, PBS, Grid Engine, LSF, Flux, HTCondor, OAR,
#: and Kubernetes in a pod.
_VARIABLES = (
    *("SLURM_JOB_ID", "PBS_JOBID", "SGE_JOB_SPOOL_DIR", "LSB_JOBID", "FLUX_JOB_ID"),
    *("FLUX_ENCLOSING_ID", "_CONDOR_SCRATCH_DIR", "OAR_JOB_ID", "KUBERNETES_SERVICE_HOST"),
)
#: Beginnings of the names of programs that start an allocation's processes and exit at its end.
_STARTERS = ("slurmstepd", "sge_shepherd", "flux-shell", "flux-broker", "condor_starter")
#: The daemon of a node, which outlives the allocation. The process below it is the job's script.
_DAEMON = "pbs_mom"
#: How many ancestors are looked at.
_DEPTH = 100


def in_allocation(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs in an allocation of a queue."""
    return any(environment.get(name) for name in _VARIABLES)


def allocation_process(pid: int) -> int | None:
    """Return the process, or its ancestor, that exits when the allocation ends, or ``None``."""
    for _ in range(_DEPTH):
        found = parent_of(pid)
        if found is None or found <= 1:
            return None
        try:
            with open(f"/proc/{found}/comm") as file:
                name = file.read()
        except OSError:
            return None
        if name.startswith(_DAEMON):
            return pid
        pid = found
        if name.startswith(_STARTERS):
            return pid
    return None
