"""Submits jobs to Flux without waiting for the reply to each."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ensemble_core import Job
from ensemble_flux.jobspec import JobspecError, Jobspecs
from ensemble_flux.reactor import Reactor, error_text

#: Maximum number of submissions that wait for a reply. Flux handles jobs in batches and is faster
#: with larger batches. Measured: 64 give 0.6 of the rate of 1,024; more than 1,024 add nothing.
WINDOW = 2048
#: Number of submissions between two checks for incoming messages.
_SLICE = 64
#: Retries if no module receives a submission: seconds until the next attempt, and number of
#: attempts.
_BUSY, _RETRIES = 0.5, 60
_NOBODY = frozenset({errno.ENOSYS, errno.EAGAIN})
#: Seconds without a reply to any submission after which a warning says so.
_SILENT = 60.0


@dataclass(slots=True)
class Order:
    """A prepared job to submit."""

    job: Job
    output: Mapping[str, Any] | None = None
    kept: tuple[str, ...] = ()  # output files that are removed if they stay empty
    extra: Mapping[str, Any] | None = None
    #: Files to which streams of the job are copied, by stream.
    fetch: Mapping[str, str] = field(default_factory=dict)
    failed: str | None = None  # why the job cannot run
    attempts: int = 0


class Submitter:
    """Submits jobs that Flux does not have yet.

    - ``accepted`` is called with Flux's id of each accepted job.
    - ``failed`` is called with the type and note of the exception of each rejected job.
    - ``problem`` is called with a warning for the user.
    """

    def __init__(
        self,
        flux: Any,
        reactor: Reactor,
        jobspecs: Jobspecs,
        *,
        accepted: Callable[[Order, int], None],
        failed: Callable[[str, str, str], None],
        problem: Callable[[str], None],
        window: int = WINDOW,
    ) -> None:
        self._flux = flux
        self._reactor = reactor
        self._jobspecs = jobspecs
        self._accepted = accepted
        self._failed = failed
        self._problem = problem
        self._window = window
        self._waiting: OrderedDict[str, Order] = OrderedDict()
        self._on_the_way: dict[str, Order] = {}
        #: Jobs cancelled while they were in flight.
        self._cancelled_on_the_way: set[str] = set()
        self._stopped = False
        #: Number of replies, and whether it is being watched.
        self._replies, self._watched = 0, False

    def stop(self) -> set[str]:
        """Submit no more. Return the jobs that are in flight."""
        self._stopped = True
        self._waiting.clear()
        return set(self._on_the_way)

    def take(self, orders: Sequence[Order]) -> None:
        """Submit these jobs in order."""
        for order in () if self._stopped else orders:
            self._waiting[order.job.id] = order
        self._pump()

    def cancel(self, name: str) -> None:
        """Drop this job. If it is in flight, cancel it once Flux has accepted it."""
        if self._waiting.pop(name, None) is not None:
            self._failed(name, "cancel", "cancelled before it was submitted to Flux")
        elif name in self._on_the_way:
            self._cancelled_on_the_way.add(name)

    def cancelled_on_the_way(self, name: str) -> bool:
        """Return whether an accepted job was cancelled while it was in flight.

        Returns True only once for each job.
        """
        if name in self._cancelled_on_the_way:
            self._cancelled_on_the_way.discard(name)
            return True
        return False

    def _pump(self) -> None:
        """Send waiting jobs, as far as the window allows."""
        handle = self._reactor.handle
        last = len(self._on_the_way) + _SLICE
        while self._waiting and len(self._on_the_way) < self._window:
            if len(self._on_the_way) >= last:
                self._reactor.post(self._pump)
                return
            name, order = self._waiting.popitem(last=False)
            job = order.job
            if order.failed is not None:
                self._failed(name, "workdir", order.failed)
                continue
            try:
                jobspec = self._jobspecs.write(job, order.output, order.fetch)
                future = self._flux.job.submit_async(handle, jobspec, urgency=job.urgency)
            except JobspecError as error:
                self._failed(name, "jobspec", str(error))
                continue
            except OSError as error:
                self._failed(name, "submit", error_text(error))
                continue
            self._on_the_way[name] = order
            self._reactor.then(future, partial(self._answered, order))
        if self._on_the_way and not self._watched:
            self._watched = True
            self._reactor.after(_SILENT, partial(self._watch, self._replies))

    def _watch(self, replies: int) -> None:
        """Warn, once, if Flux has answered no submission since there were so many replies."""
        left = len(self._on_the_way)
        if left and replies == self._replies:
            self._problem(
                f"Flux has not answered {left} submission{'s' if left > 1 else ''} for "
                f"{_SILENT:g} s\n"
                "  hint: after a reload of its module job-ingest it never will; 'ensemble stop' "
                "and 'ensemble resume' then submit what it does not have"
            )
            return
        self._watched = bool(left)
        if left:
            self._reactor.after(_SILENT, partial(self._watch, self._replies))

    def _answered(self, order: Order, future: Any) -> None:
        self._replies += 1
        del self._on_the_way[order.job.id]
        try:
            queue_id = self._reactor.direct.jobid(future)
        except OSError as error:
            self._refused(order, error)
        else:
            self._accepted(order, queue_id)
        self._pump()

    def _refused(self, order: Order, error: OSError) -> None:
        name = order.job.id
        if self.cancelled_on_the_way(name):
            self._failed(name, "cancel", "cancelled before Flux accepted it")
        elif error.errno in _NOBODY and not self._stopped and order.attempts < _RETRIES:
            # The request did not arrive: a module of the instance is being reloaded.
            order.attempts += 1
            self._reactor.after(_BUSY, partial(self.take, [order]))
        else:
            self._failed(name, "submit", error_text(error))
