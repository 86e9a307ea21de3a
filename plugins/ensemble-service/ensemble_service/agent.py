"""The member agent: runs jobs on a queue for controllers on other machines."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, Executor, UsageError
from ensemble_service.access import is_run_name, runs_named
from ensemble_service.call_errors import MISMATCHED
from ensemble_service.connection import Connection
from ensemble_service.heartbeats import BEAT, SOONEST, MemberStats
from ensemble_service.hosted_run import HostedRun
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.state_folder import lock_folder

if TYPE_CHECKING:
    from ensemble_service.call_errors import Unreachable

#: Seconds during which events gather before they are sent.
_LINGER = 0.01
#: Number of waiting events that are sent without delay.
_ENOUGH = 500
#: Maximum number of concurrent runs.
_MOST_RUNS = 1_000
#: Seconds between checks whether the queues have ended.
_LOOK = 0.05
#: Seconds to wait for the acknowledgement of the last events after a drain.
_SENDING = 2.0
#: Seconds to wait for an executor to close when the agent stops.
_LEAVING = 20.0
#: Error codes that stop an agent that was never connected.
_LASTING = MISMATCHED | {
    "foreign-listener",
    "permission-denied",
    "unauthenticated",
    "unimplemented",
}

_log = logging.getLogger("ensemble.member")


class Agent:
    """A member agent, connected to the service.

    Raises :class:`UsageError` if another process holds the member's folder.
    """

    def __init__(
        self,
        name: str,  # NAMESPACE/NAME
        build: Callable[[], Executor],  # creates an executor for a run
        folder: Path,  # of the member, with a subfolder for each run
        channel: Callable[[], Any],  # opens a channel to the service
        target: str,  # the service's address
        *,
        executor: str = "",  # name of the executor
        version: str = "",
        away: Callable[[], Unreachable]
        | None = None,  # finds out why the service cannot be reached
        # Called on a thread of the agent if the service was never reached and waiting is useless.
        # The owner should then call stop().
        gave_up: Callable[[EnsembleError], None] | None = None,
    ) -> None:
        self.name = name
        self._build = build
        self._folder = folder
        self._lock_file = lock_folder(
            folder,
            UsageError(
                f"member {name} is already running",
                cause=f"another process holds its folder, {folder}",
                hint="stop it first, or choose another name with --name",
                code="member-runs",
            ),
        )
        first = build()
        self._hello = pb.Hello(
            member=name,
            executor=executor,
            version=version,
            capabilities=sorted(first.capabilities),
            host=socket.gethostname(),
        )
        self._stats = MemberStats()
        # Not every queue knows its size before it is opened.
        with contextlib.suppress(EnsembleError, OSError, TypeError, ValueError):
            self._stats.gauges(first.resources())
        self._lock = threading.Lock()
        self._hosted: dict[str, HostedRun] = {}
        self._news = threading.Event()
        self._ended = threading.Event()
        self._welcome = threading.Event()
        #: Codes of the faults logged since the last connection.
        self._told: set[str] = set()
        self._gave_up = gave_up
        self._ever = self._draining = False
        self._connection: Connection[pb.FromMember, pb.ToMember] = Connection(
            channel,
            "Member",
            target,
            first=lambda: pb.FromMember(hello=self._hello),
            heard=self._on_message,
            down=self._down,
            away=away,
        )
        self._sender = threading.Thread(target=self._send, name="ensemble-sender", daemon=True)

    def start(self) -> None:
        """Connect, and run until :meth:`stop`."""
        self._sender.start()
        self._connection.start()

    def wait_connected(self, timeout: float) -> bool:
        """Return whether the service has accepted this member within ``timeout`` seconds."""
        return self._welcome.wait(timeout)

    def drain(self, hurry: threading.Event) -> None:
        """Let the queues end that end with the allocation of this process, and wait for that.

        Until then, their events are sent; the last ones are sent while the service is connected,
        for some seconds. No run is opened any more. :meth:`stop` should follow; it need not wait
        once ``hurry`` is set.
        """
        with self._lock:
            self._draining = True
            hosted = list(self._hosted.values())
        for run in hosted:
            run.drain()
        while not all(run.drained.is_set() for run in hosted) and not hurry.wait(_LOOK):
            pass
        end = time.monotonic() + _SENDING
        while any(map(len, (run.outbox for run in hosted))) and time.monotonic() < end:
            if not self._welcome.is_set() or hurry.wait(_LOOK):
                break

    def stop(self) -> None:
        """Leave the service and close the executors. Jobs continue if the queue can keep them."""
        self._ended.set()
        self._news.set()
        self._connection.close()
        with self._lock:
            hosted = list(self._hosted.values())
        end = time.monotonic() + _LEAVING
        for run in hosted:
            run.leave(max(0.1, end - time.monotonic()))
        self._sender.join()
        os.close(self._lock_file)

    # -- receiving -----------------------------------------------------------------------------

    def _on_message(self, message: pb.ToMember) -> None:
        what = message.WhichOneof("what")
        if what == "call":
            self._call(message.call)
        elif what == "ack":
            ack = message.ack
            hosted = self._hosted.get(ack.run)
            if hosted is not None:
                hosted.acknowledge(ack.life, ack.seq)
        elif what == "welcome":
            _log.info("%s is connected to the service %s", self.name, message.welcome.service)
            self._told.clear()
            self._ever = True
            self._welcome.set()
            self._news.set()

    def _down(self, error: EnsembleError) -> None:
        self._welcome.clear()
        for hosted in list(self._hosted.values()):
            hosted.disconnected()
        if self._gave_up is not None and not self._ever and error.code in _LASTING:
            self._gave_up(error)
            return
        if error.code not in self._told:  # once, not for each attempt
            self._told.add(error.code)
            why = f" ({error.cause})" if error.cause else ""
            do = f"; {error.hint}" if error.hint and error.code != "unavailable" else ""
            _log.warning("%s%s: jobs continue; retrying%s", error.what, why, do)

    def _call(self, call: pb.Call) -> None:
        if call.member != self.name:
            return  # a protocol error of the service
        with self._lock:
            hosted = self._hosted.get(call.run)
            if hosted is None and not call.epoch:  # a person may name the run by its tag
                named = runs_named(call.run, self._hosted)
                hosted = self._hosted[named[0]] if len(named) == 1 else None
            if hosted is None:
                what = call.WhichOneof("what")
                if what != "open":
                    if call.epoch:
                        self._answer(_without_run(call, what))
                    return
                refusal = None
                if self._draining:
                    refusal = pb.Fault(message=f"member {self.name} is stopping", code="away")
                elif not is_run_name(call.run):
                    refusal = pb.Fault(
                        message=f"invalid run name {call.run[:100]!r}", code="bad-tag"
                    )
                elif len(self._hosted) >= _MOST_RUNS:
                    refusal = pb.Fault(
                        message=f"member {self.name} already has {_MOST_RUNS} runs, the maximum",
                        code="too-many-runs",
                        transient=True,
                    )
                if refusal is not None:
                    answer = _answer_to(call)
                    answer.fault.CopyFrom(refusal)
                    self._answer(answer)
                    return
                hosted = self._hosted[call.run] = HostedRun(
                    call.run,
                    self.name,
                    self._build,
                    self._folder / "runs" / call.run,
                    self._stats,
                    answer=self._answer,
                    news=self._news.set,
                    over=self._forget_if_closed,
                )
            hosted.take(call)

    def _forget_if_closed(self, hosted: HostedRun) -> bool:
        """Forget a closed run unless a call for it is waiting. Return whether the run was
        forgotten.
        """
        with self._lock:
            if not hosted.idle:
                return False
            if self._hosted.get(hosted.name) is hosted:
                del self._hosted[hosted.name]
            return True

    # -- sending -------------------------------------------------------------------------------

    def _answer(self, answer: pb.Answer) -> None:
        self._connection.send(pb.FromMember(answer=answer))

    def _send(self) -> None:
        """Run the sending thread: it sends events in batches, and heartbeats."""
        while not self._ended.is_set():
            try:
                self._send_on()
            except Exception:  # this thread is the only sender, so it must survive
                _log.exception("%s: cannot build the next message", self.name)
                self._ended.wait(1.0)

    def _send_on(self) -> None:
        changes, last_beat = -1, 0.0
        while not self._ended.is_set():
            now = time.monotonic()
            wait = last_beat + BEAT - now
            if self._stats.changes != changes:
                wait = min(wait, last_beat + SOONEST - now)
            self._news.wait(max(0.0, wait))
            if self._ended.is_set():
                return
            if self._news.is_set():
                if sum(run.outbox.pending for run in list(self._hosted.values())) < _ENOUGH:
                    self._ended.wait(_LINGER)
                # Clear this before the events are read, so that an event that comes later is not
                # missed.
                self._news.clear()
                for run in list(self._hosted.values()):
                    while (batch := run.batch()) is not None:
                        self._connection.send(pb.FromMember(batch=batch))
            now = time.monotonic()
            since = now - last_beat
            if since >= BEAT or (since >= SOONEST and self._stats.changes != changes):
                changes, last_beat = self._stats.changes, now
                for run in list(self._hosted.values()):
                    if run.outbox.overdue(now):
                        self._news.set()
                self._connection.send(pb.FromMember(beat=self._stats.beat()))


def _answer_to(call: pb.Call) -> pb.Answer:
    return pb.Answer(run=call.run, member=call.member, epoch=call.epoch, id=call.id)


def _without_run(call: pb.Call, what: Any) -> pb.Answer:
    """Return the answer to a call for a run that is not hosted here."""
    answer = _answer_to(call)
    if what == "close":
        answer.done.SetInParent()
    else:
        message = f"run {call.run} is not open here"
        answer.fault.CopyFrom(pb.Fault(message=message, code="not-open", transient=True))
    return answer
