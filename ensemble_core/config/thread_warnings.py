"""Warns about commands that start threads for all cores of the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ensemble_core.model.jobs import JobGroup

__all__ = ["thread_warnings"]

#: ``mdrun`` of GROMACS with thread-MPI, and its options. ``gmx_mpi`` starts no ranks itself.
_MDRUN = re.compile(r"(?:^|[\s/])(gmx(?:_d)?)\s(?:[^;|&\n]*\s)?mdrun(?=[\s;|&]|$)([^;|&\n]*)")


def thread_warnings(group: JobGroup) -> Iterator[str]:
    """Yield a warning if the command does not tell GROMACS how many threads to start.

    Its versions up to 2022 start a thread for each core of the machine. If ``OMP_NUM_THREADS`` is
    set, the threads are ranks that wait for one another without sleeping.
    """
    found = _MDRUN.search(" ".join(group.command))
    if found is not None and not re.search(r"\s-nt(mpi)?\s", f"{found[2]} "):
        yield (
            f"job group {group.name!r}: '{found[1]} mdrun' may start threads for all cores of the "
            f"machine, which then share the cores of the task; write "
            f"{found[1]} mdrun -nt {{cores_per_task}}"
        )
