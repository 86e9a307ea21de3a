"""The resizer: what gives a member of the ensemble service more or fewer nodes.

The docstring of :class:`Resizer` is the contract. The service calls resizers; members only say how
many nodes they want, never of which object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

__all__ = ["Resized", "Resizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """The answer to a request for another size, in nodes.

    ``before`` is the size that was found, ``asked`` the size that was asked for and ``granted`` the
    size that will be. ``partial`` is less than was asked, within the bounds. ``code`` is for
    programs (``at-maximum``, ``conflict``, ``forbidden``, ``not-found`` …) and ``reason`` for
    people; both are empty for what was granted as asked and seen to be so. ``transient`` says of a
    denial that the same may be granted later.
    """

    outcome: Literal["granted", "partial", "denied"]
    before: int = 0
    asked: int = 0
    granted: int = 0
    reason: str = ""
    code: str = ""
    transient: bool = False


class Resizer(ABC):
    """Changes the sizes of members. The contract:

    - Methods are called from the service's worker threads; of one member, never two at once. One
      whose ``resize`` and ``size`` never wait for anything (they count, or hand a wish on) may say
      so with ``waits = False``: it is then called on the service's own thread, which costs less.
    - ``resize`` answers with a :class:`Resized`, also where the object is not there, may not be
      touched, or nobody can be reached: it raises nothing. It returns when the new size is on
      record, not when the nodes have come. It leaves a size that is not to change alone.
    - Which object belongs to a member is the resizer's business, set up by who runs the service.
    """

    #: Whether a call may take longer than a few microseconds: a file, a lock, a remote call.
    waits: ClassVar[bool] = True

    #: Set by the service. Given a member and plain data, it puts these on record with the request
    #: that is carried out, before that takes effect: :meth:`decide` gets them back. If it raises,
    #: they are not on record, and the request must not take effect.
    keep: Callable[[str, Mapping[str, Any]], None] | None = None

    @abstractmethod
    def resize(self, member: str, delta: int) -> Resized:
        """Make ``member`` (``NAMESPACE/NAME``) ``delta`` nodes larger, or smaller when negative."""

    def size(self, member: str) -> int | None:
        """How many nodes ``member`` is to have now; ``None`` where that cannot be known."""
        return None

    def decide(self, member: str, delta: int, kept: Mapping[str, Any]) -> Resized | None:
        """The outcome of a ``resize`` that the service was killed over, by what it kept; ``None``
        where that cannot be known. ``kept`` is empty if nothing was put on record. A resize that
        did not take effect may be carried out now."""
        return None

    def close(self) -> None:
        """Give back what was taken; nothing is called afterwards."""
