"""End-to-end test: a rule changes a MiniCluster's size.

``ensemble run``, the service and the Kubernetes stand-in are separate processes or servers. Jobs
run on this machine; the number of nodes is the stand-in's number of pods.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="no gRPC: pip install 'ensemble-core[service]'")
pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")

sys.path.insert(0, str(Path(__file__).parent / "kubernetes"))  # for the stand-in

from kubernetes_stand_in import Cluster, definition
from kubernetes_stand_in.kinds import FLUX

#: Executor in place of ``flux``: jobs run on this machine, and a gauge has the number of nodes.
PODS = """
import json, os, threading, urllib.request
from ensemble_core import ExecutorPlugin, Resources, hookimpl
from ensemble_core.local.executor import LocalExecutor

class Pods(LocalExecutor):
    def open(self, run, emit):
        super().open(run, emit)
        self.over = threading.Event()
        threading.Thread(target=self.look, args=(run, emit), daemon=True).start()

    def look(self, run, emit):
        token = {"Authorization": "Bearer " + os.environ["STANDIN_TOKEN"]}
        request = urllib.request.Request(os.environ["STANDIN"], headers=token)
        while not self.over.wait(0.1):
            with urllib.request.urlopen(request, timeout=150) as answer:
                size = json.load(answer)["spec"]["size"]
            emit((Resources(run.clock(), {"nodes.up": size}),))

    def close(self):
        self.over.set()
        super().close()

@hookimpl
def ensemble_executors():
    return [ExecutorPlugin(name="pods", summary="as many as on record", build=lambda _: Pods())]
"""

ENSEMBLE = """
logging: {heartbeat: 1}
jobs:
  - {name: sim, command: "true", count: 1}
rules:
  - {trigger: start, action: {name: grow, value: 9}}
  - id: grown
    trigger: resize-granted
    action: {name: submit, label: sim}
  - id: done
    trigger: metric
    name: count.sim.success
    when: 1
    action: {name: shrink, value: 2, when_busy: force}
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(definition())
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    spec = {"containers": [{}], "size": 2, "maxSize": 4}
    cluster.store.create(kind, "default", {"metadata": {"name": "ensemble"}, "spec": spec})
    yield cluster
    cluster.stop()


@pytest.fixture
def sizes(cluster: Cluster) -> list[int]:
    """Record the size after each change."""
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    seen: list[int] = []

    def look(method: str, path: str) -> None:
        size = cluster.store.get(kind, "default", "ensemble")["spec"]["size"]
        if not seen or seen[-1] != size:
            seen.append(size)

    cluster.meanwhile = look
    return seen


def _install(folder: Path) -> None:
    """Install the executor as pip would."""
    about = folder / "pods-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "pods.py").write_text(PODS)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pods\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ensemble]\npods = pods\n")


def _python(module: str) -> list[str]:
    return [sys.executable, "-c", f"from {module} import main; main()"]


def test_a_rule_changes_the_size_of_the_minicluster(
    cluster: Cluster, sizes: list[int], tmp_path: Path
) -> None:
    environment: dict[str, str] = {
        **{k: v for k, v in os.environ.items() if not k.startswith("ENSEMBLE_")},
        "HOME": str(tmp_path),
        "ENSEMBLE_STATE": str(tmp_path / "state"),
        "PYTHONPATH": str(tmp_path / "installed"),
        "STANDIN": f"{cluster.url}/apis/{FLUX}/v1alpha2/namespaces/default/miniclusters/ensemble",
        "STANDIN_TOKEN": cluster.token,
    }

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=150
        )

    server = _python("ensemble_service.commands.server")
    added = call(*server, "token", "add", "ensemble")
    assert added.returncode == 0, added.stderr
    (tmp_path / "token").write_text(added.stdout)
    _install(tmp_path / "installed")
    (tmp_path / "ensemble.yaml").write_text(ENSEMBLE)
    config = cluster.kubeconfig(tmp_path / "config")
    options = ("--port", "0", "--kubernetes", "--option", f"kubeconfig={config}")
    service: Any = subprocess.Popen(
        [*server, "start", *options], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        port = None
        for line in service.stderr:
            if found := re.search(r"listening .*port=(\d+)", line):
                port = found[1]
                break
        assert port, "the service did not start"
        run = call(
            *_python("ensemble_core.cli.main"),
            "run", "--executor", "minicluster", "--name", "ensemble",
            "--port", port, "-o", "token-file=token", "-o", "compose=pods", "ensemble.yaml",
        )  # fmt: skip
    finally:
        service.terminate()
        service.wait(120)
        service.stderr.close()
    assert run.returncode == 0, run.stdout + run.stderr
    assert "grow 9 granted: size 4: 2 of 9 nodes" in run.stdout + run.stderr
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    sizes.append(cluster.store.get(kind, "default", "ensemble")["spec"]["size"])
    assert [size for n, size in enumerate(sizes) if not n or sizes[n - 1] != size] == [2, 4, 2]
