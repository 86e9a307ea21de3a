"""Router: the connected members and runs, and the messages between them.

Use it on the event loop only. Nothing is stored for absent members or runs. To keep it testable,
nothing in this module blocks, reads a clock or depends on gRPC.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet, WeakValueDictionary

from ensemble_service.access import is_run_name
from ensemble_service.call_errors import Refused
from ensemble_service.heartbeats import read_beat
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.send_queue import RunSendQueue, SendQueue
from ensemble_service.service_log import tell
from ensemble_service.wire import clean

#: Seconds without a message after which a member counts as gone.
SILENCE = 10.0
_LONGEST_NAME = 200
#: Maximum number of runs whose newest epoch is remembered after they have left.
_REMEMBERED = 10_000

_O = TypeVar("_O", bound="SendQueue[pb.ToMember] | RunSendQueue")


class CallerIdentity(Protocol):
    """A caller's identity, reduced to what the router needs."""

    @property
    def namespace(self) -> str: ...
    def may_be(self, member: str) -> bool: ...
    def may_steer(self, member: str) -> bool: ...
    def may_run(self, tag: str) -> bool: ...


@dataclass(eq=False, slots=True)
class Link(Generic[_O]):
    """One connection. ``name`` is the member's name or the run's tag."""

    name: str
    who: CallerIdentity
    send_queue: _O


#: Connections of members and of runs.
MemberLink = Link[SendQueue[pb.ToMember]]
RunLink = Link[RunSendQueue]


@dataclass(eq=False, slots=True)
class MemberState:
    """State of a member."""

    name: str
    executor: str = ""
    host: str = ""
    version: str = ""
    last_beat: float = 0.0  # last heartbeat, in seconds since the epoch; 0 for never
    gauges: Mapping[str, float] = field(default_factory=dict)
    groups: Sequence[pb.Group] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: How many entries of the last heartbeat exceeded the limits.
    left_out: int = 0
    #: Tags of the connected runs that use the member.
    runs: set[str] = field(default_factory=set)
    link: MemberLink | None = None

    @property
    def alive(self) -> bool:
        """True if the member is connected and has sent something recently."""
        return self.link is not None


@dataclass(eq=False, slots=True)
class RunState:
    """A connected run. ``members`` are the members that it uses."""

    tag: str
    owner: str
    epoch: int = 0
    members: set[str] = field(default_factory=set)
    link: RunLink | None = None


