"""Settings of the operator, from its command line."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Settings of the operator.

    ``image`` contains the service, ``view`` a relocatable folder of ``ensemble`` for other images.
    ``restricted``: MiniClusters may not use Secrets, host paths or privileges. ``user`` is the uid
    and gid of the operator's own pods, ``None`` if the cluster chooses. In seconds: ``resync`` is
    the interval of reconciles without changes, ``secrets`` that of checks of Secrets, ``ask`` that
    of polling services.
    """

    image: str = "ensemble:1.0.0"
    view: str = "ensemble-view:1.0.0"
    restricted: bool = False
    user: int | None = 65532
    resync: float = 600.0
    secrets: float = 1800.0
    ask: float = 10.0
