"""Player of what else is in a cluster: Deployments that become available, Jobs that make pods, and
pods that run, end and are killed as a test says.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from .kinds import BATCH
from .operator import INDEX
from .refusals import Refusal
from .server import Cluster
from .store import Object, now

__all__ = ["Player"]


class Player:
    """Plays in a stand-in until it is stopped. ``delay`` is in seconds, between two rounds.

    Every pod runs by itself; how that of index 0 of a Job ends is said with :meth:`end` and
    :meth:`kill`.
    """

    def __init__(self, cluster: Cluster, delay: float = 0.05) -> None:
        self._store = cluster.store
        self._deployments = cluster.store.kinds[("apps", "deployments")]
        self._jobs = cluster.store.kinds[(BATCH, "jobs")]
        self._pods = cluster.store.kinds[("", "pods")]
        self._delay = delay
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="player", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    def end(self, namespace: str, job: str, code: int = 0, message: str | None = None) -> None:
        """Have the run in pod 0 of a Job end with an exit code, as its script tells it."""
        said = f"ensemble: exit {code}\n" if message is None else message
        self._ended(namespace, job, "Succeeded", {"exitCode": 0, "message": said})

    def kill(self, namespace: str, job: str) -> None:
        """Have pod 0 of a Job killed; the Job makes another, as often as it may."""
        self._ended(namespace, job, "Failed", {"exitCode": 137, "reason": "Error"})
        with self._store.changed, contextlib.suppress(Refusal):
            found = self._store.get(self._jobs, namespace, job)
            status = found.get("status", {})
            failed = status.get("failed", 0) + 1
            status["failed"] = failed
            if failed > found["spec"].get("backoffLimit", 6):
                status["conditions"] = [{"type": "Failed", "status": "True"}]
            found["status"] = status
            self._store.write(self._jobs, namespace, found, part="status")

    def pod(self, namespace: str, job: str) -> Object | None:
        """Pod 0 of a Job, as long as it has not failed and is not being deleted."""
        for pod in self._store.all(self._pods, namespace):
            labels = pod["metadata"].get("labels", {})
            if labels.get("job-name") != job or labels.get(INDEX, "0") != "0":
                continue
            if "deletionTimestamp" in pod["metadata"]:
                continue
            if pod.get("status", {}).get("phase") != "Failed":
                return pod
        return None

    def _ended(self, namespace: str, job: str, phase: str, state: dict[str, Any]) -> None:
        with self._store.changed:
            pod = self.pod(namespace, job)
            if pod is None:
                raise LookupError(f"{job} has no pod 0")
            self._set(pod, phase, {"terminated": state})

    def _set(self, pod: Object, phase: str, state: dict[str, Any]) -> None:
        began = pod.get("status", {}).get("startTime") or now()
        names = [each["name"] for each in pod["spec"]["containers"]]
        pod["status"] = {
            "phase": phase,
            "startTime": began,
            "containerStatuses": [{"name": each, "state": state} for each in names],
        }
        self._store.write(self._pods, pod["metadata"]["namespace"], pod)

    def _work(self) -> None:
        while not self._stopping.wait(self._delay):
            for found in self._store.all(self._deployments):
                wanted = found["spec"].get("replicas", 1)
                if found.get("status", {}).get("availableReplicas") != wanted:
                    found["status"] = {"availableReplicas": wanted, "replicas": wanted}
                    with contextlib.suppress(Refusal):
                        namespace = found["metadata"]["namespace"]
                        self._store.write(self._deployments, namespace, found, part="status")
            for job in self._store.all(self._jobs):
                owners = job["metadata"].get("ownerReferences", ())
                if not any(each["kind"] == "MiniCluster" for each in owners):
                    with contextlib.suppress(Refusal):
                        self._begin(job)
            for pod in self._store.all(self._pods):
                if "status" not in pod and "deletionTimestamp" not in pod["metadata"]:
                    with contextlib.suppress(Refusal):
                        self._set(pod, "Running", {"running": {"startedAt": now()}})

    def _begin(self, job: Object) -> None:
        """The one pod of a Job that is no MiniCluster's."""
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        over = job.get("status", {}).get("conditions")
        if over or self.pod(namespace, name) is not None:
            return
        template = job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
        owner["uid"] = job["metadata"]["uid"]
        labels = {**template["metadata"].get("labels", {}), "job-name": name}
        metadata = {"generateName": f"{name}-", "labels": labels, "ownerReferences": [owner]}
        self._store.create(self._pods, namespace, {"metadata": metadata, "spec": template["spec"]})
