"""Reconnecting stream to the service, with backoff.

If the stream breaks, messages may be lost. Senders must repeat them.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ensemble_core import EnsembleError, ExecutorError

if TYPE_CHECKING:
    from ensemble_service.call_errors import Unreachable

#: Seconds between attempts to connect: first and longest. A run with the executor ``remote`` waits
#: slightly longer than that for members that it needs.
_FIRST, _LONGEST = 0.2, 5.0
#: A connection that lasted this many seconds resets the backoff.
_STEADY = 5.0

#: Seconds to wait for the thread to end.
_CLOSING = 5.0

_log = logging.getLogger("ensemble.member")

_S = TypeVar("_S")
_R = TypeVar("_R")


class Connection(Generic[_S, _R]):
    """Stream that is open from :meth:`start` to :meth:`close`, and reopened if it breaks.

    Callbacks run on the connection's thread.
    """

    def __init__(
        self,
        channel: Callable[[], Any],  # opens a channel
        method: Literal["Member", "Steer"],  # RPC of member agents, RPC of controllers
        target: str,  # the service's address
        *,
        first: Callable[[], _S],  # returns the first message of each new stream
        heard: Callable[[_R], None],  # called with each received message
        down: Callable[[EnsembleError], None],  # called when a stream ends or cannot be opened
        away: Callable[[], Unreachable]
        | None = None,  # finds out why the service cannot be reached
    ) -> None:
        self._channel = channel
        self._method = method
        self._target = target
        self._first = first
        self._heard = heard
        self._down = down
        self._away = away
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_S | None] | None = None
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="ensemble-service", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: _S) -> None:
        """Send a message on the open stream. If no stream is open, the message is lost."""
        waiting = self._waiting
        if waiting is not None:
            waiting.put(message)

    def drop(self) -> None:
        """End the current stream, so that a new one is opened."""
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def finish(self, seconds: float) -> None:
        """Send what is queued, end the stream and :meth:`close`, within this many seconds."""
        self._closed.set()
        waiting = self._waiting
        if waiting is not None:
            waiting.put(None)
            self._thread.join(seconds)
        self.close()

    def close(self) -> None:
        """End the stream and wait for its thread, unless called on that thread.

        A thread that is still looking up host names is abandoned, because that may take long.
        """
        self._closed.set()
        self.drop()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSING)

    def _run(self) -> None:
        pause = _FIRST
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                error = self._run_stream()
            except Exception as broke:  # nothing else would reconnect
                _log.exception("reconnecting to the service")
                error = ExecutorError(
                    f"lost the connection to the service at {self._target}",
                    cause=f"{type(broke).__name__}: {broke}",
                    code="broken",
                    transient=True,
                )
            if self._closed.is_set():
                return
            try:
                self._down(error)
            except Exception:  # as above
                _log.exception("reconnecting to the service")
            if time.monotonic() - began > _STEADY:
                pause = _FIRST
            self._closed.wait(pause * random.uniform(0.7, 1.3))
            pause = min(pause * 2, _LONGEST)

    def _run_stream(self) -> EnsembleError:
        """Run one stream to its end; return the error that ended it."""
        from ensemble_service.channel import load_grpc
        from ensemble_service.proto import ensemble_pb2_grpc

        grpc = load_grpc()
        heard = False
        waiting: queue.SimpleQueue[_S | None] = queue.SimpleQueue()
        try:
            channel = self._channel()
        except EnsembleError as error:  # a token or certificate file is being replaced
            return error
        try:
            waiting.put(self._first())
            stub: Any = ensemble_pb2_grpc.EnsembleStub(channel)  # type: ignore[no-untyped-call]
            with self._lock:
                if self._closed.is_set():
                    return _ended_error(self._target)
                self._call = getattr(stub, self._method)(_drain(waiting))
            self._waiting = waiting
            for message in self._call:
                if self._closed.is_set():
                    break
                heard = True
                self._heard(message)
        except grpc.RpcError as error:
            return self._fault(error, heard)
        finally:
            self._waiting = None
            with self._lock:
                call, self._call = self._call, None
            if call is not None:
                call.cancel()
            waiting.put(None)
            channel.close()
        return _ended_error(self._target)

    def _fault(self, error: Any, heard: bool) -> EnsembleError:
        """Return why the stream ended or could not be opened."""
        from ensemble_service.call_errors import Unreachable, fault, is_answer

        plain = fault(error, self._target)
        unreached = plain.code == "unavailable" and not is_answer(plain.cause or "")
        if not unreached or self._closed.is_set():
            return plain
        if heard:  # the service was reachable, and may be so again
            return fault(error, self._target, Unreachable(plain.cause or "", "retrying"))
        if self._away is None:
            return plain
        try:
            return fault(error, self._target, self._away())
        except EnsembleError:  # the certificate authority's file is being replaced
            return plain


def _drain(waiting: queue.SimpleQueue[_S | None]) -> Iterator[_S]:
    while (message := waiting.get()) is not None:
        yield message


def _ended_error(target: str) -> EnsembleError:
    return ExecutorError(
        f"the service at {target} ended the connection", code="ended", transient=True
    )
