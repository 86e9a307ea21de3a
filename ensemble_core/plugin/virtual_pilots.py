"""Interface of an executor's allocations in a simulation: no jobs run, and time is an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ensemble_core.model.decisions import WhenBusy
    from ensemble_core.model.jobs import Job


class VirtualAnswer(NamedTuple):
    """Answer to a request for more or fewer nodes, as a ``ResizeOutcome`` without its time."""

    request: str
    outcome: str
    size: int
    reason: str


class VirtualTurn(NamedTuple):
    """Changes at one moment.

    - ``lost``: jobs that end because their allocation ends
    - ``started``: jobs that start, each with the number of its allocation
    - ``answers``: answers to requests for more or fewer nodes
    - ``said``: lines for the run's output, such as that an allocation is ready
    """

    lost: Sequence[str]
    started: Sequence[tuple[str, int]]
    answers: Sequence[VirtualAnswer]
    said: Sequence[str] = ()


class VirtualPilots(Protocol):
    """Allocations that an executor requests for the jobs of a run. Times are in seconds.

    Each change at a time takes effect in the next :meth:`advance` with that time.
    """

    def never(self, job: Job) -> str | None:
        """Return why this job can never run, or ``None``."""

    def add(self, job: Job) -> None:
        """Add a waiting job."""

    def remove(self, job: str) -> None:
        """Remove a waiting job."""

    def ended(self, job: str, now: float) -> None:
        """Record the end of a job that had started."""

    def resize(self, request: str, delta: int, when_busy: WhenBusy) -> None:
        """Request more or fewer nodes. The answer is in a later turn."""

    def due(self, now: float) -> float | None:
        """Return the next time at which something changes by itself."""

    def advance(self, now: float) -> VirtualTurn:
        """Let everything happen that is due."""

    def gauges(self, now: float) -> Mapping[str, float]:
        """Return the gauges, with ``cores.up`` and ``cores.free``."""
