"""Computes the options of a jobspec's jobs for each executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_jobspec.resource_shapes import Shape

__all__ = ["broker_words", "queue_options"]


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


def broker_words(nodes: int, flux: str) -> list[str]:
    """Return the command prefix that runs a command in a Flux instance on a job's nodes.

    Each node has one broker. The brokers connect through Slurm's PMI-2; ``SLURM_MPI_TYPE`` selects
    another protocol.
    """
    tasks = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
    return ["srun", "--input=none", *tasks, flux, "start"]
