"""Reads the ledger of a supervisor that may be over, on any machine, and changes nothing."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from ensemble_core.errors import ExecutorError
from ensemble_core.local.ledger import NAME, check_format, strip_checksum
from ensemble_core.local.protocol import decode, to_event
from ensemble_core.model.events import JobEvent
from ensemble_core.posix import sync_folder

JobState = Literal["waiting", "started", "ended", "unknown"]


class LedgerReading:
    """Content of a ledger.

    If the fence was set before it was read, a job that waits will never start there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The time of the first supervisor, or ``None``: there was none yet.
        self.began: float | None = None
        #: The time of the last supervisor's exit, with no process of any job left, or ``None``.
        self.quit: float | None = None
        #: The number of lines that are damaged.
        self.damaged = 0
        #: Whether the last line is incomplete. No job is spawned before its line is complete.
        self.torn = False
        #: The events of the wanted jobs that are later than the wanted times, in order.
        self.events: list[JobEvent] = []
        self._started: set[str] = set()
        self._ended: set[str] = set()

    def state(self, job: str) -> JobState:
        """Return the state of a job.

        - ``waiting``: the job was certainly never spawned, or never arrived
        - ``started``: the job was spawned or was about to be, and has no end
        - ``ended``: the job is over
        - ``unknown``: one of the damaged lines may have said that the job was about to be spawned
        """
        if job in self._ended:
            return "ended"
        if job in self._started:
            return "started"
        return "unknown" if self.damaged else "waiting"

    @property
    def unfinished(self) -> bool:
        """True if a job that was spawned, or was about to be, has no end."""
        return not self._started <= self._ended

    @property
    def problem(self) -> str:
        """Message for the user about damaged lines; empty if there are none."""
        if not self.damaged:
            return ""
        return (
            f"{self.damaged} lines of {self.path} are damaged: which of the jobs that waited there "
            "have started cannot be known"
        )

    def take(self, message: list[Any], wanted: Mapping[str, float]) -> None:
        """Add a line of the ledger."""
        kind = message[0]
        if kind == "e":
            job, name = message[1], message[3]
            if name == "clean":
                self._ended.add(job)
            elif name in ("alloc", "start"):
                self._started.add(job)
            if job in wanted and message[2] > wanted[job]:
                self.events.append(cast(JobEvent, to_event(message)))
        elif kind == "l":
            self._started.add(message[1])
        elif kind == "u":
            self._started.discard(message[1])
        elif kind == "f":
            self._ended.update(self._started.intersection(message[1]))  # others were recalled
        elif kind == "v":
            check_format(message[1], self.path)
            self.began = message[3]
        elif kind == "k":
            self.quit = None
        elif kind == "q":
            self.quit = message[1]


def read_ledger(folder: Path, wanted: Mapping[str, float]) -> LedgerReading:
    """Read the ledger in a supervisor's folder.

    ``wanted`` maps each job whose events are wanted to the time of its last known event (0: none).
    Raises :class:`ExecutorError` if the ledger, or the folder above, cannot be read. A folder
    without a ledger is not an error: no supervisor has started there.
    """
    reading = LedgerReading(folder / NAME)
    try:
        # An NFS client asks its server for a folder that is opened, so no cache is in the way.
        for above in (folder.parent, folder):
            os.close(os.open(above, os.O_RDONLY | os.O_DIRECTORY))
        data = reading.path.read_bytes()
    except FileNotFoundError:
        if not folder.parent.is_dir():
            raise _unreadable(reading.path, "its folder does not exist") from None
        return reading
    except OSError as error:
        raise _unreadable(reading.path, error.strerror or str(error)) from None
    reading.torn = bool(data) and not data.endswith(b"\n")
    for message in ledger_messages(data):
        try:
            if message is None:
                reading.damaged += 1
            else:
                reading.take(message, wanted)
        except (ValueError, LookupError, TypeError, AttributeError):
            reading.damaged += 1
    return reading


def _unreadable(path: Path, cause: str) -> ExecutorError:
    return ExecutorError(
        f"cannot read the ledger of jobs: {path}",
        cause=cause,
        hint="make the run's folder reachable, and resume the run",
        code="no-ledger",
    )


def ledger_messages(data: bytes) -> Iterator[list[Any] | None]:
    """Yield the messages of a ledger, and ``None`` for each damaged line.

    A torn last line is left out.
    """
    for raw in io.BytesIO(data):
        if not raw.endswith(b"\n"):
            return
        try:
            message = decode(strip_checksum(raw).decode("ascii"))
        except ValueError:
            yield None
        else:
            yield message if isinstance(message, list) and message else None


def set_fence(path: Path) -> None:
    """Create the fence of a pilot, durably: from now on, no job starts in it.

    Raises ``OSError``.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(str(path.parent))
