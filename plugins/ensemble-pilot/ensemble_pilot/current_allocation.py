"""The allocation in which ``ensemble run`` itself runs: the one pilot with ``queue=here``."""

from __future__ import annotations

import calendar
import functools
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from ensemble_core import UsageError
from ensemble_core.local.inside_allocation import allocation_process

#: An entry of SLURM_JOB_CPUS_PER_NODE: the number of cores, and of how many nodes.
_CORES = re.compile(r"(\d+)(?:\(x(\d+)\))?")
#: Seconds within which a command of the queue must answer.
_PATIENCE = 60.0
#: An unlimited job of Slurm ends in the year 2106, or a year from now.
_UNLIMITED = 3e7


@dataclass(frozen=True)
class Allocation:
    """An allocation. ``cores`` are those of its smallest node; ``ends`` is a time (0: unknown).

    ``name`` differs from that of any other allocation. ``launcher`` begins a command that starts
    one task on each node, and ``rank`` is the variable with the task's number. With one node, both
    can be empty.
    """

    name: str
    nodes: int
    cores: int
    ends: float = 0.0
    launcher: Sequence[str] = ()
    rank: str = ""

    @property
    def left(self) -> float:
        """Seconds until the allocation ends; 0: unknown."""
        return max(1.0, self.ends - time.time()) if self.ends else 0.0


def allocation(environment: Mapping[str, str]) -> Allocation:
    """Return the allocation of this process. Raises :class:`UsageError` if it is in none."""
    for find in (_flux, _slurm, _pbs, _gridengine):  # a Flux instance may be in one of the others
        found = find(environment)
        if found is not None:
            return found
    raise UsageError(
        "queue=here needs an allocation of Slurm, Flux, PBS or Grid Engine, but this process is in "
        "none",
        cause="none of SLURM_JOB_ID, FLUX_URI, PBS_JOBID and SGE_JOB_SPOOL_DIR is set",
        hint="run it in a batch script or an interactive job, or use -o queue=NAME, which requests "
        "allocations itself",
        code="no-allocation",
    )


@functools.cache  # options are checked more than once
def _output(*words: str, **environment: str) -> tuple[str, str]:
    """Return the output of a command, and why it has failed; empty if it has not."""
    variables = {**os.environ, **environment}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_PATIENCE, check=False, env=variables
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    failed = done.stderr.strip() or f"exit code {done.returncode}"
    return done.stdout, failed if done.returncode else ""


def _seconds(text: str) -> float:
    """Return a time as queues write it, ``[HH:]MM:SS`` or seconds. 0 if it is no number."""
    if not re.fullmatch(r"\d+(:\d+)*(\.\d+)?", text):
        return 0.0
    return functools.reduce(lambda total, part: 60 * total + float(part), text.split(":"), 0.0)


# Slurm.


def _slurm(environment: Mapping[str, str]) -> Allocation | None:
    job = environment.get("SLURM_JOB_ID")
    if not job:
        return None
    sizes: list[int] = []
    text = environment.get("SLURM_JOB_CPUS_PER_NODE") or environment.get("SLURM_CPUS_ON_NODE", "")
    for cores, times in _CORES.findall(text):
        sizes += [int(cores)] * int(times or 1)
    nodes = int(environment.get("SLURM_JOB_NUM_NODES") or len(sizes) or 1)
    least = min(sizes, default=1)
    ends = float(environment.get("SLURM_JOB_END_TIME") or 0)
    if not ends:  # older versions of Slurm do not set it
        words = ("squeue", "--noheader", f"--jobs={job}", "--format=%e")
        ends = _seconds(_output(*words, SLURM_TIME_FORMAT="%s")[0].strip())
    launcher = (
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={least}", "--cpu-bind=none", "--mem=0", "--overlap"),
        *("--kill-on-bad-exit=1", "--quiet"),
    )
    ends = ends if 0 < ends - time.time() < _UNLIMITED else 0.0
    return Allocation(f"slurm-{job}", nodes, least, ends, launcher, "SLURM_PROCID")


# Flux.


