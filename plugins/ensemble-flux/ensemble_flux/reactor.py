"""Thread with its own event loop (Flux's reactor) and connection to Flux's broker (handle).

A handle belongs to one thread. Other threads pass functions to :meth:`Reactor.post`.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any

from ensemble_flux.bindings import connect

#: Maximum number of messages to process before their results are passed on.
_BATCH = 256
#: Seconds to wait for the ends of streams when the handle is closed.
_CLOSING = 2.0


def error_text(error: BaseException) -> str:
    """Return the message of a Flux error."""
    if isinstance(error, OSError):
        return str(error.strerror or os.strerror(error.errno or 0))
    return str(error) or type(error).__name__


class Reactor:
    """Thread that opens a Flux handle, calls ``opened()``, and runs the handle's reactor.

    - ``idle`` is called whenever nothing is left to do.
    - ``lost`` is called with a reason if the broker is gone or a callback raised.
    """

    def __init__(
        self,
        flux: Any,
        uri: str | None,
        *,
        opened: Callable[[], None],
        idle: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        self._flux = flux
        self._uri = uri
        self._opened = opened
        self._idle = idle
        self._lost = lost
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._progress = 0
        #: Futures with several responses, each with the function that ends it.
        self._streams: dict[int, tuple[Any, Callable[[], None] | None]] = {}
        self._keys = count()
        self._silenced: set[int] = set()
        self._pending: set[Any] = set()
        self._timers: set[Any] = set()
        #: Finished futures and watchers (see _release).
        self._spent: list[Any] = []
        self._wakers: list[Any] = []
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="flux", daemon=True)
        self.handle: Any = None
        self.direct: DirectCalls = DirectCalls()

    # -- from other threads --------------------------------------------------------------------

    def start(self) -> None:
        """Start, and wait until ``opened`` has returned. Raises the error of ``opened``."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def post(self, work: Callable[[], None]) -> None:
        """Run a function in the reactor's thread."""
        self._posted.append(work)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the reactor and close the handle. Call it once."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        # A hanging broker must not hang the run.
        self._thread.join(timeout=3 * _CLOSING)
        if not self._thread.is_alive():
            os.close(self._wake)

    # -- in the reactor's thread ---------------------------------------------------------------

    def then(self, future: Any, answered: Callable[[Any], None]) -> None:
        """Call ``answered`` with the future once its response has arrived.

        For futures with a single response.
        """
        pending = self._pending

        def fulfilled(future: Any) -> None:
            self._progress += 1
            pending.discard(future)
            self._spent.append(future)
            answered(future)

        pending.add(future)
        future.then(fulfilled)

    def ask(
        self,
        topic: str,
        payload: object,
        answer: Callable[[str | None], None],
        refused: Callable[[OSError], None],
        **rank: int,
    ) -> None:
        """Send a request; call ``answer`` or ``refused`` with the response.

        Only a broker with the rank ``nodeid``, if given, answers it.
        """

        def answered(future: Any) -> None:
            try:
                text = self.direct.text(future)
            except OSError as error:
                refused(error)
            else:
                answer(text)

        self.then(self.handle.rpc(topic, payload, **rank), answered)

    def stream(
        self,
        topic: str,
        payload: object,
        answer: Callable[[str], None],
        ended: Callable[[OSError], None],
        *,
        cancel: str | None = None,
    ) -> int:
        """Request a stream of responses. Return a key for :meth:`end_stream`.

        The argument ``cancel`` is the topic of the request that ends the stream; the default is
        ``TOPIC-cancel``. If it is empty, the stream ends only with the connection.
        """
        constants = self._flux.constants
        ending = f"{topic}-cancel" if cancel is None else cancel

        def responded(future: Any) -> None:
            self._progress += 1
            known = key not in self._silenced
            try:
                text = self.direct.text(future)
            except OSError as error:
                self._streams.pop(key, None)
                self._silenced.discard(key)
                self._spent.append(future)
                if known and not self._stopping:
                    ended(error)
                return
            self.direct.reset(future)
            if known and text is not None:
                answer(text)

        future = self.handle.rpc(topic, payload, 0, constants.FLUX_RPC_STREAMING)
        key = next(self._keys)
        matchtag = future.pimpl.get_matchtag()
        self._streams[key] = (
            future,
            partial(
                self.handle.rpc, ending, {"matchtag": matchtag}, flags=constants.FLUX_RPC_NORESPONSE
            )
            if ending
            else None,
        )
        future.then(responded)
        return key

    def follow(self, future: Any, answered: Callable[[Any], bool]) -> None:
        """Call ``answered`` with each response of a future until ``answered`` returns false.

        It may return false only at the end of the future, because a response to a released future
        would crash the process.
        """

        def fulfilled(future: Any) -> None:
            self._progress += 1
            if not answered(future):
                self._streams.pop(key, None)
                self._spent.append(future)

        key = next(self._keys)
        self._streams[key] = (future, getattr(future, "cancel", None))
        future.then(fulfilled)

    def end_stream(self, key: int) -> None:
        """Stop a stream."""
        if key not in self._streams:
            return
        _, cancel = self._streams[key]
        self._silenced.add(key)
        if cancel is not None:
            with suppress(OSError):
                cancel()

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Run a function after a delay."""

        def elapsed(_handle: Any, watcher: Any, _events: int, _args: Any) -> None:
            self._progress += 1
            watcher.stop()
            self._timers.discard(watcher)
            self._spent.append(watcher)
            work()

        timer = self.handle.timer_watcher_create(seconds, elapsed)
        self._timers.add(timer)
        timer.start()

    def _main(self) -> None:
        try:
            self.handle = connect(self._flux, self._uri)
            waker = self.handle.fd_watcher_create(
                self._wake, self._on_wakeup, self._flux.constants.FLUX_POLLIN
            )
            self._wakers.append(waker)
            waker.start()
            self._opened()
        except BaseException as error:
            self._failure = error
            self._close()
            self._ready.set()
            return
        self._ready.set()
        try:
            self._spin()
        except BaseException as error:
            if not self._stopping:
                self._lost(error_text(error))
        finally:
            self._close()

    def _on_wakeup(self, _handle: Any, _watcher: Any, fd: int, _events: int, _args: Any) -> None:
        self._progress += 1
        try:
            os.eventfd_read(fd)
        except BlockingIOError:
            return

    def _spin(self) -> None:
        once = self._flux.constants.FLUX_REACTOR_ONCE
        nowait = self._flux.constants.FLUX_REACTOR_NOWAIT
        handle = self.handle
        reactor = handle.get_reactor()
        while not self._stopping:
            self._run(handle, reactor, once)
            # After a pause, pass the first message on immediately, and the rest of a burst
            # together.
            self._idle()
            for _ in range(_BATCH):
                before = self._progress
                while self._posted:
                    self._posted.popleft()()
                self._run(handle, reactor, nowait)
                if self._progress == before:
                    break
            self._sweep()
            self._idle()

    def _run(self, handle: Any, reactor: Any, flags: int) -> None:
        if self.direct.run(reactor, flags) < 0:
            handle.raise_if_exception()
            raise OSError(errno.ECONNRESET, "lost the connection to Flux's broker")

    def _sweep(self) -> None:
        """Release finished futures and watchers outside of their own callbacks."""
        while self._spent:
            _release(self._spent.pop())

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Run the reactor until ``done()`` is true. Return False after ``seconds``."""
        end = time.monotonic() + seconds
        self.after(seconds, lambda: None)
        reactor = self.handle.get_reactor()
        flags = self._flux.constants.FLUX_REACTOR_ONCE
        while not done():
            if time.monotonic() >= end:
                return False
            self._run(self.handle, reactor, flags)
        return True

    def _close(self) -> None:
        """End the streams, because the bindings keep unanswered ones, and close the handle."""
        if self.handle is None:
            return
        self._stopping = True
        endless = {key for key, (_, cancel) in self._streams.items() if cancel is None}
        with suppress(Exception):  # the handle must be closed in any case
            for _, cancel in list(self._streams.values()):
                if cancel is not None:
                    cancel()
            self.wait(lambda: not self._pending and self._streams.keys() <= endless, _CLOSING)
        for future in [*self._pending, *(future for future, _ in self._streams.values())]:
            future.stop()
            _forget(future)
            # The destructor of a watch would cancel it again, and print an error if the broker is
            # gone.
            if getattr(future, "needs_cancel", False):
                future.needs_cancel = False
            self._spent.append(future)
        self._streams.clear()
        self._pending.clear()
        self._spent += [*self._timers, *self._wakers]
        self._timers.clear()
        self._wakers.clear()
        self._sweep()
        self.handle = None


