"""Kubernetes for tests, without a cluster: a stand-in for the API server over real sockets, its
controllers, nodes, and the Flux Operator with its habits. For the tests of all plugins.

    cluster = Cluster(definition())
    operator = Operator(cluster)
    file = cluster.kubeconfig(tmp_path / "config")

A list of tests that runs unchanged against real clusters says how far it is faithful
(``plugins/ensemble-minicluster/tests/kubernetes/test_conformance.py``).
"""

from __future__ import annotations

import os
from pathlib import Path

from .flux_job import job_of, pod_errors
from .operator import Operator
from .player import Player
from .server import Cluster

__all__ = ["Cluster", "Operator", "Player", "definition", "job_of", "pod_errors"]


def definition() -> Path:
    """The MiniCluster's definition: the operator's own where there is one, else a small one."""
    folder = os.environ.get("ENSEMBLE_COMPAT_DIR")
    found = Path(folder, "minicluster-crd.yaml") if folder else None
    if found is not None and found.exists():
        return found
    return Path(__file__).parent / "minicluster-crd.yaml"
