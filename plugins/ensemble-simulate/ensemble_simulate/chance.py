"""Random numbers of one thing: a stream that is cheap to begin, named by a text.

Each job draws a few numbers of its own. To seed the usual generator for that costs many times what
the numbers do; here they are a hash (BLAKE2b) of the stream's name and a counter, and everything
that :class:`random.Random` makes of uniform numbers is made of these.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from struct import unpack

__all__ = ["Stream"]


class Stream(Random):
    """The stream of this name: the same numbers wherever and whenever it is begun."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._block = 0
        self._words: list[int] = []
        self.gauss_next = None

    def _word(self) -> int:
        if not self._words:
            salt = self._block.to_bytes(16, "little")
            self._words = list(unpack("<8Q", blake2b(self._name, salt=salt).digest()))
            self._block += 1
        return self._words.pop()

    def random(self) -> float:
        """A number from 0 to below 1, of 53 bits."""
        return (self._word() >> 11) * 2.0**-53

    def getrandbits(self, k: int, /) -> int:
        """A whole number of so many bits."""
        found, bits = 0, 0
        while bits < k:
            found = (found << 64) | self._word()
            bits += 64
        return found >> (bits - k)
