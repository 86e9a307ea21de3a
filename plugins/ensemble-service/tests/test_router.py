"""Tests of the router: connections, routes, and rejections."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import pytest
from ensemble_service import send_queue as outbox_module
from ensemble_service.call_errors import Refused
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.router import SILENCE, MemberLink, Router, RunLink
from ensemble_service.servicer import member_stream, steer_stream


@dataclass(frozen=True)
class CallerIdentity:
    """The identity of one member, or of a controller of a namespace."""

    namespace: str = "ns"
    member: str = ""

    def may_be(self, member: str) -> bool:
        return self.member == member

    def may_steer(self, member: str) -> bool:
        return not self.member and member.startswith(f"{self.namespace}/")

    def may_run(self, tag: str) -> bool:
        return not self.member


A, B = CallerIdentity(member="ns/a"), CallerIdentity(member="ns/b")


def join(router: Router, who: CallerIdentity, now: float = 0.0) -> MemberLink:
    return router.join(who, pb.Hello(member=who.member, executor="local", host="h"), now)


def begin(
    router: Router, tag: str = "run", epoch: int = 1, who: CallerIdentity | None = None
) -> RunLink:
    return router.begin(who or CallerIdentity(), pb.Begin(run=tag, epoch=epoch))


def call(member: str, run: str = "run", epoch: int = 1, number: int = 5) -> pb.FromRun:
    return pb.FromRun(call=pb.Call(run=run, member=member, epoch=epoch, id=number, open=pb.Open()))


def batch(
    member: str, run: str = "run", first: int = 1, count: int = 1, life: str = "l"
) -> pb.FromMember:
    events = [pb.Event(timestamp=first + number) for number in range(count)]
    return pb.FromMember(
        batch=pb.Batch(run=run, member=member, life=life, first=first, events=events)
    )


def drained(link: MemberLink | RunLink) -> list[Any]:
    """Return all messages queued for a connection."""
    messages: list[Any] = []
    while (message := link.send_queue.take()) is not None:
        messages.append(message)
    return messages


def kinds(link: RunLink) -> list[str | None]:
    return [message.WhichOneof("what") for message in drained(link)]


def test_a_run_learns_the_presence_of_members_before_its_welcome_and_changes_after() -> None:
    router = Router()
    there = join(router, A)
    run = begin(router)
    taken = drained(run)
    assert [message.WhichOneof("what") for message in taken] == ["presence", "welcome"]
    assert taken[0].presence == pb.Presence(member="ns/a", present=True)
    join(router, B)
    router.leave(there)
    told = [message.presence for message in drained(run)]
    assert told == [
        pb.Presence(member="ns/b", present=True),
        pb.Presence(member="ns/a", present=False),
    ]


def test_a_call_reaches_its_member_and_the_answer_the_run() -> None:
    router = Router()
    member, run = join(router, A), begin(router)
    router.from_run(run, call("ns/a"))
    assert [m.WhichOneof("what") for m in drained(member)] == ["welcome", "call"]
    drained(run)
    answer = pb.Answer(run="run", member="ns/a", epoch=1, id=5, done=pb.Done())
    router.from_member(member, pb.FromMember(answer=answer), 1.0)
    router.from_member(member, batch("ns/a"), 1.0)
    assert kinds(run) == ["answer", "batch"]
    assert router.relayed == 1
    assert router.members["ns/a"].runs == {"run"}


def test_a_call_to_an_absent_member_is_answered_at_once_and_not_kept() -> None:
    router = Router()
    run = begin(router)
    drained(run)
    router.from_run(run, call("ns/a"))
    (message,) = drained(run)
    assert (message.answer.id, message.answer.fault.code) == (5, "away")
    assert message.answer.fault.transient
    member = join(router, A)
    assert [m.WhichOneof("what") for m in drained(member)] == ["welcome"]


def test_no_connection_may_speak_for_another() -> None:
    router = Router()
    with pytest.raises(Refused, match="does not belong to member") as caught:
        router.join(A, pb.Hello(member="ns/b"), 0.0)
    assert caught.value.code == "PERMISSION_DENIED"
    member = join(router, A)
    run = begin(router)
    for wrong in (batch("ns/b"), pb.FromMember(answer=pb.Answer(run="run", member="ns/b"))):
        with pytest.raises(Refused):
            router.from_member(member, wrong, 0.0)
    for lie in (call("ns/a", run="other"), call("ns/a", epoch=2)):
        with pytest.raises(Refused):
            router.from_run(run, lie)
    with pytest.raises(Refused):
        router.begin(A, pb.Begin(run="run", epoch=1))


def test_a_run_may_only_use_members_of_its_namespace() -> None:
    router = Router()
    member = join(router, A)
    run = begin(router, who=CallerIdentity("other"))
    assert kinds(run) == ["welcome"]  # no presence of members in other namespaces
    router.from_run(run, call("ns/a"))
    (message,) = drained(run)
    assert message.answer.fault.code == "forbidden"
    assert len(member.send_queue) == 1


def test_events_reach_only_runs_that_use_the_member() -> None:
    router = Router()
    member, run = join(router, A), begin(router)
    drained(run)
    router.from_member(member, batch("ns/a"), 0.0)
    assert kinds(run) == []
    assert router.dropped == 1


def test_a_newer_controller_ends_the_older_one_which_is_rejected_from_then_on() -> None:
    router = Router()
    older = begin(router, epoch=3)
    begin(router, epoch=4)
    assert older.send_queue.take() is not None  # the welcome message
    with pytest.raises(Refused, match="another controller"):
        drained(older)
    with pytest.raises(Refused, match="newer controller") as caught:
        begin(router, epoch=3)
    assert caught.value.code == "FAILED_PRECONDITION"
    # Messages of the older controller are dropped.
    member = join(router, A)
    router.from_run(older, call("ns/a", epoch=3))
    assert len(member.send_queue) == 1


def test_a_run_belongs_to_the_namespace_that_started_it() -> None:
    router = Router()
    begin(router)
    with pytest.raises(Refused, match="another namespace"):
        begin(router, epoch=9, who=CallerIdentity("other"))


def test_an_invalid_tag_and_a_wrong_kind_of_credential_have_different_errors() -> None:
    router = Router()
    for tag in ("", "a/b", "x" * 218):
        with pytest.raises(Refused, match="not a valid run name") as caught:
            begin(router, tag)
        assert caught.value.code == "INVALID_ARGUMENT"
    with pytest.raises(Refused, match="not belong to a controller") as caught:
        begin(router, who=A)
    assert caught.value.code == "PERMISSION_DENIED"


def test_a_second_agent_of_a_member_is_rejected_while_the_first_is_alive() -> None:
    router = Router()
    first = join(router, A, 0.0)
    with pytest.raises(Refused, match="already connected, from h") as caught:
        join(router, A, 1.0)
    assert caught.value.code == "ALREADY_EXISTS"
    second = join(router, A, SILENCE + 1)
    assert router.members["ns/a"].link is second
    router.leave(first)  # the first connection ends late
    assert router.members["ns/a"].alive
    router.sweep(3 * SILENCE)
    assert not router.members["ns/a"].alive


def test_a_connection_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "_MOST_WAITING", 500)
    router = Router()
    member, run = join(router, A), begin(router)
    router.from_run(run, call("ns/a"))
    for _ in range(50):
        router.from_member(member, batch("ns/a"), 0.0)
    assert router.dropped  # dropped events do not count as delivered
    with pytest.raises(Refused) as caught:
        drained(run)
    assert caught.value.code == "RESOURCE_EXHAUSTED"


def test_changes_are_reported_by_name_once_each() -> None:
    async def watch() -> list[str]:
        router = Router()
        names: list[str] = []

        async def collect() -> None:
            names.extend([name async for name in router.changes()])

        task = asyncio.create_task(collect())
        await asyncio.sleep(0)
        link = join(router, A)
        for _ in range(3):
            router.from_member(link, pb.FromMember(beat=pb.Beat(gauges={"nodes.up": 2})), 1.0)
        join(router, B)
        router.close()
        await asyncio.wait_for(task, 60)
        assert dict(router.members["ns/a"].gauges) == {"nodes.up": 2}
        return names

    assert asyncio.run(watch()) == ["ns/a", "ns/b"]


class Requests:
    """Stream of a client's requests, controlled by the test."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[pb.FromMember | pb.FromRun | None] = asyncio.Queue()

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> pb.FromMember | pb.FromRun:
        message = await self.queue.get()
        if message is None:
            raise StopAsyncIteration
        return message


