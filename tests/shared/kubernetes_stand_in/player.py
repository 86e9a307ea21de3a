"""Simulation of the rest of a cluster: Deployments that become available, Jobs that create pods,
and pods that run, end and are killed under a test's control.

A member's exit code is that of its script: a shell runs the lines after Flux.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from .entrypoint import post_script
from .jobs import INDEX, JobController
from .kinds import BATCH, FLUX
from .pods import pod_status
from .refusals import Refusal
from .server import Cluster
from .store import Object, now

__all__ = ["Player"]


class Player:
    """Simulation in a stand-in until it is stopped, with ``delay`` seconds between rounds.

    With ``plays_pods``, pods run without a node. Tests end the pod with index 0 of a Job with
    :meth:`end`, :meth:`kill`, :meth:`kill_container` and :meth:`drain`.
    """

    def __init__(self, cluster: Cluster, delay: float = 0.05, *, plays_pods: bool = True) -> None:
        self._store = cluster.store
        self._deployments = cluster.store.kinds[("apps", "deployments")]
        self._jobs = cluster.store.kinds[(BATCH, "jobs")]
        self._pods = cluster.store.kinds[("", "pods")]
        self._secrets = cluster.store.kinds[("", "secrets")]
        self._events = cluster.store.kinds[("", "events")]
        self._miniclusters = cluster.store.kinds[(FLUX, "miniclusters")]
        self._delay, self._plays_pods = delay, plays_pods
        self._controller = JobController(cluster.store)
        self._count = 0
        #: States of pods that never run, for example because of a missing image, by the Job's name.
        self.stuck: dict[str, dict[str, Any]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="player", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    def end(self, namespace: str, job: str, code: int = 0, message: str | None = None) -> None:
        """End the run in pod 0 of a Job. Its script reports the exit code in a message."""
        said = f"ensemble: exit {code}\n" if message is None else message
        self._ended(namespace, job, said, 0)

    def kill(self, namespace: str, job: str) -> None:
        """Kill the run in pod 0 of a Job. If Flux started it, the container continues and ends like
        the Flux Operator's script."""
        self._ended(namespace, job, "", 137)

    def kill_container(self, namespace: str, job: str) -> None:
        """Kill the whole container in pod 0 of a Job."""
        with self._store.changed:
            self._terminate(self._first(namespace, job), {"exitCode": 137, "reason": "Error"})

    def drain(self, namespace: str, job: str) -> None:
        """Evict pod 0 of a Job, as if its node were drained: its run is stopped by SIGTERM and
        reports no outcome, because it has not ended."""
        with self._store.changed:
            pod = self._first(namespace, job)
            name = pod["metadata"]["name"]
            self._store.delete(self._pods, namespace, name, grace=30)
            code = self._exit_code(pod, "", 143)
            pod = self._store.get(self._pods, namespace, name)
            self._terminate(pod, {"exitCode": code, "reason": "Completed" if not code else "Error"})
            self._store.delete_now(self._pods, namespace, name)

    def pod(self, namespace: str, job: str, index: int = 0) -> Object | None:
        """Return a pod of a Job, or ``None`` if it has failed or is being deleted."""

        def wanted(pod: Object) -> bool:
            labels = pod["metadata"].get("labels", {})
            mine = labels.get("job-name") == job and labels.get(INDEX, "0") == str(index)
            leaving = "deletionTimestamp" in pod["metadata"]
            return mine and not leaving and pod.get("status", {}).get("phase") != "Failed"

        return next(iter(self._store.all(self._pods, namespace, wanted)), None)

    def _first(self, namespace: str, job: str) -> Object:
        pod = self.pod(namespace, job)
        if pod is None:
            raise LookupError(f"{job} has no pod 0")
        return pod

    def _ended(self, namespace: str, job: str, message: str, code: int) -> None:
        with self._store.changed:
            pod = self._first(namespace, job)
            code = self._exit_code(pod, message, code)
            told = {"message": message} if message else {}
            reason = "Error" if code else "Completed"
            self._terminate(pod, {"exitCode": code, "reason": reason, **told})

    def _exit_code(self, pod: Object, message: str, code: int) -> int:
        """Return the exit code of a container after Flux ended with ``code`` and the run left this
        termination message. Without Flux, it is ``code``."""
        name = pod["metadata"]["labels"]["job-name"]
        try:
            spec = self._store.get(self._miniclusters, pod["metadata"]["namespace"], name)["spec"]
        except Refusal:
            return code
        if (spec.get("logging") or {}).get("strict") and code:
            return code
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "termination-log")
            told.write_text(message)
            script = post_script(spec).replace("/dev/termination-log", str(told))
            mount = ((spec.get("flux") or {}).get("container") or {}).get("mountPath")
            script = script.replace(mount or "/mnt/flux", folder)
            index = pod["metadata"]["labels"].get(INDEX, "0")
            return subprocess.run(
                ["/bin/bash", "-c", f"retval={code}\n{script}"],
                env={"JOB_COMPLETION_INDEX": index, "PATH": "/usr/bin:/bin",
                     "ENSEMBLE_PID": f"{folder}/ensemble.pid"},
                capture_output=True, check=False, timeout=150,
            ).returncode  # fmt: skip

    def _terminate(self, pod: Object, ended: Object) -> None:
        """End all containers of a pod: the run's as given, the others successfully."""
        first = pod["spec"]["containers"][0]["name"]
        states: dict[str, Object] = {
            each["name"]: {"terminated": {"exitCode": 0, "reason": "Completed"}}
            for part in ("initContainers", "containers")
            for each in pod["spec"].get(part, ())
        }
        job = pod["metadata"]["labels"]["job-name"]
        states[job if job in states else first] = {"terminated": ended}
        self._set(pod, states)

    def _set(self, pod: Object, states: dict[str, Object]) -> None:
        self._count += 1
        address = pod.get("status", {}).get("podIP") or f"10.244.{self._count // 250}.{self._count % 250 + 1}"  # fmt: skip
        pod["status"] = pod_status(pod, states, address=address)
        self._store.write(self._pods, pod["metadata"]["namespace"], pod, part="status")

    def _work(self) -> None:
        for _ in self._store.rounds(self._stopping, self._delay):
            for found in self._store.all(self._deployments):
                with contextlib.suppress(Refusal):
                    self._deploy(found)
            jobs = self._store.all(self._jobs, only=_unfinished)
            self._controller.look(each for each in jobs if not _is_minicluster(each))
            for pod in self._store.all(self._pods) if self._plays_pods else ():
                begun = pod.get("status", {}).get("phase", "Pending") != "Pending"
                if begun or "deletionTimestamp" in pod["metadata"]:
                    continue
                with contextlib.suppress(Refusal):
                    self._run(pod)

    def _run(self, pod: Object) -> None:
        stuck = self.stuck.get(pod["metadata"].get("labels", {}).get("job-name", ""))
        missing = self._missing(pod)
        if missing:
            stuck = {"waiting": {"reason": "ContainerCreating"}}
        if stuck and "status" in pod:
            return
        if missing:
            self._warn(
                pod, "FailedMount", f'MountVolume.SetUp failed : secret "{missing}" not found'
            )
        states: dict[str, Object] = {
            each["name"]: stuck or {"running": {"startedAt": now()}}
            for each in pod["spec"]["containers"]
        }
        for each in pod["spec"].get("initContainers", ()):
            over = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            states[each["name"]] = stuck or over
        self._set(pod, states)

    def _missing(self, pod: Object) -> str:
        """Return the name of a missing Secret that the pod mounts, or an empty text."""
        for volume in pod["spec"].get("volumes", ()):
            name = volume.get("secret", {}).get("secretName")
            if name:
                try:
                    self._store.get(self._secrets, pod["metadata"]["namespace"], name)
                except Refusal:
                    return str(name)
        return ""

    def _warn(self, about: Object, reason: str, message: str) -> None:
        """Create an Event like those of the kubelet and of controllers."""
        metadata = about["metadata"]
        names = {key: metadata[key] for key in ("name", "namespace", "uid")}
        body = {
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": {"kind": about["kind"], **names},
            "reason": reason, "message": message, "type": "Warning", "lastTimestamp": now(),
        }  # fmt: skip
        self._store.create(self._events, metadata["namespace"], body)

    def _deploy(self, found: Object) -> None:
        """Update a Deployment. It is available at once, or, if a node runs its pod, once the pod
        is ready. The Deployment owns the pod itself: there are no ReplicaSets."""
        wanted = found["spec"].get("replicas", 1)
        if not self._plays_pods:
            wanted = self._pod_of(found, wanted)
        status = {"availableReplicas": wanted, "replicas": wanted} if wanted else {}
        if (found.get("status") or {}).get(
            "availableReplicas", 0
        ) != wanted or "status" not in found:
            namespace = found["metadata"]["namespace"]
            self._store.write(
                self._deployments, namespace, {**found, "status": status}, part="status"
            )

    def _pod_of(self, found: Object, wanted: int) -> int:
        """Create or replace the pod of a Deployment; return the number of ready pods."""
        metadata, template = found["metadata"], found["spec"]["template"]
        noted = {"template": str(hash(str(template)))}
        mine = [
            pod
            for pod in self._store.all(self._pods, metadata["namespace"])
            if any(o["uid"] == metadata["uid"] for o in pod["metadata"].get("ownerReferences", ()))
        ]
        there = [pod for pod in mine if "deletionTimestamp" not in pod["metadata"]]
        for pod in there:
            over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if over or not wanted or pod["metadata"]["annotations"] != noted:
                self._store.delete(self._pods, metadata["namespace"], pod["metadata"]["name"])
        if wanted and not mine:
            owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"]}
            body = {
                "metadata": {
                    "generateName": f"{metadata['name']}-",
                    "labels": template["metadata"]["labels"],
                    "annotations": noted,
                    "ownerReferences": [{**owner, "uid": metadata["uid"], "controller": True}],
                },
                "spec": template["spec"],
            }
            self._store.create(self._pods, metadata["namespace"], body)
        return sum(
            each["type"] == "Ready" and each["status"] == "True"
            for pod in there
            for each in pod.get("status", {}).get("conditions", ())
        )


def _unfinished(job: Object) -> bool:
    return not job.get("status", {}).get("conditions")


def _is_minicluster(job: Object) -> bool:
    owners = job["metadata"].get("ownerReferences", ())
    return any(each["kind"] == "MiniCluster" for each in owners)
