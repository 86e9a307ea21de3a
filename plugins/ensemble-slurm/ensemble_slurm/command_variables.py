"""Environments for Slurm's commands, without variables that change their behaviour."""

from __future__ import annotations

from collections.abc import Mapping

#: Variables of an outer job or launcher that an inner job would mistake for its own.
_OUTER = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "SLURM_")
#: Variables that change Slurm's commands, and that only the executor may set.
_CHANGING = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")
_UNWANTED = frozenset(
    {"SBATCH_WAIT", "SBATCH_ARRAY_INX", "SBATCH_EXPORT", "SBATCH_OPEN_MODE", "SBATCH_REQUEUE"}
    | {"SBATCH_NO_REQUEUE", "SBATCH_JOB_NAME", "SBATCH_OUTPUT", "SBATCH_ERROR", "SBATCH_INPUT"}
)
#: Slurm variables that locate the cluster.
_WHERE = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_CONF_SERVER"})


def submit_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for ``sbatch``, without variables of an outer job."""
    return {
        name: value
        for name, value in environment.items()
        if name in _WHERE or not (name.startswith((*_OUTER, *_CHANGING)) or name in _UNWANTED)
    }


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for query commands: times in epoch seconds, untranslated messages."""
    found = {
        name: value
        for name, value in environment.items()
        if name in _WHERE or not name.startswith(("SLURM_", "SBATCH_", *_CHANGING))
    }
    # Look for jobs where sbatch submits them.
    if "SBATCH_CLUSTERS" in environment:
        found["SLURM_CLUSTERS"] = environment["SBATCH_CLUSTERS"]
    return {**found, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
