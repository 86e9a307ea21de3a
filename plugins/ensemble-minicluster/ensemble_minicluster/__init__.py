"""Plugin for MiniClusters: Flux instances in Kubernetes that can grow and shrink.

Every run loads this module, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, ResizerPlugin, hookimpl


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_minicluster.executor import build

    return build(options)


def _available() -> tuple[bool, str]:
    return False, "choose it with --executor minicluster"


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``minicluster``."""
    from ensemble_minicluster.options import OPTIONS

    return [
        ExecutorPlugin(
            name="minicluster",
            summary="Runs jobs in a MiniCluster's Flux, which can grow and shrink",
            build=_build,
            capabilities=frozenset(
                {"submit", "cancel", "avoid", "resize", "signal", "reattach", "detach"}
            ),
            options=OPTIONS,
            shared=True,
            available=_available,
            grace="Flux's kill-timeout",
            memory="Flux's scheduler does not count memory",
            unseen="pods have their own file systems",
        )
    ]


@hookimpl
def ensemble_resizers() -> Iterable[ResizerPlugin]:
    """Return the resizer ``kubernetes``."""
    from ensemble_minicluster.kubernetes_plugin import RECORD

    return [RECORD]
