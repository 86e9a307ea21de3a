"""Run context: the parts of the executor ``remote`` and of its run that a member's proxy needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ensemble_core import Event, Problem
from ensemble_service.proto import ensemble_pb2 as pb

__all__ = ["RunContext"]


@dataclass(slots=True)
class RunContext:
    """Callbacks of the executor, and what one run is called at all of its members."""

    run: str
    epoch: int
    number: Callable[[], int]
    send: Callable[[pb.FromRun], None]
    tell: Callable[[Sequence[Event]], None]
    clock: Callable[[], float]
    #: Gauges of these paths have changed, at this time.
    gauges: Callable[[Iterable[str], float], None]
    #: A member says that another controller has the run.
    stale: Callable[[str, str], None]
    #: Whether a job is a member's, but not of this name.
    elsewhere: Callable[[str, str], bool]
    #: A member's clock is ahead: by so many seconds at least, and now. Kept for later controllers.
    ahead: Callable[[str, int, int], None]
    #: Absolute folders in which members' files may be read.
    shared: Sequence[str] = ()

    def warn(self, message: str) -> None:
        self.tell([Problem(self.clock(), message)])
