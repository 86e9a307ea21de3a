"""Grow and shrink: carries out resize requests of a run in order, and reports their outcomes.

A grow waits until Flux reports the new nodes as up. A shrink drains nodes, waits until they are
idle, and removes them. The requests are in the file ``minicluster.json`` in the run's folder, so
that a resumed run can repeat them safely.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core import EnsembleError, Resized, ResizeOutcome, private_folder
from ensemble_minicluster.cluster import LAST, SOON, Cluster, Ended, Look, shown

if TYPE_CHECKING:
    from ensemble_core import WhenBusy

_Told = tuple[Literal["granted", "denied", "timeout", "undelivered"], "int | None", str]


class Resizing:
    """Accepts requests with :meth:`ask`, and passes their outcomes to a callback.

    A repeated request gets the same outcome.
    """

    def __init__(
        self,
        cluster: Cluster,
        memory: RequestLog,
        clock: Callable[[], float],
        tell: Callable[[ResizeOutcome], None],
    ) -> None:
        self._cluster = cluster
        self._memory = memory
        self._clock = clock
        self._tell = tell
        self._orders: queue.SimpleQueue[tuple[str, int, WhenBusy] | None] = queue.SimpleQueue()
        self._pending: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, request: str, delta: int, when_busy: WhenBusy) -> None:
        """Accept a request, unless it is already in progress. The outcome of a request is reported
        once.
        """
        with self._lock:
            if request in self._pending:
                return
            self._pending.add(request)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="resizing", daemon=True)
            self._thread.start()
        self._orders.put((request, delta, when_busy))

    def close(self) -> None:
        """Wait a few seconds for open requests, because a run that ends may have requested to
        return nodes.
        """
        self._cluster.end()
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(LAST + 2)
        self._cluster.service.close()
        if self._thread is not None:
            self._thread.join(LAST)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            request, delta, when_busy = order
            told: _Told | None = None
            try:
                told = self._outcome(request, delta, when_busy)
            except Ended:
                pass
            except Exception as error:  # a rule may wait for this outcome, whatever failed
                told = ("denied", None, f"resizing failed: {error!r}")
            with self._lock:
                self._pending.discard(request)
            if told is not None:
                outcome, size, reason = told
                if outcome == "denied" and size is None:
                    size = self._cluster.up  # the size is unchanged, and messages mention it
                self._tell(ResizeOutcome(self._clock(), request, outcome, size=size, reason=reason))
        # The service's reply is unknown; no node must stay drained.
        self._cluster.undrain(self._cluster.held)

    def _outcome(self, request: str, delta: int, when_busy: WhenBusy) -> _Told:
        known = self._memory.get(request)
        if known is None or not known.outcome:
            try:
                if delta < 0:
                    shrink = Shrink(
                        self._cluster, request, lambda asked: self._remember(request, asked)
                    )
                    known = shrink.carry_out(delta, when_busy, known)
                else:
                    known = grow(self._cluster, request, delta)
            except EnsembleError as error:
                reason = f"{error.what}: {error.cause}" if error.cause else error.what
                if error.transient:
                    return "undelivered", None, reason
                if error.hint:
                    reason = f"{reason} ({error.hint})"
                known = ResizeRequest(delta=delta, outcome="denied", reason=reason)
            self._remember(request, known)
        assert known.outcome
        return known.outcome, known.size, known.reason

    def _remember(self, request: str, asked: ResizeRequest) -> None:
        before = self._memory.trouble
        self._memory.put(request, asked)
        if self._memory.trouble and self._memory.trouble != before:
            self._cluster.warn(self._memory.trouble)


#: Seconds by which gauges may lag behind Flux's report of its nodes.
_BEHIND = 3.0


def grow(cluster: Cluster, request: str, delta: int) -> ResizeRequest:
    """Request ``delta`` more nodes, wait until they are up, and return the outcome.

    Raises :class:`EnsembleError` if the service did not reply, and :class:`Ended` if the run ended
    before the nodes arrived.
    """
    asked = ResizeRequest(delta=delta)
    before = cluster.look()
    answer = cluster.ask(request, delta)
    if answer.outcome == "denied":
        return denied(asked, answer)
    granted = replace(
        asked, outcome="granted", size=answer.granted, reason=shortfall_reason(answer, delta)
    )
    if cluster.nodes is None:
        return granted
    new = set(range(answer.before, answer.granted))
    # An earlier shrink drained these ranks and removed their nodes; new nodes replace them.
    cluster.undrain(new, any_run=True)
    arrived = _arrival(cluster, answer, set() if before is None else new & before.online)
    if cluster.until(arrived, cluster.patience.arrival, last=0.0):
        return granted
    if cluster.closing:
        raise Ended
    return _timeout_outcome(cluster, granted, answer, new)


def _arrival(cluster: Cluster, answer: Resized, stale: set[int]) -> Callable[[], bool]:
    """Return a function that says whether the nodes have arrived.

    The set ``stale`` has those of the new ranks that were up already.
    """
    # New nodes reuse the ranks of removed nodes, which Flux still reports as up for a while. So a
    # stale rank counts as new once it has been down, or has stayed up longer than a removed node.
    new = set(range(answer.before, answer.granted))
    began = time.monotonic()
    seen: float | None = None

    def arrived() -> bool:
        nonlocal seen
        look = cluster.look()
        if look is None:
            return cluster.up is not None and cluster.up >= answer.granted
        stale.intersection_update(look.online)
        now = time.monotonic()
        if not new <= look.online or (stale and now - began < cluster.patience.settle):
            seen = None
            return False
        seen = now if seen is None else seen
        # Rules triggered by this outcome read the gauges, which arrive separately.
        return cluster.up is None or cluster.up >= look.usable or now - seen > _BEHIND

    return arrived


def _timeout_outcome(
    cluster: Cluster, asked: ResizeRequest, answer: Resized, new: set[int]
) -> ResizeRequest:
    look = cluster.look_or_none()
    if look is None:
        up, missing = cluster.up, ""
    else:
        up = len(look.online & set(range(answer.granted)))
        absent = new - look.online
        missing = f": Flux has not seen {shown(absent)}" if absent else ""
    return replace(
        asked,
        outcome="timeout",
        size=up,
        reason=f"{answer.granted} nodes were granted, but "
        f"{'an unknown number' if up is None else up} of them are up after "
        f"{cluster.patience.arrival:g} s{missing}",
    )


class Shrink:
    """A request for fewer nodes."""

    def __init__(
        self, cluster: Cluster, request: str, remember: Callable[[ResizeRequest], None]
    ) -> None:
        self._cluster = cluster
        self._request = request
        #: If the controller is killed, the next one repeats the request with the same nodes.
        #: Otherwise it would choose the highest remaining ones, and twice as many nodes might be
        #: removed.
        self._remember = remember

    def carry_out(
        self, delta: int, when_busy: WhenBusy, known: ResizeRequest | None
    ) -> ResizeRequest:
        """Return the outcome of a shrink. ``known`` is the request's record, if it has one.

        Raises :class:`EnsembleError` if the service did not reply, and :class:`Ended` if the run
        ended first.
        """
        cluster = self._cluster
        if cluster.nodes is None:
            return _final_outcome(
                ResizeRequest(delta=delta), cluster.ask(self._request, delta), delta
            )
        look = cluster.look()
        if look is None and when_busy != "force":
            return ResizeRequest(
                delta=delta,
                outcome="denied",
                size=cluster.up,
                reason="nodes cannot be drained without access to Flux; 'when_busy: force' "
                "shrinks without draining",
            )
        asked = known or ResizeRequest(delta=delta, victims=self._victims(-delta, look))
        self._remember(asked)
        if look is not None:
            asked = self._drain(asked, when_busy, look)
            if asked.outcome:
                return asked
        asked = replace(asked, sent=True)
        self._remember(asked)
        return self._wait_removed(asked, self._request_resize(asked), delta)

    def _victims(self, count: int, look: Look | None) -> tuple[int, ...]:
        """Return the ranks to remove: the highest, but not rank 0."""
        # Kubernetes removes the pods with the highest indices. Node 0 has the queue.
        size = None
        try:
            size = self._cluster.service.size()
        except EnsembleError as error:
            if error.transient:
                raise
        if size is None:
            size = 0 if look is None else max(look.online, default=0) + 1
        return tuple(range(max(1, size - count), size))

    def _drain(self, asked: ResizeRequest, when_busy: WhenBusy, look: Look) -> ResizeRequest:
        """Drain the nodes, and wait until no job is on them. Return the updated request.

        The request is denied if the nodes do not become idle. It gets a smaller delta if only some
        of the nodes can be removed.
        """
        cluster, victims = self._cluster, asked.victims
        assert cluster.nodes is not None
        cluster.held |= set(victims)
        try:
            fresh = [rank for rank in victims if rank not in look.drained]
            cluster.nodes.drain(fresh, cluster.mark)
        except EnsembleError:
            cluster.held -= set(victims)
            if when_busy != "force" and not asked.sent:
                raise
        if when_busy == "force" or asked.sent:  # the service may already have removed the nodes
            return asked
        if when_busy == "wait":
            return self._wait_idle(asked)
        return self._skip_busy(asked)

    def _wait_idle(self, asked: ResizeRequest) -> ResizeRequest:
        cluster = self._cluster
        if cluster.until(self._idle(asked.victims), cluster.patience.drain, last=LAST):
            return asked
        busy = self._busy(asked.victims)
        if cluster.closing:
            cluster.undrain(asked.victims)
            raise Ended
        return self._deny_and_undrain(
            asked, f"jobs still run on {shown(busy)} after {cluster.patience.drain:g} s"
        )

    def _skip_busy(self, asked: ResizeRequest) -> ResizeRequest:
        victims = set(asked.victims)
        busy = self._busy(victims)
        time.sleep(SOON)
        busy |= self._busy(victims)  # the scheduler may only just have received the drain
        if not busy:
            return asked
        going = {rank for rank in victims if rank > max(busy)}
        if not going:
            return self._deny_and_undrain(
                asked, f"jobs run on {shown([max(busy)])}, which would be removed first"
            )
        self._cluster.undrain(victims - going)
        fewer = replace(asked, victims=tuple(sorted(going)), delta=-len(going))
        self._remember(fewer)
        return fewer

    def _idle(self, ranks: Iterable[int]) -> Callable[[], bool]:
        """Return a function that says whether these ranks are idle.

        They must be idle twice in a row, because jobs that were scheduled before the drain appear a
        little later.
        """
        quiet = 0

        def idle() -> bool:
            nonlocal quiet
            quiet = 0 if self._busy(ranks) else quiet + 1
            return quiet > 1

        return idle

    def _busy(self, ranks: Iterable[int]) -> set[int]:
        look = self._cluster.look()
        return set() if look is None else set(ranks) & look.busy

    def _deny_and_undrain(self, asked: ResizeRequest, reason: str) -> ResizeRequest:
        """Undrain the nodes, and return the request as denied."""
        self._cluster.undrain(asked.victims)
        look = self._cluster.look_or_none()
        size = self._cluster.up if look is None else len(look.online)
        return replace(asked, outcome="denied", size=size, reason=reason)

    def _request_resize(self, asked: ResizeRequest) -> Resized:
        try:
            return self._cluster.ask(self._request, asked.delta)
        except EnsembleError as error:
            # After a transient error, the request may have arrived and the nodes may be leaving:
            # keep them drained.
            if not error.transient:
                self._cluster.undrain(asked.victims)
            raise

    def _wait_removed(self, asked: ResizeRequest, answer: Resized, delta: int) -> ResizeRequest:
        """Wait until Flux reports that the nodes are gone, then undrain their ranks."""
        cluster = self._cluster
        cluster.undrain(v for v in asked.victims if not answer.granted or v < answer.granted)
        cluster.held -= set(asked.victims)
        asked = _final_outcome(asked, answer, delta)
        if asked.outcome == "denied":
            return asked
        going = {*range(answer.granted, answer.before), *asked.victims}
        going = {rank for rank in going if rank >= max(1, answer.granted)}

        def gone() -> bool:
            look = cluster.look()
            if look is None:
                return cluster.up is not None and cluster.up <= answer.granted
            return not going & look.online

        if cluster.until(gone, cluster.patience.arrival, last=LAST):
            cluster.undrain(going)
            return asked
        if cluster.closing:
            raise Ended
        look = cluster.look_or_none()
        left = going if look is None else going & look.online
        return replace(
            asked,
            outcome="timeout",
            reason=f"{answer.granted} nodes should stay, but {shown(left)} "
            f"{'is' if len(left) == 1 else 'are'} still up after {cluster.patience.arrival:g} s",
        )


def _final_outcome(asked: ResizeRequest, answer: Resized, delta: int) -> ResizeRequest:
    if answer.outcome == "denied":
        return denied(asked, answer)
    return replace(
        asked, outcome="granted", size=answer.granted, reason=shortfall_reason(answer, delta)
    )


def denied(asked: ResizeRequest, answer: Resized) -> ResizeRequest:
    """Return the outcome of a denied request."""
    size = answer.granted or answer.before or None
    return replace(asked, outcome="denied", size=size, reason=answer.reason or answer.code)


def shortfall_reason(answer: Resized, delta: int) -> str:
    """Return why fewer nodes than requested were granted; empty if no reason is known."""
    given = abs(answer.granted - answer.before)
    if given >= abs(delta):
        return ""
    why = answer.reason or ("the others are busy" if delta < 0 else "")
    return f"{given} of {abs(delta)} nodes{f': {why}' if why else ''}"


#: Number of requests to keep. Only the newest is ever repeated.
_MOST = 200

Answered = Literal["", "granted", "denied", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """A request for more or fewer nodes."""

    delta: int  #: number of nodes to add; negative: to remove
    victims: tuple[int, ...] = ()  #: ranks to remove
    sent: bool = False
    outcome: Answered = ""  #: empty until it is known
    size: int | None = None
    reason: str = ""


class RequestLog:
    """The requests of a run, by name. Without a ``folder``, nothing is written to disk."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "minicluster.json"
        self._requests: dict[str, ResizeRequest] = {}
        #: Name of the executor that runs the jobs (``None`` for a new run), and what identifies its
        #: queue.
        self.executor: str | None = None
        self.queue = ""
        #: Why the log could not be read or written.
        self.trouble = ""
        try:
            self._read()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.trouble = f"cannot read {self._file}: {error}"

    def _read(self) -> None:
        if self._file is None or not self._file.exists():
            return
        data = json.loads(self._file.read_text(encoding="utf-8"))
        self.executor = data["executor"]
        self.queue = data.get("queue", "")
        for name, fields in data["requests"].items():
            self._requests[name] = ResizeRequest(**{**fields, "victims": tuple(fields["victims"])})

    def get(self, request: str) -> ResizeRequest | None:
        """Return the record of a request, or ``None``."""
        return self._requests.get(request)

    def put(self, request: str, asked: ResizeRequest) -> None:
        """Record a request before it is carried out."""
        self._requests.pop(request, None)
        self._requests[request] = asked
        for old in list(self._requests)[:-_MOST]:
            del self._requests[old]
        self._write()

    def begin(self, executor: str, queue: str = "") -> None:
        """Record the executor and queue that the jobs use."""
        if (self.executor, self.queue) != (executor, queue):
            self.executor, self.queue = executor, queue
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        data: dict[str, Any] = {
            "executor": self.executor,
            "queue": self.queue,
            "requests": {name: asdict(asked) for name, asked in self._requests.items()},
        }
        new = self._file.with_suffix(".new")
        try:
            private_folder(self._file.parent)
            with new.open("w", encoding="utf-8") as file:
                json.dump(data, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._file)
        except OSError as error:
            self.trouble = f"cannot write {self._file}: {error.strerror or error}"
        else:
            self.trouble = ""
