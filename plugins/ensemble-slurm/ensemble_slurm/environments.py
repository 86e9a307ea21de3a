"""Environments of Slurm's commands: in which nothing changes what they print or do. Pure."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["query_environment", "submit_environment"]

#: Variables of an outer job or launcher: inherited, they would have a job take itself for that one.
_OUTER = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "SLURM_")
#: What Slurm's commands read themselves from the environment and what is ours to say.
_CHANGING = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")
_UNWANTED = frozenset(
    {"SBATCH_WAIT", "SBATCH_ARRAY_INX", "SBATCH_EXPORT", "SBATCH_OPEN_MODE", "SBATCH_REQUEUE"}
    | {"SBATCH_NO_REQUEUE", "SBATCH_JOB_NAME", "SBATCH_OUTPUT", "SBATCH_ERROR", "SBATCH_INPUT"}
)
#: Those of Slurm's variables that say where it is.
_WHERE = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_CONF_SERVER"})


def submit_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that jobs start from: this one, without an outer job's."""
    return {
        name: value
        for name, value in environment.items()
        if name in _WHERE or not (name.startswith((*_OUTER, *_CHANGING)) or name in _UNWANTED)
    }


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for commands that ask: times in seconds since the epoch, plain words."""
    found = {
        name: value
        for name, value in environment.items()
        if name in _WHERE or not name.startswith(("SLURM_", "SBATCH_", *_CHANGING))
    }
    # Jobs are looked for where sbatch puts them.
    if "SBATCH_CLUSTERS" in environment:
        found["SLURM_CLUSTERS"] = environment["SBATCH_CLUSTERS"]
    return {**found, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
