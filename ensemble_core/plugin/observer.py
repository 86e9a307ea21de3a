"""Observers: pure readers of what jobs write.

The runtime follows the files and hands their bytes on; an observer only parses, so it can be
tested with nothing but bytes. The suite ``ObserverContract`` checks the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Observer", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """Values that stood together in the output, by variable; ``clock`` is their time or step.

    A value may be nan or infinite where the output says so: statistics pass over it, and
    conditions can ask for it (``isnan(energy)``). The clock is finite.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    clock: float | None = None


class Observer(ABC):
    """Reads one job's output and yields rows.

    The contract: ``feed`` is given the file's bytes in order, in pieces cut anywhere, and gives the
    same rows wherever they were cut. It keeps what it needs of an unfinished line, bounded in size.
    No input makes it raise. A value that cannot be read is left out: every wrong value is worse
    than a missing one. One observer serves one file of one job; it is called from one thread.
    """

    @property
    @abstractmethod
    def path(self) -> str | None:
        """The file to follow, relative to the job's workdir; ``None`` is the job's own stdout."""

    @abstractmethod
    def feed(self, data: bytes) -> Iterable[Row]:
        """Rows that are complete with these further bytes."""

    def truncated(self) -> None:
        """The file began anew: it shrank or was replaced. Forget what was unfinished."""

    def finish(self) -> Iterable[Row]:
        """Rows that the end of the file completes. Called once, after the job ended."""
        return ()

    def complaint(self) -> str | None:
        """The part of a whole file that it did not understand, in words for the user; ``None``
        where there is none. Asked after ``finish``, where the job succeeded: ``12 lines, none of
        them JSON``.
        """
        return None
