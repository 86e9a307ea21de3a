"""Flux MiniClusters in Kubernetes for Ensemble: the executor ``minicluster``, and the resizer
``kubernetes`` for the ensemble service.

Loaded by the entry point ``minicluster`` with every run, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, ResizerPlugin, hookimpl

__all__ = ["ensemble_executors", "ensemble_resizers"]


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_minicluster.executor import build

    return build(options)


def _available() -> tuple[bool, str]:
    return False, "name it with --executor minicluster"


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """The executor ``minicluster``."""
    from ensemble_minicluster.options import OPTIONS

    return [
        ExecutorPlugin(
            name="minicluster",
            summary="Runs jobs in the Flux of a MiniCluster, which grows and shrinks",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "resize", "reattach", "detach"}),
            options=OPTIONS,
            shared=True,
            available=_available,
        )
    ]


@hookimpl
def ensemble_resizers() -> Iterable[ResizerPlugin]:
    """The resizer ``kubernetes``."""
    from ensemble_minicluster.kubernetes_plugin import RECORD

    return [RECORD]
