"""Interface of resizers: a resizer changes the number of nodes of a member of the ensemble service.

The docstring of :class:`Resizer` is the contract. The service calls resizers. Members request a
number of nodes; they cannot choose which object is resized.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ensemble_core.model.value import Value

__all__ = ["Resized", "Resizer"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Resized(Value):
    """The answer to a resize request, in nodes.

    ``before`` is the current size, ``asked`` is the requested size, and ``granted`` is the new
    size. The outcome ``partial`` means that the limits allowed only part of the change. ``code`` is
    for programs (``at-maximum``, ``conflict``, ``forbidden``, ``not-found`` …), and ``reason`` is
    for people; both are empty if the whole request was granted and verified. If ``transient`` is
    true, the request was denied, but the same request may be granted later.
    """

    outcome: Literal["granted", "partial", "denied"]
    before: int = 0
    asked: int = 0
    granted: int = 0
    reason: str = ""
    code: str = ""
    transient: bool = False


class Resizer(ABC):
    """Interface of objects that change the sizes of members. The contract:

    - Methods are called from the service's worker threads, but never two at a time for the same
      member. If ``resize`` and ``size`` never block, set ``waits = False``. They are then called in
      the service's main thread, which costs less.
    - ``resize`` returns a :class:`Resized` even if the object does not exist, may not be changed,
      or cannot be reached; it never raises an error. It returns when the new size is recorded, not
      when the nodes have arrived. If the size does not change, it does nothing.
    - The resizer decides which object belongs to a member, as configured by the operator of the
      service.
    """

    #: Whether a call may take longer than a few microseconds, because of a file, a lock or a remote
    #: call.
    waits: ClassVar[bool] = True

    #: Function that the service sets. Call it with a member and plain data before a request takes
    #: effect. It records the data with the request, and :meth:`decide` gets the data back. If the
    #: function raises an error, nothing was recorded, and the request must not take effect.
    keep: Callable[[str, Mapping[str, Any]], None] | None = None

    @abstractmethod
    def resize(self, member: str, delta: int) -> Resized:
        """Make ``member`` (``NAMESPACE/NAME``) ``delta`` nodes larger, or smaller when negative."""

    def size(self, member: str) -> int | None:
        """Return the current target size of ``member`` in nodes, or ``None`` if it is unknown."""
        return None

    def decide(self, member: str, delta: int, kept: Mapping[str, Any]) -> Resized | None:
        """Return the outcome of a ``resize`` during which the service was killed; ``None`` if
        unknown.

        ``kept`` is the data that :attr:`keep` recorded, possibly empty. If the resize did not take
        effect, it may be carried out now.
        """
        return None

    def close(self) -> None:
        """Release all resources. No method is called afterwards."""
