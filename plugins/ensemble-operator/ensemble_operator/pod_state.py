"""State of a member's run, as its Job and its pods show it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ensemble_operator.object_names import seconds

Object = Mapping[str, Any]

#: Annotation or label with a pod's index in its Job.
_INDEX = "batch.kubernetes.io/job-completion-index"
#: The start script writes this into the first pod's termination message, because the Flux Operator
#: does not report that a run has ended.
_SAID = re.compile(r"ensemble: exit (\d+)")
#: Seconds to wait for the report of a pod's end.
_LATE = 10.0
_PULLING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


@dataclass(frozen=True)
class PodState:
    """State of the run in a pod."""

    #: ``lost``: the run was killed or evicted, or its node is gone.
    phase: Literal["absent", "waiting", "running", "over", "lost"]
    exit_code: int | None = None  #: of the run; ``None`` if not reported
    message: str = ""
    started: str = ""


def job_of(main: Object, job: Object | None) -> Object | None:
    """Return the Job of a MiniCluster, or ``main`` itself if it is a Job.

    A Job left over from an earlier object of the same name does not count.
    """
    if main["kind"] == "Job":
        return main
    return job if job is not None and _is_owned(job, main["metadata"].get("uid")) else None


def job_failed(job: Object | None) -> bool:
    """Return whether Kubernetes has given up on a Job."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Failed" and each.get("status") == "True" for each in conditions)


def job_ended(job: Object | None) -> bool:
    """Return whether a pod of a Job has succeeded. The Job then creates no other pod of that
    index.
    """
    status = (job or {}).get("status") or {}
    conditions = status.get("conditions") or ()
    done = any(
        each.get("type") == "Complete" and each.get("status") == "True" for each in conditions
    )
    return done or bool(status.get("completedIndexes"))


def ended_jobs(
    found: Iterable[Object], before: Mapping[str, float], now: float
) -> dict[str, float]:
    """Return the time when each ended Job was first seen to have ended, by the Job's uid."""
    jobs = (
        each for each in found if each["kind"] == "Job" and (job_ended(each) or job_failed(each))
    )
    uids = (each["metadata"].get("uid", "") for each in jobs)
    return {uid: before.get(uid, now) for uid in uids}


def late_until(job: Object | None, pods: Iterable[Object], ended: Mapping[str, float]) -> float:
    """Return until when to wait for the report of the first pod of an ended Job; 0 for no wait.

    The mapping ``ended`` has the time when each Job's end was first seen, by uid.
    """
    # Jobs and pods are watched separately, so the Job's end may be seen first.
    status = (job or {}).get("status") or {}
    phases = {(pod.get("status") or {}).get("phase") for pod in pods}
    if phases & {"Succeeded", "Failed" if job_failed(job) else "Succeeded"}:
        return 0.0
    indexes = status.get("completedIndexes")
    workers = indexes and not re.match(r"0\b", indexes) and not job_failed(job)
    # At the end of a run, its workers end before a first pod that runs.
    if workers and "Running" not in phases:
        return 0.0
    first = ended.get((job or {}).get("metadata", {}).get("uid", ""), 0.0)
    return first + _LATE if first else 0.0


def first_pods(pods: Iterable[Object], main: Object, job: Object | None) -> list[Object]:
    """Return the pods of index 0 of a MiniCluster or Job.

    The argument ``job`` is the MiniCluster's Job, if known.
    """
    name = main["metadata"]["name"]
    found = [
        pod
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get("job-name") == name
        and (pod["metadata"].get("labels") or {}).get(_INDEX, "0") == "0"
    ]
    if job is None and main["kind"] != "Job":
        # An older Flux Operator does not put our labels on its Job, so the Job is unknown. Skip
        # pods of earlier MiniClusters with this name.
        made = main["metadata"].get("creationTimestamp", "")
        return [pod for pod in found if pod["metadata"].get("creationTimestamp", "") >= made]
    own = job_of(main, job)
    return [pod for pod in found if own is not None and _is_owned(pod, own["metadata"].get("uid"))]


def any_stopping(pods: Iterable[Object], job: str, now: float) -> bool:
    """Return whether a pod of a deleted Job of this name is still terminating.

    A pod that has exceeded its grace period, as on a lost node, does not count.
    """
    for pod in pods:
        if (pod["metadata"].get("labels") or {}).get("job-name") == job:
            over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if not over and now < gone_at(pod):
                return True
    return False


def gone_at(pod: Object) -> float:
    """Return when a pod being deleted counts as gone, in seconds since the epoch."""
    until = pod["metadata"].get("deletionTimestamp")
    return math.inf if until is None else seconds(until) + _LATE


def _is_owned(found: Object, uid: object) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return uid is not None and any(each.get("uid") == uid for each in owners)


def lost_pod(pods: Iterable[Object], container: str) -> Object | None:
    """Return the newest of those pods whose run was lost. Their Job may have created other pods
    since.
    """
    lost = [pod for pod in pods if pod_state(pod, container).phase == "lost"]
    return max(lost, key=_age, default=None)


def _age(pod: Object) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]


def newest(pods: Iterable[Object]) -> Object | None:
    """Return the newest of these pods.

    Pods that are being deleted, and failed ones, are returned only if there are no others: a Job
    replaces such pods, and both pods may have the same creation time.
    """
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
    """Return the state of the run in one of a pod's containers."""
    if pod is None:
        return PodState("absent")
    status = pod.get("status") or {}
    started = status.get("startTime") or ""
    found = list(status.get("containerStatuses") or ())
    mine = next((each for each in found if each.get("name") == container), None)
    state = (mine or {}).get("state") or {}
    ended = state.get("terminated")
    if ended is not None:
        return _ended_state(ended, started)
    if status.get("phase") in ("Failed", "Succeeded"):
        why = status.get("message") or status.get("reason") or "the pod is gone"
        return PodState("lost", message=why[:1000], started=started)
    if "deletionTimestamp" in pod["metadata"]:
        return PodState("lost", message="the pod is being deleted", started=started)
    if "running" in state:
        return PodState("running", started=started)
    return PodState("waiting", message=trouble_of(pod)[1])


def _ended_state(ended: Object, started: str) -> PodState:
    said = _SAID.search(ended.get("message") or "")
    code = int(ended.get("exitCode") or 0)
    if said is not None:
        return PodState("over", int(said[1]), started=started)
    if code == 0:
        # The exit code proves nothing: the Flux Operator's script succeeds whatever happened to
        # Flux and the run.
        why = "the container ended before the run: see its log"
        return PodState("lost", None, why, started)
    if ended.get("reason") == "OOMKilled":
        return PodState("lost", code, "the container was out of memory", started)
    return PodState("lost", code, f"the container ended with exit code {code}", started)


def is_set_up(pod: Object) -> bool:
    """Return whether a pod has a node but no started container.

    The volumes of such a pod are being mounted, which waits for missing Secrets.
    """
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
    """Return the creation time of a waiting pod in seconds since the epoch; ``None`` for other
    pods.
    """
    phase = (pod.get("status") or {}).get("phase", "Pending")
    if phase != "Pending" or "deletionTimestamp" in pod["metadata"]:
        return None
    return seconds(pod["metadata"].get("creationTimestamp"))


def trouble_of(pod: Object) -> tuple[str, str]:
    """Return why a pod does not run, as a condition's reason and message; both are empty if it
    does.
    """
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
