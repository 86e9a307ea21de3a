"""Ledger: the supervisor's write-ahead log of all events of a run's local jobs.

The ledger is a file of JSON lines. Each line except the first begins with the CRC-32 of the rest,
as eight hexadecimal digits. A truncated last line is ignored. The file has the events of jobs (see
``protocol``), and these lines:

- ``["v",FORMAT,TAG,BEGAN,RUN]``: the first line, with the run's tag and identity. It has no
  checksum, so that every version can read it.
- ``["k",HOST,BOOT,PID]``: a supervisor has started.
- ``["u",ID]``: the system was too busy to spawn the job's process; the spawn is retried later.
- ``["l",ID]``: the spawn is about to be retried. (Before the first try, the event ``alloc`` is
  written instead.)
- ``["d",ID]``: the job got SIGTERM because the allocation ends. If it has no ``finish``, it was
  interrupted.
- ``["z",TIME,REQUEST,OUTCOME,SIZE,REASON]``: a resize was answered.
- ``["f",[ID,…]]``: the controller no longer needs these jobs, so a compaction may remove them. If
  one had not started, it was recalled, and never starts here unless it is submitted again.
- ``["q",TIME]``: in a pilot, the supervisor has exited, and no process of its jobs was left.
- ``["t",TIME]``: the time of the newest event when the file was compacted.

Answers to resizes are synced to disk. Events of jobs are not, so they may be missing after a power
cut, which no job survives. If the run's journal is elsewhere (``Run.syncs_late`` is false), events
of waiting jobs are synced before they are sent. (In a pilot, a line is synced before the spawn: see
``fence``.) After a power cut, the journal may be behind the ledger, or ahead of it: see
``RequestHandler``. If it is ahead although the machine was not restarted, or although the events of
waiting jobs were synced, the job had started: it is reported as lost, and not started again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ensemble_core.errors import ExecutorError
from ensemble_core.local.protocol import decode, line, line_job, line_time
from ensemble_core.posix import boot_id, lock_within, pid_namespace, sync_folder

if TYPE_CHECKING:
    from pathlib import Path


class LedgerJob:
    """A job that is not over, as its lines in the ledger describe it."""

    __slots__ = (
        *("data", "draining", "fatal", "gpus", "launched", "names", "newest", "pids", "started"),
        "up",
    )

    def __init__(self) -> None:
        self.data: Mapping[str, Any] | None = None
        self.names: set[str] = set()
        self.fatal = False
        #: Whether the supervisor has ended the job because its allocation ended.
        self.draining = False
        self.gpus: tuple[str, ...] = ()
        #: Whether the job's processes were spawned, or were about to be.
        self.launched = False
        #: Process ids of the job's tasks.
        self.pids: tuple[int, ...] = ()
        self.started = 0.0
        #: The time of the job's last event.
        self.newest = 0.0
        #: Uptime of the machine when ``pids`` was written. A later process can have the same id.
        self.up = 0.0

    def take(self, message: list[Any]) -> None:
        name, context = message[3], message[4]
        self.names.add(name)
        self.newest = message[2]
        if name == "submit":
            self.data = message[5] if len(message) > 5 else None
        elif name == "alloc":
            self.gpus = tuple(context.get("gpus", ()))
            self.launched = True
        elif name == "start":
            self.started = message[2]
            if len(message) > 6 and message[6]:
                self.up, self.pids = message[5], tuple(message[6])
        elif name == "exception":
            self.fatal = self.fatal or context.get("severity") == 0


def with_checksum(text: bytes) -> bytes:
    """Return a line with its checksum, as in the file."""
    return b"%08x %b" % (crc32(text), text)


def strip_checksum(raw: bytes) -> bytes:
    """Return a line of the file without its checksum. Raises ``ValueError`` if it is damaged."""
    text = raw[9:]
    if raw[:9] == b"%08x " % crc32(text):
        return text
    if raw.startswith(b'["v",'):
        return raw
    raise ValueError("a line does not match its checksum")


def is_newer(raw: bytes, wanted: Mapping[str, float]) -> bool:
    """Return True if a line is an event of a job in ``wanted``, later than ``wanted[job]``."""
    try:
        text = raw.decode("ascii")
        name = line_job(text)
        return name is not None and name in wanted and line_time(text) > wanted[name]
    except ValueError:
        return False  # a damaged line


NAME, LOCK = "local.log", "local.lock"
#: Version of the file format.
FORMAT = 2
#: Smallest size of a file that is worth compacting.
SMALL = 4 << 20
#: Seconds between retries of failed writes.
RETRY = 1.0
#: How many seconds to wait for the lock.
_LOCK_WAIT = 2.0
#: How many answered resize requests are remembered. A run repeats only its last one.
_REQUESTS = 1000


def check_format(version: int, path: str | Path) -> None:
    """Raise :class:`ExecutorError` if a ledger has another format."""
    if version != FORMAT:
        raise ExecutorError(
            f"{path} is from another version of Ensemble",
            hint="resume the run with the version that it was started with",
            code="other-version",
        )


def _error_text(error: OSError) -> str:
    return error.strerror or str(error)


class Ledger:
    """The ledger of a run, open for appending. Raises :class:`ExecutorError` if that fails."""

    def __init__(self, folder: str, tag: str, now: float, run_id: str = "") -> None:
        self.path = os.path.join(folder, NAME)
        #: The jobs that were not over when the ledger was opened.
        self.past: dict[str, LedgerJob] = {}
        #: The time of the last event.
        self.newest = 0.0
        #: The number of slots after the last resize.
        self.size: int | None = None
        #: The outcomes of resizes.
        self.requests: dict[str, str] = {}
        #: When the run's first supervisor opened the ledger. ``None``: this one is the first.
        self.began: float | None = None
        #: Whether the machine was rebooted since the last supervisor.
        self.rebooted = False
        self.unreadable = 0
        #: Why the ledger cannot be written at the moment.
        self.failing: str | None = None
        #: The run's identity, as the run's first supervisor was given it.
        self.run_id = run_id
        self._tag = tag
        self._sizes: dict[str, int] = {}
        self._buffer: list[bytes] = []
        #: The rest of an incomplete write, which has to be written next.
        self._unwritten = b""
        self._to_keep = False
        #: True until the folder has been synced. Before that, a power cut could lose the file's
        #: name.
        self._nameless = True
        self._retry = 0.0
        self._total = self._dead = 0
        self._not_before = SMALL
        self._fd = self._lock = -1
        self._now = now
        self._supervisor: list[Any] = [
            *("k", os.uname().nodename, boot_id(), os.getpid()),
            pid_namespace(),
        ]
        try:
            self._open(folder)
        except OSError as error:
            self.close()
            raise ExecutorError(
                f"cannot write the ledger of the run's jobs: {self.path}",
                cause=_error_text(error),
                hint="make its folder writable and free some space, or choose another folder with "
                "--state",
                code="no-ledger",
            ) from None
        except BaseException:
            self.close()
            raise

    def _open(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        lock = os.path.join(folder, LOCK)
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            lock_within(_LOCK_WAIT, self._lock)
        except BlockingIOError:
            raise ExecutorError(
                "another supervisor owns this run's jobs",
                cause=f"{lock} is locked, from another machine or container",
                hint="resume the run on the machine or in the container where it was started",
                code="busy-run",
            ) from None
        except OSError:
            pass  # No locks here, but the socket's name allows only one supervisor.
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read()
        if self.began is None:
            self._unwritten = self._head()
        self._buffer.append(line(self._supervisor))
        self._write()
        self._sync()  # the next supervisor must be able to see that the machine was restarted

    def _head(self) -> bytes:
        began = self._now if self.began is None else self.began
        return line(["v", FORMAT, self._tag, began, self.run_id])

    def _read(self) -> None:
        supervisor: list[Any] | None = None
        whole = 0
        with open(self.path, "rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                whole += len(raw)
                try:
                    message = decode(strip_checksum(raw).decode("ascii"))
                    if message[0] == "k":
                        supervisor = message
                    else:
                        self._apply(message, len(raw))
                except (ValueError, LookupError, TypeError, AttributeError):
                    self.unreadable += 1
                    self._dead += len(raw)
        if whole != os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, whole)
        self._total = whole
        if supervisor is None:
            return
        _, host, start, *_ = supervisor
        # Also compare the boot id and the PID namespace, because the host name may have changed.
        same = bool(start) and [start, *supervisor[4:]] == [
            self._supervisor[2],
            self._supervisor[4],
        ]
        if host != self._supervisor[1] and not same and self.past:
            raise ExecutorError(
                f"{len(self.past)} jobs of this run may still run on {host}",
                cause=f"this is {self._supervisor[1]}, where they can be neither seen nor ended",
                hint=f"resume the run on {host}; if that machine no longer exists, remove "
                f"{self.path}",
                code="other-machine",
            )
        self.rebooted = bool(start) and start != self._supervisor[2]

    def _apply(self, message: list[Any], length: int) -> None:
        kind = message[0]
        if kind == "e":
            name = message[1]
            self.newest = max(self.newest, message[2])
            past = self.past.get(name)
            if past is None:
                past = self.past[name] = LedgerJob()
            past.take(message)
            self._sizes[name] = self._sizes.get(name, 0) + length
            if message[3] == "clean":
                del self.past[name]
        elif kind in "lu":
            if message[1] in self.past:
                self.past[message[1]].launched = kind == "l"
                self.past[message[1]].draining = False
        elif kind == "d":
            if message[1] in self.past:
                self.past[message[1]].draining = True
        elif kind == "f":
            self._dead += length
            for name in message[1]:
                self.past.pop(name, None)
                self._dead += self._sizes.pop(name, 0)
        elif kind == "z":
            self.newest = max(self.newest, message[1])
            self.size = message[4]
            self._remember(message[2], message[3])
        elif kind == "t":
            self.newest = max(self.newest, message[1])
        elif kind == "v":
            check_format(message[1], self.path)
            if message[2] != self._tag:
                raise ExecutorError(
                    f"{self.path} belongs to another run: {message[2]}",
                    hint="choose a separate state folder for each run",
                    code="other-run",
                )
            self.began = message[3]
            self.run_id = message[4]

    def _remember(self, request: str, outcome: str) -> None:
        self.requests[request] = outcome
        if len(self.requests) > _REQUESTS:
            del self.requests[next(iter(self.requests))]

    def close(self) -> None:
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    # Writing.

    def add(self, job: str, text: bytes) -> None:
        """Add an event of a job. The next successful :meth:`flush` writes it."""
        self._buffer.append(text)
        self._sizes[job] = self._sizes.get(job, 0) + len(text)

    def about_to_spawn(self, job: str) -> None:
        self.add(job, line(["l", job]))

    def postpone(self, job: str) -> None:
        """Record that no process of the job was spawned, so that a later supervisor may start the
        job.
        """
        self.add(job, line(["u", job]))

    def interrupting(self, job: str) -> None:
        """Record that the job is ended because the allocation ends.

        If this supervisor is killed before the job has ended, a later one submits it again.
        """
        self.add(job, line(["d", job]))

    def answered(self, when: float, request: str, outcome: str, size: int, reason: str) -> None:
        """Record the answer to a resize."""
        self.size = size
        self._remember(request, outcome)
        self._buffer.append(line(["z", when, request, outcome, size, reason]))
        self.keep()

    def keep(self) -> None:
        """Have the lines so far synced before they are sent to the controller."""
        self._to_keep = True

    def flush(self, newest: float = 0.0, *, publishing: bool = False) -> bool:
        """Write the added lines. Return True if all lines have been written.

        ``newest`` is the time of the last added event. Set ``publishing`` if the lines are then
        sent to the controller; they are synced before if :meth:`keep` was called.
        """
        self.newest = max(self.newest, newest)
        sync = publishing and self._to_keep
        if not (self._buffer or self._unwritten or sync):
            return self.failing is None
        if self.failing is not None and time.monotonic() < self._retry:
            return False
        try:
            self._write()
            if sync:
                self._sync()
        except OSError as error:
            self.failing = _error_text(error)
            self._retry = time.monotonic() + RETRY
            return False
        self.failing = None
        return True

    def _sync(self) -> None:
        os.fdatasync(self._fd)
        if self._nameless:
            for folder in (os.path.dirname(self.path), os.path.dirname(os.path.dirname(self.path))):
                sync_folder(folder)
        self._to_keep = self._nameless = False

    def copy_descriptor(self) -> int:
        """Return a new descriptor of the file, with which another thread can sync it."""
        return os.dup(self._fd)

    def quit(self, now: float) -> None:
        """Record that no process of any job is left. Nothing is written after that."""
        self._buffer.append(line(["q", now]))
        with contextlib.suppress(OSError):
            self._write()
            self._sync()

    def _write(self) -> None:
        fresh = b"".join(self._buffer).splitlines(keepends=True)
        data = memoryview(self._unwritten + b"".join([with_checksum(text) for text in fresh]))
        self._buffer = []
        try:
            while data:
                count = os.write(self._fd, data)
                self._total += count
                data = data[count:]
        finally:
            # A partial write is continued later, so that no line is torn.
            self._unwritten = bytes(data)

    # Remembering and forgetting.

    def knows(self, job: str) -> bool:
        return job in self._sizes

    def replay(self, wanted: Mapping[str, float]) -> list[bytes]:
        """Return the events of these jobs that are later than the given times, in order.

        A job that was forgotten, and then submitted again, has only its new events.
        """
        found: list[bytes] = []
        for text in self._lines():
            if is_newer(text, wanted):
                found.append(text)
            elif found and text.startswith(b'["f",'):
                gone = set(decode(text.decode("ascii"))[1]).intersection(wanted)
                if gone:
                    found = [one for one in found if line_job(one.decode("ascii")) not in gone]
        return found

    def _lines(self) -> Iterator[bytes]:
        """Yield all lines so far without their checksums. Damaged lines are skipped."""
        torn = b""
        with open(self.path, "rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    torn = raw  # the rest of this line is in self._unwritten
                    break
                with contextlib.suppress(ValueError):
                    yield strip_checksum(raw)
        for raw in (torn + self._unwritten).splitlines(keepends=True):
            with contextlib.suppress(ValueError):
                yield strip_checksum(raw)
        yield from b"".join(self._buffer).splitlines(keepends=True)

    def forget(self, jobs: Iterable[str]) -> None:
        """Drop the records of these jobs, which are over."""
        known = [name for name in jobs if name in self._sizes]
        if not known:
            return
        text = line(["f", known])
        self._buffer.append(text)
        self._dead += len(text) + sum(self._sizes.pop(name) for name in known)
        if self._total > self._not_before and self._dead * 2 > self._total and self.flush():
            self._compact()

    def _compact(self) -> None:
        """Rewrite the file without forgotten jobs."""
        fresh = self.path + ".new"
        try:
            fd = os.open(
                fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                with open(fd, "wb", closefd=False) as file:
                    file.write(self._head())
                    file.write(with_checksum(line(["t", self.newest])))
                    file.write(with_checksum(line(self._supervisor)))
                    file.writelines(with_checksum(text) for text in self._kept_lines())
                total = os.fstat(fd).st_size
                os.fsync(fd)  # before the new file replaces the old one
                os.replace(fresh, self.path)
                sync_folder(os.path.dirname(self.path))
            except BaseException:
                os.close(fd)
                raise
        except OSError:
            # If there is no space for both files, keep the old one and retry when it has grown.
            self._not_before = self._total + SMALL
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            return
        os.close(self._fd)
        self._fd, self._total, self._dead = fd, total, 0
        self._not_before = SMALL

    def _kept_lines(self) -> Iterator[bytes]:
        for raw in self._lines():
            try:
                text = raw.decode("ascii")
                name = line_job(text)
                if name is None and text.startswith(('["l"', '["u"', '["d"')):
                    name = decode(text)[1]
                answer = text.startswith('["z"') and decode(text)[2] in self.requests
            except ValueError:
                continue
            if answer or name in self._sizes:
                yield raw
