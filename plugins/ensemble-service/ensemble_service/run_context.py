"""Run context: what the executor ``remote`` passes to the proxies of its members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ensemble_core import Event, Problem
from ensemble_service.proto import ensemble_pb2 as pb


@dataclass(slots=True)
class RunContext:
    """A run, as its member proxies see it."""

    run: str  #: the run's name at the service: see :func:`run_name`
    epoch: int  # number of the run's controller
    number: Callable[[], int]
    send: Callable[[pb.FromRun], None]
    tell: Callable[[Sequence[Event]], None]
    clock: Callable[[], float]
    #: Called with the paths of changed gauges and the time.
    gauges: Callable[[Iterable[str], float], None]
    #: Called if a member reports that another controller has taken over the run.
    stale: Callable[[str, str], None]
    #: Returns whether a job belongs to a different member than the named one.
    elsewhere: Callable[[str, str], bool]
    #: Records, for later controllers, by how many seconds a member's clock is ahead: the smallest
    #: value so far, and the current one.
    ahead: Callable[[str, int, int], None]
    #: Absolute folders in which members' files may be read.
    shared: Sequence[str] = ()

    def warn(self, message: str) -> None:
        self.tell([Problem(self.clock(), message)])
