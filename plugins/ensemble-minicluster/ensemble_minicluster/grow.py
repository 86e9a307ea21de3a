"""Growing: requests nodes from the ensemble service, and waits until Flux reports them as up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ensemble_core import Resized
from ensemble_minicluster.cluster import Cluster, Ended
from ensemble_minicluster.node_states import shown
from ensemble_minicluster.request_log import ResizeRequest

#: Seconds by which gauges may lag behind Flux's report of its nodes.
_BEHIND = 3.0


def grow(cluster: Cluster, request: str, delta: int) -> ResizeRequest:
    """Request ``delta`` more nodes, wait until they are up, and return the outcome.

    Raises :class:`EnsembleError` if the service did not reply, and :class:`Ended` if the run ended
    before the nodes arrived.
    """
    asked = ResizeRequest(delta=delta)
    before = cluster.look()
    answer = cluster.ask(request, delta)
    if answer.outcome == "denied":
        return denied(asked, answer)
    granted = replace(
        asked, outcome="granted", size=answer.granted, reason=shortfall_reason(answer, delta)
    )
    if cluster.nodes is None:
        return granted
    new = set(range(answer.before, answer.granted))
    # An earlier shrink drained these ranks and removed their nodes; new nodes replace them.
    cluster.undrain(new, any_run=True)
    arrived = _arrival(cluster, answer, set() if before is None else new & before.online)
    if cluster.until(arrived, cluster.patience.arrival, last=0.0):
        return granted
    if cluster.closing:
        raise Ended
    return _timeout_outcome(cluster, granted, answer, new)


def _arrival(cluster: Cluster, answer: Resized, stale: set[int]) -> Callable[[], bool]:
    """Return a function that says whether the nodes have arrived.

    The set ``stale`` has those of the new ranks that were up already.
    """
    # New nodes reuse the ranks of removed nodes, which Flux still reports as up for a while. So a
    # stale rank counts as new once it has been down, or has stayed up longer than a removed node.
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
        # Rules triggered by this outcome read the gauges, which arrive separately.
        return cluster.up is None or cluster.up >= look.usable or now - seen > _BEHIND

    return arrived


def _timeout_outcome(
    cluster: Cluster, asked: ResizeRequest, answer: Resized, new: set[int]
) -> ResizeRequest:
    look = cluster.look_or_none()
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
        reason=f"{answer.granted} nodes were granted, but "
        f"{'an unknown number' if up is None else up} of them are up after "
        f"{cluster.patience.arrival:g} s{missing}",
    )


def denied(asked: ResizeRequest, answer: Resized) -> ResizeRequest:
    """Return the outcome of a denied request."""
    size = answer.granted or answer.before or None
    return replace(asked, outcome="denied", size=size, reason=answer.reason or answer.code)


def shortfall_reason(answer: Resized, delta: int) -> str:
    """Return why fewer nodes than requested were granted; empty if no reason is known."""
    given = abs(answer.granted - answer.before)
    if given >= abs(delta):
        return ""
    why = answer.reason or ("the others are busy" if delta < 0 else "")
    return f"{given} of {abs(delta)} nodes{f': {why}' if why else ''}"
