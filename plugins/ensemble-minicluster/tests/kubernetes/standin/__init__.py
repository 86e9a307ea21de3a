"""A stand-in for the Kubernetes API server: over real sockets, in this process, for tests.

``test_conformance.py`` says how far it is faithful: it runs unchanged against real clusters.
"""

from __future__ import annotations

import os
from pathlib import Path

from .operator import Operator
from .server import Cluster

__all__ = ["Cluster", "Operator", "definition"]


def definition() -> Path:
    """The MiniCluster's definition: the operator's own where there is one, else a small one."""
    folder = os.environ.get("ENSEMBLE_COMPAT_DIR")
    found = Path(folder, "minicluster-crd.yaml") if folder else None
    if found is not None and found.exists():
        return found
    return Path(__file__).parent / "minicluster-crd.yaml"
