"""Unacknowledged events, numbered from 1: kept and sent again (with backoff) until acknowledged.

One for each life of a run at a member agent: executors add from any thread, the agent's sender
takes, and what the run has acknowledged goes.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence

from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.wire import MOST_BYTES, MOST_ITEMS

__all__ = ["UnackedEvents"]

#: Events that are kept.
_MOST = 1_000_000
#: Events that may be on their way without an acknowledgement.
_WINDOW = 10_000
#: Seconds without one until they are sent again: the first time, and at most.
_AGAIN, _LONGEST = 10.0, 120.0


class UnackedEvents:
    """The events of one life. Nothing is taken before :meth:`rewind` was called once."""

    def __init__(self, life: str, most: int = _MOST) -> None:
        self.life = life
        self._most = most
        self._lock = threading.Lock()
        self._events: deque[pb.Event] = deque()
        #: The number of the oldest event that is kept.
        self.kept_from = 1
        #: The number of the next event to send; 0 while nothing may be sent.
        self._next = 0
        #: The number of the newest event that was ever sent.
        self._sent = 0
        #: When what is on its way is to be sent again, and the pause before that.
        self._due: float | None = None
        self._pause = _AGAIN

    def __len__(self) -> int:
        return len(self._events)

    def widen(self, factor: int) -> None:
        """Keep so many times as many."""
        self._most *= factor

    def add(self, events: Sequence[pb.Event]) -> bool:
        """Keep events; ``False`` where there is no room for them, and then none is kept."""
        with self._lock:
            if len(self._events) + len(events) > self._most:
                return False
            self._events.extend(events)
            return True

    def rewind(self) -> None:
        """Begin to send again, with the oldest that is not acknowledged."""
        with self._lock:
            self._next = self.kept_from

    def stop(self) -> None:
        """Send nothing for now."""
        with self._lock:
            self._next = 0

    def acknowledge(self, number: int) -> None:
        """Everything up to this number has arrived."""
        with self._lock:
            # One that was never sent cannot have arrived, whatever is said.
            count = max(0, min(number, self._sent) - self.kept_from + 1)
            for _ in range(count):
                self._events.popleft()
            self.kept_from += count
            if count:
                self._due, self._pause = None, _AGAIN
            if self._next:
                self._next = max(self._next, self.kept_from)

    def look(self, now: float) -> bool:
        """True if what was sent has to be sent again, for nobody has acknowledged it for long:
        whoever was in the middle may have dropped it without a word. ``now`` is monotonic."""
        with self._lock:
            if not self._next or self._next <= self.kept_from:
                self._due = None
            elif self._due is None:
                self._due = now + self._pause
            elif now >= self._due:
                self._pause = min(self._pause * 2, _LONGEST)
                self._due = now + self._pause
                self._next = self.kept_from
                return True
        return False

    @property
    def pending(self) -> int:
        """How many events wait to be sent and may be."""
        if not self._next:
            return 0
        begin = self._next - self.kept_from
        return max(0, min(len(self._events), _WINDOW) - begin)

    def take(self) -> tuple[int, list[pb.Event]] | None:
        """The next events to send and the number of the first; ``None`` where there are none."""
        with self._lock:
            if not self._next:
                return None
            begin = self._next - self.kept_from
            end = min(begin + MOST_ITEMS, _WINDOW, len(self._events))
            if begin >= end:
                return None
            events: list[pb.Event] = []
            size = 0
            for event in itertools.islice(self._events, begin, end):
                size += event.ByteSize()
                if events and size > MOST_BYTES:
                    break
                events.append(event)
            first, self._next = self._next, self._next + len(events)
            self._sent = max(self._sent, self._next - 1)
            return first, events