def _flux(environment: Mapping[str, str]) -> Allocation | None:
    uri, job = environment.get("FLUX_URI"), environment.get("FLUX_JOB_ID")
    if not uri:
        return None
    others = any(environment.get(name) for name in ("SLURM_JOB_ID", "PBS_JOBID"))
    if job or not _is_own_instance(uri):
        if others:
            return None
        raise UsageError(
            "queue=here needs a Flux instance of its own, which is the allocation",
            cause=f"this process is a task of the Flux job {job}"
            if job
            else f"{uri} is the instance of a whole cluster",
            hint="run it with 'flux batch' or 'flux alloc', or use -o queue=flux, which requests "
            "allocations itself",
            code="no-allocation",
        )
    text, failed = _output("flux", "resource", "R", "--states=up", FLUX_URI=uri)
    try:
        found = json.loads(text)["execution"]
        sizes = [
            len(_numbers(entry["children"]["core"]))
            for entry in found["R_lite"]
            for _ in _numbers(entry["rank"])
        ]
        least, ends = min(sizes), float(found.get("expiration", 0.0))
    except (ValueError, KeyError) as error:
        raise UsageError(
            "cannot read which nodes this Flux instance has",
            cause=failed or f"'flux resource R --states=up': {error}",
            hint="check it with 'flux resource list'",
            code="no-allocation",
        ) from None
    launcher = (
        *("flux", "run", f"--nodes={len(sizes)}", "--exclusive"),
        *("--setopt=cpu-affinity=off", "--setopt=gpu-affinity=off"),
    )
    name = "flux-" + re.sub(r"\W+", "-", uri)
    return Allocation(name, len(sizes), least, ends, launcher, "FLUX_TASK_RANK")


def _is_own_instance(uri: str) -> bool:
    """Return False if this is the instance of a cluster, which has other jobs, too."""
    level, _ = _output("flux", "getattr", "instance-level", FLUX_URI=uri)
    if level.strip() != "0":
        return True
    starter = allocation_process(os.getpid())
    try:
        return Path(f"/proc/{starter}/comm").read_text().startswith("flux-broker")
    except OSError:
        return False


def _numbers(text: str) -> list[int]:
    """Return the numbers in a list such as ``0-3,7``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


# PBS and Grid Engine.


def _one_node(queue: str, nodes: int) -> None:
    """Raise :class:`UsageError` unless the allocation has one node."""
    if nodes > 1:
        raise UsageError(
            f"an allocation of {queue} with {nodes} nodes cannot be a pilot",
            cause=f"in {queue}, pilots start no tasks on other nodes",
            hint="allocate one node, or use -o queue=NAME, which requests one node for each pilot, "
            "or start Flux on the nodes and run inside of it",
            code="no-allocation",
        )


def _pbs(environment: Mapping[str, str]) -> Allocation | None:
    job = environment.get("PBS_JOBID")
    if not job:
        return None
    try:
        hosts = Path(environment.get("PBS_NODEFILE", "")).read_text().split()
    except OSError:
        hosts = []
    _one_node("PBS", len({*hosts}))
    # PBS_NUM_PPN is Torque's.
    cores = environment.get("NCPUS") or environment.get("PBS_NUM_PPN") or len(hosts) or 1
    # In local time, the hour after the end of daylight saving time would be ambiguous.
    text, _ = _output("qstat", "-f", job, TZ="UTC", LC_ALL="C")
    fields = dict(re.findall(r"^\s+(\S+) = (.*)$", text, re.MULTILINE))
    limit, ends = _seconds(fields.get("Resource_List.walltime", "")), 0.0
    if limit:
        try:
            began = time.strptime(fields["stime"], "%a %b %d %H:%M:%S %Y")
            ends = limit + calendar.timegm(began)
        except (KeyError, ValueError):
            ends = 0.0
    return Allocation(f"pbs-{job}", 1, int(cores), ends)


def _gridengine(environment: Mapping[str, str]) -> Allocation | None:
    job = environment.get("JOB_ID")
    if not job or not environment.get("SGE_JOB_SPOOL_DIR"):
        return None
    _one_node("Grid Engine", int(environment.get("NHOSTS") or 1))
    task = environment.get("SGE_TASK_ID", "undefined")
    task = task if task.isdigit() else "1"
    began, limits = _gridengine_times(job, task, environment.get("QUEUE", ""))
    # qmaster learns the start only when execd has reported it, some seconds later.
    ends = (began or time.time()) + min(limits) if limits else 0.0
    return Allocation(f"gridengine-{job}.{task}", 1, int(environment.get("NSLOTS") or 1), ends)


def _gridengine_times(job: str, task: str, queue: str) -> tuple[float, list[float]]:
    """Return when a task has started (0: not known yet), and its time limits in seconds."""
    text, _ = _output("qstat", "-xml", "-j", job)
    try:
        root: Iterable[ET.Element] = ET.fromstring(text).iter()
    except ET.ParseError:
        return 0.0, []
    began, limits = 0.0, []
    for element in root:
        if element.findtext("CE_name") in ("h_rt", "s_rt"):
            limits.append(_seconds(element.findtext("CE_stringval", "")))
        if element.findtext("JAT_task_number") == task:
            began = _seconds(element.findtext("JAT_start_time", ""))
    text, _ = _output("qconf", "-sq", queue)  # limits of all jobs of the queue
    limits += [_seconds(found) for found in re.findall(r"^[hs]_rt\s+([\d:]+)", text, re.MULTILINE)]
    return began / (1000 if began > 1e11 else 1), [limit for limit in limits if limit]
