"""State and events of one job, computed from the status of its Kubernetes Job and of its pods."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ensemble_batch import JobEvents, status_of

from ensemble_core import Cause, Job, JobEvent
from ensemble_kubernetes.log_copy import LogCopy

#: Seconds after which a job fails whose container cannot be started for a reason below.
STUCK = 45.0
#: Reasons of a waiting container that persist until somebody intervenes.
_STUCK = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
     "RegistryUnavailable", "ImageInspectError", "CreateContainerConfigError",
     "CreateContainerError", "RunContainerError")
)  # fmt: skip
#: Reasons of a container that never ran its command.
_NOT_STARTED = frozenset(("StartError", "ContainerCannotRun"))
#: Reasons of a kubelet, and of containerd after a reboot (with exit code 255), for a container that
#: vanished from its node.
_VANISHED = frozenset(("ContainerStatusUnknown", "Unknown"))
#: Reasons of the condition DisruptionTarget: ends that the pod did not cause itself.
_DISRUPTIONS: Mapping[str, Cause] = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "preempted",
    "DeletionByTaintManager": "node-failure",
    "DeletionByPodGC": "node-failure",
    "TerminationByKubelet": "node-failure",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job ended without success: an exception."""

    kind: str  #: the exception's type
    note: str
    cause: Cause | None = None  #: unless ``kind`` implies it


@dataclass(frozen=True, slots=True)
class Pod:
    """State of a pod."""

    name: str
    host: str
    #: Whole seconds since the epoch, by the node's clock.
    began: float | None
    ended: float | None
    over: bool  #: this state is final
    tainted: bool  #: it is being deleted because of its node's taint; the node may be gone
    lost: bool  #: the node is gone, so no further report will come
    status: int | None  #: wait status
    failure: Failure | None
    deleted: bool  #: it was deleted while it waited or ran, and has not succeeded
    unseen: bool  #: it was deleted before its end was seen
    #: It is being deleted while it runs: seconds that it has to end.
    grace: float | None
    beside: str  #: names of containers that have not ended although the job's has
    stuck: str  #: why the container cannot be started
    waits: str  #: why the pod has no node


def read_pod(
    pod: Mapping[str, Any], before: Pod | None = None, *, removed: bool = False, last: bool = False
) -> Pod:
    """Return the state in a pod's status; ``before`` is the state that was read last.

    Set ``removed`` if the pod no longer exists. Set ``last`` if no further report is expected: the
    node is lost, or the job's container has ended and others run on.
    """
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    container: Mapping[str, Any] = next((c for c in containers if c.get("name") == "job"), {})
    state = container.get("state") or {}
    ended = state.get("terminated") or {}
    waiting = state.get("waiting") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    target = conditions.get("DisruptionTarget", {})
    leaving = "deletionTimestamp" in pod["metadata"]
    tainted = leaving and target.get("reason") == "DeletionByTaintManager"
    lost = tainted and last and not ended
    over = removed or status.get("phase") in ("Succeeded", "Failed") or bool(ended and last)
    running = state.get("running") or {}
    # A runtime that has lost a container reports the time 0.
    began = timestamp(ended.get("startedAt") or running.get("startedAt")) or None
    if ended.get("reason") in _NOT_STARTED:
        began = None
    code = ended.get("exitCode")
    reason = waiting.get("reason", "")
    return Pod(
        name=pod["metadata"]["name"],
        host=(pod.get("spec") or {}).get("nodeName", ""),
        began=began,
        ended=timestamp(ended.get("finishedAt")) or None,
        over=over,
        tainted=tainted,
        lost=lost,
        status=None if code is None else status_of(code),
        failure=failure_of(pod, ended, target, removed=removed) if over or lost else None,
        deleted=over and _is_deleted(pod, ended, before, removed=removed),
        unseen=removed and not status,
        grace=float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        if leaving and not ended
        else None,
        beside=", ".join(
            c["name"] for c in containers if ended and "terminated" not in (c.get("state") or {})
        ),
        stuck=_one_line(reason, waiting.get("message")) if reason in _STUCK else "",
        waits=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
    )


