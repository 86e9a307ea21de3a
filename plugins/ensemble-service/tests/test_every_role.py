"""Tests of every role with every event: a run only receives events of its own members.

The tests call the service's two streams directly. Callers without a token use gRPC.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ensemble_service.access import Identity
from ensemble_service.call_errors import Refused
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.router import Router
from ensemble_service.server import Settings, serving
from ensemble_service.servicer import member_stream, steer_stream
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_core import Event

VICTIM, RUN = "default/victim", "run-1"
#: Every role except the victim's and its controller's.
ROLES = {
    "member": Identity("member", "default", "default/other"),
    "member of another namespace": Identity("member", "else", "else/victim"),
    "viewer": Identity("viewer", "default"),
    "controller of another namespace": Identity("controller", "else"),
}
NAMES = st.sampled_from([VICTIM, "default/absent", "default/other", "else/victim", "", "x\ny"])
OWN_RUN = "run-3"
RUNS = st.one_of(st.just(OWN_RUN), st.sampled_from([RUN, "run-2", "", "../x"]))


@st.composite
def events(draw: st.DrawFn, kind: str) -> pb.Event:
    fields = draw(
        st.dictionaries(
            st.sampled_from(["job", "name", "call", "values", "reason", "request", "outcome"]),
            st.one_of(st.none(), st.integers(), st.text(max_size=9), st.just("t.1")),
            max_size=4,
        )
    )
    data = json.dumps({"type": kind, **fields})
    return pb.Event(timestamp=draw(st.floats()), data=data)


@st.composite
def from_members(draw: st.DrawFn, kind: str, own: str) -> pb.FromMember:
    name, run = draw(st.one_of(st.just(own), NAMES)), draw(RUNS)
    turn = draw(st.integers(0, 3))
    if turn == 0:
        return pb.FromMember(hello=pb.Hello(member=name))
    if turn == 1:
        return pb.FromMember(answer=pb.Answer(run=run, member=name, epoch=1, id=1))
    if turn == 2:
        return pb.FromMember(beat=pb.Beat(gauges={"nodes.up": 9.0}))
    sent = draw(st.lists(events(kind), max_size=3))
    return pb.FromMember(batch=pb.Batch(run=run, member=name, life="l", first=1, events=sent))


@st.composite
def from_runs(draw: st.DrawFn) -> pb.FromRun:
    name, run = draw(st.one_of(st.just(VICTIM), NAMES)), draw(RUNS)
    epoch = draw(st.one_of(st.just(1), st.sampled_from([0, 2, 2**63])))
    turn = draw(st.integers(0, 2))
    if turn == 0:
        return pb.FromRun(begin=pb.Begin(run=run, epoch=epoch))
    if turn == 1:
        return pb.FromRun(ack=pb.Ack(run=run, member=name, life="l", seq=9))
    what: Any = draw(
        st.sampled_from(
            [
                {"submit": pb.Submit(jobs=[pb.Job(data='{"command": ["rm"]}')])},
                {"cancel": pb.Cancel(jobs=["t.1"])},
                {"resize": pb.Resize(request="r", delta=1)},
                {"close": pb.Close()},
                {"open": pb.Open()},
            ]
        )
    )
    return pb.FromRun(call=pb.Call(run=run, member=name, epoch=epoch, id=1, **what))


async def said(messages: list[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message


async def _as(who: Identity, as_member: list[pb.FromMember], as_run: list[pb.FromRun]) -> None:
    router = Router()
    victim = router.join(Identity("member", "default", VICTIM), pb.Hello(member=VICTIM), 0.0)
    run = router.begin(Identity("controller", "default"), pb.Begin(run=RUN, epoch=1))
    call = pb.Call(run=RUN, member=VICTIM, epoch=1, id=1, open=pb.Open())
    router.from_run(run, pb.FromRun(call=call))
    while victim.send_queue.take() is not None:
        continue
    while run.send_queue.take() is not None:
        continue
    refusals: list[str] = []
    for stream in (
        member_stream(router, who, said(as_member), lambda: 0.0),
        steer_stream(router, who, said(as_run), lambda: 0.0),
    ):
        try:
            async for _ in stream:
                continue
        except Refused as refused:
            refusals.append(refused.message)
    for message in refusals:
        assert 0 < len(message) < 1_000
        assert message.isprintable()
    assert victim.send_queue.take() is None  # it received no request
    while (heard := run.send_queue.take()) is not None:
        assert heard.WhichOneof("what") == "presence"
        assert heard.presence.member == who.member
    assert router.members[VICTIM].link is victim
    assert set(router.members) <= {VICTIM, who.member}
    assert not router.members[VICTIM].gauges
    assert router.runs[RUN].link is run
    assert not router.relayed


@pytest.mark.parametrize("role", ROLES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_role_can_speak_for_another_with_any_type_of_event(
    role: str, data: st.DataObject
) -> None:
    who = ROLES[role]
    kinds = st.sampled_from(sorted(Event.kinds))  # the service does not inspect events
    sent = kinds.flatmap(lambda kind: from_members(kind, who.member or ""))
    as_member = data.draw(st.lists(sent, max_size=3))
    if who.member and data.draw(st.booleans()):
        as_member.insert(0, pb.FromMember(hello=pb.Hello(member=who.member)))
    as_run = data.draw(st.lists(from_runs(), max_size=3))
    if data.draw(st.booleans()):
        as_run.insert(0, pb.FromRun(begin=pb.Begin(run=OWN_RUN, epoch=1)))
    asyncio.run(_as(who, as_member, as_run))


@pytest.mark.parametrize("token", ["", "nobody's"])
def test_without_a_token_no_type_of_event_is_accepted(token: str, tmp_path: Path) -> None:
    with (
        serving(Settings(state=tmp_path, port=0, grace=1)) as service,
        grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel,
    ):
        stub = api.EnsembleStub(channel)  # type: ignore[no-untyped-call]
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        for kind in Event.kinds:
            event = pb.Event(timestamp=1.0, data=json.dumps({"type": kind}))
            batch = pb.Batch(run=RUN, member=VICTIM, life="l", first=1, events=[event])
            hello = pb.FromMember(hello=pb.Hello(member=VICTIM))
            begin = pb.FromRun(begin=pb.Begin(run=RUN, epoch=1))
            for answers in (
                stub.Member(iter([hello, pb.FromMember(batch=batch)]), metadata=metadata),
                stub.Steer(iter([begin]), metadata=metadata),
                stub.Watch(pb.WatchRequest(), metadata=metadata),
            ):
                with pytest.raises(grpc.RpcError) as refused:
                    next(answers)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not service.router.members
        assert not service.router.runs
