"""Stand-in for Kubernetes in tests: an API server over real sockets, controllers, nodes, and the
Flux Operator with its quirks. For the tests of all plugins.

    cluster = Cluster(definition())
    operator = Operator(cluster)
    file = cluster.kubeconfig(tmp_path / "config")

Its fidelity is checked by tests that also run unchanged against real clusters
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
    """Return the file of the MiniCluster's definition: the operator's, or else a small one."""
    folder = os.environ.get("ENSEMBLE_COMPAT_DIR")
    found = Path(folder, "minicluster-crd.yaml") if folder else None
    if found is not None and found.exists():
        return found
    return Path(__file__).parent / "minicluster-crd.yaml"
