"""Random streams, each identified by a text and cheap to create.

The numbers are hashes: seeding a generator would take longer than drawing a job's few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Protocol, TypeVar

_T = TypeVar("_T")
_EIGHT = Struct("<8Q").unpack


class Randomness(Protocol):
    """Random numbers for models; a part of the interface of :class:`random.Random`."""

    def random(self) -> float: ...

    def gauss(self, mu: float, sigma: float) -> float: ...

    def choice(self, seq: Sequence[_T]) -> _T: ...


class Stream:
    """A random stream. Streams with the same name yield the same numbers."""

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
        """Return a random number in [0, 1) with 53 bits."""
        words = self._words
        return ((words.pop() if words else self._more()) >> 11) * 2.0**-53

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normally distributed number (Box–Muller, two at a time)."""
        spare, self._spare = self._spare, None
        if spare is None:
            turn = self.random() * 2.0 * math.pi
            length = math.sqrt(-2.0 * math.log(1.0 - self.random()))
            spare = math.cos(turn) * length
            self._spare = math.sin(turn) * length
        return mu + spare * sigma

    def choice(self, seq: Sequence[_T]) -> _T:
        """Return one element of ``seq``, all with equal probability."""
        return seq[int(self.random() * len(seq))]