def _release(spent: Any) -> None:
    """Break the reference cycle of a future or watcher and its callback.

    Otherwise the garbage collector may destroy the object in another thread while this one uses the
    handle. The handle also cannot be closed while the object exists.
    """
    if hasattr(spent, "cb_handle"):
        spent.cb_handle = None
    else:
        spent.destroy()
        spent.wargs = spent.flux_handle = None


def _forget(future: Any) -> None:
    """Release a future that will get no more responses."""
    futures = import_module("flux.future")
    getattr(futures, "_THEN_HANDLES", {}).pop(future, None)


class DirectCalls:
    """Direct calls of Flux's C library, for functions that are called for every message.

    Flux's Python bindings check and convert every argument, which is too slow for a thousand jobs
    per second. Only for the reactor's thread.
    """

    def __init__(self) -> None:
        core = import_module("_flux._core")
        self._ffi: Any = core.ffi
        self._lib: Any = core.lib
        self._text = self._ffi.new("const char *[1]")
        self._id = self._ffi.new("flux_jobid_t [1]")

    def text(self, future: Any) -> str | None:
        """Return the payload of a response. Raises :class:`OSError` with Flux's message."""
        if self._lib.flux_rpc_get(future.pimpl.handle, self._text) < 0:
            raise self._error(future)
        text = self._text[0]
        return None if text == self._ffi.NULL else self._ffi.string(text).decode()

    def reset(self, future: Any) -> None:
        """Let a stream's future receive the next response.

        The owner must keep a reference to the future.
        """
        self._lib.flux_future_reset(future.pimpl.handle)

    def jobid(self, future: Any) -> int:
        """Return the id of a submitted job. Raises :class:`OSError` with Flux's message."""
        if self._lib.flux_job_submit_get_id(future.pimpl.handle, self._id) < 0:
            raise self._error(future)
        return int(self._id[0])

    def run(self, reactor: Any, flags: int) -> int:
        """Run a reactor. Returns a negative number after an error."""
        return int(self._lib.flux_reactor_run(reactor, flags))

    def _error(self, future: Any) -> OSError:
        number = self._ffi.errno
        text = self._lib.flux_future_error_string(future.pimpl.handle)
        words = "" if text == self._ffi.NULL else self._ffi.string(text).decode()
        return OSError(number, words or os.strerror(number))