def test_the_streams_relay_messages_and_end_with_a_rejection() -> None:
    async def both() -> None:
        router = Router("9")
        said, asked = Requests(), Requests()
        member = member_stream(router, A, said, lambda: 0.0)  # type: ignore[arg-type]  # either kind
        run = steer_stream(router, CallerIdentity(), asked, lambda: 0.0)  # type: ignore[arg-type]  # either kind
        said.queue.put_nowait(pb.FromMember(hello=pb.Hello(member="ns/a")))
        asked.queue.put_nowait(pb.FromRun(begin=pb.Begin(run="run", epoch=1)))
        assert (await member.__anext__()).welcome.service == "9"
        assert (await run.__anext__()).presence.present
        assert (await run.__anext__()).welcome.service == "9"
        asked.queue.put_nowait(call("ns/a"))
        assert (await member.__anext__()).call.id == 5
        said.queue.put_nowait(batch("ns/a"))
        assert (await run.__anext__()).batch.life == "l"
        said.queue.put_nowait(batch("ns/b"))
        with pytest.raises(Refused, match="sent data of"):
            await member.__anext__()
        assert not (await run.__anext__()).presence.present
        asked.queue.put_nowait(None)
        with pytest.raises(StopAsyncIteration):
            await run.__anext__()
        assert not router.runs

    asyncio.run(both())


