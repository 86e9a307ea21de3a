"""The part of a job on each node of its pilot, if the job starts through Flux.

The nodes' supervisors run, bind and end each part like any other job: a Flux instance of the job's
own. So the laws of pilots hold, and no process of Flux or the job outlives its supervisor. (A
broker alone does not ensure that: if it is killed, the tasks that it has started go on.)
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from ensemble_core import Job
from ensemble_pilot import flux_start
from ensemble_pilot.pilot import share

FLUX = flux_start.FLUX


def flux_part(job: Job, place: int, folder: Path) -> Job:
    """Return the part of a job for one of its nodes. ``place`` 0 is its head.

    ``folder`` is one of the pilot, where the parts find one another.
    """
    cores, gpus, memory = share(job)
    tasks = max(job.tasks, job.nodes)
    plan = {
        "folder": str(folder / f"flux-{hashlib.sha256(job.id.encode()).hexdigest()[:16]}"),
        "place": place,
        "nodes": job.nodes,
        "tasks": tasks,
        "cores": cores,
        "cores_per_task": job.cores_per_task,
        "gpus_per_task": job.gpus_per_task,
        "threads": job.environment.get("OMP_NUM_THREADS"),
        "command": [] if place else job.command,
    }
    script = os.path.abspath(flux_start.__file__)
    part = replace(
        job,
        command=(sys.executable, "-I", "-S", script, json.dumps(plan)),
        nodes=1,
        tasks=1,
        cores_per_task=cores,
        gpus_per_task=gpus,
        memory_per_task=memory,
        forwards=True,
    )
    if not place:
        return part
    # It ends with the head.
    return replace(part, duration=0.0, warn={}, stdout="/dev/null", stderr="/dev/null")
