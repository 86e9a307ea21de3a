"""Slurm's job states, pending reasons and exit codes, and what they mean here.

States come from ``squeue`` and ``sacct``, in all releases the same words. Pure; used by
``job_state`` of what is known of a job.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import NamedTuple

from ensemble_core import Cause

__all__ = ["STUCK", "Ending", "base_state", "ending", "is_over", "is_running", "wait_status"]


class Ending(NamedTuple):
    """How a job ended: the type of its fatal exception (``None`` for a mere exit), what to tell of
    it, its wait status, and its cause where the type does not tell."""

    exception: str | None
    note: str
    status: int
    cause: Cause | None = None


#: Final states that are an exception: its type and what to say.
_EXCEPTIONS: Mapping[str, tuple[str, str]] = {
    "CANCELLED": ("cancel", "cancelled in Slurm, not by this run"),
    "TIMEOUT": ("timeout", "Slurm ended it at its time limit"),
    "DEADLINE": ("timeout", "Slurm ended it at its deadline (--deadline)"),
    "NODE_FAIL": ("node-failure", "a node of it failed"),
    "BOOT_FAIL": ("node-failure", "a node of it could not be booted"),
    "OUT_OF_MEMORY": ("out-of-memory", "it used more memory than it had asked for (--mem)"),
    "PREEMPTED": ("preempted", "Slurm preempted it for another job"),
    "LAUNCH_FAILED": ("launch", "Slurm could not launch it"),
    "RECONFIG_FAIL": ("node-failure", "a node of it could not be reconfigured"),
}
_OVER = frozenset(_EXCEPTIONS) | {"COMPLETED", "FAILED"}
#: States in which a job holds its nodes.
_RUNNING = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "SIGNALING", "STOPPED", "STAGE_OUT", "RESIZING"}
)

#: Reasons for which a job waits without end, and what to do about each.
STUCK: Mapping[str, str] = {
    "AccountNotAllowed": "this account may not use the partition: set 'account' or 'partition'",
    "AssocGrpCPUMinutesLimit": "the account's allocation is used up: 'sshare -l' shows it",
    "AssocGrpBillingMinutes": "the account's allocation is used up: 'sshare -l' shows it",
    "AssocMaxCpuPerJobLimit": "it asks for more cores than your account may have: ask for fewer",
    "AssocMaxNodePerJobLimit": "it asks for more nodes than your account may have: ask for fewer",
    "AssocMaxWallDurationPerJobLimit": "your account allows no such 'duration': shorten it",
    "BadConstraints": "no nodes have this 'constraint': 'sinfo -o \"%N %f\"' shows what they have",
    "DependencyNeverSatisfied": "what it depends on has failed: it will never start",
    "InvalidAccount": "the account is not valid: 'sacctmgr show assoc user=$USER' shows yours",
    "InvalidQOS": "the QOS is not valid: 'sacctmgr show assoc user=$USER format=qos' shows yours",
    "JobHeldAdmin": "an administrator holds it: ask there",
    "JobHoldMaxRequeue": "it was started again too often: 'scontrol release' lets it go on",
    "launch failed requeued held": "its node could not launch it: 'scontrol release' tries again",
    "launch_failed_requeued_held": "its node could not launch it: 'scontrol release' tries again",
    "PartitionConfig": "there are no such nodes, or they are down: 'sinfo -N -l' shows them",
    "PartitionDown": "the partition is down: 'sinfo' shows those that are up",
    "PartitionInactive": "the partition is inactive: 'sinfo' shows those that are up",
    "PartitionNodeLimit": "the partition gives fewer nodes: 'sinfo -o \"%P %l %s\"'",
    "PartitionTimeLimit": "the partition allows no such 'duration': 'sinfo -o \"%P %l\"'",
    "QOSMaxCpuPerJobLimit": "it asks for more cores than the QOS allows: ask for fewer",
    "QOSMaxNodePerJobLimit": "it asks for more nodes than the QOS allows: ask for fewer",
    "QOSMaxWallDurationPerJobLimit": "the QOS allows no such 'duration': shorten it",
    "QOSNotAllowed": "the partition does not take this QOS: set 'qos' or 'partition'",
    "ReqNodeNotAvail": "nodes that it asks for are down, or are reserved",
}  # fmt: skip


def base_state(word: str) -> str:
    """A state without what may stand around it (``CANCELLED by 1000``, ``COMPLETED+``)."""
    return word.strip().partition(" ")[0].rstrip("+").upper()


def is_over(state: str) -> bool:
    """True if this state is final. ``REVOKED`` is not: another cluster of the federation has it."""
    return state in _OVER


def is_running(state: str) -> bool:
    """True if a job in this state holds its nodes."""
    return state in _RUNNING


def wait_status(text: str) -> int | None:
    """The wait status of an exit code as Slurm's commands print it.

    ``squeue`` prints the status itself (or ``N:M`` from 24.05 on), ``sacct`` prints ``N:M`` (exit
    code and signal). ``None`` where there is none.

    >>> wait_status("768"), wait_status("3:0"), wait_status("0:9"), wait_status("N/A")
    (768, 768, 9, None)
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if match is None:
        return None
    if match[2] is None:
        return int(match[1])
    # 128 and more stands for "by a signal of its own": Slurm counts it in.
    return ((int(match[1]) & 0xFF) << 8) | (int(match[2]) & 0x7F)


def ending(state: str, reason: str, status: int | None, *, ours: str | None = None) -> Ending:
    """How a job ended that Slurm says this of.

    ``ours`` is the note where we cancelled it ourselves.
    """
    code = status or 0
    if state == "COMPLETED":
        return Ending(None, "", code)
    words = f"Slurm: {state}" + (f", {reason}" if reason not in ("", "None", "(null)") else "")
    if state == "FAILED":
        # Of one that told of its own end this is not asked: its shell, or its launch, was ended.
        return Ending("exec", words, code or 0x100, "signal" if code & 0x7F else None)
    kind, note = _EXCEPTIONS[state]
    note = ours if kind == "cancel" and ours is not None else f"{note} ({words})"
    return Ending(kind, note, code or int(signal.SIGTERM))
