"""State of a member's run, as its MiniCluster (or Job) and its first pod show it.

The Flux Operator does not tell when a MiniCluster has finished; pod 0 does: by the termination
message of its container, which the script that starts the run writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .times import seconds

__all__ = [
    "PodState",
    "any_stopping",
    "ended_jobs",
    "first_pods",
    "gone_at",
    "is_set_up",
    "job_ended",
    "job_failed",
    "job_of",
    "late_until",
    "lost_pod",
    "newest",
    "pod_state",
    "trouble_of",
    "waits_since",
]

Object = Mapping[str, Any]

#: How an indexed Job's pods say which they are.
_INDEX = "batch.kubernetes.io/job-completion-index"
_SAID = re.compile(r"ensemble: exit (\d+)")
#: Seconds by which a pod's end may be told of late.
_LATE = 10.0
_PULLING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


@dataclass(frozen=True)
class PodState:
    """``waiting`` to run, ``running``, ``over`` with the run's exit code (``None`` where none was
    told), or ``lost``: killed, evicted, gone with its node."""

    phase: Literal["absent", "waiting", "running", "over", "lost"]
    exit_code: int | None = None
    message: str = ""
    started: str = ""


def job_of(main: Object, job: Object | None) -> Object | None:
    """The Job of a MiniCluster, or the Job that ``main`` is itself; none that one of its name
    before it has left behind."""
    if main["kind"] == "Job":
        return main
    return job if job is not None and _owned(job, main["metadata"].get("uid")) else None


def job_failed(job: Object | None) -> bool:
    """True if Kubernetes has given a Job up."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Failed" and each.get("status") == "True" for each in conditions)


def job_ended(job: Object | None) -> bool:
    """True if a pod of a Job has ended well: its Job makes no other of that index."""
    status = (job or {}).get("status") or {}
    conditions = status.get("conditions") or ()
    done = any(
        each.get("type") == "Complete" and each.get("status") == "True" for each in conditions
    )
    return done or bool(status.get("completedIndexes"))


def ended_jobs(
    found: Iterable[Object], before: Mapping[str, float], now: float
) -> dict[str, float]:
    """Return when each ended Job of these objects was first seen to have ended, by its uid."""
    jobs = (
        each for each in found if each["kind"] == "Job" and (job_ended(each) or job_failed(each))
    )
    uids = (each["metadata"].get("uid", "") for each in jobs)
    return {uid: before.get(uid, now) for uid in uids}


def late_until(job: Object | None, pods: Iterable[Object], ended: Mapping[str, float]) -> float:
    """Return the time until which a Job's own end is no proof, because that of its first pod is not
    among these yet: Jobs and pods are watched separately. ``ended`` says when each Job's end was
    first seen. 0 if there is nothing to wait for."""
    status = (job or {}).get("status") or {}
    phases = {(pod.get("status") or {}).get("phase") for pod in pods}
    if phases & {"Succeeded", "Failed" if job_failed(job) else "Succeeded"}:
        return 0.0
    indexes = status.get("completedIndexes")
    if indexes and not re.match(r"0\b", indexes) and not job_failed(job):
        return 0.0  # other pods have ended, of which nothing is read
    first = ended.get((job or {}).get("metadata", {}).get("uid", ""), 0.0)
    return first + _LATE if first else 0.0


def first_pods(pods: Iterable[Object], main: Object, job: Object | None) -> list[Object]:
    """The pods of index 0 of a MiniCluster or Job, and none of one of its name before it; ``job``
    is what is known of the Job of that name.

    An older Flux Operator gives its Job no labels of ours, so that nothing is known of it. Then
    pods as young as the MiniCluster are taken.
    """
    name = main["metadata"]["name"]
    found = [
        pod
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get("job-name") == name
        and (pod["metadata"].get("labels") or {}).get(_INDEX, "0") == "0"
    ]
    if job is None and main["kind"] != "Job":
        made = main["metadata"].get("creationTimestamp", "")
        return [pod for pod in found if pod["metadata"].get("creationTimestamp", "") >= made]
    own = job_of(main, job)
    return [pod for pod in found if own is not None and _owned(pod, own["metadata"].get("uid"))]


