"""Creates the jobspec of a job (V1, Flux's RFC 25).

Jobs inherit this process's environment and resource limits, as with ``flux submit``.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Collection, Iterable, Mapping
from signal import Signals
from typing import Any

from ensemble_core import Job

#: Key of the run's tag and identity and of the job's id in a jobspec: ``attributes.user.TAG``.
TAG = "ensemble"
#: Variables of an outer launcher. They would make an MPI program look for a server that does not
#: exist.
_OUTER_LAUNCHER = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "FLUX_TASK_")


class JobspecError(Exception):
    """A job that cannot be written as a jobspec; the text is for the user."""


def limits() -> dict[str, int]:
    """Return this process's soft resource limits, by the names that the job shell uses."""
    return {
        name[7:].lower(): resource.getrlimit(getattr(resource, name))[0]
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }


def _set(target: dict[str, Any], path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for folder in folders:
        inner = target.setdefault(folder, {})
        if not isinstance(inner, dict):
            raise JobspecError(f"cannot set the attribute {path!r}: {folder!r} already has a value")
        target = inner
    target[last] = value


class Jobspecs:
    """Writes the jobspecs of one run.

    - ``run``, ``run_id``: the run's tag, for people, and its identity
    - ``environment``, ``rlimits``: the jobs' variables and resource limits
    - ``folder``: the default working folder
    - ``queue``, ``bank``: options of the executor
    """

    def __init__(
        self,
        run: str,
        run_id: str,
        environment: Mapping[str, str],
        folder: str,
        *,
        rlimits: Mapping[str, int] | None = None,
        queue: str | None = None,
        bank: str | None = None,
    ) -> None:
        self._run, self._run_id = run, run_id
        self._folder = folder
        self._queue = queue
        self._bank = bank
        self._rlimits = dict(rlimits or {})
        self._environment = {
            name: value
            for name, value in environment.items()
            if not name.startswith(_OUTER_LAUNCHER)
        }
        self._environment["ENSEMBLE_RUN"] = run

    def workdir(self, job: Job) -> str:
        """Return a job's working folder."""
        return os.path.normpath(os.path.join(self._folder, job.workdir or "."))

    def write(
        self, job: Job, output: Mapping[str, Any] | None = None, copied: Collection[str] = ()
    ) -> str:
        """Return the jobspec of a job, as JSON. The option ``output`` says where the output goes.

        The streams ``copied`` are recorded for later controllers. Raises :class:`JobspecError`.
        """
        if not job.command or not job.command[0]:
            raise JobspecError("the command is empty")
        # Flux starts at least one task on each node.
        tasks = max(job.tasks, job.nodes)
        options = job.options.get("flux", {})
        shell: dict[str, Any] = {"rlimit": dict(self._rlimits)} if self._rlimits else {}
        if job.warn:
            number = Signals[f"SIG{job.warn['signal']}"]
            shell["signal"] = {"signum": int(number), "timeleft": job.warn["before"]}
        if output:
            shell["output"] = dict(output)
        command = list(job.command)
        if options.get("instance"):
            # As in `flux batch`: start a broker on each node, and the command on the first node.
            command = ["flux", "broker", *command]
            shell |= {"per-resource": {"type": "node"}, "mpi": "none"}
        for name, value in options.get("shell", {}).items():
            _set(shell, name, value)
        system: dict[str, Any] = {
            "duration": job.duration,
            "cwd": self.workdir(job),
            "environment": {
                "OMP_NUM_THREADS": str(job.cores_per_task),
                **self._environment,
                "ENSEMBLE_CORES": str(job.cores_per_task),
                "ENSEMBLE_JOB_ID": job.label,
                "ENSEMBLE_GROUP": job.group,
                "ENSEMBLE_INDEX": str(job.index),
                "ENSEMBLE_ATTEMPT": str(job.attempt),
                **job.environment,
            },
            "job": {"name": job.id},
            "shell": {"options": shell},
        }
        for name, default in (("queue", self._queue), ("bank", self._bank)):
            value = options.get(name, default)
            if value is not None:
                system[name] = value
        if job.avoid:
            system["constraints"] = {"not": [{"hostlist": [",".join(job.avoid)]}]}
        attributes: dict[str, Any] = {
            "system": system,
            "user": {
                TAG: {
                    "run": self._run,
                    "id": self._run_id,
                    "job": job.id,
                    "group": job.group,
                    **({"copied": sorted(copied)} if copied else {}),
                }
            },
        }
        for path, value in options.get("attributes", {}).items():
            # As with --setattr: a path that starts with neither 'system' nor 'user' belongs to
            # 'system'.
            known = path.partition(".")[0] in ("system", "user")
            path = path if known else f"system.{path}"
            if path == "system.constraints" and job.avoid:
                value = {"and": [value, system["constraints"]]}
            _set(attributes, path, value)
        free = bool(options.get("any_nodes"))
        tasks = job.tasks if free else tasks
        jobspec = {
            "version": 1,
            "resources": [
                self._slots(job, job.tasks)
                if free
                else self._resources(job, exclusive=bool(options.get("exclusive")))
            ],
            "tasks": [
                {
                    "command": command,
                    "slot": "task",
                    # If tasks are spread unevenly, some slots stay empty, so give the total number
                    # of tasks.
                    "count": {"per_slot": 1} if free or not tasks % job.nodes else {"total": tasks},
                }
            ],
            "attributes": attributes,
        }
        return json.dumps(jobspec, separators=(",", ":"))

    def _slots(self, job: Job, count: int) -> dict[str, Any]:
        share = [{"type": "core", "count": job.cores_per_task}]
        if job.gpus_per_task:
            share.append({"type": "gpu", "count": job.gpus_per_task})
        return {"type": "slot", "label": "task", "count": count, "with": share}

    def _resources(self, job: Job, *, exclusive: bool) -> dict[str, Any]:
        slot = self._slots(job, -(-job.tasks // job.nodes))
        node: dict[str, Any] = {"type": "node", "count": job.nodes, "with": [slot]}
        if exclusive:
            node["exclusive"] = True
        return node


def files_of(jobspec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the working folder and output files in a job's jobspec.

    >>> streams = {"stdout": {"type": "file", "path": "/run/out"}, "stderr": {"type": "kvs"}}
    >>> system = {"cwd": "/run", "shell": {"options": {"output": streams}}}
    >>> files_of({"attributes": {"system": system}})
    {'workdir': '/run', 'stdout': '/run/out'}
    """
    system = jobspec.get("attributes", {}).get("system", {})
    output = system.get("shell", {}).get("options", {}).get("output", {})
    found = {"workdir": system.get("cwd")}
    for stream in ("stdout", "stderr"):
        option = output.get(stream)
        found[stream] = option.get("path") if isinstance(option, Mapping) else None
    return {name: place for name, place in found.items() if isinstance(place, str)}


def tag_of(jobspec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a jobspec that names the run and the job."""
    tag = jobspec.get("attributes", {}).get("user", {}).get(TAG)
    return tag if isinstance(tag, Mapping) else {}


def nodes_of(jobspec: Mapping[str, Any], cores_per_node: int) -> int:
    """Return the number of nodes that a jobspec requests.

    If it requests only cores, return how many nodes these cores fill.
    """
    cores = nodes = 0

    def walk(resources: Iterable[Mapping[str, Any]], times: int) -> None:
        nonlocal cores, nodes
        for entry in resources:
            count = entry.get("count", 1)
            if isinstance(count, Mapping):  # a range: use its minimum
                count = count.get("min", 1)
            number = times * (count if isinstance(count, int) else 1)
            if entry.get("type") == "node":
                nodes += number
            elif entry.get("type") == "core":
                cores += number
            walk(entry.get("with", ()), number)

    walk(jobspec.get("resources", ()), 1)
    return nodes or max(1, -(-cores // max(1, cores_per_node)))
