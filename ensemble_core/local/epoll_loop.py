"""Event loop of the supervisor, the parent process of local jobs.

It waits for processes, timers, sockets and other threads with epoll.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Cancelled timers are removed only if there are more timers than this.
_FEW = 1024


class PollerTimer:
    """A function to be called at a given time, unless it is cancelled."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Poller(Generic[T]):
    """Event loop with epoll. ``T`` is the type of tokens, which identify watched processes."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._read, select.EPOLLIN)
        self._watched: dict[int, T] = {}
        self._calls: dict[int, Callable[[], None]] = {}
        self._ended: deque[T] = deque()
        self._timers: list[tuple[float, int, PollerTimer]] = []
        self._most = _FEW
        self._numbers = itertools.count()
        #: Reentrant: the handler of a signal may call :meth:`wake` while its thread holds it.
        self._lock = threading.RLock()
        self._awake = False
        self._open = True

    def close(self) -> None:
        """Close all descriptors. Call this only when the owner no longer waits."""
        for fd in self._watched:
            os.close(fd)
        self._watched.clear()
        with self._lock:
            self._open = False
            self._epoll.close()
            os.close(self._read)
            os.close(self._write)

    def wake(self) -> None:
        """End the current or next :meth:`wait`. Any thread may call this."""
        with self._lock:
            if self._open and not self._awake:
                self._awake = True
                os.write(self._write, b"x")

    def watch(self, pid: int, token: T) -> None:
        """Watch a child process. When it has ended, :meth:`wait` returns ``token``.

        The child is not reaped.
        """
        try:
            fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            threading.Thread(
                target=self._wait_for, args=(pid, token), name=f"ensemble-wait-{pid}", daemon=True
            ).start()
            return
        self.watch_fd(fd, token)

    def watch_fd(self, fd: int, token: T) -> None:
        """Watch the process of a pidfd, like :meth:`watch`. The poller then owns the descriptor."""
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except BaseException:
            os.close(fd)
            raise
        self._watched[fd] = token

    def on_ready(self, fd: int, call: Callable[[], None], writable: bool = False) -> None:
        """Make a call on the waiting thread whenever this descriptor is readable (or writable).

        The caller still owns the descriptor. Another call for the same descriptor replaces the
        first one.
        """
        known = fd in self._calls
        self._calls[fd] = call
        events = select.EPOLLIN | (select.EPOLLOUT if writable else 0)
        (self._epoll.modify if known else self._epoll.register)(fd, events)

    def unregister(self, fd: int) -> None:
        """Undo :meth:`on_ready`. Call this before closing the descriptor."""
        if self._calls.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _wait_for(self, pid: int, token: T) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._ended.append(token)
        self.wake()

    def at(self, when: float, call: Callable[[], None]) -> PollerTimer:
        """Make a call on the waiting thread at a monotonic time."""
        timer = PollerTimer(when, call)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        # Remove cancelled timers, which would pile up in a long run.
        if len(self._timers) > self._most:
            self._timers = [item for item in self._timers if item[2].call is not None]
            heapq.heapify(self._timers)
            self._most = max(_FEW, 2 * len(self._timers))
        return timer

    def wait(self, at_once: bool = False) -> list[T]:
        """Sleep until there is something to do. Return the tokens of processes that have ended.

        With ``at_once``, do not sleep.
        """
        timers = self._timers
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
        if at_once or self._ended:
            timeout = 0.0
        elif timers:
            timeout = max(0.0, timers[0][0] - time.monotonic())
        else:
            timeout = -1.0
        ended: list[T] = []
        for fd, _ in self._epoll.poll(timeout):
            if fd == self._read:
                with self._lock:
                    os.read(self._read, 64)
                    self._awake = False
            elif fd in self._calls:
                self._calls[fd]()
            elif fd in self._watched:
                ended.append(self._watched.pop(fd))
                # Unregister the descriptor before closing it. A process that is being spawned may
                # have a copy of it, which would keep the entry in epoll alive.
                self._epoll.unregister(fd)
                os.close(fd)
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def run_timers(self) -> None:
        """Make the calls of timers that are due."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()
