"""Replica numbers: which jobs of each combination of parameters a group has submitted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import field

from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import dataclass

#: Digest (16 bytes) of a combination of parameters.
Combination = bytes


def combination(parameters: Mapping[str, object]) -> Combination:
    """Return the digest of a combination of parameters.

    The values 1 and 1.0 have the same digest; ``"1"`` has a different one.
    """
    items = [(name, _canonical(parameters[name])) for name in sorted(parameters)]
    return hashlib.blake2b(repr(items).encode(), digest_size=16).digest()


def _canonical(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@dataclass(slots=True, eq=False)
class Replicas:
    """The replica numbers that each combination of parameters has used, over all submits.

    The numbers of a combination are the set bits of an integer. A draft contains the numbers of
    jobs that are being created; ``keep`` adds them.
    """

    used: dict[Combination, int] = field(default_factory=dict)
    base: Replicas | None = None

    def draft(self) -> Replicas:
        """Return a copy that can be changed without changing this object."""
        return Replicas(base=self)

    def keep(self, draft: Replicas) -> None:
        """Add the numbers that a draft has used."""
        self.used.update(draft.used)

    def bits(self, key: Combination) -> int:
        """Return the numbers that a combination has used, as bits."""
        found = self.used.get(key)
        if found is None:
            return 0 if self.base is None else self.base.bits(key)
        return found

    def claim(self, parameters: Mapping[str, object], replica: int) -> bool:
        """Use a number. Return False if it was used before."""
        key = combination(parameters)
        bits = self.bits(key)
        self.used[key] = bits | 1 << replica
        return not bits >> replica & 1

    def claim_free(self, parameters: Mapping[str, object], count: int) -> list[int]:
        """Use the first ``count`` free numbers, and return them."""
        key = combination(parameters)
        bits = self.bits(key)
        found: list[int] = []
        for _ in range(count):
            free = ~bits & (bits + 1)
            bits |= free
            found.append(free.bit_length() - 1)
        self.used[key] = bits
        return found

    def claim_all(self, jobs: Iterable[Job]) -> None:
        """Use the numbers of these jobs."""
        for job in jobs:
            self.claim(job.parameters, job.replica)
