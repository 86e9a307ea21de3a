"""Options of queues for a job: of its shape, of the attributes that only Flux knows, and of what
meets its requirements at the site; and how Flux is started in a job of Slurm. Called by
``conversion``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_jobspec.resource_shapes import Shape

__all__ = ["broker_words", "queue_options"]


def queue_options(
    shape: Shape, extra: Mapping[str, Any], met: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The options by executor. ``met`` are those that the site's table has for each requirement;
    they win."""
    options: dict[str, dict[str, Any]] = {"flux": {}, "slurm": {}}
    for own in options.values():
        if shape.anywhere and shape.tasks > 1:
            own["any_nodes"] = True
        if shape.whole:
            own["exclusive"] = True
    _merge(options, {"flux": _of_flux(extra)})
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


def _of_flux(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that only Flux knows, as options of its executor."""
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
    """The beginning of a command that runs the rest in an instance of Flux on a job's nodes: a
    broker on each, which finds the others by Slurm's PMI-2 (SLURM_MPI_TYPE names another)."""
    tasks = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
    return ["srun", "--input=none", *tasks, flux, "start"]
