"""Random numbers of one thing: a stream that is cheap to begin, named by a text.

Each job draws a few numbers of its own. To seed a usual generator for that costs many times what
the numbers do; here they are a hash (BLAKE2b) of the stream's name and a counter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Protocol, TypeVar

__all__ = ["Randomness", "Stream"]

_T = TypeVar("_T")
_EIGHT = Struct("<8Q").unpack


class Randomness(Protocol):
    """The numbers that models draw, in the words of :class:`random.Random`."""

    def random(self) -> float: ...

    def gauss(self, mu: float, sigma: float) -> float: ...

    def choice(self, seq: Sequence[_T]) -> _T: ...


class Stream:
    """The stream of this name: the same numbers wherever and whenever it is begun. One of which
    nothing is drawn costs next to nothing."""

    __slots__ = ("_block", "_name", "_spare", "_words")

    def __init__(self, name: str) -> None:
        self._name = name
        self._block = 0
        self._words: list[int] = []
        self._spare: float | None = None

    def _more(self) -> int:
        salt = self._block.to_bytes(16, "little")
        words: list[int] = list(_EIGHT(blake2b(self._name.encode(), salt=salt).digest()))
        self._words = words
        self._block += 1
        return words.pop()

    def random(self) -> float:
        """A number from 0 to below 1, of 53 bits."""
        words = self._words
        return ((words.pop() if words else self._more()) >> 11) * 2.0**-53

    def gauss(self, mu: float, sigma: float) -> float:
        """A number of the normal distribution: Box and Muller's, two at a time."""
        spare, self._spare = self._spare, None
        if spare is None:
            turn = self.random() * 2.0 * math.pi
            length = math.sqrt(-2.0 * math.log(1.0 - self.random()))
            spare = math.cos(turn) * length
            self._spare = math.sin(turn) * length
        return mu + spare * sigma

    def choice(self, seq: Sequence[_T]) -> _T:
        """One of these, each as likely."""
        return seq[int(self.random() * len(seq))]
