"""Delivery of a member's events to a run: each event arrives once and in order.

The member agent's outbox resends events until they are acknowledged, also after a restart of the
agent (:class:`KeptEvents`, on disk). The run's inbox drops repeated events.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ensemble_core import Event, Observed, Problem
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.state_folder import write_atomically
from ensemble_service.wire import MOST_BYTES, MOST_ITEMS

#: Maximum number of events that an outbox keeps.
MOST = 1_000_000
#: Maximum number of events in flight without an acknowledgement.
_WINDOW = 10_000
#: Seconds without an acknowledgement until events are resent: first and longest.
_RESEND, _LONGEST = 10.0, 120.0
#: An acknowledgement is sent after this many events, or after this many seconds if there are fewer
#: events. An acknowledgement for each batch would double the traffic of a thousand members.
_AT_ONCE, _EVERY = 500, 1.0
#: Maximum number of earlier lives that an inbox remembers.
_MOST_LIVES = 100


class Outbox:
    """Numbered events that the run has not acknowledged yet. Thread-safe."""

    def __init__(self, life: str, most: int = MOST) -> None:
        #: The period in which events are numbered from 1 (see ``hosted_run``).
        self.life = life
        self._most = most
        self._lock = threading.Lock()
        self._events: deque[pb.Event] = deque()
        #: The number of the oldest kept event.
        self.first = 1
        #: The number of the next event to send; 0 while nothing may be sent.
        self._next = 0
        #: The highest number that was ever sent.
        self._sent = 0
        #: When to resend unacknowledged events (monotonic seconds), and the current backoff.
        self._due: float | None = None
        self._pause = _RESEND

    def __len__(self) -> int:
        return len(self._events)

    @property
    def end(self) -> int:
        """The number that the next event gets."""
        with self._lock:
            return self.first + len(self._events)

    def add(self, events: Sequence[pb.Event]) -> bool:
        """Keep all of these events; if there is no room for all, keep none and return False."""
        with self._lock:
            if len(self._events) + len(events) > self._most:
                return False
            self._events.extend(events)
            return True

    def rewind(self) -> None:
        """Start sending from the oldest unacknowledged event."""
        with self._lock:
            self._next = self.first

    def stop(self) -> None:
        """Stop sending until the next :meth:`rewind`."""
        with self._lock:
            self._next = 0

    def acknowledge(self, number: int) -> None:
        """Drop the events up to this number, because they have arrived."""
        with self._lock:
            # Ignore numbers that were never sent, whatever the run claims.
            count = max(0, min(number, self._sent) - self.first + 1)
            for _ in range(count):
                self._events.popleft()
            self.first += count
            if count:
                self._due, self._pause = None, _RESEND
            if self._next:
                self._next = max(self._next, self.first)

    def overdue(self, now: float) -> bool:
        """Rewind and return True if an acknowledgement is overdue at ``now`` (monotonic seconds).

        The service may have dropped the events silently.
        """
        with self._lock:
            if not self._next or self._next <= self.first:
                self._due = None
            elif self._due is None:
                self._due = now + self._pause
            elif now >= self._due:
                self._pause = min(self._pause * 2, _LONGEST)
                self._due = now + self._pause
                self._next = self.first
                return True
        return False

    @property
    def pending(self) -> int:
        """The number of events that can be sent now."""
        if not self._next:
            return 0
        begin = self._next - self.first
        return max(0, min(len(self._events), _WINDOW) - begin)

    def take(self) -> tuple[int, list[pb.Event]] | None:
        """Return the next events to send and the number of the first, or None. The events fit in
        one message.
        """
        with self._lock:
            if not self._next:
                return None
            begin = self._next - self.first
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


class Inbox:
    """The numbers of a member's events that have arrived, to drop repeated events."""

    def __init__(self) -> None:
        #: The life that the numbers belong to; None before the first life.
        self.life: str | None = None
        self._next = 1
        self._acknowledged = 0
        self._due = 0.0
        #: The newest number that has arrived from each earlier life.
        self._earlier: dict[str, int] = {}

    def begin(self, life: str, first: int) -> None:
        """Start or continue a life. The life's outbox still has the events from number ``first``
        on.
        """
        # An acknowledgement sent while the member was away is lost, so send it again.
        self._acknowledged = first - 1
        if life != self.life:
            if self.life is not None:
                self._arrived(self.life, self._next - 1)
            self.life, self._next = life, 1

    def is_repeated(self, life: str, number: int) -> bool:
        """Return whether the event with this number in an earlier life has already arrived.

        Also records the event as arrived.
        """
        repeated = number <= self._earlier.get(life, 0)
        if not repeated:
            self._arrived(life, number)
        return repeated

    def _arrived(self, life: str, number: int) -> None:
        self._earlier[life] = number
        if len(self._earlier) > _MOST_LIVES:
            del self._earlier[next(iter(self._earlier))]

    def new(self, life: str, first: int, events: Sequence[pb.Event]) -> Sequence[pb.Event] | None:
        """Return the events that are new, or None if earlier events are missing.

        The argument ``first`` is the number of the first of ``events``. Events of another life are
        ignored.
        """
        if life != self.life:
            return ()
        skip = self._next - first
        if skip < 0:
            return None
        new = events[skip:]
        self._next += len(new)
        return new

    def to_acknowledge(self, now: float | None = None) -> int | None:
        """Return the number to acknowledge, or None if no acknowledgement is due.

        An acknowledgement is due as soon as there are many new events. With the time ``now``
        (monotonic seconds), it is also due for a single new event, but at most once a second.
        """
        arrived = self._next - 1
        behind = arrived - self._acknowledged
        if self.life is None or behind < (_AT_ONCE if now is None else 1):
            return None
        if now is not None:
            if now < self._due:
                return None
            self._due = now + _EVERY
        self._acknowledged = arrived
        return arrived


