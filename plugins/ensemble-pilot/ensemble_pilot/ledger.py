"""Ledger of the controller: which jobs the run has submitted, and where each one was sent.

Each line of the file is JSON with a checksum. Decisions are synced to it before
:class:`Transaction` carries them out. The lines are:

- ``["v",1,RUN_ID]``: the first line
- ``["j",TIME,JOB]``: a job was submitted
- ``["n",PILOT,TIME,CORES,KIND]``: a pilot of this kind with so many cores is requested
- ``["s",PILOT,QUEUE_ID]``: the outer queue has it
- ``["b",PILOT,TIME]``: it has begun
- ``["r",PILOT,TIME,[HOST,…]]``: all its nodes have connected
- ``["d",PILOT,TIME]``: it drains: it gets no more jobs, and is given back
- ``["o",PILOT,TIME,WHY]``: it is over: its ledgers were read, and what followed stands before this
  line
- ``["p",PILOT,RANK,[ID,…],[RANK,…]]``: jobs are sent to a node, and to others for their other parts
- ``["w",[ID,…]]``: jobs wait again, because they never started
- ``["e",ID,TIME,NAME,CONTEXT]``: the controller itself has ended a job with this event
- ``["f",[ID,…]]``: the run needs these jobs no longer
- ``["g",REQUEST,TIME,DELTA,TARGET,[PILOT,…],FORCED,NOTE,KIND]``: a rule grows or shrinks the fleet
  to so many pilots of this kind, and these pilots leave
- ``["a",REQUEST,TIME,OUTCOME,SIZE,REASON]``: this is answered
- ``["u",PILOT,SECONDS,TIME]``: so many core-seconds of a pilot were used by jobs until then
- ``["y",WHY]``: why no other pilot is requested; empty: because one is
- ``["t",TARGET,KIND]``: so many pilots are what rules have asked for, as far as it still holds
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ensemble_core import EnsembleError, Event, ExecutorError, Job, JobEvent, Problem
from ensemble_core.local.ledger import strip_checksum, with_checksum
from ensemble_core.local.protocol import decode, encode_event, encode_job, line, to_event, to_job

_T = TypeVar("_T")
#: Seconds after which something that failed is tried again.
_AGAIN = 1.0
#: Seconds between two events of a job that the controller emits: each must be a microsecond later.
STEP = 2e-6
_NAMES = ("submit", "validate", "depend", "priority")


class Entry:
    """A submitted job.

    ``place`` is the pilot and the rank of the node to which it was sent, and ``others`` has the
    ranks of its other nodes.
    """

    __slots__ = ("ended", "job", "number", "others", "place", "submitted")

    def __init__(self, job: Job, number: int, submitted: float) -> None:
        self.job = job
        self.number = number
        self.submitted = submitted
        self.place: tuple[int, int] | None = None
        self.others: Sequence[int] = ()
        #: Events with which the controller itself has ended the job.
        self.ended: list[JobEvent] = []

    @property
    def last_of_first(self) -> float:
        """The time of the last event of the submission."""
        return self.submitted + (len(_NAMES) - 1) * STEP

    def first_events(self) -> list[JobEvent]:
        """Return the events of the submission. They are the same at each call."""
        contexts: Mapping[str, Mapping[str, Any]] = {
            "submit": {"urgency": self.job.urgency},
            "priority": {"priority": self.job.urgency},
        }
        return [
            JobEvent(self.submitted + place * STEP, self.job.id, name, contexts.get(name, {}))
            for place, name in enumerate(_NAMES)
        ]


class PilotRecord:
    """A pilot, as the ledger describes it. Times are seconds since the epoch; ``None``: not yet."""

    __slots__ = (
        *("began", "cores", "counted", "draining", "ended", "hosts", "kind", "queue_id", "ready"),
        *("requested", "used", "why"),
    )

    def __init__(self, requested: float, cores: int = 0, kind: str = "") -> None:
        self.requested = requested
        self.kind = kind
        self.cores = cores
        self.used = self.counted = 0.0
        self.queue_id: str | None = None
        self.began: float | None = None
        self.ready: float | None = None
        self.draining: float | None = None
        self.hosts: Sequence[str] = ()
        self.ended: float | None = None
        self.why = ""

    @property
    def given(self) -> float:
        """The core-seconds that the pilot has had: until its end, or until ``counted``."""
        if self.began is None:
            return 0.0
        return self.cores * max(0.0, (self.ended or self.counted) - self.began)

    def lines(self, number: int) -> Iterator[list[object]]:
        """Yield the lines from which this record can be read."""
        yield ["n", number, self.requested, self.cores, self.kind]
        if self.used:
            yield ["u", number, self.used, self.counted]
        if self.queue_id is not None:
            yield ["s", number, self.queue_id]
        if self.began is not None:
            yield ["b", number, self.began]
        if self.ready is not None:
            yield ["r", number, self.ready, self.hosts]
        if self.draining is not None:
            yield ["d", number, self.draining]
        if self.ended is not None:
            yield ["o", number, self.ended, self.why]


class Records:
    """Content of the ledger in the file ``path``. Raises :class:`ExecutorError` if it is damaged.

    Reading changes nothing.
    """

    def __init__(self, path: Path, run_id: str = "") -> None:
        self._path = path
        self.run_id = run_id
        self.jobs: dict[str, Entry] = {}
        #: The pilots that are not over, and those that are.
        self.pilots: dict[int, PilotRecord] = {}
        self.past: dict[int, PilotRecord] = {}
        #: Requests of rules for more or fewer nodes, and the answers, as in the lines.
        self.resizes: dict[str, Sequence[Any]] = {}
        self.answers: dict[str, Sequence[Any]] = {}
        #: How many pilots rules have asked for, by kind.
        self.targets: dict[str, int] = {}
        self.why_none = ""
        self._numbers = 0
        if path.exists():
            self._read()

    @property
    def core_seconds(self) -> tuple[float, float]:
        """The core-seconds of all pilots, as far as they are counted, and those used by jobs."""
        every = (*self.past.values(), *self.pilots.values())
        return sum(each.given for each in every), sum(each.used for each in every)

    @property
    def counted(self) -> float | None:
        """Until when the core-seconds of all pilots are counted.

        ``None``: no pilot that is not over has been counted.
        """
        times = [each.counted for each in self.pilots.values() if each.counted]
        return min(times, default=None)

    @property
    def last_pilot(self) -> int:
        return max(*self.pilots, *self.past, 0, 0)

    def _read(self) -> None:
        for raw in self._path.read_bytes().splitlines(keepends=True):
            try:
                message = decode(strip_checksum(raw).decode("ascii"))
            except ValueError:
                if raw.endswith(b"\n"):
                    raise ExecutorError(
                        f"the ledger of the run's pilots is damaged: {self._path}",
                        cause="a line does not match its checksum",
                        hint="restore the file, or end the run's jobs in the queue and start a new "
                        "run: without it, it is unknown which jobs have started",
                        code="no-ledger",
                    ) from None
                continue  # the last line was being written: nothing has followed from it
            self._take(message)

    def _take(self, message: Any) -> None:
        what, first, *rest = message
        if what == "v":
            self.run_id = rest[0]
        elif what == "j":
            self._numbers += 1
            job = to_job(rest[0])
            self.jobs[job.id] = Entry(job, self._numbers, first)
        elif what == "n":
            self.pilots[first] = PilotRecord(*rest)
        elif what in ("s", "b", "r", "d", "o", "u") and first in self.pilots:
            record = self.pilots[first]
            if what == "s":
                record.queue_id = rest[0]
            elif what == "u":
                record.used, record.counted = rest
            elif what == "b":
                record.began = rest[0]
            elif what == "d":
                record.draining = rest[0]
            elif what == "r":
                record.ready, record.hosts = rest
            else:
                record.ended, record.why = rest or (0.0, "")
                self.past[first] = self.pilots.pop(first)
        elif what == "p":
            for name in rest[1]:
                self.jobs[name].place = first, rest[0]
                self.jobs[name].others = rest[2] if rest[2:] else ()
        elif what == "w":
            for name in first:
                self.jobs[name].place = None
        elif what == "e":
            event = to_event(message)
            assert isinstance(event, JobEvent)
            self.jobs[first].ended.append(event)
        elif what == "f":
            for name in first:
                self.jobs.pop(name, None)
        elif what == "g":
            self.resizes[first] = rest
        elif what == "a":
            self.answers[first] = rest
            self.resizes.pop(first, None)
        elif what == "t":
            self.targets[rest[0] if rest else ""] = first
        elif what == "y":
            self.why_none = first


class PilotLedger(Records):
    """The ledger, open for writing. Raises :class:`ExecutorError` if that fails.

    :meth:`submit` may be called from any thread; all other methods from one.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self._lock = threading.Lock()
        self._unsynced = False
        try:
            super().__init__(path, run_id)
            self._rewrite()
        except OSError as error:
            raise self._error(error) from None

    def _error(self, error: OSError) -> ExecutorError:
        return ExecutorError(
            f"cannot read or write the ledger of the run's pilots: {self._path}",
            cause=error.strerror or str(error),
            hint="make its folder writable and free some space",
            code="no-ledger",
            transient=True,
        )

    def _rewrite(self) -> None:
        """Write a new file with what is needed, and open it to append lines."""
        texts = [line(["v", 1, self.run_id])]
        # Pilots that are over stay: their numbers are not used again, and the status shows them.
        for pilots in (self.past, self.pilots):
            texts += [line(each) for number in pilots for each in pilots[number].lines(number)]
        for name, entry in self.jobs.items():
            texts.append(line(["j", entry.submitted, _encode(entry.job)]))
            if entry.place is not None:
                texts.append(line(["p", *entry.place, [name], [*entry.others]]))
            texts += [encode_event(event) for event in entry.ended]
        texts += [line(["g", request, *rest]) for request, rest in self.resizes.items()]
        texts += [line(["a", request, *rest]) for request, rest in self.answers.items()]
        texts += [line(["t", target, kind]) for kind, target in self.targets.items()]
        texts.append(line(["y", self.why_none]))
        draft = self._path.with_suffix(".new")
        self._fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0
        try:
            self._write(texts)
            os.fsync(self._fd)
            os.rename(draft, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            os.close(self._fd)
            raise

    def _write(self, texts: Iterable[bytes]) -> None:
        """Append lines. If that fails, the file is as before."""
        data = b"".join(map(with_checksum, texts))
        try:
            done = 0
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
        self._size += len(data)

    def add(self, *messages: list[object]) -> None:
        """Write lines and apply them. They are not synced yet. Raises :class:`ExecutorError`."""
        with self._lock:
            try:
                self._write(map(line, messages))
            except OSError as error:
                raise self._error(error) from None
            self._unsynced = True
            for message in messages:
                self._take(message)

    def sync(self) -> None:
        """Wait until all lines are on the disk. Raises :class:`ExecutorError`."""
        if self._unsynced:
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                raise self._error(error) from None
            self._unsynced = False

    def submit(self, jobs: Iterable[Job], now: float) -> list[Entry]:
        """Write and sync jobs. If this raises :class:`ExecutorError`, none of them is submitted."""
        messages = [["j", now, _encode(job)] for job in jobs]
        with self._lock:
            size = self._size
            try:
                self._write(map(line, messages))
                os.fdatasync(self._fd)
            except OSError as error:
                os.ftruncate(self._fd, size)
                os.lseek(self._fd, size, os.SEEK_SET)
                self._size = size
                raise self._error(error) from None
            made = []
            for job in jobs:
                self._numbers += 1
                made.append(Entry(job, self._numbers, now))
            self.jobs.update((entry.job.id, entry) for entry in made)
        return made

    def close(self) -> None:
        os.close(self._fd)


def _encode(job: Job) -> dict[str, Any]:
    """Return a job as plain data, with the kind of pilot that it names."""
    return encode_job(job) | ({"executor": job.executor} if job.executor else {})


class NotYet(EnsembleError):
    """Raised by a call that should be repeated, although nothing is wrong."""


class Worker:
    """Makes calls one after the other in a thread: those that may block."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ensemble-pilot-outer", daemon=True)
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()


class Transaction:
    """A transaction of the controller: its decisions are in the ledger before they are carried out.

    The controller's thread decides in transactions. In each, it collects lines for the ledger, and
    *effects*: messages to nodes, requests to the outer queue, events for the run. At the end of the
    transaction the lines are written and synced, and only then the effects follow. So a later
    controller knows everything that has had an effect.

    ``post`` lets the controller's thread make a call.
    """

    def __init__(
        self,
        ledger: PilotLedger,
        clock: Callable[[], float],
        emit: Callable[[Sequence[Event]], None],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.ledger, self.clock, self._pass_on = ledger, clock, emit
        self._events: list[Event] = []
        self.worker = Worker()
        self.post = post
        self._lines: list[list[object]] = []
        self._effects: list[Callable[[], None]] = []
        self._stuck = 0.0
        self._said: set[str] = set()

    def record(self, *line: object) -> None:
        """Write a line to the ledger at the end of this transaction."""
        self._lines.append(list(line))

    def then(self, effect: Callable[[], None]) -> None:
        """Make a call once the lines so far are synced."""
        self._effects.append(effect)

    def emit(self, events: Iterable[Event]) -> None:
        """Emit events at the next :meth:`flush`: many at once cost the run less."""
        self._events += events

    def emit_before(self, event: Event) -> None:
        """Emit an event before those that wait for the next :meth:`flush`."""
        self._events.insert(0, event)

    def flush(self) -> None:
        """Pass events on to the run."""
        if self._events:
            events, self._events = self._events, []
            self._pass_on(events)

    @property
    def wait(self) -> float | None:
        """Seconds until the transaction should end, or ``None``: it is empty."""
        if not self._lines and not self._effects:
            return None
        return max(0.0, self._stuck - time.monotonic()) + 0.001

    @property
    def is_stuck(self) -> bool:
        """True while the ledger cannot be written."""
        return self._stuck > time.monotonic()

    def end(self) -> bool:
        """Sync the lines and carry out the effects. Return False if the ledger cannot be written.

        Nothing is dropped then: the next transaction writes the same lines.
        """
        try:
            if self._lines:
                self.ledger.add(*self._lines)
                self._lines.clear()
            self.ledger.sync()
        except ExecutorError as error:
            self._stuck = time.monotonic() + _AGAIN
            self.problem(f"no job is placed until this works: {error}", once="ledger")
            self.flush()
            return False
        if "ledger" in self._said:
            self._said.discard("ledger")
            self.say("the ledger of pilots can be written again: jobs are placed now")
        effects, self._effects = self._effects, []
        for effect in effects:
            effect()
        self.flush()
        return True

    def say(self, text: str) -> None:
        """Show a line in the run's output."""
        self.emit([Problem(self.clock(), text, "info")])

    def problem(self, text: str, *, once: str = "") -> None:
        """Show a warning. With ``once``, show only the first one with this key."""
        if once not in self._said:
            self._said.update({once} if once else ())
            self.emit([Problem(self.clock(), text)])

    def retry(self, work: Callable[[], _T], then: Callable[[_T], None], trouble: str) -> None:
        """Let the worker do something until it succeeds; then handle the result in this thread."""

        def attempt() -> None:
            try:
                result = work()
            except (EnsembleError, OSError) as error:
                if not isinstance(error, NotYet):
                    text = f"{trouble}: {error}"
                    self.post(lambda: self.problem(text, once=trouble))
                timer = threading.Timer(_AGAIN, lambda: self.worker.post(attempt))
                timer.daemon = True
                timer.start()
            else:
                self.post(lambda: then(result))

        self.worker.post(attempt)
