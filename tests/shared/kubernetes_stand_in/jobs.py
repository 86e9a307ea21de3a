"""Controller of Jobs (batch/v1): creates their pods, counts their outcomes, and finishes the Jobs.

A successful index of an indexed Job is never restarted; a failed or deleted pod is, up to
``backoffLimit`` times. A deleted pod that exits with 0 has succeeded. Finished Jobs are deleted after
their ``ttlSecondsAfterFinished``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from .kinds import BATCH
from .refusals import Refusal
from .store import Object, Store, now

__all__ = ["INDEX", "JobController", "as_ranges"]

#: Label with the index of an indexed Job's pod.
INDEX = "batch.kubernetes.io/job-completion-index"
_OVER = ("Succeeded", "Failed")


class JobController:
    """Controller of Jobs; :meth:`look` runs one round.

    ``grace`` is how many seconds deleted pods keep running if they are not on a node.
    """

    def __init__(self, store: Store, grace: float = 0.5) -> None:
        self._store, self._grace = store, grace
        self._jobs, self._pods = store.kinds[(BATCH, "jobs")], store.kinds[("", "pods")]
        self._events = store.kinds[("", "events")]
        self._warned: set[tuple[str, str]] = set()
        self._seen = store.version
        #: For each Job's uid: its failed pods, and the index of each pod that succeeded.
        self._failed: dict[str, set[str]] = {}
        self._done: dict[str, dict[str, int]] = {}
        self._terminating: dict[tuple[str, str], float] = {}
        self._owned: dict[str, list[Object]] = {}

    def look(self, jobs: Iterable[Object]) -> None:
        """Update these Jobs and their pods."""
        with self._store.changed:  # a pod that ended in between would be replaced
            self._count()
            self._owned = self._store.owned(self._pods)
        for job in jobs:
            with contextlib.suppress(Refusal):  # changed meanwhile: retry in the next round
                self._bring_on(job)
        for (namespace, pod), end in list(self._terminating.items()):
            if time.monotonic() >= end:
                del self._terminating[(namespace, pod)]
                with contextlib.suppress(Refusal):
                    self._store.delete_now(self._pods, namespace, pod)

    def _count(self) -> None:
        """Count each pod that ended, once, from its changes since the last round."""
        news = list(self._store.since(self._seen, self._pods, ""))
        self._seen = self._store.version
        sizes = {job["metadata"]["uid"]: _size(job) for job in self._store.all(self._jobs)}
        for _, what, pod, _ in news:
            metadata, phase = pod["metadata"], pod.get("status", {}).get("phase")
            job = _owner(pod)
            # A pod that is being deleted counts as failed at once, as in Kubernetes.
            leaving = what == "DELETED" or "deletionTimestamp" in metadata
            if not job or (phase not in _OVER and not leaving):
                continue
            index = int(metadata.get("labels", {}).get(INDEX, 0))
            if phase == "Succeeded":
                self._done.setdefault(job, {})[metadata["uid"]] = index
            elif metadata["uid"] not in self._done.get(job, {}) and index < sizes.get(job, 0):
                # Not if the index was removed because the Job has shrunk.
                self._failed.setdefault(job, set()).add(metadata["uid"])

    def _bring_on(self, job: Object) -> None:
        uid, spec, size = job["metadata"]["uid"], job["spec"], _size(job)
        indexed = spec.get("completionMode") == "Indexed"
        if "deletionTimestamp" in job["metadata"]:
            return
        done = set(self._done.get(uid, {}).values()) & set(range(size))
        failed = len(self._failed.get(uid, ()))
        status = job.get("status", {})
        if status.get("conditions"):
            self._expire(job, status["conditions"][-1]["lastTransitionTime"])
            return
        new: Object = {"succeeded": len(done), "failed": failed} if done or failed else {}
        if indexed and done:
            new["completedIndexes"] = as_ranges(done)
        limit, since = spec.get("backoffLimit", 6), {"lastTransitionTime": now()}
        if len(done) == size:
            new["conditions"] = [{"type": "Complete", "status": "True", **since}]
        elif failed > limit:
            why = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified"}
            new["conditions"] = [{"type": "Failed", "status": "True", **why, **since}]
        if new and {key: status.get(key) for key in new} != new:
            job = self._store.write(
                self._jobs, job["metadata"]["namespace"], {**job, "status": {**status, **new}},
                part="status",
            )  # fmt: skip
        over = bool(new.get("conditions")) or spec.get("suspend", False)
        self._pods_of(job, size, done, over=over)

    def _expire(self, job: Object, ended: str) -> None:
        """Delete a Job that ended ``ttlSecondsAfterFinished`` ago."""
        ttl, metadata = job["spec"].get("ttlSecondsAfterFinished"), job["metadata"]
        if ttl is not None and ended <= now(-int(ttl)):
            self._store.delete_foreground(self._jobs, metadata["namespace"], metadata["name"])

    def _pods_of(self, job: Object, size: int, done: set[int], *, over: bool) -> None:
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        active = {
            pod["metadata"]["name"]: int(pod["metadata"].get("labels", {}).get(INDEX, 0))
            for pod in self._owned.get(job["metadata"]["uid"], ())
            if "deletionTimestamp" not in pod["metadata"]
            and pod.get("status", {}).get("phase") not in _OVER
        }
        for pod, index in active.items():
            if over or index >= size:
                self._store.delete(self._pods, namespace, pod, grace=max(self._grace, 0.01))
                if not self._on_a_node(namespace, pod):
                    self._terminating[(namespace, pod)] = time.monotonic() + self._grace
        if over:
            return
        for index in sorted(set(range(size)) - done - set(active.values())):
            try:
                self._store.create(self._pods, namespace, _pod(job, name, index))
            except Refusal as refusal:
                if refusal.code == 403:
                    self._warn(job, refusal.message)
                raise

    def _warn(self, job: Object, message: str) -> None:
        """Create an Event about a pod that could not be created, once per Job and reason."""
        metadata = job["metadata"]
        warning = metadata["uid"], message.partition(" is forbidden: ")[2]
        if warning in self._warned:
            return
        self._warned.add(warning)
        about = {key: metadata[key] for key in ("name", "namespace", "uid")}
        body = {
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": {"kind": "Job", **about}, "type": "Warning", "reason": "FailedCreate",
            "message": f"Error creating: {message}", "lastTimestamp": now(),
        }  # fmt: skip
        self._store.create(self._events, metadata["namespace"], body)

    def _on_a_node(self, namespace: str, pod: str) -> bool:
        return bool(self._store.get(self._pods, namespace, pod)["spec"].get("nodeName"))


def _size(job: Object) -> int:
    """Return the number of a Job's indices; 1 if it is not indexed."""
    indexed = job["spec"].get("completionMode") == "Indexed"
    return int(job["spec"].get("completions", 1)) if indexed else 1