def test_a_silent_member_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensemble_service.servicer.SILENCE", 0.4)

    async def silent() -> None:
        router, said = Router(), Requests()
        member = member_stream(router, A, said, time.monotonic)  # type: ignore[arg-type]  # either kind
        said.queue.put_nowait(pb.FromMember(hello=pb.Hello(member="ns/a")))
        await member.__anext__()
        with pytest.raises(Refused, match="was silent") as caught:
            await asyncio.wait_for(member.__anext__(), 60)
        assert caught.value.code == "DEADLINE_EXCEEDED"
        assert not router.members["ns/a"].alive

    asyncio.run(silent())


def test_no_member_counts_as_silent_because_the_service_was_suspended() -> None:
    router = Router()
    join(router, A, 100.0)
    router.sweep(101.0)
    for now in (161.0, 162.0, 166.0, 170.5):  # sweeps were suspended for a minute
        router.sweep(now)
        assert router.members["ns/a"].alive
    router.sweep(172.0)
    assert not router.members["ns/a"].alive


def test_a_stream_outlives_a_suspended_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensemble_service.servicer.SILENCE", 0.2)

    async def halted() -> None:
        router, said, now = Router(), Requests(), [0.0]
        member = member_stream(router, A, said, lambda: now[0])  # type: ignore[arg-type]  # either kind
        said.queue.put_nowait(pb.FromMember(hello=pb.Hello(member="ns/a")))
        await member.__anext__()
        now[0] = 60.0
        following = asyncio.ensure_future(member.__anext__())
        await asyncio.sleep(0.3)
        assert not following.done()
        assert router.members["ns/a"].alive
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following

    asyncio.run(halted())


# -- backlog of a run -----------------------------------------------------------------------------


def taken_part() -> tuple[Router, MemberLink, MemberLink, RunLink]:
    """Return a router, two members, and a run that uses both."""
    router = Router()
    a, b, run = join(router, A), join(router, B), begin(router)
    for member in ("ns/a", "ns/b"):
        router.from_run(run, call(member))
    drained(run)
    return router, a, b, run


def test_consecutive_waiting_events_arrive_in_one_message_in_order() -> None:
    router, a, b, run = taken_part()
    for number in range(3):
        router.from_member(a, batch("ns/a", first=1 + 2 * number, count=2), 1.0)
        router.from_member(b, batch("ns/b", first=1 + number), 1.0)
    told = [message.batch for message in drained(run)]
    assert [(each.member, each.first) for each in told] == [("ns/a", 1), ("ns/b", 1)]
    assert [event.timestamp for event in told[0].events] == [1, 2, 3, 4, 5, 6]
    assert [event.timestamp for event in told[1].events] == [1, 2, 3]
    assert router.relayed == 9
    # Messages taken from the queue are in flight, so no events are added to them.
    router.from_member(a, batch("ns/a", first=7), 1.0)
    assert [message.batch.first for message in drained(run)] == [7]
    assert [event.timestamp for event in told[0].events] == [1, 2, 3, 4, 5, 6]


