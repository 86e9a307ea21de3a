"""Store of unacknowledged events on disk, so that they survive a restart of the member agent."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ensemble_core import Event, Observed, Problem
from ensemble_service.atomic_file import write_atomically
from ensemble_service.proto import ensemble_pb2 as pb

#: Types of events that are kept, because no executor repeats them after a restart.
KEPT = (Observed, Problem)
#: Maximum number of kept events. Further events are lost if the agent is killed.
_MOST = 100_000
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
            ][: max(0, _MOST - len(self._lines))]
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
