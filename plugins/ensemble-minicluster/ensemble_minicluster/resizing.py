"""Thread that carries out resize requests in order, and reports their outcomes as events."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from ensemble_core import EnsembleError, ResizeOutcome
from ensemble_minicluster.cluster import LAST, Cluster, Ended
from ensemble_minicluster.grow import grow
from ensemble_minicluster.request_log import RequestLog, ResizeRequest
from ensemble_minicluster.shrink import Shrink

if TYPE_CHECKING:
    from ensemble_core import WhenBusy

_Told = tuple[Literal["granted", "denied", "timeout", "undelivered"], "int | None", str]


class Resizing:
    """Accepts requests with :meth:`ask`, and passes their outcomes to a callback.

    A repeated request gets the same outcome.
    """

    def __init__(
        self,
        cluster: Cluster,
        memory: RequestLog,
        clock: Callable[[], float],
        tell: Callable[[ResizeOutcome], None],
    ) -> None:
        self._cluster = cluster
        self._memory = memory
        self._clock = clock
        self._tell = tell
        self._orders: queue.SimpleQueue[tuple[str, int, WhenBusy] | None] = queue.SimpleQueue()
        self._pending: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, request: str, delta: int, when_busy: WhenBusy) -> None:
        """Accept a request, unless it is already in progress. The outcome of a request is reported
        once.
        """
        with self._lock:
            if request in self._pending:
                return
            self._pending.add(request)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="resizing", daemon=True)
            self._thread.start()
        self._orders.put((request, delta, when_busy))

    def close(self) -> None:
        """Wait a few seconds for open requests, because a run that ends may have requested to
        return nodes.
        """
        self._cluster.end()
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(LAST + 2)
        self._cluster.service.close()
        if self._thread is not None:
            self._thread.join(LAST)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            request, delta, when_busy = order
            told: _Told | None = None
            try:
                told = self._outcome(request, delta, when_busy)
            except Ended:
                pass
            except Exception as error:  # a rule may wait for this outcome, whatever failed
                told = ("denied", None, f"resizing failed: {error!r}")
            with self._lock:
                self._pending.discard(request)
            if told is not None:
                outcome, size, reason = told
                if outcome == "denied" and size is None:
                    size = self._cluster.up  # the size is unchanged, and messages mention it
                self._tell(ResizeOutcome(self._clock(), request, outcome, size=size, reason=reason))
        # The service's reply is unknown; no node must stay drained.
        self._cluster.undrain(self._cluster.held)

    def _outcome(self, request: str, delta: int, when_busy: WhenBusy) -> _Told:
        known = self._memory.get(request)
        if known is None or not known.outcome:
            try:
                if delta < 0:
                    shrink = Shrink(
                        self._cluster, request, lambda asked: self._remember(request, asked)
                    )
                    known = shrink.carry_out(delta, when_busy, known)
                else:
                    known = grow(self._cluster, request, delta)
            except EnsembleError as error:
                reason = f"{error.what}: {error.cause}" if error.cause else error.what
                if error.transient:
                    return "undelivered", None, reason
                if error.hint:
                    reason = f"{reason} ({error.hint})"
                known = ResizeRequest(delta=delta, outcome="denied", reason=reason)
            self._remember(request, known)
        assert known.outcome
        return known.outcome, known.size, known.reason

    def _remember(self, request: str, asked: ResizeRequest) -> None:
        before = self._memory.trouble
        self._memory.put(request, asked)
        if self._memory.trouble and self._memory.trouble != before:
            self._cluster.warn(self._memory.trouble)
