"""Reporter: sends the state of a run's queue to the service, which shows the queue as a member."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from ensemble_core import EnsembleError, Event
from ensemble_service.access import member_name
from ensemble_service.call_errors import MISMATCHED, diagnose
from ensemble_service.channel import address, open_channel, read_token
from ensemble_service.connection import Connection
from ensemble_service.member_stats import MemberStats
from ensemble_service.proto import ensemble_pb2 as pb

#: Seconds between heartbeats: usual, and shortest.
_BEAT, _SOONEST = 2.0, 0.2
#: Error codes for which ``refused`` is called. Waiting does not help, but a renewed token may.
_LASTING = MISMATCHED | {"permission-denied", "unauthenticated", "unimplemented"}

_log = logging.getLogger("ensemble.member")


class Reporter:
    """Sender of heartbeats for the member ``name`` to the service at ``host:port``.

    - ``token_file``: file with the credential, read for each connection
    - ``ca``, ``insecure``: as for :class:`ServiceClient`
    - ``executor``, ``version``, ``capabilities``: description of the member
    - ``refused``: called on another thread with errors such as a rejected credential; once per
      error code until the service answers again

    Reconnects forever, even after such an error.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        token_file: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        executor: str = "",
        version: str = "",
        capabilities: Collection[str] = (),
        refused: Callable[[EnsembleError], None] | None = None,
    ) -> None:
        self._hello = pb.Hello(
            member=member_name(name),
            executor=executor,
            version=version,
            capabilities=sorted(capabilities),
            host=socket.gethostname(),
        )
        self._refused = refused
        self._told: set[str] = set()
        self._stats = MemberStats()
        self._ended = threading.Event()

        def channel() -> Any:
            token = read_token(token_file) if token_file else None
            return open_channel(host, port, token=token, ca=ca, insecure=insecure)

        self._connection: Connection[pb.FromMember, pb.ToMember] = Connection(
            channel,
            "Member",
            address(host, port),
            first=lambda: pb.FromMember(hello=self._hello),
            heard=self._on_message,
            down=self._down,
            away=partial(diagnose, host, port, ca=ca, insecure=insecure),
        )
        self._beats = threading.Thread(
            target=self._send_heartbeats, name="ensemble-beats", daemon=True
        )

    def start(self) -> None:
        """Connect, and report until :meth:`stop`."""
        self._connection.start()
        self._beats.start()

    def gauges(self, values: Mapping[str, float]) -> None:
        """Update these gauges."""
        self._stats.gauges(values)

    def add(self, run: str, events: Iterable[Event]) -> None:
        """Count events of a run, in order. Only this run reports here, so its tag suffices."""
        self._stats.add(run, events)

    def stop(self) -> None:
        """Send a last heartbeat and leave the service."""
        if not self._ended.is_set():
            self._connection.send(pb.FromMember(beat=self._stats.beat()))
        self._ended.set()
        self._connection.finish(_BEAT)
        if self._beats.ident is not None and self._beats is not threading.current_thread():
            self._beats.join(_BEAT)

    def _on_message(self, message: pb.ToMember) -> None:
        self._told.clear()
        if message.WhichOneof("what") != "call" or not message.call.epoch:
            return
        call = message.call
        answer = pb.Answer(run=call.run, member=call.member, epoch=call.epoch, id=call.id)
        why = f"{self._hello.member} is controlled by its own run, beside its queue"
        answer.fault.CopyFrom(pb.Fault(message=why, code="steered-here"))
        self._connection.send(pb.FromMember(answer=answer))

    def _down(self, error: EnsembleError) -> None:
        if error.code in _LASTING and error.code not in self._told and not self._ended.is_set():
            self._told.add(error.code)
            if self._refused is not None:
                self._refused(error)

    def _send_heartbeats(self) -> None:
        changes, last = -1, 0.0
        while not self._ended.wait(_SOONEST):
            now = time.monotonic()
            if now - last < _BEAT and self._stats.changes == changes:
                continue
            changes, last = self._stats.changes, now
            self._connection.send(pb.FromMember(beat=self._stats.beat()))
