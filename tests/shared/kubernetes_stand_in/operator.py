"""The Flux Operator with its quirks as observed in real clusters, including silent failures.

It watches the store and, after a delay, writes scripts, a Service, a Job, and the status. The
controller of Jobs, which runs here too, does the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from .endpoints import EndpointController
from .entrypoint import entrypoints
from .flux_job import job_of, pod_errors
from .jobs import INDEX, JobController
from .kinds import BATCH, FLUX
from .refusals import Refusal, invalid
from .server import Cluster
from .store import Object

__all__ = ["INDEX", "Operator"]


class Operator:
    """Operator of the MiniClusters in a stand-in.

    Parameters
    ----------
    cluster:
        The stand-in.
    delay:
        Seconds between a change and the reaction to it (0.8 in a real cluster).
    grace:
        Seconds that a deleted pod keeps running (30 in a real cluster).
    """

    def __init__(self, cluster: Cluster, delay: float = 0.05, grace: float = 0.5) -> None:
        self._store = cluster.store
        self._miniclusters = cluster.store.kinds[(FLUX, "miniclusters")]
        self._services = cluster.store.kinds[("", "services")]
        self._config_maps = cluster.store.kinds[("", "configmaps")]
        self._delay = delay
        self._controller = JobController(cluster.store, grace)
        self._endpoints = EndpointController(cluster.store)
        #: A MiniCluster's real size is that of its Job.
        self._jobs = cluster.store.kinds[(BATCH, "jobs")]
        #: Log messages of errors that are reported nowhere else.
        self.log: list[str] = []
        #: Called before it writes a new size to the status: a change by others now loses it.
        self.before_status: Callable[[], None] = lambda: None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    def _work(self) -> None:
        for _ in self._store.rounds(self._stopping, self._delay):
            for found in self._store.all(self._miniclusters):
                with contextlib.suppress(Refusal):  # changed meanwhile: retry in the next round
                    self._reconcile(found)
            jobs = self._store.all(self._jobs)
            self._controller.look(each for each in jobs if _is_minicluster(each))
            self._endpoints.look()

    def _reconcile(self, found: Object) -> None:
        spec, status = found["spec"], found.get("status", {})
        size, most, least = spec["size"], spec.get("maxSize", 0), spec.get("minSize", 0)
        if found["metadata"].get("deletionTimestamp"):
            return
        # Ignored silently: no event, nothing in the status, and spec.size keeps its invalid value.
        if size < 1 or (most and most < size) or (least and least > size) or not _is_valid(spec):
            return
        namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
        maximum = status.get("maximumSize") or max(size, most)
        try:
            job = self._store.get(self._jobs, namespace, name)
        except Refusal:
            job = self._begin(found)
        if job["spec"]["parallelism"] != size:
            if size > maximum:
                # Reset to the maximum: without a maxSize, the size at creation.
                found["spec"]["size"] = maximum
                found = self._store.write(self._miniclusters, namespace, found)
                self._set_status(found, size=maximum, maximum=maximum)
                return
            job["spec"] |= {"parallelism": size, "completions": size}
            job = self._store.write(self._jobs, namespace, job)
            # The operator ignores errors here, and does not write the size again, because the Job
            # already has it.
            with contextlib.suppress(Refusal):
                self.before_status()
                self._set_status(found, size=size, maximum=maximum)
        elif not status.get("selector"):
            # The size in the status stays 0 until the first resize.
            self._set_status(found, size=status.get("size", 0), maximum=maximum)

    def _begin(self, found: Object) -> Object:
        """Create the Job, its scripts and its Service; return the Job. Errors of the API server are
        only in the operator's log."""
        name = found["metadata"]["name"]
        job = job_of(found)
        owners = job["metadata"]["ownerReferences"]
        files = {"name": f"{name}-entrypoint", "ownerReferences": owners}
        self._have(self._config_maps, found, {"metadata": files, "data": entrypoints(found)})
        service = {"name": job["spec"]["template"]["spec"]["subdomain"], "ownerReferences": owners}
        # An existing Service is kept unchanged. It has the addresses of ready pods only.
        selects = {"clusterIP": "None", "selector": {"job-name": name}}
        self._have(self._services, found, {"metadata": service, "spec": selects})
        wrong = pod_errors(job["spec"]["template"]["spec"])
        if wrong:
            self.log.append(f'Job.batch "{job["metadata"]["name"]}" is invalid: {"; ".join(wrong)}')
            raise invalid("Job", "batch", job["metadata"]["name"], wrong)
        return self._store.create(self._jobs, found["metadata"]["namespace"], job)

    def _have(self, kind: Any, found: Object, body: Object) -> None:
        """Create an object unless one with its name exists."""
        namespace = found["metadata"]["namespace"]
        try:
            self._store.get(kind, namespace, body["metadata"]["name"])
        except Refusal:
            self._store.create(kind, namespace, body)

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


def _is_valid(spec: Object) -> bool:
    """Return the result of ``MiniCluster.Validate``, whose reasons are only in the log."""
    containers, services = spec["containers"], spec.get("services") or ()
    runners = [each for each in containers if each.get("runFlux") or len(containers) == 1]
    commands = ("pre", "brokerPre", "workerPre")
    volumes = [v for c in (*containers, *services) for v in (c.get("volumes") or {}).values()]
    return (
        len(runners) == 1
        and all(each.get("name") for each in containers if each not in runners)
        and not any(each.get("launcher") and each.get("batch") for each in containers)
        and not any(r.get("command") and r.get("commands", {}).get("script") for r in runners)
        and all(each.get("name") for each in services)
        and not any(each.get("commands", {}).get(key) for each in services for key in commands)
        and spec.get("backoffLimit", 0) >= 0
        and all(
            v.get("secretName")
            or v.get("configMapName")
            or v.get("path")
            or not (v.get("claimName") or v.get("hostPath"))
            for v in volumes
        )
    )


def _is_minicluster(job: Object) -> bool:
    owners = job["metadata"].get("ownerReferences", ())
    return any(each["kind"] == "MiniCluster" for each in owners)
