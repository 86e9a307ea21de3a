"""Interface of observers, which parse the output of jobs.

An observer does not open files: the runtime passes the bytes to it. To test an observer, use the
test suite ``ObserverContract``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import ClassVar, Literal

from ensemble_core.metrics.series import UNREADABLE
from ensemble_core.quick_dataclass import dataclass

__all__ = ["UNREADABLE", "Observer", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """Values of an observer's variables at one time or simulation step (``clock``).

    A value may be nan or infinite; most statistics skip such values. ``UNREADABLE`` is a nan for a
    value that was printed, but could not be read. The clock must be finite.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    clock: float | None = None


class Observer(ABC):
    """Parser of one output file of one job. The contract:

    - ``feed`` receives the bytes of the file in order, in arbitrary chunks, and returns rows of
      values. The rows do not depend on how the bytes are divided into chunks.
    - The observer buffers an unfinished line, up to a fixed size.
    - No input causes an exception. Leave out values that cannot be parsed: a wrong value is worse
      than a missing one.
    - All methods are called on one thread.
    """

    #: Whether a carriage return ends a line. Then, updates of a progress bar may be left out if
    #: newer ones are in the file already; at most about ten a second are read.
    rewrites: ClassVar[bool] = False

    #: At most so many rows a second are handed to rules and statistics; the newest value of each
    #: name counts. ``None``: all rows.
    rate: float | None = None

    @property
    @abstractmethod
    def path(self) -> str | None:
        """The file to read, relative to the job's workdir. ``None`` means the job's ``stream``."""

    @property
    def stream(self) -> Literal["stdout", "stderr"]:
        """The stream to read if ``path`` is ``None``."""
        return "stdout"

    @abstractmethod
    def feed(self, data: bytes) -> Iterable[Row]:
        """Take the next bytes and return the rows that are complete now."""

    def truncated(self) -> None:
        """Discard buffered bytes, because the file was truncated or replaced."""

    def interrupted(self) -> str | None:
        """Discard an unfinished line: the job may have been killed while it wrote the line.

        Return a text for the user that says what was discarded, or ``None``.

        Called before ``finish`` if the job failed, was cancelled or was killed.
        """
        return None

    def finish(self) -> Iterable[Row]:
        """Return the rows that are complete at the end of the file. Called once, after the job."""
        return ()

    def complaint(self) -> str | None:
        """Describe, for the user, what could not be parsed (``12 lines, none of them JSON``), or
        ``None``.

        Called after ``finish`` if the job was successful.
        """
        return None
