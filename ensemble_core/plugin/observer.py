"""Interface of observers: pure parsers of jobs' output.

The runtime reads the growing files and passes their bytes on. An observer only parses, so tests
need only bytes. The suite ``ObserverContract`` checks the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ensemble_core.model.value import Value

__all__ = ["Observer", "Row"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Row(Value):
    """Values that an observer read at one moment, by variable. ``clock`` is their time or step.

    A value may be nan or infinite if the output says so. Statistics skip such a value, and
    conditions can test for it (``isnan(energy)``). The clock is finite.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    clock: float | None = None


class Observer(ABC):
    """Parser of one job's output that yields rows.

    The contract: ``feed`` gets the file's bytes in order, in arbitrary chunks. The rows do not
    depend on the chunks. The observer buffers an unfinished line, up to a fixed size. No input
    causes an exception. Values that cannot be parsed are left out, because a wrong value is worse
    than a missing one. An observer reads one file of one job and is called from one thread.
    """

    @property
    @abstractmethod
    def path(self) -> str | None:
        """The file to follow, relative to the job's workdir; ``None`` means the job's stdout."""

    @abstractmethod
    def feed(self, data: bytes) -> Iterable[Row]:
        """Take further bytes and return the rows that they complete."""

    def truncated(self) -> None:
        """Discard buffered input, because the file shrank or was replaced."""

    def finish(self) -> Iterable[Row]:
        """Return the rows that the end of the file completes. Called once, after the job."""
        return ()

    def complaint(self) -> str | None:
        """Return a description of the parts of the file that could not be parsed, for the user
        (``12 lines, none of them JSON``), or ``None``. Called after ``finish`` if the job
        succeeded."""
        return None
