"""Guards the calls of a run's executor: reports exceptions and calls that hang."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ensemble_core.errors import EnsembleError, ExecutorError, author_hint, raised_at
from ensemble_core.model.events import Event, ExecutorLost, Problem
from ensemble_core.plugin.executor import Emit, Executor, Run

#: How many seconds an executor may take to close.
_CLOSE_LIMIT = 120.0
_TICK = 0.2


class ExecutorGuard:
    """Guards the calls of one executor. ``name`` is the name of the executor in messages.

    An :class:`EnsembleError` passes through. Any other exception is reported as a defect of the
    executor, with the position in its code.
    """

    def __init__(
        self,
        executor: Executor,
        name: str,
        emit: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
    ) -> None:
        self.executor = executor
        self.name = name
        self._emit = emit
        self._clock = clock

    @contextlib.contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Convert every exception within the ``with`` block to an :class:`EnsembleError`. No method
        is called before the executor is open, or after it is closed.

        An ``EnsembleError`` that the executor raises passes unchanged. For any other exception,
        raise an ``EnsembleError`` that names the exception, its position and the ``method``.
        """
        if self not in _guards:
            raise ExecutorError(f"the executor {self.name} is not open", code="not-open")
        try:
            yield
        except EnsembleError:
            raise
        except (Exception, SystemExit) as error:
            place = raised_at(error)
            where = f" ({place})" if place else ""
            raise ExecutorError(
                f"executor {self.name} raised {_shown(error)} in {method}{where}",
                hint=author_hint(error),
                code="executor-fault",
            ) from error

    def open(self, run: Run, emit: Emit) -> None:
        """Open the executor and start to watch its threads."""
        _watch(self)
        try:
            with self.calling("open"):
                self.executor.open(run, emit)
        except BaseException:
            _unwatch(self)
            raise

    def resources(self) -> dict[str, float]:
        """Return the queue's gauges. If they are unavailable, warn and return ``{}``."""
        try:
            with self.calling("resources"):
                return dict(self.executor.resources())
        except EnsembleError as error:
            fault = error.code == "executor-fault"
            message = f"the queue's gauges are unavailable: {error}"
            self._emit((Problem(self._clock(), message, "error" if fault else "warning"),))
            return {}

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        """Ask the executor to find jobs again."""
        with self.calling("reattach"):
            return dict(self.executor.reattach(jobs))

    def close(self, leave: Callable[[], bool]) -> str | None:
        """Close the executor. Return why that failed, or ``None``.

        The executor is abandoned if it does not close within a timeout, or if ``leave()`` becomes
        true before.
        """
        failed: list[EnsembleError] = []

        def close() -> None:
            try:
                with self.calling("close"):
                    self.executor.close()
            except EnsembleError as error:
                failed.append(error)

        thread = threading.Thread(target=close, name="executor-close", daemon=True)
        thread.start()
        waited = 0.0
        while thread.is_alive() and waited < _CLOSE_LIMIT and not (leave() and waited > 1.0):
            thread.join(_TICK)
            waited += _TICK
        _unwatch(self)
        if thread.is_alive():
            return f"executor {self.name} did not close within {waited:.0f} s and was abandoned"
        return str(failed[0]) if failed else None

    def thread_died(self, thread: str, error: BaseException) -> bool:
        """Report the executor as lost because an exception has ended one of its threads.

        Without this thread, it might never send another event. Return False if the thread does not
        belong to the executor.
        """
        home = type(self.executor).__module__
        package = home.partition(".")[0]
        if package == "ensemble_core":  # not all code of the core belongs to the executor
            package = home.rpartition(".")[0]
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is vars(threading):
            trace = trace.tb_next
        error = error.with_traceback(trace)
        while trace is not None:
            name = str(trace.tb_frame.f_globals.get("__name__", ""))
            if name == home or name.startswith(f"{package}."):
                break
            trace = trace.tb_next
        else:
            return False
        reason = f"its thread {thread!r} died of {_shown(error)} ({raised_at(error)})"
        self._emit((ExecutorLost(self._clock(), self.name, reason, author_hint(error)),))
        return True


def _shown(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception:  # an error in a plugin's class
        return type(error).__name__


_guards: list[ExecutorGuard] = []
_lock = threading.Lock()
_usual_hook: Callable[[Any], Any] | None = None


def _watch(guard: ExecutorGuard) -> None:
    global _usual_hook  # all runs of the process share the hook
    with _lock:
        if any(each.executor is guard.executor for each in _guards):
            raise ExecutorError(f"the executor {guard.name} is already open", code="already-open")
        if not _guards:
            _usual_hook, threading.excepthook = threading.excepthook, _thread_died
        _guards.append(guard)


def _unwatch(guard: ExecutorGuard) -> None:
    with _lock:
        if guard in _guards:
            _guards.remove(guard)
            if not _guards and threading.excepthook is _thread_died:
                threading.excepthook = _usual_hook or threading.__excepthook__


def _thread_died(args: Any) -> None:
    thread = "?" if args.thread is None else args.thread.name
    error = args.exc_value
    claims = [error is not None and each.thread_died(thread, error) for each in list(_guards)]
    if not any(claims):
        (_usual_hook or threading.__excepthook__)(args)
