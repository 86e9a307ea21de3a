"""Client of the ensemble service: resize, cancel and status, with retries."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from ensemble_core import EnsembleError, ExecutorError, Resized
from ensemble_service.call_errors import (
    MISMATCHED,
    Unreachable,
    diagnose,
    fault,
    is_absence,
    is_answer,
)
from ensemble_service.channel import (
    MAX_MESSAGE,
    address,
    authorization,
    is_loopback,
    load_grpc,
    open_channel,
    read_token,
)

__all__ = [
    "MAX_MESSAGE",
    "GroupStatus",
    "MemberStatus",
    "ServiceClient",
    "address",
    "authorization",
    "diagnose",
    "fault",
    "is_loopback",
    "load_grpc",
    "open_channel",
    "read_status",
    "read_token",
]

_R = TypeVar("_R")

# -- status of members ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Number of jobs of a group in each state."""

    name: str
    waiting: int = 0
    running: int = 0
    success: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """Status of a member."""

    member: str
    alive: bool = False
    last_beat: float = 0.0  #: time of the last heartbeat, in seconds since the epoch; 0 for never
    executor: str = ""
    host: str = ""
    version: str = ""
    gauges: Mapping[str, float] = field(default_factory=dict)
    groups: tuple[GroupStatus, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    size: int | None = None  #: number of nodes; None if unknown
    denied: str = ""  #: why the last resize request was denied, or empty


# -- the client ---------------------------------------------------------------------------------


class ServiceClient:
    """Client of the ensemble service. Thread-safe.

    - ``token``, ``ca``, ``insecure``: as for :func:`open_channel`
    - ``timeout``: seconds for a whole request with its retries
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 50051,
        *,
        token: str | Callable[[], str | None] | None = None,
        ca: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        timeout: float = 10.0,
    ) -> None:
        self.target = address(host, port)
        self.timeout = timeout
        self._away = partial(diagnose, host, port, ca=ca, insecure=insecure)
        self._channel = open_channel(host, port, token=token, ca=ca, insecure=insecure)
        from ensemble_service.proto import ensemble_pb2, ensemble_pb2_grpc

        self._wire: Any = ensemble_pb2
        stub: Any = ensemble_pb2_grpc.EnsembleStub
        self._stub: Any = stub(self._channel)
        self._closed = threading.Event()

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Calls in progress fail."""
        self._closed.set()
        self._channel.close()

    def resize(self, member: str, request: str, delta: int) -> Resized:
        """Request ``delta`` more nodes for ``member``, or fewer if negative.

        The name ``request`` is the idempotency key: a retry under the same name returns the first
        reply and resizes nothing. Raises :class:`ExecutorError`. If the error is ``transient``, the
        request may have arrived; retry it under the same name.
        """
        message = self._wire.ResizeRequest(member=member, request=request, delta=delta)
        reply = self._call(self._stub.Resize, message, again=True)
        names: dict[int, Literal["granted", "partial", "denied"]] = {
            1: "granted",
            2: "partial",
            3: "denied",
        }
        if reply.outcome not in names:
            raise ExecutorError(
                f"unknown answer from the service at {self.target}",
                cause=f"outcome {reply.outcome}",
                hint="the service may be newer than this client: update ensemble-service here",
                code="bad-answer",
            )
        return Resized(
            outcome=names[reply.outcome],
            before=reply.before,
            asked=reply.asked,
            granted=reply.granted,
            reason=reply.reason,
            code=reply.code,
            transient=reply.transient,
        )

    def cancel(self, member: str, run: str, jobs: Sequence[str] = ()) -> None:
        """Cancel jobs of a run on a member; without ``jobs``, cancel all of them."""
        message = self._wire.CancelRequest(member=member, run=run, jobs=jobs)
        self._call(self._stub.Cancel, message, again=True)

    def status(self, member: str = "") -> list[MemberStatus]:
        """Return the status of one member, or of all members that the credential may see, by
        name.
        """
        found: list[MemberStatus] = []
        after = ""
        while True:
            message = self._wire.StatusRequest(member=member, after=after)
            reply = self._call(self._stub.GetStatus, message, again=True)
            found += map(read_status, reply.members)
            if reply.next <= after:  # no next page, or one that makes no progress
                return found
            after = reply.next

    def _call(self, call: Callable[..., _R], message: Any, *, again: bool) -> _R:
        """Make a call. Retry it within the timeout as long as it certainly was not delivered."""
        import grpc

        end = time.monotonic() + self.timeout
        pause = 0.1
        looked = False
        while True:
            try:
                return call(message, timeout=max(0.001, end - time.monotonic()))
            except grpc.RpcError as error:
                code = error.code() if hasattr(error, "code") else None
                left = end - time.monotonic()
                away = code == grpc.StatusCode.UNAVAILABLE
                # If the member is absent, that is the result: don't retry. But do retry if the
                # service was overloaded: it then cancels some requests before it reads them.
                crowded = code == grpc.StatusCode.CANCELLED and not self._closed.is_set()
                retry = again and (crowded or (away and not is_absence(str(error.details()))))
                if retry and away and not looked and left > 2.0:  # check whether waiting can help
                    looked = True
                    found = self._fault(error, away, left / 2)
                    if found.code in MISMATCHED:
                        raise found from None
                    left = end - time.monotonic()
                if not retry or left <= pause or self._closed.wait(pause):
                    raise self._fault(error, away, left) from None
                pause = min(pause * 2, 2.0)
            except ValueError as error:  # gRPC's error for a closed channel
                raise ExecutorError(
                    f"the connection to the service at {self.target} is closed",
                    cause=str(error),
                    code="closed",
                ) from None

    def _fault(self, error: Any, away: bool, left: float) -> EnsembleError:
        """Explain an RPC error, within the ``left`` seconds or half a second."""
        why: Unreachable | None = None
        if away and not is_answer(str(error.details())):
            with contextlib.suppress(EnsembleError):  # the authority's file is being replaced
                why = self._away(seconds=min(2.0, max(0.5, left)))
        return fault(error, self.target, why)


def read_status(message: Any) -> MemberStatus:
    """Decode a member's status."""
    return MemberStatus(
        member=message.member,
        alive=message.alive,
        last_beat=message.last_beat,
        executor=message.executor,
        host=message.host,
        version=message.version,
        gauges=dict(message.gauges),
        groups=tuple(
            GroupStatus(
                name=group.name,
                waiting=group.waiting,
                running=group.running,
                success=group.success,
                failed=group.failed,
                cancelled=group.cancelled,
            )
            for group in message.groups
        ),
        metrics=dict(message.metrics),
        runs=tuple(message.runs),
        size=message.size if message.HasField("size") else None,
        denied=message.denied,
    )
