"""Converts Slurm's job states, pending reasons and exit codes to those of ``BatchExecutor``.

:class:`StepMessages` adds what slurmstepd writes about the end of a job.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ensemble_batch import Place, QueueJob

from ensemble_core import Cause


@dataclass(frozen=True, slots=True)
class Row:
    """One job as Slurm reports it. Times are in seconds since the epoch."""

    job: str  # id of the job or of its array
    task: int | None  # number in the array
    state: str
    reason: str = ""
    status: int | None = None  # wait status
    restarts: int = 0
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    nodes: str = ""
    name: str = ""
    comment: str = ""
    #: Path of the batch script or, from accounting, the ``sbatch`` command. Only if requested.
    script: str = ""

    @property
    def id(self) -> str:
        """The id for Slurm's commands: ``123``, or ``123_4`` for a task of an array."""
        return self.job if self.task is None else f"{self.job}_{self.task}"


#: Final states that are exceptions, each with the exception's type and note.
_EXCEPTIONS: Mapping[str, tuple[str, str]] = {
    "CANCELLED": ("cancel", "cancelled in Slurm, not by this run"),
    "TIMEOUT": ("timeout", "Slurm ended it at its time limit"),
    "DEADLINE": ("timeout", "Slurm ended it at its deadline (--deadline)"),
    "NODE_FAIL": ("node-failure", "one of its nodes failed"),
    "BOOT_FAIL": ("node-failure", "one of its nodes could not be booted"),
    "OUT_OF_MEMORY": ("out-of-memory", "it used more memory than it requested (--mem)"),
    "PREEMPTED": ("preempted", "Slurm preempted it for another job"),
    "LAUNCH_FAILED": ("launch", "Slurm could not launch it"),
    "RECONFIG_FAIL": ("node-failure", "one of its nodes could not be reconfigured"),
}
_OVER = frozenset(_EXCEPTIONS) | {"COMPLETED", "FAILED"}
#: States in which a job holds its nodes. ``REVOKED`` (another cluster of the federation has the
#: job) is neither running nor over.
_RUNNING = frozenset({"RUNNING", "SIGNALING", "STAGE_OUT", "RESIZING"})
#: States in which a job stands still, with the reason.
_SUSPENDED: Mapping[str, str] = {
    "SUSPENDED": "suspended in Slurm (scontrol, gang scheduling or preemption)",
    "STOPPED": "stopped in Slurm by a signal",
}

#: Pending reasons that never pass, and what to do about each.
STUCK: Mapping[str, str] = {
    "AccountNotAllowed": "this account may not use the partition: set 'account' or 'partition'",
    "AssocGrpCPUMinutesLimit": "the account's allocation is used up: 'sshare -l' shows it",
    "AssocGrpBillingMinutes": "the account's allocation is used up: 'sshare -l' shows it",
    "AssocMaxCpuPerJobLimit": "it asks for more cores than your account may have: ask for fewer",
    "AssocMaxNodePerJobLimit": "it asks for more nodes than your account may have: ask for fewer",
    "AssocMaxWallDurationPerJobLimit": "'duration' exceeds what your account allows: shorten it",
    "BadConstraints": "no nodes have this 'constraint': 'sinfo -o \"%N %f\"' shows the features",
    "DependencyNeverSatisfied": "a job that it depends on has failed: it will never start",
    "InvalidAccount": "the account is not valid: 'sacctmgr show assoc user=$USER' shows yours",
    "InvalidQOS": "the QOS is not valid: 'sacctmgr show assoc user=$USER format=qos' shows yours",
    "JobHeldAdmin": "an administrator holds it: ask there",
    "JobHoldMaxRequeue": "it was requeued too often: 'scontrol release' lets it start again",
    "job requeued in held state": "it was requeued and held: 'scontrol release' lets it start",
    "launch failed requeued held": "its node could not launch it: 'scontrol release' retries",
    "Nodes required for job are DOWN": "the nodes that it could use are down, drained, or "
    "kept for a partition of higher priority: 'sinfo -R' says why",
    "PartitionConfig": "no node has as much as it asks for, or the nodes that it names do not "
    "exist or are down: 'sinfo -N -l' shows nodes",
    "PartitionDown": "the partition is down: 'sinfo' shows those that are up",
    "PartitionInactive": "the partition is inactive: 'sinfo' shows those that are up",
    "PartitionNodeLimit": "the partition allows fewer nodes: 'sinfo -o \"%P %l %s\"'",
    "PartitionTimeLimit": "'duration' exceeds the limit of the partition: 'sinfo -o \"%P %l\"'",
    "QOSMaxCpuPerJobLimit": "it asks for more cores than the QOS allows: ask for fewer",
    "QOSMaxNodePerJobLimit": "it asks for more nodes than the QOS allows: ask for fewer",
    "QOSMaxWallDurationPerJobLimit": "'duration' exceeds what the QOS allows: shorten it",
    "QOSNotAllowed": "the partition does not allow this QOS: set 'qos' or 'partition'",
    "ReqNodeNotAvail": "requested nodes are down or reserved",
    "ReservationDeleted": "its reservation has ended: set another one, or none",
}  # fmt: skip
#: The same for limits of each kind of resource.
_STUCK_LIMITS: Mapping[str, str] = {
    r"(Assoc|QOS)Grp\w*(?<!Run)Minutes(Limit)?": "the allocation is used up: 'sshare -l' shows it",
    r"(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|MaxMemPerLimit": "it asks for more than a job may "
    "have: ask for less, or set another 'account' or 'qos'",
    r"QOSMin\w+": "it asks for less than the QOS requires: ask for more, or set another 'qos'",
    r"(Assoc|QOS)GrpWallLimit": "the time of the account or QOS is used up: ask the site",
    "QOSUsageThreshold": "your use is above what this QOS allows: set another 'qos'",
    # Slurm truncates these explanations, which contain the names of partition, QOS and account.
    r"Job's QOS not permitted.*": "the partition does not allow this QOS: set 'qos' or 'partition'",
    r"Job's account not permitted.*": "this account may not use the partition: set 'account' or "
    "'partition'",
}
#: Limits on several jobs together. If a job exceeds such a limit alone, it waits forever.
_SHARED_LIMIT = re.compile("(Assoc|QOS)(Grp|Max)|MaxMemoryPerAccount")


