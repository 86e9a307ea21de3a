"""Settings of the operator, from its command line."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Settings of the operator.

    - ``image``: image that contains the service
    - ``view``: image with an installation of Ensemble that works in any folder. It is copied into
      members whose own images lack Ensemble
    - ``restricted``: whether MiniClusters are denied Secrets, host paths and privileges
    - ``user``: uid and gid of the operator's own pods; ``None`` if the cluster chooses them
    - ``resync``: seconds between reconciles without changes
    - ``secrets``: seconds between checks of Secrets
    - ``ask``: seconds between polls of services
    """

    image: str = "ensemble:1.0.0"
    view: str = "ensemble-view:1.0.0"
    restricted: bool = False
    user: int | None = 65532
    resync: float = 600.0
    secrets: float = 1800.0
    ask: float = 10.0
