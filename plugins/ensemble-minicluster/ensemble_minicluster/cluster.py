"""Resizes a run's cluster through the ensemble service, and observes and drains its nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ensemble_core import EnsembleError, Resized
from ensemble_minicluster.node_states import MARK, Look, Nodes, shown

#: Seconds between two checks of the nodes: first and longest.
SOON, _LATER = 0.1, 1.0
#: Seconds that an ending run waits for open requests, such as the shrink at its end.
LAST = 5.0
#: Maximum length of a request's name at the service.
_LONGEST_NAME = 200


class Service(Protocol):
    """Interface of the ensemble service, which sets the cluster's size."""

    def size(self) -> int | None:
        """Return the target number of nodes, if known.

        Raises :class:`EnsembleError`, transient if the service is unreachable.
        """

    def resize(self, request: str, delta: int) -> Resized:
        """Request ``delta`` more nodes (fewer if negative). ``request`` is the idempotency key.

        Raises :class:`EnsembleError`. After a transient one, the request may have arrived.
        """

    def close(self) -> None:
        """End requests in progress."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits in seconds."""

    arrival: float = 600.0  #: for nodes to arrive or leave
    drain: float = 3600.0  #: for jobs to leave the nodes that will be removed
    #: How long Flux may still report a removed node as up. If a rank that ``grow`` adds was up
    #: already and stays up for longer, its node is a new one.
    settle: float = 35.0


class Ended(Exception):
    """The run ended before the outcome was known."""


class Cluster:
    """A run's cluster.

    - ``nodes``: the nodes to drain and to wait for; ``None`` if sizes are simulated
    - ``run``: the run's tag, for people, and its identity
    - ``gauges``: latest gauges of the executor that runs the jobs
    - ``warn``: receives warnings
    """

    def __init__(
        self,
        service: Service,
        nodes: Nodes | None,
        patience: Patience,
        *,
        run: str,
        gauges: Mapping[str, float],
        warn: Callable[[str], None],
    ) -> None:
        self.service = service
        self.nodes = nodes
        self.patience = patience
        self.run = run
        self.gauges = gauges
        self.warn = warn
        self._closing = threading.Event()
        self._closed_at = 0.0
        #: Ranks drained for a request without a known answer.
        self.held: set[int] = set()

    @property
    def closing(self) -> bool:
        """True if the run has ended."""
        return self._closing.is_set()

    def end(self) -> None:
        """End the run: stop waiting soon."""
        self._closed_at = time.monotonic()
        self._closing.set()

    def ask(self, request: str, delta: int) -> Resized:
        """Send a resize request to the service. Raises the errors of :meth:`Service.resize`."""
        # Different runs send requests with equal names, so add the run's identity.
        return self.service.resize(f"{self.run}/{request}"[-_LONGEST_NAME:], delta)

    def look(self) -> Look | None:
        """Return the current nodes, or ``None`` without Flux. Raises :class:`ExecutorError`."""
        if self.nodes is None or not self.nodes.reachable:
            return None
        return self.nodes.look()

    def look_or_none(self) -> Look | None:
        """Return the current nodes; ``None`` if Flux is missing or does not answer."""
        try:
            return self.look()
        except EnsembleError:
            return None

    @property
    def up(self) -> int | None:
        """The number of usable nodes according to the gauge."""
        up = self.gauges.get("nodes.up")
        return None if up is None else int(up)

    @property
    def mark(self) -> str:
        """The reason given for this run's drains."""
        return f"{MARK} (run {self.run})"

    def undrain(self, ranks: Iterable[int], *, any_run: bool = False) -> None:
        """Undrain those of these ranks that a shrink of this run has drained.

        With ``any_run``, ranks drained by shrinks of other runs count too. Nodes drained for other
        reasons stay drained.
        """
        wanted = set(ranks)
        if not wanted:
            return
        try:
            look = self.look()
            if look is not None and self.nodes is not None:
                for rank in look.drained_for(MARK if any_run else self.mark, wanted):
                    self.nodes.undrain([rank])
        except EnsembleError as error:
            self.warn(f"cannot undrain {shown(wanted)} in Flux: {error}")
        self.held -= wanted

    def until(self, done: Callable[[], bool], timeout: float, *, last: float) -> bool:
        """Wait until ``done()`` is true, for at most ``timeout`` seconds. Return whether it is
        true.

        Once the run has ended, wait at most ``last`` seconds more.
        """
        end = time.monotonic() + timeout
        pause = SOON
        while not _is_true(done):
            if self.closing:
                end = min(end, self._closed_at + last)
                pause = SOON
            left = end - time.monotonic()
            if left <= 0:
                return False
            if self.closing:
                time.sleep(min(pause, left))
            else:
                self._closing.wait(min(pause, left))
            pause = min(_LATER, pause * 1.3)
        return True


def _is_true(done: Callable[[], bool]) -> bool:
    """Return ``done()``; false if Flux does not answer."""
    try:
        return done()
    except EnsembleError:
        return False
