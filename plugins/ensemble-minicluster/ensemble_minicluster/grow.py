"""Growing: asks the service for nodes, then waits until Flux itself says that they are up.

The size on record and pods that are ready prove nothing: for a while after a shrink, Flux still
counts nodes as up that are on their way out under the same names. Used by ``resizing``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ensemble_core import Resized
from ensemble_minicluster.cluster import Cluster, Ended
from ensemble_minicluster.nodes import shown
from ensemble_minicluster.request_log import Asked

__all__ = ["denied", "grow", "less"]

#: Seconds that the gauges may be behind what Flux says of its nodes.
_BEHIND = 3.0


def grow(cluster: Cluster, request: str, delta: int) -> Asked:
    """Carry a request for more nodes out; what became of it.

    Raises :class:`EnsembleError` where the service gave no answer, and :class:`Ended`.
    """
    asked = Asked(delta=delta)
    before = cluster.look()
    answer = cluster.ask(request, delta)
    if answer.outcome == "denied":
        return denied(asked, answer)
    granted = replace(asked, outcome="granted", size=answer.granted, reason=less(answer, delta))
    if cluster.nodes is None:
        return granted
    new = set(range(answer.before, answer.granted))
    # Drained for a shrink that has happened since: other nodes come in their place.
    cluster.undrain(new, any_run=True)
    arrived = _arrival(cluster, answer, set() if before is None else new & before.online)
    if cluster.until(arrived, cluster.patience.arrival, last=0.0):
        return granted
    if cluster.closing:
        raise Ended
    return _late(cluster, granted, answer, new)


def _arrival(cluster: Cluster, answer: Resized, stale: set[int]) -> Callable[[], bool]:
    """A test of whether the nodes have come. ``stale`` ones were up before there was any to be:
    they count once they have been away, or have stayed for longer than a node on its way out."""
    new = set(range(answer.before, answer.granted))
    began = time.monotonic()
    seen: float | None = None

    def arrived() -> bool:
        nonlocal seen
        look = cluster.look()
        if look is None:
            return cluster.up is not None and cluster.up >= answer.granted
        stale.intersection_update(look.online)
        now = time.monotonic()
        if not new <= look.online or (stale and now - began < cluster.patience.settle):
            seen = None
            return False
        seen = now if seen is None else seen
        # Rules that wake at this answer look at the gauges, which come another way.
        return cluster.up is None or cluster.up >= look.usable or now - seen > _BEHIND

    return arrived


def _late(cluster: Cluster, asked: Asked, answer: Resized, new: set[int]) -> Asked:
    look = cluster.glance()
    if look is None:
        up, missing = cluster.up, ""
    else:
        up = len(look.online & set(range(answer.granted)))
        absent = new - look.online
        missing = f": Flux has not seen {shown(absent)}" if absent else ""
    return replace(
        asked,
        outcome="timeout",
        size=up,
        reason=f"{answer.granted} nodes were granted, and "
        f"{'an unknown number' if up is None else up} of them are up after "
        f"{cluster.patience.arrival:g} s{missing}",
    )


def denied(asked: Asked, answer: Resized) -> Asked:
    """The service said no."""
    size = answer.granted or answer.before or None
    return replace(asked, outcome="denied", size=size, reason=answer.reason or answer.code)


def less(answer: Resized, delta: int) -> str:
    """Why it is less than was asked for; empty where it is not."""
    given = abs(answer.granted - answer.before)
    if given >= abs(delta):
        return ""
    why = answer.reason or ("the others are busy" if delta < 0 else "")
    return f"{given} of {abs(delta)} nodes{f': {why}' if why else ''}"
