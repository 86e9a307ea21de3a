"""The operator with many Ensembles: 200 with 3 members each, on the stand-in.

    python benchmarks/operator_scale.py [ENSEMBLES [SECONDS]]

The operator runs in a separate process. Deployments, first pods and services (with heartbeats of
members) are simulated. Prints the time until all are ready, the requests per second while nothing
changes and in the busiest minute, the delay until a changed image is in its Deployment, and the
operator's memory. Secrets are checked every half hour: measure for 2,400 seconds to include that.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

from ensemble_operator.crd_schema import definition as ensembles
from kubernetes_stand_in import Cluster, definition
from kubernetes_stand_in.kinds import EXTENSIONS

OPERATOR = """
import asyncio, sys, time, kopf
from ensemble_operator.changes import Figures
from ensemble_operator.settings import Settings
from ensemble_operator.kopf_watch import Operator

class Asking:
    async def __call__(self, key, target):
        names = [f"{key[0]}/{key[1]}-{index}" for index in range(3)]
        return {name: Figures(time.time(), {"nodes.up": 1.0, "queue.run": 2.0}) for name in names}
    def forget(self, key): ...
    def close(self): ...

url, token = sys.argv[1:]
login = lambda: kopf.ConnectionInfo(server=url, token=token)
asyncio.run(Operator(Settings(), ("default",), asking=Asking(), login=login).run())
"""
FILE = """\
jobs: [{name: a, command: 'true'}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


def ensemble(index: int) -> dict[str, Any]:
    member = {"minicluster": {"spec": {"containers": [{"image": "a"}]}}, "ensemble": FILE}
    return {
        "metadata": {"name": f"study-{index}"},
        "spec": {"members": [member] * 3, "sidecar": {"image": "first:1"}},
    }


class World:
    """Cluster with a thread that simulates its other components."""

    def __init__(self) -> None:
        self.cluster = Cluster(definition())
        store = self.cluster.store
        store.create(store.kinds[(EXTENSIONS, "customresourcedefinitions")], "", ensembles())
        self.ensembles = store.kinds[("ensemble.flux-framework.org", "ensembles")]
        self.deployments = store.kinds[("apps", "deployments")]
        self.pods = store.kinds[("", "pods")]
        self.patched: dict[str, float] = {}
        threading.Thread(target=self._play, daemon=True).start()

    def _play(self) -> None:
        store, seen = self.cluster.store, 0
        while True:
            with store.changed:
                news = (
                    store.history[seen:] or (store.changed.wait(1) and store.history[seen:]) or []
                )
            seen += len(news)
            for _, what, (_, plural, namespace, name), found, _ in news:
                if plural == "deployments" and what == "ADDED":
                    found = {**found, "status": {"availableReplicas": 1}}
                    store.write(self.deployments, namespace, found, part="status")
                elif plural == "deployments" and "second:2" in str(found["spec"]):
                    self.patched.setdefault(name, time.monotonic())
                elif plural == "miniclusters" and what == "ADDED":
                    self._pod(namespace, name, found)

    def _pod(self, namespace: str, name: str, minicluster: dict[str, Any]) -> None:
        labels = {**minicluster["spec"]["pod"]["labels"], "job-name": name}
        state = {"name": name, "state": {"running": {}}}
        status = {"phase": "Running", "containerStatuses": [state]}
        body = {"metadata": {"name": f"{name}-0", "labels": labels}, "spec": {}}
        store = self.cluster.store
        made = store.create(self.pods, namespace, body)
        store.write(self.pods, namespace, {**made, "status": status}, part="status")

    def ready(self) -> int:
        found = self.cluster.store.all(self.ensembles)
        return sum(each.get("status", {}).get("phase") == "Running" for each in found)


def memory(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def cpu(pid: int) -> float:
    """Return the CPU seconds of process ``pid``."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(count: int = 200, seconds: int = 60) -> None:
    world = World()
    store, cluster = world.cluster.store, world.cluster
    command = [sys.executable, "-c", OPERATOR, cluster.url, cluster.token]
    settings = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # as in deploy/one-namespace/operator.yaml
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=settings) as operator:
        try:
            began = time.monotonic()
            for index in range(count):
                store.create(world.ensembles, "default", ensemble(index))
            while world.ready() < count:
                time.sleep(1)
            took_until = f"{time.monotonic() - began:.0f} s, {cpu(operator.pid):.1f} s of CPU time"
            print(f"{count} Ensembles with 3 members: ready after {took_until} of the operator")
            print(f"requests until then: {dict(Counter(method for method, _ in cluster.log))}")
            time.sleep(5)
            before, marks = len(cluster.log), [len(cluster.log)]
            for _ in range(max(1, seconds // 60)):
                time.sleep(min(60, seconds))
                marks.append(len(cluster.log))
            done, minutes = cluster.log[before : marks[-1]], itertools.pairwise(marks)
            kinds = Counter(method for method, _ in done)
            most = max(after - earlier for earlier, after in minutes) / min(60, seconds)
            rate = len(done) / ((len(marks) - 1) * min(60, seconds))
            print(f"while nothing changes: {rate:.2f} requests/s {dict(kinds)}, {most:.2f} at most")
            took = []
            for index in range(0, count, max(1, count // 30)):
                found = store.get(world.ensembles, "default", f"study-{index}")
                found["spec"]["sidecar"]["image"] = "second:2"
                asked = time.monotonic()
                store.write(world.ensembles, "default", found)
                while f"study-{index}" not in world.patched:
                    time.sleep(0.005)
                took.append(world.patched[f"study-{index}"] - asked)
            print(
                f"a change is at its Deployment after {statistics.median(took):.2f} s at the median"
            )
            print(f"memory of the operator: {memory(operator.pid):.0f} MiB")
        finally:
            operator.terminate()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
