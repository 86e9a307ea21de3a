"""Settings of the operator, from its command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Settings of the operator. Times are in seconds."""

    image: str = "ensemble:1.0.0"  #: contains the service
    #: Contains an installation of Ensemble that works in any folder. It is copied into members
    #: whose own images lack Ensemble.
    view: str = "ensemble-view:1.0.0"
    restricted: bool = False  #: whether MiniClusters are denied Secrets, host paths and privileges
    user: int | None = 65532  #: uid and gid of our pods; ``None`` if the cluster chooses them
    resync: float = 600.0  #: between reconciles without changes
    secrets: float = 1800.0  #: between checks of Secrets
    ask: float = 10.0  #: between polls of services
