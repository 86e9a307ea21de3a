"""Client of the supervisor: finds or starts the supervisor, sends requests, and receives events."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core.errors import ExecutorError
from ensemble_core.local.protocol import Splitter, encode_job, line, to_event
from ensemble_core.local.supervisor_start import StartedSupervisor, address, cannot_start
from ensemble_core.model.events import ExecutorLost, PlainEvents, Resources
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Emit, Run

#: How many jobs a message has at most, so that a large submit does not block the supervisor.
_BATCH = 500
#: Timeouts in seconds: for an answer of the supervisor, for sending a request, and for closing.
_OPENING, _SENDING, _CLOSING = 120.0, 60.0, 15.0
#: How many bytes are received at a time (see ``supervisor``).
_PIECE = 1 << 16


class SupervisorClient:
    """Connection to the supervisor of a run. ``hello`` is the first message.

    :meth:`open` raises :class:`ExecutorError` if the supervisor cannot be started or rejects the
    connection.
    """

    def __init__(self, run: Run, emit: Emit, hello: Mapping[str, Any]) -> None:
        self._run = run
        self._emit = emit
        self._hello = hello
        self._name = address(run.id, run.state)
        self._splitter = Splitter()
        #: Messages that arrived together with the supervisor's hello.
        self._early: list[Any] = []
        self._answers: queue.SimpleQueue[Mapping[str, bool] | None] = queue.SimpleQueue()
        self._leaving = False
        #: The supervisor that this process has started, until it has answered.
        self._started: StartedSupervisor | None = None
        self._sock: socket.socket
        self._thread: threading.Thread
        #: Why the connection has ended.
        self.lost: str | None = None
        #: Whether the supervisor has exited in order: only waiting jobs are left, on record.
        self.drained = False
        #: Jobs that were submitted or found again, and are not over.
        self.ids: set[str] = set()
        #: Whether the machine was restarted since an earlier supervisor of the run.
        self.rebooted = False
        self.supervisor = 0
        self.gauges: Mapping[str, float] = {}

    # Opening.

    def open(self, started: StartedSupervisor | None = None) -> None:
        """Connect to the run's supervisor.

        If ``started`` is given, it has been started for this run.
        """
        deadline = time.monotonic() + _OPENING
        while True:
            try:
                found = None if started is not None else self._find()
                if found is None:
                    self._started = started or StartedSupervisor(
                        self._run.tag, self._run.state, self._run.id, self._name
                    )
                    found, started = self._started.sock, None
                self._sock = found
                answer = self._greet(deadline)
            except ExecutorError as error:
                self._disconnect()
                if error.code == "supervisor-there" and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                raise
            except BaseException:
                self._disconnect()
                raise
            if answer is not None:
                break
            # The supervisor has just exited, or another controller was faster in starting one.
            self._disconnect()
            if time.monotonic() > deadline:
                raise _no_answer_error()
            time.sleep(0.02)
        self.gauges = answer["gauges"]
        self.supervisor = answer["pid"]
        self.rebooted = answer.get("rebooted", False)
        seconds = struct.pack("ll", int(_SENDING), 0)
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        self._thread = threading.Thread(target=self._listen, name="ensemble-local", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._disconnect()
            raise cannot_start(str(error)) from None

    def _disconnect(self) -> None:
        if hasattr(self, "_sock"):
            self._sock.close()
        self._splitter = Splitter()
        self._early = []

    def _find(self) -> socket.socket | None:
        """Return a socket to the run's supervisor, or ``None`` if the run has none."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(_OPENING)
            sock.connect("\0" + self._name)
        except ConnectionRefusedError:
            sock.close()
            return None
        except OSError as error:
            sock.close()
            raise cannot_start(error.strerror or str(error)) from None
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", data)
        if uid != os.getuid():
            sock.close()
            if self._run.state is not None:  # this run's supervisor cannot have this name
                self._name = address(self._run.id, self._run.state, renew=True)
                return None
            raise ExecutorError(
                "another user's process uses the socket of this run's supervisor",
                cause=f"process {pid} of user {uid} listens at @{self._name}",
                hint="ask that user to end the process, or start the run again",
                code="no-supervisor",
            )
        return sock

    def _greet(self, deadline: float) -> Mapping[str, Any] | None:
        """Send the hello. Return the answer, or ``None`` if the supervisor has exited."""
        started, self._started = self._started, None
        try:
            self._sock.settimeout(max(0.1, deadline - time.monotonic()))
            self._sock.sendall(line(["hello", self._hello]))
            while True:
                piece = self._sock.recv(_PIECE)
                if not piece:
                    break
                messages = self._splitter.feed(piece)
                if messages:
                    what, answer = messages[0]
                    if what == "refused":
                        fields = ("what", "cause", "hint", "code", "transient")
                        raise ExecutorError(**{name: answer[name] for name in fields})
                    self._early = messages[1:]
                    fields_of: Mapping[str, Any] = answer
                    return fields_of
        except (BrokenPipeError, ConnectionResetError):
            pass
        except TimeoutError:
            raise _no_answer_error() from None
        finally:
            words = started.last_error_line() if started is not None else None
        if words is None:
            return None
        raise cannot_start(words or "it ended without a message")

    @property
    def keeps(self) -> bool:
        """True if the supervisor has a ledger, in which waiting jobs survive it."""
        return self._run.state is not None

    # Requests.

    def submit(self, jobs: Sequence[Job]) -> None:
        """Send jobs. Raises :class:`ExecutorError` only if certainly none of them has arrived."""
        for begin in range(0, len(jobs), _BATCH):
            batch = jobs[begin : begin + _BATCH]
            text = line(["submit", [encode_job(job) for job in batch]])
            names = [job.id for job in batch]
            self.ids.update(names)
            if not self._send(text):
                if begin:
                    return  # some jobs may have arrived; an event reports the lost supervisor
                self.ids.difference_update(names)
                raise self.broken()

    def ask(self, *message: object) -> None:
        """Send a request that has no answer, or whose answer is an event."""
        if not self._send(line(message)):
            raise self.broken()

    def reattach(self, jobs: Mapping[str, float]) -> dict[str, bool]:
        """Return which of these jobs the supervisor knows. Events of these jobs follow."""
        self.ask("reattach", dict(jobs))
        try:
            answer = self._answers.get(timeout=_OPENING)
        except queue.Empty:
            raise _no_answer_error() from None
        if answer is None:
            raise self.broken()
        return dict(answer)

    def broken(self) -> ExecutorError:
        return ExecutorError(
            "the local executor has stopped",
            cause=self.lost or "its supervisor does not accept requests",
            hint=self._hint(),
            code="lost",
        )

    def _hint(self) -> str:
        if self._run.state is not None:
            return f"'ensemble resume {self._run.tag}' finds its jobs again"
        return f"running jobs have ENSEMBLE_RUN={self._run.tag} in their environment"

    def _send(self, text: bytes) -> bool:
        """Send a text. Return False if that failed. The supervisor ignores an incomplete text."""
        if self.lost is not None:
            return False
        try:
            self._sock.sendall(text)
        except OSError:
            # After an error or a timeout, the listening thread reports the supervisor as lost. Wait
            # for that, so that the run ends before it learns that this request has failed.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._thread.join(_CLOSING)
            return False
        return True

    # Events.

    def _listen(self) -> None:
        reason, told = "its supervisor has ended", False
        messages = self._early
        while True:
            events = PlainEvents()
            for message in messages:
                what = message[0]
                if what == "e":
                    if message[3] == "clean":
                        self.ids.discard(message[1])
                    events.append(to_event(message))
                elif what == "o":
                    event = to_event(message)
                    if isinstance(event, Resources):
                        self.gauges = {**self.gauges, **event.values}
                    elif isinstance(event, ExecutorLost):
                        reason, told, self.drained = event.reason, True, event.drained
                    events.append(event)
                elif what == "known":
                    self.ids.update(name for name, known in message[1].items() if known)
                    self._answers.put(message[1])
            if events and not self._leaving:
                self._emit(events)
            if told:
                self.lost = reason
            try:
                piece = self._sock.recv(_PIECE)
            except OSError:
                piece = b""
            if not piece:
                break
            messages = self._splitter.feed(piece)
        if not self._leaving and not told:
            self._emit([ExecutorLost(self._run.clock(), "local", reason, self._hint())])
        self.lost = reason
        self._answers.put(None)

    def close(self) -> None:
        """Disconnect as soon as the jobs that are being terminated are over."""
        self._leaving = True
        self._send(line(["close"]))
        self._thread.join(_CLOSING)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()


def _no_answer_error() -> ExecutorError:
    return ExecutorError(
        "the supervisor of this run's jobs does not answer",
        cause=f"no message within {_OPENING:g} s",
        hint="if a process 'ens-supervisor' is suspended, continue it with kill -CONT PID",
        code="no-supervisor",
        transient=True,
    )
