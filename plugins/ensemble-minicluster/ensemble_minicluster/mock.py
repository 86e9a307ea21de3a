"""In-memory mock of the ensemble service, for ``--mock``."""

from __future__ import annotations

from typing import Literal

from ensemble_core import Resized, UsageError


def check_bounds(size: int | None, smallest: int, largest: int) -> int:
    """Check the bounds, and return the initial number of nodes.

    Raises :class:`UsageError` for inconsistent bounds.
    """
    begin = smallest if size is None else size
    if not 1 <= smallest <= begin <= largest:
        raise UsageError(
            f"min-size {smallest}, size {begin} and max-size {largest} are not in order",
            hint="choose 1 <= min-size <= size <= max-size",
            code="bad-option",
        )
    return begin


class MockService:
    """Grants requests for nodes within the bounds. ``size`` is the initial number of nodes."""

    def __init__(self, size: int, smallest: int, largest: int) -> None:
        self._size, self._smallest, self._largest = size, smallest, largest

    def size(self) -> int:
        """Return the number of nodes."""
        return self._size

    def resize(self, request: str, delta: int) -> Resized:
        """Change the size within the bounds. Deny the request if that changes nothing."""
        before, asked = self._size, self._size + delta
        granted = min(max(asked, self._smallest), self._largest)
        limit = f"max-size {self._largest}" if delta > 0 else f"min-size {self._smallest}"
        code = "at-maximum" if delta > 0 else "at-minimum"
        self._size = granted
        outcome: Literal["granted", "partial", "denied"]
        outcome, reason = "partial", f"that would be size {asked}, but {limit} applies"
        if granted == before:
            outcome, reason = "denied", f"its size is already {before}, and {limit} applies"
        elif granted == asked:
            outcome, reason, code = "granted", "", ""
        return Resized(
            outcome=outcome, before=before, asked=asked, granted=granted, reason=reason, code=code
        )

    def close(self) -> None:
        """Do nothing."""
