"""Reads the states of a Flux instance's nodes, and drains nodes.

A node is identified by its rank in Flux; in a MiniCluster, the rank is the index of the node's pod.
This module does not import Flux.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ensemble_core import ExecutorError

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