#: Types of events that are kept, because no executor repeats them after a restart.
KEPT = (Observed, Problem)
#: Maximum number of kept events. Further events are lost if the agent is killed.
_MOST_KEPT = 100_000
#: Size in bytes above which the file is rewritten without acknowledged events.
_LARGE = 1_000_000
_ORIGIN = ', "origin": '

_log = logging.getLogger("ensemble.member")


# A restarted agent resends these events under their old life (see hosted_run) and number, because
# its executor repeats the events of jobs, but neither rows nor problems. The run drops those that
# have arrived before.
class KeptEvents:
    """Unacknowledged events of one run: rows of job output, and problems. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._life = ""
        #: The kept events: their number in this life, and their line in the file.
        self._lines: deque[tuple[int, bytes]] = deque()
        self._file: BinaryIO | None = None
        self._failed = False

    def begin(self, life: str) -> list[pb.Event]:
        """Begin a life. Return the kept events of earlier lives, which become the first events of
        this life.
        """
        with self._lock:
            self._close()
            self._life = life
            self._lines.clear()
            events = []
            for line in self._read():
                try:
                    timestamp, data = json.loads(line)
                    event = pb.Event(timestamp=timestamp, data=data)
                except (TypeError, ValueError):
                    continue  # a partial line, from a kill while writing
                events.append(event)
                self._lines.append((len(events), line + b"\n"))
            return events

    def _read(self) -> list[bytes]:
        try:
            return self._path.read_bytes().split(b"\n")
        except OSError:
            return []

    def add(self, number: int, events: Sequence[Event], messages: Sequence[pb.Event]) -> None:
        """Keep the rows and problems among these events. The first event has the number
        ``number``.
        """
        with self._lock:
            lines = [
                (at, _line(message, self._life, at))
                for at, (event, message) in enumerate(zip(events, messages, strict=True), number)
                if isinstance(event, KEPT)
            ][: max(0, _MOST_KEPT - len(self._lines))]
            if not lines:
                return
            try:
                if self._file is None:
                    self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
                    self._file.write(b"\n")  # the end may be a partial line
                self._file.write(b"".join(line for _, line in lines))
            except OSError as error:
                if not self._failed:
                    _log.warning(
                        "cannot write %s: %s; if the agent is killed, rows and problems that the "
                        "run has not received are lost",
                        self._path,
                        error.strerror,
                    )
                self._failed = True
            else:
                self._lines.extend(lines)

    def acknowledge(self, life: str, number: int) -> None:
        """Drop the events up to this number. Ignored unless ``life`` is the current one."""
        with self._lock:
            lines = self._lines
            if life != self._life or not lines or lines[0][0] > number:
                return
            while lines and lines[0][0] <= number:
                lines.popleft()
            try:
                size = os.stat(self._path).st_size
                if not lines:
                    os.truncate(self._path, 0)
                elif size > max(_LARGE, 2 * sum(len(line) for _, line in lines)):
                    self._close()
                    write_atomically(self._path, b"".join(line for _, line in lines))
            except OSError:
                pass  # a repeated event is dropped at its destination

    def clear(self) -> None:
        """Drop all events, because they are no longer needed."""
        with self._lock:
            self._close()
            self._lines.clear()
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file. The events remain for the next life."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _line(message: pb.Event, life: str, number: int) -> bytes:
    data = f"{message.data[:-1]}{_ORIGIN}{json.dumps([life, number])}}}"
    return json.dumps([message.timestamp, data]).encode("ascii") + b"\n"


def origin_of(message: pb.Event) -> tuple[str, int] | None:
    """Return the life of the run in which an event was first sent, and its number in that life.

    Returns ``None`` for an event of the current life. ``hosted_run`` explains what a *life* is.
    """
    data = message.data
    if _ORIGIN not in data:
        return None
    origin = json.loads(data).get("origin")
    match origin:
        case [str(life), int(number)]:
            return life, number
    return None