def failure_of(
    pod: Mapping[str, Any], ended: Mapping[str, Any], target: Mapping[str, Any], *, removed: bool
) -> Failure | None:
    """Return why an ended pod failed; ``None`` if its exit code explains the failure."""
    status = pod.get("status") or {}
    reason, message = status.get("reason", ""), status.get("message", "")
    if ended.get("reason") == "OOMKilled":  # also if only a child was killed: exit code 0
        return Failure("out-of-memory", "OOMKilled: it exceeded its memory limit")
    if status.get("phase") == "Succeeded":
        return None
    if reason == "DeadlineExceeded":
        return Failure("timeout", "it exceeded its time limit")
    if target.get("status") == "True":
        note = _one_line(target.get("reason", ""), target.get("message"))
        if reason == "Evicted":
            note = _one_line(reason, message)
        cause = _DISRUPTIONS.get(target.get("reason", ""), "node-failure")
        return Failure(cause, note, cause)
    if reason == "Evicted":
        # Without the condition DisruptionTarget, the pod itself used too much of something, such as
        # disk space.
        return Failure("evicted", _one_line(reason, message), "unknown")
    if reason in ("NodeLost", "NodeShutdown", "Terminated", "Shutdown"):
        return Failure("node-failure", _one_line(reason, message))
    if ended.get("reason") in _NOT_STARTED:
        return Failure("exec", _one_line(ended["reason"], ended.get("message")))
    if ended.get("reason") in _VANISHED and "deletionTimestamp" not in pod["metadata"]:
        note = _one_line(ended["reason"], ended.get("message"))
        return Failure("node-failure", f"its container vanished from the node: {note}")
    if not ended and not removed and reason:  # for example rejected by its node
        return Failure("submit", _one_line(reason, message))
    return None


