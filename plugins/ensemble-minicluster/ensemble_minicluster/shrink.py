"""Shrinking: drains nodes, waits until they are idle, then removes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ensemble_core import EnsembleError, Resized
from ensemble_minicluster.cluster import LAST, SOON, Cluster, Ended
from ensemble_minicluster.grow import denied, shortfall_reason
from ensemble_minicluster.node_states import Look, shown
from ensemble_minicluster.request_log import ResizeRequest

if TYPE_CHECKING:
    from ensemble_core import WhenBusy


class Shrink:
    """A request for fewer nodes."""

    def __init__(
        self, cluster: Cluster, request: str, remember: Callable[[ResizeRequest], None]
    ) -> None:
        self._cluster = cluster
        self._request = request
        #: If the controller is killed, the next one repeats the request with the same nodes.
        #: Otherwise it would choose the highest remaining ones, and twice as many nodes might be
        #: removed.
        self._remember = remember

    def carry_out(
        self, delta: int, when_busy: WhenBusy, known: ResizeRequest | None
    ) -> ResizeRequest:
        """Return the outcome of a shrink. ``known`` is the request's record, if it has one.

        Raises :class:`EnsembleError` if the service did not reply, and :class:`Ended` if the run
        ended first.
        """
        cluster = self._cluster
        if cluster.nodes is None:
            return _final_outcome(
                ResizeRequest(delta=delta), cluster.ask(self._request, delta), delta
            )
        look = cluster.look()
        if look is None and when_busy != "force":
            return ResizeRequest(
                delta=delta,
                outcome="denied",
                size=cluster.up,
                reason="nodes cannot be drained without access to Flux; 'when_busy: force' "
                "shrinks without draining",
            )
        asked = known or ResizeRequest(delta=delta, victims=self._victims(-delta, look))
        self._remember(asked)
        if look is not None:
            asked = self._drain(asked, when_busy, look)
            if asked.outcome:
                return asked
        asked = replace(asked, sent=True)
        self._remember(asked)
        return self._wait_removed(asked, self._request_resize(asked), delta)

    def _victims(self, count: int, look: Look | None) -> tuple[int, ...]:
        """Return the ranks to remove: the highest, but not rank 0."""
        # Kubernetes removes the pods with the highest indices. Node 0 has the queue.
        size = None
        try:
            size = self._cluster.service.size()
        except EnsembleError as error:
            if error.transient:
                raise
        if size is None:
            size = 0 if look is None else max(look.online, default=0) + 1
        return tuple(range(max(1, size - count), size))

    def _drain(self, asked: ResizeRequest, when_busy: WhenBusy, look: Look) -> ResizeRequest:
        """Drain the nodes, and wait until no job is on them. Return the updated request.

        The request is denied if the nodes do not become idle. It gets a smaller delta if only some
        of the nodes can be removed.
        """
        cluster, victims = self._cluster, asked.victims
        assert cluster.nodes is not None
        cluster.held |= set(victims)
        try:
            fresh = [rank for rank in victims if rank not in look.drained]
            cluster.nodes.drain(fresh, cluster.mark)
        except EnsembleError:
            cluster.held -= set(victims)
            if when_busy != "force" and not asked.sent:
                raise
        if when_busy == "force" or asked.sent:  # the service may already have removed the nodes
            return asked
        if when_busy == "wait":
            return self._wait_idle(asked)
        return self._skip_busy(asked)

    def _wait_idle(self, asked: ResizeRequest) -> ResizeRequest:
        cluster = self._cluster
        if cluster.until(self._idle(asked.victims), cluster.patience.drain, last=LAST):
            return asked
        busy = self._busy(asked.victims)
        if cluster.closing:
            cluster.undrain(asked.victims)
            raise Ended
        return self._deny_and_undrain(
            asked, f"jobs still run on {shown(busy)} after {cluster.patience.drain:g} s"
        )

    def _skip_busy(self, asked: ResizeRequest) -> ResizeRequest:
        victims = set(asked.victims)
        busy = self._busy(victims)
        time.sleep(SOON)
        busy |= self._busy(victims)  # the scheduler may only just have received the drain
        if not busy:
            return asked
        going = {rank for rank in victims if rank > max(busy)}
        if not going:
            return self._deny_and_undrain(
                asked, f"jobs run on {shown([max(busy)])}, which would be removed first"
            )
        self._cluster.undrain(victims - going)
        fewer = replace(asked, victims=tuple(sorted(going)), delta=-len(going))
        self._remember(fewer)
        return fewer

    def _idle(self, ranks: Iterable[int]) -> Callable[[], bool]:
        """Return a function that says whether these ranks are idle.

        They must be idle twice in a row, because jobs that were scheduled before the drain appear a
        little later.
        """
        quiet = 0

        def idle() -> bool:
            nonlocal quiet
            quiet = 0 if self._busy(ranks) else quiet + 1
            return quiet > 1

        return idle

    def _busy(self, ranks: Iterable[int]) -> set[int]:
        look = self._cluster.look()
        return set() if look is None else set(ranks) & look.busy

    def _deny_and_undrain(self, asked: ResizeRequest, reason: str) -> ResizeRequest:
        """Undrain the nodes, and return the request as denied."""
        self._cluster.undrain(asked.victims)
        look = self._cluster.look_or_none()
        size = self._cluster.up if look is None else len(look.online)
        return replace(asked, outcome="denied", size=size, reason=reason)

    def _request_resize(self, asked: ResizeRequest) -> Resized:
        try:
            return self._cluster.ask(self._request, asked.delta)
        except EnsembleError as error:
            # After a transient error, the request may have arrived and the nodes may be leaving:
            # keep them drained.
            if not error.transient:
                self._cluster.undrain(asked.victims)
            raise

    def _wait_removed(self, asked: ResizeRequest, answer: Resized, delta: int) -> ResizeRequest:
        """Wait until Flux reports that the nodes are gone, then undrain their ranks."""
        cluster = self._cluster
        cluster.undrain(v for v in asked.victims if not answer.granted or v < answer.granted)
        cluster.held -= set(asked.victims)
        asked = _final_outcome(asked, answer, delta)
        if asked.outcome == "denied":
            return asked
        going = {*range(answer.granted, answer.before), *asked.victims}
        going = {rank for rank in going if rank >= max(1, answer.granted)}

        def gone() -> bool:
            look = cluster.look()
            if look is None:
                return cluster.up is not None and cluster.up <= answer.granted
            return not going & look.online

        if cluster.until(gone, cluster.patience.arrival, last=LAST):
            cluster.undrain(going)
            return asked
        if cluster.closing:
            raise Ended
        look = cluster.look_or_none()
        left = going if look is None else going & look.online
        return replace(
            asked,
            outcome="timeout",
            reason=f"{answer.granted} nodes should stay, but {shown(left)} "
            f"{'is' if len(left) == 1 else 'are'} still up after {cluster.patience.arrival:g} s",
        )


def _final_outcome(asked: ResizeRequest, answer: Resized, delta: int) -> ResizeRequest:
    if answer.outcome == "denied":
        return denied(asked, answer)
    return replace(
        asked, outcome="granted", size=answer.granted, reason=shortfall_reason(answer, delta)
    )