def any_stopping(pods: Iterable[Object], job: str, now: float) -> bool:
    """True if a pod of a Job of this name, which was deleted, has not ended. One that outlives the
    time that it was given, as on a node that is gone, is not waited for."""
    for pod in pods:
        if (pod["metadata"].get("labels") or {}).get("job-name") == job:
            over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if not over and now < gone_at(pod):
                return True
    return False


def gone_at(pod: Object) -> float:
    """When a pod that is being deleted is taken for gone, in seconds since the epoch."""
    until = pod["metadata"].get("deletionTimestamp")
    return math.inf if until is None else seconds(until) + _LATE


def _owned(found: Object, uid: object) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return uid is not None and any(each.get("uid") == uid for each in owners)


def lost_pod(pods: Iterable[Object], container: str) -> Object | None:
    """The newest of these pods in which a run was lost: its Job may have made another by now."""
    lost = [pod for pod in pods if pod_state(pod, container).phase == "lost"]
    return max(lost, key=_age, default=None)


def _age(pod: Object) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]


def newest(pods: Iterable[Object]) -> Object | None:
    """The newest of these pods; one that is being deleted only if there is no other. Times of
    creation are in whole seconds, and a Job makes another pod once one has failed."""
    return max(
        pods,
        key=lambda pod: (
            "deletionTimestamp" not in pod["metadata"],
            (pod.get("status") or {}).get("phase") != "Failed",
            *_age(pod),
        ),
        default=None,
    )


def pod_state(pod: Object | None, container: str) -> PodState:
    """The state of the run in one of a pod's containers."""
    if pod is None:
        return PodState("absent")
    status = pod.get("status") or {}
    started = status.get("startTime") or ""
    found = list(status.get("containerStatuses") or ())
    mine = next((each for each in found if each.get("name") == container), None)
    state = (mine or {}).get("state") or {}
    ended = state.get("terminated")
    if ended is not None:
        return _ended(ended, started)
    if status.get("phase") in ("Failed", "Succeeded"):
        why = status.get("message") or status.get("reason") or "the pod is gone"
        return PodState("lost", message=why[:1000], started=started)
    if "deletionTimestamp" in pod["metadata"]:
        return PodState("lost", message="the pod is being deleted", started=started)
    if "running" in state:
        return PodState("running", started=started)
    return PodState("waiting", message=trouble_of(pod)[1])


def _ended(ended: Object, started: str) -> PodState:
    said = _SAID.search(ended.get("message") or "")
    code = int(ended.get("exitCode") or 0)
    if said is not None:
        return PodState("over", int(said[1]), started=started)
    if code == 0:
        # The Flux Operator's script ends well, whatever became of Flux and of the run.
        why = "the container ended, and the run did not: its log says why"
        return PodState("lost", None, why, started)
    if ended.get("reason") == "OOMKilled":
        return PodState("lost", code, "the container was out of memory", started)
    return PodState("lost", code, f"the container ended with exit code {code}", started)


def is_set_up(pod: Object) -> bool:
    """True if a pod has a node and none of its containers has begun: its volumes are mounted then,
    which waits for Secrets that are not there."""
    status = pod.get("status") or {}
    if status.get("phase") != "Pending" or "deletionTimestamp" in pod["metadata"]:
        return False
    statuses = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    begun = any({"running", "terminated"} & set(each.get("state") or ()) for each in statuses)
    return not begun and trouble_of(pod)[0] not in ("ImagePull", "Unschedulable")


def waits_since(pod: Object) -> float | None:
    """When a pod was made that does not run yet, in seconds since the epoch; ``None`` of others."""
    phase = (pod.get("status") or {}).get("phase", "Pending")
    if phase != "Pending" or "deletionTimestamp" in pod["metadata"]:
        return None
    return seconds(pod["metadata"].get("creationTimestamp"))


def trouble_of(pod: Object) -> tuple[str, str]:
    """Why a pod does not run, as a condition's reason and in words; empty if nothing is wrong."""
    status = pod.get("status") or {}
    for each in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        words = f"{reason}: {waiting.get('message', '')}".rstrip(": ")[:1000]
        if reason in _PULLING:
            return "ImagePull", words
        if reason == "CrashLoopBackOff":
            return "CrashLoop", words
        if reason.startswith("Create"):
            return "Starting", words
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "Unschedulable", str(condition.get("message", ""))[:1000]
    return "", ""
