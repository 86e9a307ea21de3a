"""Settings of the operator, given when it is started."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """``image`` has the service, ``view`` a relocatable tree of ``ensemble`` for other images.

    ``restricted``: MiniClusters may not reach for Secrets, paths of nodes or privileges. ``user``
    is the uid and gid of the operator's own pods, ``None`` where the cluster gives one.
    ``resync`` is how often an Ensemble is looked at though nothing is known to have changed,
    ``secrets`` how often its Secrets are, ``ask`` how often its service is asked; in seconds.
    """

    image: str = "ensemble:1.0.0"
    view: str = "ensemble-view:1.0.0"
    restricted: bool = False
    user: int | None = 65532
    resync: float = 600.0
    secrets: float = 1800.0
    ask: float = 10.0
