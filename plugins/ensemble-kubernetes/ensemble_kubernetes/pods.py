"""Reads the state of a job from the status of its pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ensemble_batch import status_of

from ensemble_core import Cause

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
