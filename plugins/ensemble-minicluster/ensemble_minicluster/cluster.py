"""A cluster that can change its size: who decides on it, its nodes, and waiting for them.

Made by the executor; used by the thread that resizes and its two ways, ``grow`` and ``shrink``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ensemble_core import EnsembleError, Resized
from ensemble_minicluster.nodes import MARK, Look, Nodes, shown

__all__ = ["LAST", "SOON", "Cluster", "Ended", "Patience", "Service"]

#: Seconds between two looks at the nodes, at first and at most.
SOON, _LATER = 0.1, 1.0
#: Seconds that a run which ends leaves to requests that are under way: the shrink at its end.
LAST = 5.0
#: How long the name of a request may be at the service.
_LONGEST_NAME = 200


class Service(Protocol):
    """The authority on sizes: the ensemble service, for one member; or a mock of it."""

    def size(self) -> int | None:
        """Nodes that there are to be now, where that is known.

        Raises :class:`EnsembleError`, transient where the service cannot be reached.
        """

    def resize(self, request: str, delta: int) -> Resized:
        """Ask for another size, under a name that stands for this request for ever.

        Raises :class:`EnsembleError`; a transient one leaves open whether the request arrived.
        """

    def close(self) -> None:
        """End what is under way."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds: for nodes to come or go, for jobs to leave them, and until a
    node that should not have been up is believed to be a new one."""

    arrival: float = 600.0
    drain: float = 3600.0
    settle: float = 35.0


class Ended(Exception):
    """The run is over before the outcome is known: there is nobody to tell."""


class Cluster:
    """The cluster of one run, whose tag is ``tag``.

    ``nodes`` is ``None`` where sizes are made up: then nothing is drained or waited for. ``gauges``
    are those that the composed executor last told of. ``warn`` takes what the user must hear.
    """

    def __init__(
        self,
        service: Service,
        nodes: Nodes | None,
        patience: Patience,
        *,
        tag: str,
        gauges: Mapping[str, float],
        warn: Callable[[str], None],
    ) -> None:
        self.service = service
        self.nodes = nodes
        self.patience = patience
        self.tag = tag
        self.gauges = gauges
        self.warn = warn
        self._closing = threading.Event()
        self._closed_at = 0.0
        #: Ranks that are drained for a request whose answer is not known.
        self.held: set[int] = set()

    @property
    def closing(self) -> bool:
        """True if the run has ended."""
        return self._closing.is_set()

    def end(self) -> None:
        """The run has ended: wait for nothing much longer."""
        self._closed_at = time.monotonic()
        self._closing.set()

    def ask(self, request: str, delta: int) -> Resized:
        """Ask the service. Raises as :meth:`Service.resize` does."""
        # Requests are numbered by each run, and the service hears those of many.
        return self.service.resize(f"{self.tag}/{request}"[-_LONGEST_NAME:], delta)

    def look(self) -> Look | None:
        """The nodes now; ``None`` where there is nobody to ask. Raises :class:`ExecutorError`."""
        if self.nodes is None or not self.nodes.reachable:
            return None
        return self.nodes.look()

    def glance(self) -> Look | None:
        """The nodes now, where they can be seen."""
        try:
            return self.look()
        except EnsembleError:
            return None

    @property
    def up(self) -> int | None:
        """Nodes that jobs may run on, by the gauge."""
        up = self.gauges.get("nodes.up")
        return None if up is None else int(up)

    @property
    def mark(self) -> str:
        """The reason of this run's drains."""
        return f"{MARK} (run {self.tag})"

    def undrain(self, ranks: Iterable[int], *, any_run: bool = False) -> None:
        """Undrain those of these ranks that a shrink of this run, or of ``any_run``, has drained;
        what others drained stays so."""
        wanted = set(ranks)
        if not wanted:
            return
        try:
            look = self.look()
            if look is not None and self.nodes is not None:
                for rank in look.drained_for(MARK if any_run else self.mark, wanted):
                    self.nodes.undrain([rank])
        except EnsembleError as error:
            self.warn(f"{shown(wanted)} may still be drained: {error}")
        self.held -= wanted

    def until(self, done: Callable[[], bool], timeout: float, *, last: float) -> bool:
        """Wait until something is so. Once the run ends, ``last`` seconds at the most."""
        end = time.monotonic() + timeout
        pause = SOON
        while not _so(done):
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


def _so(done: Callable[[], bool]) -> bool:
    """True if ``done`` holds; false where Flux does not answer for once."""
    try:
        return done()
    except EnsembleError:
        return False
