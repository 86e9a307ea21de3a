"""Warns about commands that start more processes or threads than the job has cores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.job_group import JobGroup

#: ``mdrun`` of GROMACS with thread-MPI, and its options. ``gmx_mpi`` starts no ranks itself.
_MDRUN = late_pattern(r"(?:^|[\s/])(gmx(?:_d)?)\s(?:[^;|&\n]*\s)?mdrun(?=[\s;|&]|$)([^;|&\n]*)")


#: Programs that start the ranks of an MPI program.
_LAUNCHERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "srun"})


def thread_warnings(group: JobGroup) -> Iterator[str]:
    """Yield a warning if the queue starts several launchers of MPI programs, or if the command does
    not tell GROMACS how many threads to start.

    GROMACS up to 2022 starts a thread for each core of the machine. If ``OMP_NUM_THREADS`` is
    set, the threads are ranks that wait for one another without sleeping.
    """
    launcher = os.path.basename(group.command[0]) if group.command else ""
    tasks = group.nodes if group.tasks is None else group.tasks
    once = any(
        options.get("launch") == "none" or options.get("instance")
        for options in group.options.values()
    )
    if launcher in _LAUNCHERS and tasks > 1 and not once:
        otherwise = f"write tasks: 1 and cores_per_task: {tasks * group.cores_per_task}"
        if group.nodes > 1:
            otherwise = "on Slurm write options: {slurm: {launch: none}}"
        yield (
            f"job group {group.name!r}: the queue starts the command once for each of {tasks} "
            f"tasks, so {launcher!r} would start {tasks} programs of several ranks; leave out "
            f"{launcher!r}, or {otherwise}"
        )
    found = _MDRUN.search(" ".join(group.command))
    if found is not None and not re.search(r"\s-nt(mpi)?\s", f"{found[2]} "):
        yield (
            f"job group {group.name!r}: '{found[1]} mdrun' may start threads for all cores of the "
            f"machine, which then share the cores of the task; write "
            f"{found[1]} mdrun -nt {{cores_per_task}}"
        )
