"""Slurm's commands: their environments, and what their error messages mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ensemble_slurm.job_states import pending_hint

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


class Refusal(Enum):
    """Reason for the failure of a Slurm command. Decides whether to retry the command."""

    #: The job cannot run as it is, so a retry would be rejected, too.
    FINAL = "final"
    #: No answer, or Slurm is busy. Slurm may have carried out the request.
    BUSY = "busy"
    #: A limit on the number of jobs is reached. Retry when other jobs have ended.
    FULL = "full"


#: Parts of Slurm's messages when slurmctld is down, busy, or starting.
_BUSY = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "connect failure",
    "connection reset",
    "resource temporarily unavailable",
    "communication connection failure",
    "communication shutdown failure",
    "message receive failure",
    "message send failure",
    "send/recv operation",
    "zero bytes were transmitted",
    # Answers that were cut off or mixed up, as from an overloaded slurmctld.
    "unexpected message received",
    "insane message length",
    "header lengths are longer than data received",
    "unexpected missing socket error",
    "backup controller",
    "standby mode",
    "slurmctld is not responding",
    "try again later",
    "slurmdbd",
    "fetch_config",
    "protocol authentication error",
    "munge",
)
_FULL = (
    "maxsubmit",
    "temporarily unable to accept job",
    "job queue full",
    "accounting/qos policy (job submit limit)",
    "maximum number of jobs",
    "grpsubmit",
)

#: Parts of Slurm's messages, each with a hint; the first match counts.
_HINTS: Sequence[tuple[str, str]] = (
    ("invalid partition", "'sinfo -s' shows the partitions; set 'partition' under options"),
    ("access/permission denied", "this account or user is not allowed to do that: ask the site"),
    ("invalid account", "'sacctmgr show assoc user=$USER format=account,qos' shows yours"),
    ("invalid qos", "'sacctmgr show assoc user=$USER format=account,qos' shows yours"),
    ("maxsubmit", "they are submitted as others end; nothing is lost"),
    ("grpsubmit", "they are submitted as others end; nothing is lost"),
    ("sleeping and retrying", "slurmctld has MaxJobCount jobs; nothing is lost"),
    ("time limit is", "shorten 'duration', or choose another partition: 'sinfo -o \"%P %l\"'"),
    ("requested node configuration is not available", "ask for less: 'sinfo -N -l' shows nodes"),
    ("more processors requested than permitted", "ask for fewer cores: 'sinfo -o \"%P %c %s\"'"),
    ("node count specification invalid", "ask for fewer nodes: 'sinfo -o \"%P %D %s\"'"),
    ("invalid feature", "'sinfo -o \"%N %f\"' shows the features that nodes have"),
    ("invalid generic resource", "'sinfo -o \"%N %G\"' shows the generic resources of nodes"),
    ("memory specification", "'sinfo -o \"%N %m\"' shows the memory of nodes"),
    ("accounting/qos policy", "'sacctmgr show assoc user=$USER' shows your limits"),
    ("partition not available", "'sinfo -s' shows the partitions that are up"),
    ("not permitted to use this partition", "'scontrol show partition' shows who may use it"),
    ("invalid license", "'scontrol show licenses' shows the licenses of the cluster"),
    ("invalid node name", "'sinfo -N' shows the names of nodes"),
    ("reservation", "'scontrol show reservation' shows the existing ones"),
    ("unrecognized option", "'sbatch --help' lists the options of this release"),
    ("munge", "is munged running on this machine? 'munge -n | unmunge' tells"),
    ("protocol authentication", "is munged running on this machine? 'munge -n | unmunge' tells"),
)  # fmt: skip


def words(stderr: str) -> str:
    """Return a command's message on one line, without the command's name."""
    parts: list[str] = []
    for line in stderr.splitlines():
        text = line.strip()
        for prefix in ("sbatch: ", "squeue: ", "scancel: ", "error: ", "fatal: "):
            text = text.removeprefix(prefix)
        text = text.removeprefix("error: ").strip()
        if text and text not in parts:
            parts.append(text)
    return "; ".join(parts)[:600]


def refusal(stderr: str) -> Refusal:
    """Classify a command's error message."""
    lower = stderr.lower()
    if any(part in lower for part in _FULL):
        return Refusal.FULL
    if any(part in lower for part in _BUSY):
        return Refusal.BUSY
    return Refusal.FINAL


def hint_for(stderr: str) -> str | None:
    """Return a hint about an error message, if one is known."""
    # A limit that denies jobs has the same name as the reason of a job that waits.
    reasons = filter(None, map(pending_hint, words(stderr).split("; ")))
    lower = stderr.lower()
    return next(reasons, None) or next((hint for part, hint in _HINTS if part in lower), None)
