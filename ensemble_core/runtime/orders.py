"""Orders: what carries a decision out, as data, and the performer that does it.

The engine's thread makes an order of each decision that the world must hear of. The journal's
writer hands it to :meth:`Performer.perform` once its event is on disk; a run without a journal does
so at once. Orders to the executor are carried out one after another on a thread of their own, calls
on the caller's threads; what became of them comes back as events. Used by the controller.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ensemble_core.errors import EnsembleError
from ensemble_core.model.decisions import Cancel, Resize, Submit
from ensemble_core.model.events import Event, JobEvent, Problem, ResizeOutcome
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Executor
from ensemble_core.runtime.callbacks import Caller, MakeCall

__all__ = ["Forget", "Order", "Performer"]


@dataclass(frozen=True, slots=True)
class Forget:
    """The end of these jobs is on record: the executor need not remember them."""

    jobs: tuple[str, ...]


Order = Submit | Cancel | Resize | Forget | MakeCall


class Performer:
    """Carries out the orders of one run. ``name`` is the executor's, for messages."""

    def __init__(
        self,
        executor: Executor,
        name: str,
        caller: Caller,
        emit: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._name = name
        self._caller = caller
        self._emit = emit
        self._clock = clock
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="executor", daemon=True)

    def start(self) -> None:
        """Begin to carry out what there is."""
        self._thread.start()

    def perform(self, order: Order) -> None:
        """Have an order carried out. Returns at once; safe from any thread."""
        if isinstance(order, MakeCall):
            self._caller.make(order)
        else:
            self._orders.put(order)

    def close(self) -> None:
        """End once all orders so far are carried out; :meth:`join` waits for that."""
        self._orders.put(None)

    def join(self, timeout: float) -> bool:
        """Wait so many seconds; true if the last order is carried out."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- the executor's thread -----------------------------------------------------------------

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                if isinstance(order, Submit):
                    self._submit(order.jobs)
                elif isinstance(order, Cancel):
                    self._cancel(order.jobs)
                elif isinstance(order, Resize):
                    self._resize(order)
                elif isinstance(order, Forget):
                    self._executor.forget(order.jobs)
            except (Exception, SystemExit) as error:  # it broke its contract: say so
                message = f"executor {self._name} raised {error!r}"
                self._emit((Problem(self._clock(), message, "error"),))

    def _submit(self, jobs: Sequence[Job]) -> None:
        try:
            self._executor.submit(jobs)
        except (Exception, SystemExit) as error:  # nothing was submitted
            now = self._clock()
            context = {"type": "submit", "severity": 0, "note": str(error) or repr(error)}
            events: list[Event] = []
            for job in jobs:
                events.append(JobEvent(now, job.id, "exception", context))
                events.append(JobEvent(now, job.id, "clean"))
            self._emit(events)

    def _cancel(self, jobs: Sequence[str]) -> None:
        try:
            self._executor.cancel(jobs)
        except EnsembleError as error:
            message = f"{len(jobs)} jobs could not be cancelled: {error}"
            self._emit((Problem(self._clock(), message, "error", tuple(jobs)),))

    def _resize(self, resize: Resize) -> None:
        request = resize.request
        try:
            self._executor.resize(request, resize.delta, when_busy=resize.when_busy)
        except EnsembleError as error:
            outcome = ResizeOutcome(
                self._clock(),
                request,
                "undelivered" if error.transient else "denied",
                reason=error.what,
            )
            self._emit((outcome,))
        except (Exception, SystemExit) as error:  # broke its contract: still, rules wait for this
            self._emit((ResizeOutcome(self._clock(), request, "denied", reason=repr(error)),))
            raise
