"""Reads what the status of a pod tells about the job in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ensemble_batch import status_of

from ensemble_core import Cause

__all__ = ["Failure", "Pod", "failure_of", "read_pod", "timestamp"]

#: The reasons for which a container waits that do not pass by themselves.
_STUCK = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
     "RegistryUnavailable", "ImageInspectError", "CreateContainerConfigError",
     "CreateContainerError", "RunContainerError")
)  # fmt: skip
#: The reasons of a container that never ran its command.
_NOT_STARTED = frozenset(("StartError", "ContainerCannotRun", "ContainerStatusUnknown"))
#: The reasons for which Kubernetes ends a pod that did nothing wrong (condition DisruptionTarget).
_DISRUPTIONS: Mapping[str, Cause] = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "preempted",
    "DeletionByTaintManager": "node-failure",
    "DeletionByPodGC": "node-failure",
    "TerminationByKubelet": "node-failure",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job ended: the type of its exception, a note for people, and its cause if the type
    does not say it."""

    kind: str
    note: str
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """One look at a pod. Times are seconds since the epoch by the node's clock, in whole seconds.

    ``over`` means that it is final; ``lost`` that its node is gone and nothing more will be heard.
    ``stuck`` says why its container cannot be started, ``waits`` why it has no node.
    """

    name: str
    host: str
    began: float | None
    ended: float | None
    over: bool
    lost: bool
    status: int | None
    failure: Failure | None
    stuck: str
    waits: str


def read_pod(pod: Mapping[str, Any], *, removed: bool = False) -> Pod:
    """Return what a pod's status tells; ``removed`` if it is no longer there."""
    status = pod.get("status") or {}
    container: Mapping[str, Any] = next(
        (c for c in status.get("containerStatuses") or () if c.get("name") == "job"), {}
    )
    state = container.get("state") or {}
    ended = state.get("terminated") or {}
    waiting = state.get("waiting") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    target = conditions.get("DisruptionTarget", {})
    leaving = "deletionTimestamp" in pod["metadata"]
    lost = leaving and target.get("reason") == "DeletionByTaintManager"
    over = removed or status.get("phase") in ("Succeeded", "Failed")
    began = timestamp(ended.get("startedAt") or (state.get("running") or {}).get("startedAt"))
    if ended.get("reason") in _NOT_STARTED:
        began = None
    code = ended.get("exitCode")
    reason = waiting.get("reason", "")
    return Pod(
        name=pod["metadata"]["name"],
        host=(pod.get("spec") or {}).get("nodeName", ""),
        began=began,
        ended=timestamp(ended.get("finishedAt")),
        over=over,
        lost=lost,
        status=None if code is None else status_of(code),
        failure=failure_of(pod, ended, target, removed=removed) if over or lost else None,
        stuck=_words(reason, waiting.get("message")) if reason in _STUCK else "",
        waits=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
    )


def failure_of(
    pod: Mapping[str, Any], ended: Mapping[str, Any], target: Mapping[str, Any], *, removed: bool
) -> Failure | None:
    """Why a pod that is over failed, if its exit code does not say it."""
    status = pod.get("status") or {}
    reason, message = status.get("reason", ""), status.get("message", "")
    if status.get("phase") == "Succeeded":
        return None
    if ended.get("reason") == "OOMKilled":
        return Failure("out-of-memory", "OOMKilled: it used more memory than its limit")
    if reason == "DeadlineExceeded":
        return Failure("timeout", "it ran for longer than its time limit")
    if target.get("status") == "True":
        note = _words(target.get("reason", ""), target.get("message"))
        if reason == "Evicted":
            note = _words(reason, message)
        cause = _DISRUPTIONS.get(target.get("reason", ""), "node-failure")
        return Failure(cause, note, cause)
    if reason == "Evicted":
        # Without the condition it is the pod that used more than it may, of its node's disk say.
        return Failure("evicted", _words(reason, message), "unknown")
    if reason in ("NodeLost", "NodeShutdown", "Terminated", "Shutdown"):
        return Failure("node-failure", _words(reason, message))
    if ended.get("reason") in _NOT_STARTED:
        return Failure("exec", _words(ended["reason"], ended.get("message")))
    if not ended and not removed and reason:  # refused by its node, say
        return Failure("submit", _words(reason, message))
    if not ended and removed:
        return Failure("cancel", "its pod was deleted by somebody else")
    return None


def timestamp(text: str | None) -> float | None:
    """Seconds since the epoch of a time as Kubernetes writes it.

    >>> timestamp("1970-01-01T00:01:00Z")
    60.0
    """
    if not text:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _words(reason: str, message: object) -> str:
    """A reason with its message, in one line."""
    return f"{reason}: {' '.join(str(message).split())[:400]}" if message else reason
