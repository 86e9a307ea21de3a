"""A run's cluster: its size, which the ensemble service sets, and its nodes, which Flux drains.

A node is identified by its rank in Flux; in a MiniCluster, the rank is the index of the node's pod.
This module does not import Flux.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ensemble_core import EnsembleError, ExecutorError, Resized

#: Prefix of the reasons that we give for drains.
MARK = "ensemble gives this node back"
#: Seconds to wait for Flux's reply.
_PATIENCE = 20.0


def to_ranks(text: str | None) -> set[int]:
    """Parse an idset (Flux RFC 22).

    >>> sorted(to_ranks("0-2,7")), to_ranks("")
    ([0, 1, 2, 7], set())
    """
    found: set[int] = set()
    for part in (text or "").strip("[]").split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def to_idset(ranks: Iterable[int]) -> str:
    """Return ranks as an idset.

    >>> to_idset([3, 1, 2, 7])
    '1-3,7'
    """
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def shown(ranks: Iterable[int]) -> str:
    """Return ranks for messages.

    >>> shown([3]), shown([2, 3])
    ('rank 3', 'ranks 2-3')
    """
    text = to_idset(ranks)
    return f"rank {text}" if text.isdigit() else f"ranks {text}"


@dataclass(frozen=True, slots=True)
class Look:
    """Snapshot of the nodes, by rank."""

    online: frozenset[int]
    drained: Mapping[int, str]  #: with the reasons
    excluded: frozenset[int]
    busy: frozenset[int]

    @property
    def usable(self) -> int:
        """The number of usable nodes, equal to the gauge ``nodes.up``."""
        return len(self.online - self.drained.keys() - self.excluded)

    def drained_for(self, reason: str, ranks: Iterable[int]) -> list[int]:
        """Return those of ``ranks`` that are drained for a reason that starts with ``reason``."""
        return [rank for rank in sorted(ranks) if self.drained.get(rank, "").startswith(reason)]


class Nodes:
    """The nodes of a Flux instance. Methods raise :class:`ExecutorError`.

    The function ``handle`` returns a Flux handle (any object with ``rpc``) for the calling thread.
    """

    def __init__(self, handle: Callable[[], object]) -> None:
        self._handle = handle

    @property
    def reachable(self) -> bool:
        """True if a handle is available."""
        return hasattr(self._get(), "rpc")

    def look(self) -> Look:
        """Return the current nodes."""
        status = self._query("resource.status")
        drained = {
            rank: str((drain or {}).get("reason") or "")
            for ranks, drain in (status.get("drain") or {}).items()
            for rank in to_ranks(ranks)
        }
        allocated = self._query("resource.sched-status").get("allocated") or {}
        busy: set[int] = set()
        for entry in (allocated.get("execution") or {}).get("R_lite") or ():
            busy |= to_ranks(str(entry["rank"]))
        return Look(
            online=frozenset(to_ranks(status.get("online"))),
            drained=drained,
            excluded=frozenset(to_ranks(status.get("exclude"))),
            busy=frozenset(busy),
        )

    def drain(self, ranks: Iterable[int], reason: str) -> None:
        """Stop new jobs on these nodes. Nodes that are already drained keep their reasons."""
        targets = to_idset(ranks)
        if targets:
            # "update" does not change nodes that others have drained in the meantime.
            self._query("resource.drain", {"targets": targets, "reason": reason, "mode": "update"})

    def undrain(self, ranks: Iterable[int]) -> None:
        """Allow new jobs on these nodes again."""
        targets = to_idset(ranks)
        if targets:
            self._query("resource.undrain", {"targets": targets})

    def _get(self) -> Any:
        try:
            return self._handle()
        except OSError as error:
            raise ExecutorError(
                "cannot reach the Flux instance", cause=_error_text(error), code="no-instance"
            ) from None

    def _query(self, topic: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            # Query rank 0, which knows all nodes; this process may be on another rank.
            future = self._get().rpc(topic, payload, 0)
            future.wait_for(_PATIENCE)
            answer = future.get()
        except OSError as error:
            raise ExecutorError(
                f"Flux rejected the request {topic!r}",
                cause=_error_text(error),
                hint="only the owner of an instance may drain its nodes"
                if isinstance(error, PermissionError)
                else None,
                code="flux-refused",
            ) from None
        return answer or {}


def _error_text(error: OSError) -> str:
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error))


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
