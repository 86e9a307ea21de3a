"""Ledger of a run on Slurm: records of ``ensemble_batch``, with the batch's comment as its name.

The loop's thread owns it.
"""

from __future__ import annotations

from typing import Any

from ensemble_batch import Records, Sent

from ensemble_slurm.names import Batch

__all__ = ["Ledger"]


class Ledger(Records):
    """The records of the run ``tag`` in a folder; without one nothing is kept."""

    def __init__(self, folder: str | None, tag: str) -> None:
        self._tag = tag
        super().__init__(folder, "ledger.jsonl")

    def read(self, kind: str, *rest: Any) -> None:
        # Before 1.0 a batch was kept by its parts, and its id alone.
        if kind == "b" and len(rest) > 4:
            key, attempt, group, indices, at, jobs, *suffix = rest
            behind = "".join(f"-{each}" if isinstance(each, int) else each for each in suffix)
            batch = Batch(self._tag, key, group, tuple(indices), attempt, behind)
            rest = (key, batch.comment, jobs, at)
        elif kind == "a" and isinstance(rest[1], str):
            rest = (rest[0], [rest[1]])
        super().read(kind, *rest)

    def batch(self, sent: Sent) -> Batch:
        """The batch as it was last handed in."""
        batch = Batch.from_comment(sent.names[-1], self._tag)
        assert batch is not None
        return batch