def _is_deleted(
    pod: Mapping[str, Any], ended: Mapping[str, Any], before: Pod | None, *, removed: bool
) -> bool:
    """Return True if an ended pod was deleted before its container ended.

    The container has then ended by SIGTERM or SIGKILL, or with any exit code as its answer. A pod
    that has succeeded counts as such.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    if status.get("phase") == "Succeeded" or ended.get("exitCode") == 0:
        return False
    if not ended:
        return removed
    if before is not None and before.grace is not None:
        return True  # seen, whatever the clock of the node
    latest = timestamp(metadata.get("deletionTimestamp"))
    finished = timestamp(ended.get("finishedAt"))
    if latest is None or finished is None:
        return latest is not None
    # Kubernetes has added the grace period to the time of the request.
    return finished >= latest - float(metadata.get("deletionGracePeriodSeconds") or 0)


def timestamp(text: str | None) -> float | None:
    """Parse Kubernetes' time format; return seconds since the epoch.

    >>> timestamp("1970-01-01T00:01:00Z")
    60.0
    """
    if not text:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _one_line(reason: str, message: object) -> str:
    """Return a reason and its message on one line."""
    return f"{reason}: {' '.join(str(message).split())[:400]}" if message else reason


_DELETED = "was deleted by another client"
_UNSEEN = Failure("lost", "its pod was deleted before its end was seen: its outcome is unknown")
_LOST = Failure("lost", "Kubernetes no longer knows this job, so its outcome is unknown")


class Life(JobEvents):
    """State of a job until it is over."""

    __slots__ = (
        "accepted_at", "condition", "copies", "deadline", "ending", "explained", "followed", "gone",
        "incomplete", "job_body", "log_lock", "missed", "name", "notes", "overdue", "pods",
        "resumed", "sent", "stuck", "suspended", "tasks", "verdict",
    )  # fmt: skip

    def __init__(self, job: str, name: str, notes: Mapping[str, Any], out: list[JobEvent]) -> None:
        hidden = ("tasks", "observed", "kept", "holds")
        super().__init__(job, {k: v for k, v in notes.items() if k not in hidden}, out)
        self.name = self.queue_id = name
        #: Recorded for a later controller: ``tasks``, ``observed`` (an observer reads the output),
        #: ``kept`` (the output file is in the run's folder), ``holds`` (the run itself suspends the
        #: Job), and the context of the start event.
        self.notes = notes
        self.tasks: int = notes.get("tasks", 1)
        self.job_body: Job | None = None
        #: Pods by rank.
        self.pods: dict[int, Pod] = {}
        #: ``sent``: the Job may have reached Kubernetes. ``gone``: the Job was deleted.
        self.sent = self.gone = self.stuck = self.ending = self.resumed = False
        #: ``missed``: the deletion was noticed only afterwards. ``followed``: the log is copied
        #: while the job runs. ``incomplete``: part of the log could not be copied.
        self.missed = self.overdue = self.followed = self.incomplete = False
        #: Whether others suspend the Job; whether a warning said why it has no pod.
        self.suspended = self.explained = False
        self.accepted_at: float | None = None
        #: Why the executor ends the job, if it does.
        self.verdict: Failure | None = None
        #: Kubernetes' condition for the end of the Job, and its message.
        self.condition: tuple[str, str] | None = None
        #: What Kubernetes says if the Job exceeded a time limit that others have set.
        self.deadline = ""
        #: What is already copied of each pod's log, and the lock for writing the files.
        self.copies: dict[int, LogCopy] = {}
        self.log_lock = threading.Lock()

    def was_accepted(self, when: float = math.inf) -> bool:
        """Return whether Kubernetes had accepted the Job before this time (monotonic seconds)."""
        return self.accepted_at is not None and self.accepted_at < when

    @property
    def runs(self) -> bool:
        """True if one of the job's pods runs."""
        return any(pod.began and not pod.over for pod in self.pods.values())

    @property
    def unseen(self) -> bool:
        """True if a pod was deleted before its end was seen."""
        return any(pod.unseen for pod in self.pods.values())

    @property
    def unstarted(self) -> str:
        """The name of a pod without a container, or of the Job if a pod is missing, unless the
        reason is known.
        """
        known = self.suspended or self.explained or self.verdict or self.notes.get("holds")
        if self.over or self.ending or known:
            return ""
        idle = (
            pod.name for pod in self.pods.values()
            if pod.began is None and not (pod.over or pod.stuck or pod.waits)
        )  # fmt: skip
        return next(idle, "" if len(self.pods) >= self.tasks else self.name)

    @property
    def complete(self) -> bool:
        """True if no further report can come."""
        done = sum(pod.over or pod.lost for pod in self.pods.values())
        final = self.gone or self.condition is not None
        # Its Job says how a pod ended that was deleted meanwhile.
        if done >= self.tasks and (final or self.suspended or not self.unseen):
            return True
        return final and done == len(self.pods) and bool(self.gone or self.pods)

    def begin_if_told(self, now: float, *, live: bool) -> None:
        """Report the job's start if a pod has begun.

        The flag ``live`` means that the pod began just now. The event then has the time of our
        clock, because the node's times have only whole seconds.
        """
        begun = [pod for pod in self.pods.values() if pod.began is not None]
        if not begun or "start" in self.told:
            return
        first = min(begun, key=lambda pod: pod.began or 0.0)
        assert first.began is not None
        when = first.began
        if live:
            when = now - max(0.0, (first.ended or first.began) - first.began)
        self.arrive(now, now)
        self.begin(when, now, first.host)

    def tell_end(self, now: float, *, live: bool) -> None:
        """Report the job's end and its cause."""
        pods = self.pods.values()
        self.arrive(now, now)
        self.begin_if_told(now, live=live)
        ended = max((pod.ended for pod in pods if pod.ended is not None), default=now)
        when = now if live else ended
        statuses = [pod.status for pod in pods if pod.status is not None]
        status = max(statuses, default=None)
        failure = self._failure(status)
        if failure is not None:
            more = {"cause": failure.cause} if failure.cause else {}
            self.fail(failure.kind, failure.note, when, now, **more)
            if failure.kind == "out-of-memory":
                status = status or None  # the exit code 0 hides that a process was killed
        elif status is None:  # the job succeeded, but the end of no pod was seen
            self.begin(when, now, "")
            status = 0
        self.end(status, when, now)

    def _failure(self, status: int | None) -> Failure | None:
        pods = self.pods.values()
        good = [pod for pod in pods if pod.over and pod.status == 0 and pod.failure is None]
        all_done = len(pods) >= self.tasks and len(good) == len(pods)
        # The log of a deleted pod may be gone, so a cancelled job's success may lack output.
        if all_done and not (self.verdict and self.incomplete):
            return None
        if self.verdict is not None:
            return self.verdict
        said = next((pod.failure for pod in pods if pod.failure is not None), None)
        # If one of several pods fails, Kubernetes deletes the others.
        if said is not None or any(pod.status and not pod.deleted for pod in pods):
            return said
        if self.condition is not None and self.condition[0] == "Complete":
            return None
        if self.deadline:
            return Failure("timeout", self.deadline)
        if any(pod.deleted for pod in pods) and self.suspended:
            note = "its Job was suspended by another client, so Kubernetes deleted its pod"
            return Failure("cancel", note)
        if self.unseen:
            return _UNSEEN
        if any(pod.deleted for pod in pods):
            return Failure("cancel", f"its {'Job' if self.gone else 'pod'} {_DELETED}")
        if self.gone and not self.missed:
            return Failure("cancel", f"its Job {_DELETED}")
        if self.condition is not None and pods and "start" not in self.told:
            return Failure("submit", f"its pod failed before it started: {self.condition[1]}")
        return _LOST