def test_non_consecutive_events_keep_their_own_message() -> None:
    router, a, _, run = taken_part()
    for first, life in ((1, "l"), (1, "l"), (3, "l"), (4, "other")):
        router.from_member(a, batch("ns/a", first=first, life=life), 1.0)
    told = [(message.batch.first, message.batch.life) for message in drained(run)]
    assert told == [(1, "l"), (1, "l"), (3, "l"), (4, "other")]


def test_events_do_not_overtake_their_members_answer_or_presence() -> None:
    router, a, b, run = taken_part()
    answer = pb.Answer(run="run", member="ns/a", epoch=1, id=5, done=pb.Done())
    router.from_member(a, batch("ns/a"), 1.0)
    router.from_member(a, pb.FromMember(answer=answer), 1.0)
    router.from_member(a, batch("ns/a", first=2), 1.0)
    router.from_member(b, batch("ns/b"), 1.0)
    router.leave(a)
    again = join(router, A)
    router.from_run(run, call("ns/a"))
    router.from_member(again, batch("ns/a", first=3), 1.0)
    router.from_member(b, batch("ns/b", first=2), 1.0)
    told = [
        (message.WhichOneof("what"), message.batch.member, len(message.batch.events))
        for message in drained(run)
    ]
    assert told == [
        ("batch", "ns/a", 1),
        ("answer", "", 0),
        ("batch", "ns/a", 1),
        ("batch", "ns/b", 2),
        ("presence", "", 0),
        ("presence", "", 0),
        ("batch", "ns/a", 1),
    ]


def test_joined_messages_stay_within_the_size_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router, a, _, run = taken_part()
    for number in range(30):
        router.from_member(a, batch("ns/a", first=1 + 100 * number, count=100), 1.0)
    told = [message.batch for message in drained(run)]
    assert [len(each.events) for each in told] == [500] * 6
    monkeypatch.setattr(outbox_module, "MOST_BYTES", 1_000)
    for number in range(30):
        router.from_member(a, batch("ns/a", first=1 + 10 * number, count=10), 1.0)
    taken = drained(run)
    assert 1 < len(taken) < 30
    assert all(message.ByteSize() <= 1_000 for message in taken)
    assert sum(len(message.batch.events) for message in taken) == 300


def test_a_run_that_does_not_read_is_closed_even_if_its_events_are_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router, a, _, run = taken_part()
    monkeypatch.setattr(outbox_module, "_MOST_WAITING", 2_000)
    for number in range(1_000):
        router.from_member(a, batch("ns/a", first=1 + number), 1.0)
    with pytest.raises(Refused) as caught:
        drained(run)
    assert caught.value.code == "RESOURCE_EXHAUSTED"


def test_the_backlog_of_a_credential_is_bounded_and_the_idlest_run_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "_MOST_WAITING", 3_000)
    router = Router()
    member = join(router, A)
    runs = [begin(router, tag=f"run-{number}") for number in range(4)]
    for number, run in enumerate(runs):
        router.from_run(run, call("ns/a", run=f"run-{number}"))
    ended: set[str] = set()
    waiting = 0
    for number in range(400):
        for at, run in enumerate(runs):
            router.from_member(member, batch("ns/a", run=f"run-{at}", first=1 + number), 0.0)
            if at and number % 10 == 9:  # the first run reads nothing
                assert drained(run)
        ended |= {run.name for run in runs if run.send_queue.closed}
        waiting = max(waiting, sum(run.send_queue.bytes for run in runs))
    assert ended == {"run-0"}
    assert 2_000 < waiting < 3_200
    with pytest.raises(Refused) as caught:
        drained(runs[0])
    assert caught.value.code == "RESOURCE_EXHAUSTED"


def test_space_is_freed_as_messages_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    router, a, _, run = taken_part()
    monkeypatch.setattr(outbox_module, "_MOST_WAITING", 2_000)
    arrived = 0
    for number in range(1_000):
        router.from_member(a, batch("ns/a", first=1 + number), 1.0)
        if number % 10 == 9:
            arrived += sum(len(message.batch.events) for message in drained(run))
    assert arrived == 1_000
