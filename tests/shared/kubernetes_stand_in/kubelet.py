"""Node for the pods of Jobs: a scheduler and a kubelet that run containers as local processes.

It communicates only with the API server, over HTTP, with one watch of pods. Containers see the
files of this machine. Methods simulate failures of nodes and pods in real clusters.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .jobs import INDEX
from .node import _POD, _Api, _kill_all
from .quantities import amount
from .server import Cluster
from .store import now

__all__ = ["Kubelet"]

Object = dict[str, Any]
_MERGE = "application/merge-patch+json"
_NODE = "node-of-jobs"
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


class Kubelet:
    """Node with ``slots`` cores. It runs pods until it is closed.

    ``grace`` limits the grace periods of pods, in seconds. ``images`` maps images that cannot be
    pulled to the registry's message.
    """

    name = _NODE

    def __init__(
        self,
        cluster: Cluster,
        kubeconfig: Path,
        folder: Path,
        *,
        slots: int = 4,
        grace: float = 2.0,
        namespace: str = "default",
        images: Mapping[str, str] | None = None,
    ) -> None:
        self.api, self.folder, self.slots, self.grace = _Api(kubeconfig), folder, slots, grace
        self.images = dict(images or {})
        self.namespace = namespace
        self.problems: list[str] = []
        #: When the process of a Job's pod ended (seconds since the epoch), by the Job's name.
        self.ended: dict[str, float] = {}
        #: True while the node is disconnected: its containers run, but it reports nothing.
        self.lost = False
        self._news = threading.Condition()
        self._pods: dict[str, _Pod] = {}
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)
        cluster.logs = self.log
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._watch, self._schedule)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
        for pod in list(self._pods.values()):
            pod.kill()
        self._threads[1].join(10)

    def log(self, namespace: str, pod: str) -> Path | None:
        path = self.folder / f"{pod}.log"
        return path if path.exists() else None

    def pod(self, job: str) -> _Pod:
        """Return the started pod of a Job. Raises :class:`LookupError` if no pod has started."""
        with self._news:
            for pod in self._pods.values():
                if pod.job == job and pod.started:
                    return pod
        raise LookupError(job)

    def path(self, name: str, part: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}{part}"

    def ask(self, *request: Any) -> None:
        """Send a request, and again if its connection breaks. Raises :class:`LookupError`."""
        try:
            self.api(*request)
        except LookupError as error:
            if re.search(r": \d{3} ", str(error)):
                raise
            time.sleep(0.1)
            self.api(*request)

    def _watch(self) -> None:
        version = "0"
        while not self._closed:
            query = f"?watch=1&resourceVersion={version}&timeoutSeconds=300"
            request = urllib.request.Request(
                f"{self.api.url}/api/v1/namespaces/{self.namespace}/pods{query}",
                headers={"Authorization": f"Bearer {self.api.token}"},
            )
            try:
                with urllib.request.urlopen(request, context=self.api._tls) as answer:
                    for line in answer:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            version = "0"
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._told(event["type"], event["object"])
            except (OSError, ValueError, http.client.HTTPException):
                version = "0"
                time.sleep(0.1)

    def _told(self, what: str, found: Object) -> None:
        with self._news:
            uid = found["metadata"]["uid"]
            pod = self._pods.get(uid)
            if what == "DELETED":
                if pod is not None:
                    del self._pods[uid]
                    pod.kill()
            elif pod is None:
                if found.get("status", {}).get("phase", "Pending") == "Pending":
                    self._pods[uid] = _Pod(self, found)
            elif "deletionTimestamp" in found["metadata"] and not self.lost:
                pod.leave()
            self._news.notify_all()

    def _schedule(self) -> None:
        """Start pods in the order of their creation while cores are free."""
        while not self._closed:
            with self._news:
                free = self.slots - sum(
                    pod.cores for pod in self._pods.values() if pod.started and not pod.over
                )
                ready = []
                for pod in [each for each in self._pods.values() if not each.started]:
                    alone = pod.apart and any(
                        each.job == pod.job and each.started for each in self._pods.values()
                    )
                    if pod.cores <= free and not pod.gpus and not alone and not pod.elsewhere:
                        free -= pod.cores
                        pod.started = True
                        ready.append((pod, ""))
                    elif not pod.told:
                        pod.told = True
                        ready.append((pod, "0/1 nodes are available: 1 Insufficient cpu."))
                if not ready:
                    self._news.wait(0.5)
            for pod, why in ready:
                if why:
                    pod.say({"phase": "Pending", "conditions": [
                        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                         "message": why}]})  # fmt: skip
                else:
                    threading.Thread(target=pod.run, daemon=True).start()

    def freed(self) -> None:
        with self._news:
            self._news.notify_all()


class _Pod:
    """Pod on the node."""

    def __init__(self, node: Kubelet, found: Object) -> None:
        metadata, spec = found["metadata"], found["spec"]
        self.node, self.name, self.spec = node, metadata["name"], spec
        self.labels = metadata.get("labels", {})
        self.job = self.labels.get("job-name", "")
        (self.container,) = spec["containers"]
        resources = self.container.get("resources", {})
        self.cores = amount(resources.get("requests", {}).get("cpu", "0"))
        self.gpus = bool(resources.get("limits"))
        affinity = spec.get("affinity") or {}
        self.apart = "podAntiAffinity" in affinity
        self.elsewhere = f"'NotIn', 'values': ['{_NODE}']" in str(affinity)
        self.started = self.told = self.over = self.leaving = False
        self.process: subprocess.Popen[bytes] | None = None
        #: Its final status if it was ended from outside.
        self._verdict: Object | None = None
        self._lock = threading.RLock()
        #: Conditions in all later statuses: a kubelet keeps those of other components.
        self._conditions: list[Object] = [{"type": "PodScheduled", "status": "True"}]

    def say(self, status: Object) -> None:
        if self.node.lost:
            return
        try:
            self.node.ask("PATCH", self.node.path(self.name, "/status"), {"status": status}, _MERGE)
        except LookupError as error:
            if ": 404 " not in str(error):
                self.node.problems.append(str(error))

    def run(self) -> None:
        try:
            self._run()
        finally:
            self.over = True
            self.node.freed()

    def _run(self) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node.name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": self.name}}
        try:
            self.node.ask("POST", self.node.path(self.name, "/binding"), {**body, "target": target})
        except LookupError:
            return  # the pod was deleted
        image = self.container["image"]
        for reason in ("ErrImagePull", "ImagePullBackOff") if image in self.node.images else ():
            self._state({"waiting": {"reason": reason, "message": self.node.images[image]}})
            time.sleep(0.5)
        if image in self.node.images:
            while not self.leaving and not self.node._closed:
                time.sleep(0.05)
            self._gone()
            return
        try:
            began = self._start()
        except OSError as error:
            why = f'exec: "{self._words()[0]}": {error.strerror}'
            self._end({"exitCode": 128, "reason": "StartError", "message": why})
            return
        self._state({"running": {"startedAt": began}})
        assert self.process is not None
        limit = self.spec.get("activeDeadlineSeconds")
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self._verdict = {"phase": "Failed", "reason": "DeadlineExceeded", "message":
                             "Pod was active on the node longer than the specified deadline"}  # fmt: skip
            self.terminate()
            self.process.wait()
        self.node.ended[self.job] = time.time()
        self.kill()
        code = self.process.returncode
        code = 128 - code if code < 0 else code
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": began}
        self._end(ended)

    def _words(self) -> list[str]:
        known = self._environment()
        return [_expanded(each, known) for each in self.container["command"]]

    def _environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in self.container.get("env", ()):
            if "valueFrom" in each:
                found[each["name"]] = self.labels.get(INDEX, "0")
            else:
                found[each["name"]] = _expanded(each.get("value", ""), found)
        return found

    def _start(self) -> str:
        folder = Path(self.container.get("workingDir") or self.node.folder)
        folder.mkdir(parents=True, exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.node.folder)}
        environment |= {**self._environment(), _POD: self.name}
        with self._lock:
            if self.leaving:
                raise OSError(0, "the pod is being deleted")
            with (self.node.folder / f"{self.name}.log").open("ab") as log:
                self.process = subprocess.Popen(
                    self._words(), env=environment, cwd=folder, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        return now()

    def leave(self) -> None:
        """Start the termination of a pod that is being deleted."""
        with self._lock:
            if self.leaving:
                return
            self.leaving = True
        threading.Thread(target=self._leave, daemon=True).start()

    def _leave(self) -> None:
        if self.process is not None and not self.over:
            self.terminate()
        elif self.over or not self.started:
            self._gone()

    def terminate(self) -> None:
        """Send SIGTERM to its first process and, after the grace period, SIGKILL to all."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.node.grace)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to its process group; if it is ending, to all its processes."""
        process = self.process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if self.leaving or self._verdict or self.node._closed:
            _kill_all(self.name)  # also those in other sessions

    def end(self, status: Object) -> None:
        """Kill it and give it this final status."""
        self._verdict = status
        self.kill()

    def disrupt(self, reason: str, message: str = "", *, lost: bool = True) -> None:
        """Delete it with a ``DisruptionTarget`` condition, as after a preemption or a lost node.

        Unless ``lost``, a taint deletes it although its node works.
        """
        target = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        # Without a time, Kubernetes reverts the condition at once as outdated.
        self._conditions.append({**target, "message": message, "lastTransitionTime": now()})
        self.say({"conditions": self._conditions})
        self.node.lost = self.node.lost or (lost and reason == "DeletionByTaintManager")
        self.node.ask("DELETE", self.node.path(self.name))

    def _state(self, state: Object, **more: Any) -> None:
        """Report the pod's status with this state of its container."""
        status = {"name": self.container["name"], "image": self.container["image"], "imageID": "",
                  "ready": "running" in state, "restartCount": 0, "state": state}  # fmt: skip
        phase = "Running" if "running" in state else "Pending"
        conditions = self._conditions
        self.say({"phase": phase, "conditions": conditions, "containerStatuses": [status], **more})

    def _end(self, ended: Object) -> None:
        verdict = dict(self._verdict or {})
        ended = {**ended, **verdict.pop("terminated", {}), "finishedAt": now()}
        phase = "Failed" if ended["exitCode"] or verdict else "Succeeded"
        conditions = [*self._conditions, *verdict.pop("conditions", ())]
        if not self.leaving or not verdict:
            self._state(
                {"terminated": ended}, **{"phase": phase, "conditions": conditions, **verdict}
            )
        if self.leaving:
            self._gone()

    def _gone(self) -> None:
        """Remove the pod from the API server after it has ended."""
        if self.node.lost:
            return
        with contextlib.suppress(LookupError):
            self.node.ask("DELETE", self.node.path(self.name, "?gracePeriodSeconds=0"))


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Expand a text's variables like Kubernetes; ``$$`` is a dollar sign."""
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else known.get(m[1], m[0]), text)
