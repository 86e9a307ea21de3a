"""Computes the options of a jobspec's jobs for each executor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ensemble_core import escape_braces
from ensemble_jobspec.resource_shapes import Shape


def queue_options(
    shape: Shape, extra: Mapping[str, Any], met: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return a job's options for each executor.

    The site's options (``met``) override those of the jobspec (``extra``).
    """
    options: dict[str, dict[str, Any]] = {"flux": {}, "slurm": {}}
    for own in options.values():
        if shape.anywhere and shape.tasks > 1:
            own["any_nodes"] = True
        if shape.whole:
            own["exclusive"] = True
    _merge(options, {"flux": _flux_options(extra)})
    for each in met:
        _merge(options, each)
    return options


def literal(value: Any) -> Any:
    """Return options with doubled braces, because jobspecs have no placeholders."""
    if isinstance(value, str):
        return escape_braces(value)
    if isinstance(value, Mapping):
        return {escape_braces(key): literal(inner) for key, inner in value.items()}
    return [literal(inner) for inner in value] if isinstance(value, list) else value


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, Mapping):
            into[key] = dict(value)
        else:
            into[key] = value


def _flux_options(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return Flux-only attributes as options of its executor."""
    options: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for key, value in extra.items():
        if key in ("queue", "bank"):
            options[key] = value
        elif key == "shell" and isinstance(value, Mapping):
            options["shell"] = dict(value.get("options", {}))
        elif key == "user" and isinstance(value, Mapping):
            attributes.update({f"user.{name}": inner for name, inner in value.items()})
        elif key != "job":
            attributes[key if key.startswith("system.") else f"system.{key}"] = value
    if attributes:
        options["attributes"] = attributes
    return options


def run_script_once(
    job: dict[str, Any], shape: Shape, executor: str | None, executors: Collection[str]
) -> None:
    """Change a job group so that its script runs once, with the resources of all its tasks.

    On Flux, it runs in an instance of its own, as with ``flux batch``; on Slurm on the first node,
    as with ``sbatch``. If ``executor`` is ``None``, any executor may run the jobs.
    """
    options = {"flux": {"instance": True}, "slurm": {"launch": "none"}}
    for name in options.keys() & executors:
        if executor in (None, name):
            job.setdefault("options", {}).setdefault(name, {}).update(options[name])
    if executor in options or (executor is None and shape.nodes > 1):
        return
    for name in ("nodes", "tasks"):
        job.pop(name, None)
    job["cores_per_task"] = shape.tasks * shape.cores
    if shape.gpus:
        job["gpus_per_task"] = shape.tasks * shape.gpus


def broker_words(nodes: int, flux: str) -> list[str]:
    """Return the command prefix that runs a command in a Flux instance on a job's nodes.

    Each node has one broker. The brokers connect through Slurm's PMI-2; ``SLURM_MPI_TYPE`` selects
    another protocol.
    """
    tasks = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
    return ["srun", "--input=none", *tasks, flux, "start"]
