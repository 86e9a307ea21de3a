"""Requests to the API server for jobs in Kubernetes, compared with a bare Indexed Job.

    python benchmarks/kubernetes_rate.py [--jobs N] [--rounds N] [--kubeconfig FILE]

Starts the stand-in for the API server of the plugin's tests in this process, with a node of eight
cores. Its speed is not that of a real server, so only ratios count. With ``--kubeconfig``, a
control plane without nodes is used, and a node is simulated. Each round watches an Indexed Job with
N completions of ``true``, and runs N jobs of ``true`` with the executor, with and without output.
Prints requests per 1,000 jobs, by kind, and jobs per second; for the executor also the delay from
the end of a job's process to our event.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ensemble_testing import Session

from ensemble_core import JobEvent

ROOT = Path(__file__).resolve().parents[1]


def conftest() -> Any:
    """Start the cluster of the plugin's tests."""
    path = ROOT / "plugins" / "ensemble-kubernetes" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("kubernetes_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def requests(cluster: Any) -> Counter[str]:
    """Return the requests so far, except those of the node."""
    return Counter(
        f"{verb} {resource}"
        for user, verb, resource, _ in cluster.cluster.access.allowed
        if user.endswith(":ensemble")
    )


def bare(cluster: Any, jobs: int) -> float:
    """Return the seconds for an Indexed Job that is watched until it is over."""
    from ensemble_kubernetes.api import Api

    api = Api(str(cluster.kubeconfig), None, None)
    container = {"name": "job", "image": "image", "command": ["true"]}
    container["resources"] = {"requests": {"cpu": "1"}}  # type: ignore[assignment]
    spec = {"completions": jobs, "parallelism": jobs, "completionMode": "Indexed",
            "backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never",
                                                     "containers": [container]}}}  # fmt: skip
    began = time.monotonic()
    version = str(cluster.cluster.store.version)
    api.create(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bare"}, "spec": spec}
    )
    with api.watch("jobs", version) as changes:
        for event in changes:
            if (event["object"].get("status") or {}).get("conditions"):
                break
    seconds = time.monotonic() - began
    api.close()
    api.release()
    return seconds


def executor(cluster: Any, jobs: int, late: list[float], stdout: str | None) -> float:
    """Return the seconds of the same jobs with the executor, and the delays of their ends."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(cluster.executor(), Path(folder), 600.0)
        began = time.monotonic()
        with session:
            made = [session.job("true", stdout=stdout) for _ in range(jobs)]
            session.run(*made)
            seconds = time.monotonic() - began
            session.executor.forget([job.id for job in made])
            names = {job.id: session.queue_id(job) for job in made}
        late += [
            event.timestamp - cluster.kubelet.ended[names[event.job]]
            for event in session.events
            if isinstance(event, JobEvent) and event.name == "finish"
        ]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kubeconfig", type=Path, help="use this control plane without nodes")
    chosen = parser.parse_args()
    module = conftest()
    module.CORES = 8
    late: list[float] = []
    for number in range(1, chosen.rounds + 1):
        for name in ("bare", "executor", "executor without output"):
            # A new cluster: the stand-in keeps all history.
            config = chosen.kubeconfig
            cluster = module.RealCluster(None, config) if config else module.Cluster()
            before = requests(cluster)
            if name == "bare":
                seconds = bare(cluster, chosen.jobs)
            else:
                stdout = "/dev/null" if "without" in name else None
                seconds = executor(cluster, chosen.jobs, late, stdout)
            asked = requests(cluster) - before
            cluster.sweep()
            cluster.close()
            each = 1000 / chosen.jobs
            kinds = ", ".join(f"{what} {n * each:.0f}" for what, n in asked.most_common())
            print(
                f"round {number}, {name}: {chosen.jobs / seconds:.1f} jobs/s, "
                f"{asked.total() * each:.0f} requests for 1,000 jobs ({kinds})",
                flush=True,
            )
    print(
        f"end to event: median {statistics.median(late) * 1000:.0f} ms, "
        f"longest {max(late) * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