class Router:
    """Routes messages between members and runs.

    A call to an absent member is answered at once with the fault ``away``. Events for an absent run
    are dropped; the member resends them later.
    """

    def __init__(self, version: str = "") -> None:
        self.version = version
        self.members: dict[str, MemberState] = {}
        self.runs: dict[str, RunState] = {}
        #: Numbers of events passed to runs, and of events whose run was not connected.
        self.relayed = 0
        self.dropped = 0
        self._epochs: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._watchers: set[_Watch] = set()
        #: The send queues of each credential with connections.
        self._queues: WeakValueDictionary[CallerIdentity, WeakSet[SendQueue[Any]]] = (
            WeakValueDictionary()
        )
        #: Time of the last check for silent members, and time since which silence counts.
        self._swept: float | None = None
        self._deaf_until = 0.0

    # -- members -------------------------------------------------------------------------------

    def join(self, who: CallerIdentity, hello: pb.Hello, now: float) -> MemberLink:
        """Connect a member. Raise :class:`Refused`."""
        name = hello.member
        if not name or not who.may_be(name):
            raise Refused(
                "PERMISSION_DENIED", f"this credential does not belong to member {name[:100]!r}"
            )
        state = self.members.get(name)
        if state is None:
            state = self.members[name] = MemberState(name)
        if state.link is not None:
            if now - state.last_beat < SILENCE:
                raise Refused(
                    "ALREADY_EXISTS", f"member {name} is already connected, from {state.host}"
                )
            self.leave(state.link)
        link: MemberLink = Link(name, who, SendQueue(self._queues_of(who)))
        state.link = link
        state.executor = clean(hello.executor, _LONGEST_NAME)
        state.host = clean(hello.host, _LONGEST_NAME)
        state.version = clean(hello.version, _LONGEST_NAME)
        state.last_beat = now
        link.send_queue.put(pb.ToMember(welcome=pb.Welcome(service=self.version)))
        self._send_presence(name, True)
        self._changed(name)
        return link

    def leave(self, link: MemberLink, end: Refused | None = None) -> None:
        """Disconnect a member. Idempotent."""
        link.send_queue.close(end)
        state = self.members.get(link.name)
        if state is not None and state.link is link:
            state.link = None
            self._send_presence(link.name, False)
            self._changed(link.name)

    def from_member(self, link: MemberLink, message: pb.FromMember, now: float) -> None:
        """Handle a member's message. Raise :class:`Refused` if the message claims to be from
        another member.
        """
        state = self.members[link.name]
        if state.link is not link:
            return
        state.last_beat = now
        what = message.WhichOneof("what")
        if what == "batch":
            batch = message.batch
            run = self._run_for(link, batch.member, batch.run)
            count = len(batch.events)
            if run is None or run.link is None or run.link.send_queue.closed:
                self.dropped += count
                return
            self.relayed += count
            run.link.send_queue.put_batch(batch)
        elif what == "answer":
            answer = message.answer
            run = self._run_for(link, answer.member, answer.run)
            if run is not None and run.link is not None and run.epoch == answer.epoch:
                run.link.send_queue.put_about(link.name, pb.ToRun(answer=answer))
        elif what == "beat":
            state.gauges, state.metrics, state.groups, left = read_beat(message.beat)
            if left and not state.left_out:
                tell("heartbeat is too large", "warning", member=link.name, left_out=left)
            state.left_out = left
            self._changed(link.name)
        elif what == "hello":
            raise Refused("INVALID_ARGUMENT", "'hello' must come first, and once")

    def _run_for(self, link: MemberLink, member: str, tag: str) -> RunState | None:
        if member != link.name:
            raise Refused(
                "PERMISSION_DENIED",
                f"member {link.name} sent data of {member[:100]!r}; "
                "a member may only speak for itself",
            )
        run = self.runs.get(tag)
        # A run receives messages only from members that it uses.
        return run if run is not None and link.name in run.members else None

    def send(self, member: str, message: pb.ToMember) -> bool:
        """Queue a message for a member; it may be lost. Return whether the member is connected."""
        state = self.members.get(member)
        if state is None or state.link is None or state.link.send_queue.closed:
            return False
        state.link.send_queue.put(message)
        return True

    def cancel(self, member: str, run: str, jobs: Sequence[str] = ()) -> bool:
        """Ask a member to cancel jobs of a run; without ``jobs``, all of them.

        Returns whether the member is connected. The run learns the outcome from job events. Epoch 0
        marks a call of the service itself.
        """
        call = pb.Call(run=run, member=member, cancel=pb.Cancel(jobs=jobs))
        return self.send(member, pb.ToMember(call=call))

    # -- runs ----------------------------------------------------------------------------------

    def begin(self, who: CallerIdentity, begin: pb.Begin) -> RunLink:
        """Connect a run's controller.

        First sends the presence of each member that the run may use, then the welcome message.
        Raises :class:`Refused`, with ``FAILED_PRECONDITION`` if a newer controller is known.
        """
        tag = begin.run
        if not is_run_name(tag):
            raise Refused("INVALID_ARGUMENT", f"{tag[:100]!r} is not a valid run name")
        if not who.may_run(tag):
            raise Refused("PERMISSION_DENIED", "this credential does not belong to a controller")
        if not begin.epoch:
            raise Refused("INVALID_ARGUMENT", f"run {tag} has no epoch; epochs start at 1")
        owner, epoch = self._epochs.get(tag, (who.namespace, 0))
        if owner != who.namespace:
            raise Refused("PERMISSION_DENIED", f"run {tag} belongs to another namespace")
        if epoch > begin.epoch:
            raise Refused("FAILED_PRECONDITION", f"run {tag} has a newer controller")
        self._epochs[tag] = (owner, begin.epoch)
        self._epochs.move_to_end(tag)
        self._forget_epochs()
        earlier = self.runs.get(tag)
        if earlier is not None and earlier.link is not None:
            why = f"another controller has taken over run {tag}"
            same = earlier.epoch == begin.epoch
            self.end(earlier.link, None if same else Refused("FAILED_PRECONDITION", why))
        link: RunLink = Link(tag, who, RunSendQueue(self._queues_of(who)))
        self.runs[tag] = RunState(tag, owner, begin.epoch, link=link)
        for name, state in self.members.items():
            if state.link is not None and who.may_steer(name):
                link.send_queue.put(pb.ToRun(presence=pb.Presence(member=name, present=True)))
        link.send_queue.put(pb.ToRun(welcome=pb.Welcome(service=self.version)))
        return link

    def _queues_of(self, who: CallerIdentity) -> WeakSet[SendQueue[Any]]:
        return self._queues.setdefault(who, WeakSet())

    def _forget_epochs(self) -> None:
        surplus = len(self._epochs) - _REMEMBERED
        if surplus > 0:
            for tag in [tag for tag in self._epochs if tag not in self.runs][:surplus]:
                del self._epochs[tag]

    def end(self, link: RunLink, end: Refused | None = None) -> None:
        """Disconnect a run. Idempotent."""
        link.send_queue.close(end)
        run = self.runs.get(link.name)
        if run is None or run.link is not link:
            return
        del self.runs[link.name]
        for name in run.members:
            state = self.members.get(name)
            if state is not None:
                state.runs.discard(run.tag)
                self._changed(name)

    def from_run(self, link: RunLink, message: pb.FromRun) -> None:
        """Handle a run's message. Raise :class:`Refused` if the message claims to be from another
        run.
        """
        run = self.runs.get(link.name)
        if run is None or run.link is not link:
            return
        what = message.WhichOneof("what")
        if what == "call":
            self._call(run, link, message.call)
        elif what == "ack":
            ack = message.ack
            if ack.run != run.tag:
                raise _for_another(run, ack.run)
            if ack.member in run.members:
                self.send(ack.member, pb.ToMember(ack=ack))
        elif what == "begin":
            raise Refused("INVALID_ARGUMENT", f"run {run.tag} began twice on one stream")

    def _call(self, run: RunState, link: RunLink, call: pb.Call) -> None:
        name = call.member
        if call.run != run.tag or call.epoch != run.epoch:
            raise _for_another(run, call.run)
        if not link.who.may_steer(name):
            message = f"this credential may not use member {name[:100]!r}"
            self._answer(link, call, pb.Fault(message=message, code="forbidden"))
            return
        state = self.members.get(name)
        if state is None or state.link is None:
            message = f"member {clean(name, _LONGEST_NAME)} is not connected"
            self._answer(link, call, pb.Fault(message=message, code="away", transient=True))
            return
        if name not in run.members:
            run.members.add(name)
            state.runs.add(run.tag)
            self._changed(name)
        state.link.send_queue.put(pb.ToMember(call=call))

    def _answer(self, link: RunLink, call: pb.Call, fault: pb.Fault) -> None:
        answer = pb.Answer(
            run=call.run, member=call.member, epoch=call.epoch, id=call.id, fault=fault
        )
        link.send_queue.put_about(call.member, pb.ToRun(answer=answer))

    def _send_presence(self, member: str, present: bool) -> None:
        message = pb.ToRun(presence=pb.Presence(member=member, present=present))
        for run in self.runs.values():
            if run.link is not None and run.link.who.may_steer(member):
                run.link.send_queue.put_about(member, message)

    # -- watchers ------------------------------------------------------------------------------

    def statuses(self, visible: Callable[[str], bool]) -> list[MemberState]:
        """Return the visible members, by name."""
        return [self.members[name] for name in sorted(self.members) if visible(name)]

    def sweep(self, now: float) -> None:
        """Disconnect members that were silent for :data:`SILENCE` seconds.

        Time without calls of this method does not count, because the machine may have been
        suspended or its clock set.
        """
        if self._swept is not None and abs(now - self._swept) > SILENCE / 2:
            self._deaf_until = now
        self._swept = now
        for state in list(self.members.values()):
            heard = max(state.last_beat, self._deaf_until)
            if state.link is not None and now - heard > SILENCE:
                reason = f"{state.name} was silent for {SILENCE:g} s"
                self.leave(state.link, Refused("DEADLINE_EXCEEDED", reason))

    def close(self) -> None:
        """Close all connections because the service stops."""
        end = Refused("UNAVAILABLE", "the service stops")
        for run in list(self.runs.values()):
            if run.link is not None:
                self.end(run.link, end)
        for state in list(self.members.values()):
            if state.link is not None:
                self.leave(state.link, end)
        for watch in self._watchers:
            watch.close()

    async def changes(self) -> AsyncIterator[str]:
        """Yield the name of each member whose state changes, until the router is closed.

        Several changes of a member between two iterations are reported once.
        """
        watch = _Watch()
        self._watchers.add(watch)
        try:
            while (names := await watch.take()) is not None:
                for name in names:
                    yield name
        finally:
            self._watchers.discard(watch)

    def changed(self, member: str) -> None:
        """Report a change of a member outside the router, such as its size."""
        self._changed(member)

    def _changed(self, name: str) -> None:
        for watch in self._watchers:
            watch.put(name)


def _for_another(run: RunState, other: str) -> Refused:
    return Refused(
        "PERMISSION_DENIED",
        f"run {run.tag} (epoch {run.epoch}) sent data of {other[:100]!r} or of another epoch; a "
        "stream belongs to one run and one controller",
    )


class _Watch:
    """A watcher, with the changes that it has not read yet."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._news = asyncio.Event()
        self._closed = False

    def put(self, name: str) -> None:
        self._names[name] = None
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def take(self) -> list[str] | None:
        await self._news.wait()
        names, self._names = list(self._names), {}
        if self._closed:
            return names or None
        self._news.clear()
        return names