def _owner(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences", ())
    return next((each["uid"] for each in owners if each["kind"] == "Job"), "")


def _pod(job: Object, name: str, index: int) -> Object:
    template = job["spec"]["template"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name}
    owner |= {"uid": job["metadata"]["uid"], "controller": True}
    labels = {**template.get("metadata", {}).get("labels", {}), "job-name": name}
    labels["batch.kubernetes.io/job-name"] = name
    spec = dict(template["spec"])
    generated = f"{name}-"
    if job["spec"].get("completionMode") == "Indexed":
        labels[INDEX] = str(index)
        generated = f"{name}-{index}-"
        spec["hostname"] = f"{name}-{index}"
        field: Any = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        told = [{"name": "JOB_COMPLETION_INDEX", "valueFrom": field}]
        for part in ("initContainers", "containers"):
            if part in spec:
                spec[part] = [{**c, "env": [*c.get("env", ()), *told]} for c in spec[part]]
    metadata = {"generateName": generated, "labels": labels, "ownerReferences": [owner]}
    notes = template.get("metadata", {}).get("annotations")
    metadata |= {"annotations": notes} if notes else {}
    return {"metadata": metadata, "spec": spec}


def as_ranges(numbers: Iterable[int]) -> str:
    """Return the numbers in the format of a Job's status, such as ``0,2-4``."""
    found: list[list[int]] = []
    for each in sorted(numbers):
        if found and found[-1][1] == each - 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