def base_state(word: str) -> str:
    """Return a state without additions (``CANCELLED by 1000``, ``COMPLETED+``)."""
    return word.strip().partition(" ")[0].rstrip("+").upper()


def wait_status(text: str) -> int | None:
    """Convert an exit code, as Slurm's commands print it, to a wait status.

    The command ``squeue`` prints the wait status, or in releases since 24.05 ``N:M`` (exit code and
    signal); ``sacct`` always prints ``N:M``. Returns ``None`` if the text has neither form.

    >>> wait_status("768"), wait_status("3:0"), wait_status("0:9"), wait_status("N/A")
    (768, 768, 9, None)
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if match is None:
        return None
    if match[2] is None:
        return int(match[1])
    # An exit code of 128 or more already includes the signal.
    return ((int(match[1]) & 0xFF) << 8) | (int(match[2]) & 0x7F)


def queue_job(row: Row) -> QueueJob:
    """Return the job as the base class's ``QueueJob``."""
    # Slurm sets the time of submission again when it requeues a job.
    requeued = row.submitted if row.restarts else None
    job = QueueJob(row.id, "waiting", restarts=row.restarts, requeued=requeued, host=row.nodes)
    if row.state in _OVER:
        return _ended_job(row, job)
    if row.state == "COMPLETING":
        return replace(job, state="ending")
    if row.state in _RUNNING:
        return replace(job, state="running", began=row.started)
    if row.state in _SUSPENDED:
        return replace(job, state="suspended", began=row.started, note=_SUSPENDED[row.state])
    # Before the names that explain a reason in words, which squeue may cut.
    word = re.split(r",|[ _]\(", row.reason.strip("()"))[0]
    if row.state == "PENDING" and (hint := pending_hint(word)):
        return replace(job, state="stuck", note=f"{word}: {hint}")
    if row.state == "PENDING" and _SHARED_LIMIT.match(word):
        note = (
            f"{word}: the job needs more than is left of this limit. If nothing else uses the "
            "limit, request less, or set another 'account' or 'qos' ('scontrol show assoc_mgr' "
            "shows limits)"
        )
        return replace(job, note=note)
    if row.state == "SPECIAL_EXIT":
        note = f"it was requeued and held: 'scontrol release {row.id}' lets it start again"
        return replace(job, state="stuck", note=note)
    if row.state == "PENDING" and word == "JobHeldUser":
        note = f"somebody holds it: 'scontrol release {row.id}' lets it start"
        return replace(job, state="held", note=note)
    return job


def pending_hint(reason: str) -> str:
    """Return what to do about a pending reason that never passes; empty for any other reason."""
    reason = reason.replace("_", " ")  # as squeue prints it; scontrol shows underscores
    limits = (hint for word, hint in _STUCK_LIMITS.items() if re.fullmatch(word, reason))
    return STUCK.get(reason) or next(limits, "")


