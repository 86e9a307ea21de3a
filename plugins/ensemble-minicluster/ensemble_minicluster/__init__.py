"""Plugin records of the executor ``minicluster`` and of the resizer ``kubernetes``.

A MiniCluster is a Flux instance in Kubernetes that can grow and shrink. Every run loads this
module, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, Resizer, ResizerPlugin, hookimpl


def _build_executor(options: Mapping[str, Any]) -> Executor:
    from ensemble_minicluster.executor import build

    return build(options)


def _build_resizer(options: Mapping[str, Any]) -> Resizer:
    from ensemble_minicluster.resizer import build

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
            build=_build_executor,
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
    from ensemble_minicluster.options import RESIZER_OPTIONS

    return [
        ResizerPlugin(
            name="kubernetes",
            summary="Grows and shrinks the MiniClusters of a Kubernetes cluster",
            build=_build_resizer,
            options=RESIZER_OPTIONS,
        )
    ]
