"""Mock of the service: sizes within bounds, in memory. For ``--mock`` with a Flux around it.

(Without Flux, ``--mock`` is the executor ``local`` with a core for each node: growing there gives
jobs room.)
"""

from __future__ import annotations

from ensemble_core import Resized, UsageError

__all__ = ["MockService", "check_bounds"]


def check_bounds(size: int | None, smallest: int, largest: int) -> int:
    """The size to begin with. Raises :class:`UsageError` where the bounds are out of order."""
    begin = smallest if size is None else size
    if not 1 <= smallest <= begin <= largest:
        raise UsageError(
            f"min-size {smallest}, size {begin} and max-size {largest} are not in order",
            hint="choose 1 <= min-size <= size <= max-size",
            code="bad-option",
        )
    return begin


class MockService:
    """Answers as the ensemble service does with a cluster of ``size`` nodes behind it."""

    def __init__(self, size: int, smallest: int, largest: int) -> None:
        self._size, self._smallest, self._largest = size, smallest, largest

    def size(self) -> int:
        """Nodes there are."""
        return self._size

    def resize(self, request: str, delta: int) -> Resized:
        """Clamp to the bounds; denied where nothing is left of the request."""
        before, asked = self._size, self._size + delta
        granted = min(max(asked, self._smallest), self._largest)
        limit = f"max-size {self._largest}" if delta > 0 else f"min-size {self._smallest}"
        code = "at-maximum" if delta > 0 else "at-minimum"
        if granted == before:
            return Resized(
                outcome="denied",
                before=before,
                asked=asked,
                granted=before,
                reason=f"its size is {before} already, and {limit} holds",
                code=code,
            )
        self._size = granted
        if granted == asked:
            return Resized(outcome="granted", before=before, asked=asked, granted=granted)
        return Resized(
            outcome="partial",
            before=before,
            asked=asked,
            granted=granted,
            reason=f"that would be size {asked}, and {limit} holds",
            code=code,
        )

    def close(self) -> None:
        """Nothing to give back."""