def _ended_job(row: Row, job: QueueJob) -> QueueJob:
    code = row.status or 0
    began = (row.started or row.ended) if row.nodes else None
    job = replace(job, state="over", status=code, began=began, ended=row.ended)
    if row.state == "COMPLETED":
        return job
    reason = "" if row.reason in ("", "None", "(null)") else f", {row.reason}"
    words = f"Slurm: {row.state}{reason}"
    if row.state == "FAILED":
        # The job has not reported its own end, so its shell or launcher was killed. An exit code of
        # 137 says so too.
        cause: Cause | None = "signal" if code & 0x7F or 128 < code >> 8 < 160 else None
        return replace(job, exception="exec", note=words, status=code or 0x100, cause=cause)
    kind, note = _EXCEPTIONS[row.state]
    if kind == "cancel" and row.reason == "DependencyNeverSatisfied":  # kill_invalid_depend
        kind, note = "dependency", "it was removed, because a job that it depends on has failed"
    elif kind == "cancel" and row.nodes and row.started and row.started == row.ended:
        note += ", or the site's PrologSlurmctld failed"
    status = code or int(signal.SIGTERM)
    if row.restarts and kind == "cancel":
        # If it waited for its restart, Slurm may still report the nodes of its first life.
        job = replace(job, began=None)
    by = _canceller(row.reason) if kind == "cancel" else ""
    return replace(job, exception=kind, note=f"{note} ({words})", status=status, by=by)


def _canceller(words: str) -> str:
    """Return the user in Slurm's words ``CANCELLED by UID``; empty if they name none."""
    match = re.search(r"CANCELLED by (\d+)", words)
    if match is None:
        return ""
    try:
        return pwd.getpwuid(int(match[1])).pw_name
    except (LookupError, OverflowError):
        return f"user {match[1]}"


#: Messages about memory: of ``OverMemoryKill``, which ends the job, and of cgroups, after which the
#: job may go on for hours.
_ENDED = re.compile(r"exceeded (job|step|virtual )?\s*memory limit", re.I)
_MEMORY = re.compile(rf"{_ENDED.pattern}|oom[-_ ]kill|out of memory", re.I)
#: Ends with a reason that an earlier message of a cgroup does not explain.
_OTHER_ENDS = ("cancel", "timeout", "preempted")
#: Messages about the end of a whole job, each with the state that Slurm gives the job.
_JOB_ENDS: Mapping[str, str] = {
    r"\bDUE TO TIME LIMIT": "TIMEOUT",
    r"\bDUE TO PREEMPTION": "PREEMPTED",
    r"\bDUE TO NODE FAILURE": "NODE_FAIL",
    rf"{_ENDED.pattern}.*being killed": "OUT_OF_MEMORY",
    r"\bJOB \d+ ON \S+ CANCELLED AT \S+$": "CANCELLED",
}
#: Most bytes of a file that are read.
_MOST = 8192


class StepMessages:
    """Messages of slurmstepd in the standard error of a batch script, such as why it kills a job.

    Slurm reports some reasons nowhere else: with ``OverMemoryKill``, the state is ``FAILED`` and
    the reason ``JobLaunchFailure``. The messages about each job are a file in the run's folder for
    output.

    Slurm cannot start a job if its node does not see this folder. So the files are used only for
    jobs whose output goes to this folder too.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, queue_id: str, places: Sequence[Place]) -> str:
        """Return the path of a job's file; an empty string if these jobs have none."""
        # Slurm expands %.
        seen = all(place.kept for place in places) and "%" not in self._folder
        return os.path.join(self._folder, f"slurm-{queue_id}.err") if seen else ""

    def end(self, queue_id: str) -> QueueJob | None:
        """Return the end of a job that Slurm has forgotten; ``None`` if no message is about it."""
        words = self._words(queue_id)
        last = words.rpartition("; ")[2]
        state = next((state for text, state in _JOB_ENDS.items() if re.search(text, last)), None)
        if state is None:
            return None
        kind, note = _EXCEPTIONS[state]
        note = f"{note} ({words}); Slurm no longer knows it"
        return QueueJob(queue_id, "over", int(signal.SIGTERM), kind, note)

    def explain(self, job: QueueJob) -> QueueJob:
        """Return a failed job with the cause and note of its messages."""
        words = self._words(job.id)
        if not words:
            return job
        note = f"{job.note}; {words}" if job.note else words
        explains = _ENDED if job.exception in _OTHER_ENDS else _MEMORY
        if not explains.search(words):
            return replace(job, note=note)
        note = f"it used more memory than it requested (--mem); {note}"
        return replace(job, exception="out-of-memory", note=note, cause=None)

    def _words(self, queue_id: str) -> str:
        """Return each message about a job once, without the name of the node."""
        path, text = os.path.join(self._folder, f"slurm-{queue_id}.err"), ""
        with suppress(OSError), open(path, "rb") as file:
            text = file.read(_MOST).decode("utf-8", "replace")
        if not text:
            with suppress(OSError):
                os.unlink(path)
        lines = re.findall(r"^slurmstepd\S*: error: (.*)", text, re.M)
        return "; ".join(dict.fromkeys(line.strip("* ") for line in lines))
