"""Interface of resizers, which change the number of nodes of a remote queue (a *member*)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from ensemble_core.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """The answer to a resize request. All sizes are numbers of nodes.

    - ``before`` is the current size, ``asked`` is the requested size, and ``granted`` is the new
      size.
    - The outcome ``partial`` means that the limits allowed only part of the change.
    - ``code`` is the reason as a fixed word for programs (``at-maximum``, ``conflict``,
      ``not-found`` …), and ``reason`` explains it in a sentence. Both are empty if the whole
      request was granted and verified.
    - ``transient`` is true if the request was denied but may be granted later.
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

    - Methods are called on the service's worker threads, but only one at a time for each member. If
      ``resize`` and ``size`` never block, set ``waits = False``. They are then called on the
      service's main thread, which costs less.
    - ``resize`` never raises an error. If the member's nodes cannot be changed, for example because
      its MiniCluster does not exist, it returns a :class:`Resized` that says so.
    - ``resize`` returns when the new size is set as the target, not when the nodes have arrived. If
      the size would not change, it does nothing.
    - The resizer, not the request, decides which object (such as a MiniCluster) is resized for a
      member.
    """

    #: Whether a call may take longer than a few microseconds, for example because of a remote call.
    waits: ClassVar[bool] = True

    #: Function that the service sets. Before a request takes effect, call it with the member and
    #: plain data. The service stores the data with the request and passes it to :meth:`decide`
    #: later. If the function raises an error, nothing was stored, and the request must not take
    #: effect.
    keep: Callable[[str, Mapping[str, Any]], None] | None = None

    @abstractmethod
    def resize(self, member: str, delta: int) -> Resized:
        """Make ``member`` (``NAMESPACE/NAME``) ``delta`` nodes larger, or smaller when negative."""

    def size(self, member: str) -> int | None:
        """Return the current target size of ``member`` in nodes, or ``None`` if it is unknown."""
        return None

    def decide(self, member: str, delta: int, kept: Mapping[str, Any]) -> Resized | None:
        """Return the outcome of a ``resize`` during which the service was killed, or ``None`` if
        unknown.

        ``kept`` is the data that was passed to :attr:`keep`, possibly empty. If the resize has not
        taken effect, it may be carried out now.
        """
        return None

    def close(self) -> None:
        """Release all resources. No method is called afterwards."""
