"""The Flux Operator's habits, as seen in real clusters: what it does, and what it does silently.

It watches the store and acts a little later than it is asked: a pod for each index, and the status.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from .flux_job import job_of, pod_errors
from .kinds import BATCH, FLUX
from .refusals import Refusal, invalid
from .server import Cluster
from .store import Object

#: How an indexed Job's pods say which they are.
INDEX = "batch.kubernetes.io/job-completion-index"


class Operator:
    """
    Parameters
    ----------
    cluster:
        The stand-in that it works in.
    delay:
        Seconds between a change and what it does about it (0.8 in a real cluster).
    grace:
        Seconds that a pod goes on after it was deleted (30 in a real cluster).
    """

    def __init__(self, cluster: Cluster, delay: float = 0.05, grace: float = 0.5) -> None:
        self._store = cluster.store
        self._miniclusters = cluster.store.kinds[(FLUX, "miniclusters")]
        self._pods = cluster.store.kinds[("", "pods")]
        self._delay = delay
        self._grace = grace
        #: How many pods each MiniCluster really has is what its Job says.
        self._jobs = cluster.store.kinds[(BATCH, "jobs")]
        #: What it says, and tells nobody else.
        self.log: list[str] = []
        #: Called when it is about to tell the new size: a change by others just then loses it.
        self.before_status: Callable[[], None] = lambda: None
        self._terminating: dict[tuple[str, str], float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    def _work(self) -> None:
        while not self._stopping.wait(self._delay):
            for found in self._store.all(self._miniclusters):
                with contextlib.suppress(Refusal):  # changed meanwhile: again the next time
                    self._reconcile(found)
            self._end_pods()

    def _reconcile(self, found: Object) -> None:
        spec, status = found["spec"], found.get("status", {})
        size, most, least = spec["size"], spec.get("maxSize", 0), spec.get("minSize", 0)
        if found["metadata"].get("deletionTimestamp"):
            return
        # Silently: no event, nothing in the status, and spec.size stays as wrong as it is.
        if size < 1 or (most and most < size) or (least and least > size):
            return
        namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
        maximum = status.get("maximumSize") or max(size, most)
        try:
            job = self._store.get(self._jobs, namespace, name)
        except Refusal:
            job = self._begin(found)
        if job["spec"]["parallelism"] != size:
            if size > maximum:
                # Without a maxSize: back to the size that it was made with.
                found["spec"]["size"] = maximum
                found = self._store.write(self._miniclusters, namespace, found)
                self._set_status(found, size=maximum, maximum=maximum)
                return
            job["spec"] |= {"parallelism": size, "completions": size}
            job = self._store.write(self._jobs, namespace, job)
            # Whether that is taken is not looked at; and now that the Job is as it should be, the
            # size is not told again.
            with contextlib.suppress(Refusal):
                self.before_status()
                self._set_status(found, size=size, maximum=maximum)
        elif not status.get("selector"):
            # The size of the status stays at 0 until the first resize.
            self._set_status(found, size=status.get("size", 0), maximum=maximum)
        self._scale(found, job)

    def _begin(self, found: Object) -> Object:
        """The Job; what the API server has against it is only in the operator's own log."""
        job = job_of(found)
        wrong = pod_errors(job["spec"]["template"]["spec"])
        if wrong:
            self.log.append(f'Job.batch "{job["metadata"]["name"]}" is invalid: {"; ".join(wrong)}')
            raise invalid("Job", "batch", job["metadata"]["name"], wrong)
        return self._store.create(self._jobs, found["metadata"]["namespace"], job)

    def _set_status(self, found: Object, *, size: int, maximum: int) -> None:
        name = found["metadata"]["name"]
        status: dict[str, Any] = {
            "jobid": "",
            "maximumSize": maximum,
            "selector": f"hpa-selector={name}",
            "size": size,
        }
        self._store.write(
            self._miniclusters,
            found["metadata"]["namespace"],
            {**found, "status": status},
            part="status",
        )

    def _scale(self, found: Object, job: Object) -> None:
        """A pod for each index; those of the highest go first, and take their time to."""
        namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
        size = job["spec"]["parallelism"]
        if any(each["type"] == "Failed" for each in job.get("status", {}).get("conditions", ())):
            return
        mine = {
            pod["metadata"]["name"]: int(pod["metadata"]["labels"][INDEX])
            for pod in self._store.all(self._pods, namespace)
            if pod["metadata"].get("labels", {}).get("job-name") == name
            and "deletionTimestamp" not in pod["metadata"]
            # A pod that has failed is begun again, as another.
            and pod.get("status", {}).get("phase") != "Failed"
        }
        for pod, index in mine.items():
            if index >= size:
                self._store.delete(self._pods, namespace, pod, grace=max(self._grace, 0.01))
                self._terminating[(namespace, pod)] = time.monotonic() + self._grace
        template = job["spec"]["template"]
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name}
        owner["uid"] = job["metadata"]["uid"]
        for index in set(range(size)) - set(mine.values()):
            labels = {**template["metadata"]["labels"], "job-name": name, INDEX: str(index)}
            self._store.create(
                self._pods,
                namespace,
                {
                    "metadata": {
                        "generateName": f"{name}-{index}-",
                        "labels": labels,
                        "ownerReferences": [owner],
                    },
                    "spec": template["spec"],
                },
            )

    def _end_pods(self) -> None:
        for (namespace, pod), end in list(self._terminating.items()):
            if time.monotonic() >= end:
                del self._terminating[(namespace, pod)]
                with contextlib.suppress(Refusal):
                    self._store.delete_now(self._pods, namespace, pod)
