"""Tests of the running service over real sockets with TLS: rejections, idempotency, shutdown."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import queue
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from ensemble_service import certificates, service_log
from ensemble_service.client import ServiceClient, open_channel
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.resize_requests import ResizeLog
from ensemble_service.server import Service, Settings, serving
from ensemble_testing import wait_until

from ensemble_core import EnsembleError, ExecutorError, Resized, Resizer

PATIENCE = 60.0


class Nodes(Resizer):
    """Resizer with at most ``most`` nodes for each member. ``hold`` delays requests."""

    def __init__(self, most: int = 8) -> None:
        self.most = most
        self.sizes: dict[str, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.entered = threading.Semaphore(0)
        self.fault: Exception | None = None
        self.at_once: dict[str, int] = {}
        self.closed = False

    def resize(self, member: str, delta: int) -> Resized:
        self.at_once[member] = self.at_once.get(member, 0) + 1
        assert self.at_once[member] == 1, "two requests of one member at once"
        try:
            self.calls.append((member, delta))
            self.entered.release()
            assert self.hold.wait(PATIENCE)
            if self.fault:
                raise self.fault
            before = self.sizes.get(member, 4)
            asked = before + delta
            granted = max(1, min(asked, self.most))
            if granted == before:
                return Resized(
                    outcome="denied", before=before, asked=asked, granted=before,
                    reason="it is as large as it may be", code="at-maximum",
                )  # fmt: skip
            self.sizes[member] = granted
            return Resized(
                outcome="granted" if granted == asked else "partial",
                before=before, asked=asked, granted=granted,
            )  # fmt: skip
        finally:
            self.at_once[member] -= 1

    def size(self, member: str) -> int | None:
        return self.sizes.get(member)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="session")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    certificates.init(folder)
    return folder


class World:
    """A service with TLS, and its clients."""

    def __init__(self, service: Service, tls_folder: Path, nodes: Nodes) -> None:
        self.service, self.nodes = service, nodes
        self.ca = tls_folder / "ca.crt"
        self._open = contextlib.ExitStack()

    def token(self, role: Any, name: str = "", **more: Any) -> str:
        return self.service.tokens.add(role, name, **more)[0]

    def client(self, role: Any, name: str = "", timeout: float = PATIENCE) -> ServiceClient:
        client = ServiceClient(
            "localhost",
            self.service.port,
            token=self.token(role, name),
            ca=self.ca,
            timeout=timeout,
        )
        self._open.callback(client.close)
        return client

    def stub(self, token: str | None, **more: Any) -> Any:
        channel = open_channel("localhost", self.service.port, token=token, ca=self.ca, **more)
        self._open.callback(channel.close)
        stub: Any = api.EnsembleStub
        return stub(channel)

    def member(self, name: str, token: str | None = None) -> Member:
        member = Member(self.stub(token or self.token("member", name)), name)
        self._open.callback(member.leave)
        return member

    def close(self) -> None:
        self._open.close()


class Member:
    """A member's connection, like an agent's."""

    def __init__(self, stub: Any, name: str) -> None:
        self._says: queue.SimpleQueue[pb.FromMember | None] = queue.SimpleQueue()
        self.say(hello=pb.Hello(member=name, executor="local", host="here"))
        self.stream = stub.Member(iter(self._says.get, None))
        assert next(self.stream).HasField("welcome")

    def say(self, **what: Any) -> None:
        self._says.put(pb.FromMember(**what))

    def hear(self) -> pb.ToMember:
        heard: pb.ToMember = next(self.stream)
        return heard

    def leave(self) -> None:
        self._says.put(None)
        self.stream.cancel()


@contextlib.contextmanager
def world_of(
    state: Path, tls_folder: Path, nodes: Nodes | None = None, **more: Any
) -> Iterator[World]:
    nodes = nodes or Nodes()
    more = {"grace": 1.0, "rate": 0.0, **more}
    with serving(Settings(state=state, port=0, tls=tls_folder, **more), nodes) as service:
        world = World(service, tls_folder, nodes)
        try:
            yield world
        finally:
            nodes.hold.set()
            world.close()


@pytest.fixture
def world(tmp_path: Path, tls_folder: Path) -> Iterator[World]:
    with world_of(tmp_path / "state", tls_folder) as world:
        yield world


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """Return the gRPC status and the reason of a rejected call."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code().name, error.details()


# -- callers ------------------------------------------------------------------------------------


def test_a_caller_without_a_credential_is_rejected_and_others_are_not_affected(
    world: World,
) -> None:
    good = world.client("viewer", "lab")
    ask = pb.StatusRequest()
    wrong = world.token("viewer", "lab")[:-4] + "AAAA"
    old = world.token("viewer", "lab", expires=time.time() - 1)
    for token, words in (
        (None, "missing credential"),
        ("nonsense", "not a token"),
        (wrong, "wrong"),
        (old, "expired"),
    ):
        code, reason = refusal(partial(world.stub(token).GetStatus, ask, timeout=150))
        assert code == "UNAUTHENTICATED"
        assert words in reason
        assert good.status() == []


def test_a_member_with_a_false_name_is_rejected_and_others_are_not_affected(world: World) -> None:
    honest = world.member("lab/one")
    liar = world.token("member", "lab/liar")
    assert refusal(lambda: world.member("lab/one", liar))[0] == "PERMISSION_DENIED"
    assert refusal(lambda: world.member("lab/two", liar))[0] == "PERMISSION_DENIED"
    honest.say(beat=pb.Beat(gauges={"nodes.up": 3}))
    viewer = world.client("viewer", "lab")
    wait_until(lambda: viewer.status("lab/one")[0].gauges == {"nodes.up": 3.0})


@pytest.mark.parametrize(
    ("role", "name", "may"),
    [
        ("member", "lab/one", True),
        ("member", "lab/two", False),
        ("controller", "lab", True),
        ("controller", "other", False),
        ("viewer", "lab", False),
        ("admin", "", True),
    ],
)
def test_only_authorized_roles_may_resize_a_member(
    world: World, role: str, name: str, may: bool
) -> None:
    client = world.client(role, name)
    if may:
        assert client.resize("lab/one", "a", 1).granted == 5
    else:
        with pytest.raises(ExecutorError) as caught:
            client.resize("lab/one", "a", 1)
        assert not caught.value.transient
        assert world.nodes.calls == []


def test_each_credential_sees_only_its_own_members(world: World) -> None:
    members = [world.member(name) for name in ("lab/one", "lab/two", "other/one")]
    seen = {
        ("viewer", "lab"): ["lab/one", "lab/two"],
        ("controller", "other"): ["other/one"],
        ("member", "lab/two"): ["lab/two"],
        ("admin", ""): ["lab/one", "lab/two", "other/one"],
    }
    for (role, name), names in seen.items():
        assert [each.member for each in world.client(role, name).status()] == names
    with pytest.raises(ExecutorError):
        world.client("viewer", "other").status("lab/one")
    del members


def test_a_stream_ends_when_its_token_is_removed(world: World) -> None:
    text, made = world.service.tokens.add("member", "lab/one")
    member = world.member("lab/one", text)
    world.service.tokens.remove(made.id)
    code, reason = refusal(member.hear)
    assert (code, "removed" in reason) == ("UNAUTHENTICATED", True)


# -- limits -------------------------------------------------------------------------------------


def test_a_huge_message_is_rejected_unread_and_others_are_not_affected(world: World) -> None:
    token = world.token("member", "lab/one")
    stub = world.stub(token, max_message=200_000_000)
    request = pb.ResizeRequest(member="x" * 100_000_000)
    code, reason = refusal(lambda: stub.Resize(request, timeout=PATIENCE))
    assert code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in reason
    assert world.client("member", "lab/one").resize("lab/one", "a", 1).granted == 5


def test_a_huge_message_on_a_stream_ends_only_that_stream(world: World) -> None:
    token = world.token("member", "lab/big")
    big = Member(world.stub(token, max_message=200_000_000), "lab/big")
    other = world.member("lab/one")
    big.say(hello=pb.Hello(member="x" * 8_000_000))
    assert refusal(big.hear)[0] == "RESOURCE_EXHAUSTED"
    other.say(beat=pb.Beat(gauges={"cores.up": 1}))
    viewer = world.client("viewer", "lab")
    wait_until(lambda: viewer.status("lab/one")[0].gauges == {"cores.up": 1.0})
    wait_until(lambda: not viewer.status("lab/big")[0].alive)


def test_too_frequent_requests_are_rejected_and_others_are_not_affected(
    tmp_path: Path, tls_folder: Path
) -> None:
    with world_of(tmp_path, tls_folder, rate=5.0) as world:
        stub, other = world.stub(world.token("viewer", "lab")), world.client("viewer", "lab")

        def flood() -> None:
            for _ in range(100):
                stub.GetStatus(pb.StatusRequest(), timeout=150)

        code, reason = refusal(flood)
        assert (code, "requests a second with this credential" in reason) == (
            "RESOURCE_EXHAUSTED",
            True,
        )
        assert other.status() == []


def test_silent_connections_are_closed_and_others_are_not_affected(
    tmp_path: Path, tls_folder: Path
) -> None:
    with world_of(tmp_path, tls_folder, handshake=1.0) as world, contextlib.ExitStack() as stack:
        before = world.client("viewer", "lab")
        assert before.status() == []
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", world.service.port), 5))
            for _ in range(200)
        ]
        for plug in silent[:20]:  # some send only the start of a request
            plug.sendall(b"\x16\x03\x01\x02")
        assert before.status() == []
        assert world.client("viewer", "lab").status() == []
        for plug in silent:
            plug.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                assert plug.recv(100) == b"", "it was kept"
        assert before.status() == []


def test_an_undecodable_message_is_rejected(world: World) -> None:
    channel = open_channel(
        "localhost", world.service.port, token=world.token("viewer", "lab"), ca=world.ca
    )
    with contextlib.closing(channel):
        for method in ("GetStatus", "Resize", "Cancel"):
            raw: Any = channel.unary_unary(f"/ensemble.v1.Ensemble/{method}")
            code, reason = refusal(partial(raw, b"\xff" * 50, timeout=150))
            assert (code, "cannot decode" in reason) == ("INVALID_ARGUMENT", True)
        stream: Any = channel.stream_stream("/ensemble.v1.Ensemble/Member")
        assert (
            refusal(lambda: list(stream(iter([b"\xff" * 50]), timeout=150)))[0]
            == "INVALID_ARGUMENT"
        )
        nothing: Any = channel.unary_unary("/ensemble.v1.Ensemble/Format")
        assert refusal(lambda: nothing(b"", timeout=150))[0] == "UNIMPLEMENTED"


# -- resizing -------------------------------------------------------------------------------------


def test_a_repeated_request_gets_the_same_answer(world: World) -> None:
    client = world.client("member", "lab/one")
    first = client.resize("lab/one", "grow-1", 2)
    assert (first.outcome, first.before, first.asked, first.granted) == ("granted", 4, 6, 6)
    assert client.resize("lab/one", "grow-1", 2) == first
    assert world.nodes.calls == [("lab/one", 2)]
    assert client.resize("lab/one", "grow-2", 5).outcome == "partial"
    denied = client.resize("lab/one", "grow-3", 1)
    assert (denied.outcome, denied.code) == ("denied", "at-maximum")
    assert client.status("lab/one")[0].denied.startswith("at-maximum: ")
    client.resize("lab/one", "shrink-1", -1)
    assert client.status("lab/one")[0].denied == "", "the last one was not"


def test_the_same_name_for_another_change_is_rejected(world: World) -> None:
    client = world.client("member", "lab/one")
    client.resize("lab/one", "a", 2)
    with pytest.raises(ExecutorError, match="rejected the request") as caught:
        client.resize("lab/one", "a", 3)
    assert "+2" in (caught.value.cause or "")


def test_the_names_of_requests_are_separate_for_each_member(world: World) -> None:
    client = world.client("controller", "lab")
    client.resize("lab/one", "a", 1)
    assert client.resize("lab/two", "a", 2).granted == 6


def test_answers_survive_a_restart(tmp_path: Path, tls_folder: Path) -> None:
    nodes = Nodes()
    with world_of(tmp_path, tls_folder, nodes) as world:
        first = world.client("member", "lab/one").resize("lab/one", "a", 2)
    with world_of(tmp_path, tls_folder, nodes) as world:
        assert world.client("member", "lab/one").resize("lab/one", "a", 2) == first
    assert nodes.calls == [("lab/one", 2)]


def test_an_interrupted_request_is_not_carried_out_twice(tmp_path: Path, tls_folder: Path) -> None:
    # The log of a service that was killed during a request.
    log = ResizeLog(tmp_path / "resizes.sqlite")
    log.begin("lab/one", "a", 2)
    log.close()
    with world_of(tmp_path, tls_folder) as world:
        world.nodes.sizes["lab/one"] = 6
        answer = world.client("member", "lab/one").resize("lab/one", "a", 2)
        assert (answer.outcome, answer.code, answer.before) == ("denied", "interrupted", 6)
        assert world.nodes.calls == []


def test_requests_of_one_member_are_queued_and_others_are_not(world: World) -> None:
    one, two = world.client("member", "lab/one"), world.client("member", "lab/two")
    world.nodes.hold.clear()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(one.resize, "lab/one", f"r{number}", 1) for number in range(3)]
        again = pool.submit(one.resize, "lab/one", "r0", 1)
        other = pool.submit(two.resize, "lab/two", "r0", 1)
        for _ in range(2):
            assert world.nodes.entered.acquire(timeout=PATIENCE)
        assert sorted(name for name, _ in world.nodes.calls) == ["lab/one", "lab/two"]
        world.nodes.hold.set()
        assert other.result(PATIENCE).granted == 5
        answers = [each.result(PATIENCE) for each in waiting]
        assert sorted(answer.granted for answer in answers) == [5, 6, 7]
        assert again.result(PATIENCE) == answers[0]
    assert len(world.nodes.calls) == 4


def test_a_request_whose_deadline_passes_before_its_turn_is_never_carried_out(world: World) -> None:
    one, impatient = world.client("member", "lab/one"), world.client("member", "lab/one")
    requests = world.service.counters.requests
    world.nodes.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.resize, "lab/one", "a", 1)
        assert world.nodes.entered.acquire(timeout=PATIENCE)
        impatient.timeout = 0.3
        # On a busy machine, the first ones may end before the service has them.
        while not (requests["Resize", "CANCELLED"] or requests["Resize", "DEADLINE_EXCEEDED"]):
            with pytest.raises(ExecutorError) as caught:
                impatient.resize("lab/one", "b", 2)
            assert caught.value.transient
            impatient.timeout *= 2
        world.nodes.hold.set()
        first.result(PATIENCE)
    assert world.nodes.calls == [("lab/one", 1)]
    # A retry is carried out.
    assert one.resize("lab/one", "b", 2).granted == 7


def test_a_request_in_progress_continues_without_its_caller(world: World) -> None:
    one, impatient = (
        world.client("member", "lab/one"),
        world.client("member", "lab/one", timeout=0.3),
    )
    world.nodes.hold.clear()
    with pytest.raises(ExecutorError) as caught:
        impatient.resize("lab/one", "a", 2)
    assert caught.value.transient
    world.nodes.hold.set()
    assert one.resize("lab/one", "a", 2).granted == 6
    assert world.nodes.calls == [("lab/one", 2)]


def test_the_service_has_its_own_deadline(tmp_path: Path, tls_folder: Path) -> None:
    with world_of(tmp_path, tls_folder, deadline=0.3) as world:
        world.nodes.hold.clear()
        stub = world.stub(world.token("member", "lab/one"))
        request = pb.ResizeRequest(member="lab/one", request="a", delta=1)
        code, reason = refusal(lambda: stub.Resize(request))  # the caller sets no deadline
        assert (code, "longer than" in reason) == ("DEADLINE_EXCEEDED", True)


def test_too_many_queued_requests_for_one_member_are_rejected(world: World) -> None:
    stub = world.stub(world.token("member", "lab/one"))
    world.nodes.hold.clear()
    calls = [
        stub.Resize.future(
            pb.ResizeRequest(member="lab/one", request=f"r{n}", delta=1), timeout=PATIENCE
        )
        for n in range(40)
    ]
    wait_until(lambda: world.service.counters.requests["Resize", "RESOURCE_EXHAUSTED"] == 40 - 17)
    world.nodes.hold.set()
    codes = [call.code().name for call in calls]
    assert codes.count("OK") == 17
    assert codes.count("RESOURCE_EXHAUSTED") == 23


@pytest.mark.parametrize(
    "request_",
    [
        pb.ResizeRequest(member="lab/one", request="a", delta=0),
        pb.ResizeRequest(member="lab/one", request="a", delta=2**62),
        pb.ResizeRequest(member="lab/one", request="a", delta=-(2**63)),
        pb.ResizeRequest(member="lab/one", request="", delta=1),
        pb.ResizeRequest(member="lab/one", request="x" * 1000, delta=1),
        pb.ResizeRequest(member="a/b/c", request="a", delta=1),
        pb.ResizeRequest(member="", request="a", delta=1),
    ],
)
def test_an_invalid_request_is_rejected(world: World, request_: pb.ResizeRequest) -> None:
    stub = world.stub(world.token("admin"))
    assert refusal(lambda: stub.Resize(request_, timeout=150))[0] == "INVALID_ARGUMENT"
    assert world.nodes.calls == []


def test_a_resizer_that_breaks_its_contract_is_an_answer_without_a_traceback(world: World) -> None:
    world.nodes.fault = RuntimeError("no such thing")
    answer = world.client("member", "lab/one").resize("lab/one", "a", 1)
    assert (answer.outcome, answer.code) == ("denied", "resizer-failed")
    assert "no such thing" in answer.reason
    assert "Traceback" not in answer.reason
    world.nodes.fault = None
    assert world.client("member", "lab/one").resize("lab/one", "b", 1).outcome == "granted"


def test_without_a_resizer_the_answer_says_what_to_do(tmp_path: Path, tls_folder: Path) -> None:
    with serving(Settings(state=tmp_path, port=0, tls=tls_folder)) as service:
        token, _ = service.tokens.add("member", "lab/one")
        with ServiceClient(
            "localhost", service.port, token=token, ca=tls_folder / "ca.crt"
        ) as client:
            answer = client.resize("lab/one", "a", 1)
    assert (answer.outcome, answer.code) == ("denied", "no-resizer")
    assert "--resizer" in answer.reason


def test_a_request_that_cannot_be_recorded_is_not_carried_out(
    world: World, full_disk: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    client = world.client("member", "lab/one")
    client.resize("lab/one", "a", 1)
    client.timeout = 3.0
    with full_disk(), pytest.raises(ExecutorError) as caught:
        client.resize("lab/one", "b", 1)
    client.timeout = PATIENCE
    assert "cannot record the resize request" in str(caught.value)
    assert caught.value.transient
    assert world.nodes.calls == [("lab/one", 1)]
    assert client.resize("lab/one", "b", 1).granted == 6


# -- status, watch, cancel -------------------------------------------------------------------------


def test_status_shows_what_the_member_reported(world: World) -> None:
    member = world.member("lab/one")
    group = pb.Group(name="sim", waiting=1, running=2, success=3, failed=4, cancelled=5)
    member.say(
        beat=pb.Beat(gauges={"nodes.up": 2}, groups=[group], metrics={"mean.sim-duration": 1.5})
    )
    world.nodes.sizes["lab/one"] = 2
    viewer = world.client("viewer", "lab")
    wait_until(lambda: bool(viewer.status("lab/one")[0].gauges))
    [status] = viewer.status("lab/one")
    assert (status.alive, status.executor, status.host, status.size) == (True, "local", "here", 2)
    assert abs(status.last_beat - time.time()) < 60
    assert status.groups[0].failed == 4
    assert status.metrics == {"mean.sim-duration": 1.5}
    member.leave()
    wait_until(lambda: not viewer.status("lab/one")[0].alive)


def test_a_member_that_never_connected_is_not_found(world: World) -> None:
    with pytest.raises(ExecutorError, match="did not find") as caught:
        world.client("viewer", "lab").status("lab/never")
    assert not caught.value.transient
    world.nodes.sizes["lab/never"] = 3
    [status] = world.client("viewer", "lab").status("lab/never")
    assert (status.alive, status.size) == (False, 3)


def test_a_watcher_receives_each_change(world: World) -> None:
    world.member("other/one")
    watch = world.stub(world.token("viewer", "lab")).Watch(pb.WatchRequest(), timeout=PATIENCE)
    heard: list[tuple[str, bool]] = []
    wait_until(lambda: bool(world.service.router._watchers))
    member = world.member("lab/one")
    for status in watch:
        heard.append((status.member, status.alive))
        if heard == [("lab/one", True)]:
            member.leave()
        if not status.alive:
            break
    watch.cancel()
    assert heard[0] == ("lab/one", True)
    assert heard[-1] == ("lab/one", False)
    assert {name for name, _ in heard} == {"lab/one"}


def test_cancel_reaches_the_member(world: World) -> None:
    member = world.member("lab/one")
    controller = world.client("controller", "lab")
    controller.cancel("lab/one", "study-1", ["j1", "j2"])
    call = member.hear().call
    assert (call.run, call.member, list(call.cancel.jobs)) == ("study-1", "lab/one", ["j1", "j2"])
    began = time.monotonic()
    with pytest.raises(ExecutorError) as caught:
        controller.cancel("lab/away", "study-1")
    assert "not connected" in (caught.value.cause or "")
    assert time.monotonic() - began < PATIENCE / 2  # the error arrives at once
    for role, name in (("viewer", "lab"), ("controller", "other"), ("member", "lab/one")):
        with pytest.raises(ExecutorError) as caught:
            world.client(role, name).cancel("lab/one", "study-1")
        assert caught.value.code == "permission-denied"
    with pytest.raises(ExecutorError, match="'' is not a valid run name") as caught:
        controller.cancel("lab/one", "")
    assert caught.value.code == "invalid-argument"


# -- health, reflection, logs, metrics, stop ---------------------------------------------------------


def test_health_needs_no_credential_but_reflection_does(world: World) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with contextlib.closing(open_channel("localhost", world.service.port, ca=world.ca)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "ensemble.v1.Ensemble"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=150)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = lambda: list(reflected.ServerReflectionInfo(iter([asked]), timeout=150))  # noqa: E731
        assert refusal(call)[0] == "UNAUTHENTICATED"
    token = world.token("viewer", "lab")
    with contextlib.closing(
        open_channel("localhost", world.service.port, ca=world.ca, token=token)
    ) as channel:
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel)
        [told] = reflected.ServerReflectionInfo(iter([asked]), timeout=150)
        names = {each.name for each in told.list_services_response.service}
        assert {"ensemble.v1.Ensemble", "convergedcomputing.org.grpc.v1.EnsembleOperator"} <= names


def test_the_log_is_json_and_never_has_a_token(tmp_path: Path, tls_folder: Path) -> None:
    log = io.StringIO()
    service_log.configure("json", "debug", log)
    try:
        with world_of(tmp_path, tls_folder) as world:
            token = world.token("member", "lab/one")
            world.stub(token).Resize(
                pb.ResizeRequest(member="lab/one", request="a\nb", delta=1), timeout=150
            )
            world.member("lab/one", token).leave()
            wait_until(lambda: "disconnected" in log.getvalue())
            wrong = token[:-3] + "abc"
            refusal(lambda: world.stub(wrong).GetStatus(pb.StatusRequest(), timeout=150))
            refusal(
                lambda: world.stub(token).GetStatus(pb.StatusRequest(member="lab/two"), timeout=150)
            )
    finally:
        service_log.configure(stream=io.StringIO())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    events = [line["event"] for line in lines]
    assert events[0] == "listening"
    assert events[-1] == "stopped"
    [came, went] = [line for line in lines if line["event"] in ("connected", "disconnected")]
    assert came["who"] == went["who"] == "member lab/one"
    [resize] = [line for line in lines if line["event"] == "resize"]
    assert (resize["member"], resize["outcome"], resize["request"]) == (
        "lab/one",
        "granted",
        "a\nb",
    )
    assert {line["code"] for line in lines if line["event"] == "refused"} == {
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
    }
    assert token.split("-", 2)[2][:-3] not in log.getvalue()


def test_metrics_count_requests_and_members(tmp_path: Path, tls_folder: Path) -> None:
    pytest.importorskip("prometheus_client")
    with world_of(tmp_path, tls_folder, metrics_port=0) as world:
        world.member("lab/one")
        world.client("member", "lab/one").resize("lab/one", "a", 1)
        refusal(lambda: world.stub(None).GetStatus(pb.StatusRequest(), timeout=150))
        where = f"http://127.0.0.1:{world.service.metrics_port}"
        text = urllib.request.urlopen(f"{where}/metrics", timeout=150).read().decode()
        assert 'ensemble_service_requests_total{code="OK",method="Resize"} 1.0' in text
        assert (
            'ensemble_service_requests_total{code="UNAUTHENTICATED",method="GetStatus"} 1.0' in text
        )
        assert "ensemble_service_members_alive 1.0" in text
        assert 'ensemble_service_resizes_total{outcome="granted"} 1.0' in text
        assert urllib.request.urlopen(f"{where}/healthz", timeout=150).status == 200


def test_gauges_of_a_member_are_metrics_while_it_is_connected(
    tmp_path: Path, tls_folder: Path
) -> None:
    pytest.importorskip("prometheus_client")
    with world_of(tmp_path, tls_folder, metrics_port=0) as world:
        member = world.member("lab/one")
        member.say(beat=pb.Beat(gauges={"queue.sched": 7, "waiting.nodes": 3}))
        where = f"http://127.0.0.1:{world.service.metrics_port}/metrics"

        def text() -> str:
            told: str = urllib.request.urlopen(where, timeout=150).read().decode()
            return told

        line = 'ensemble_member_gauge{member="lab/one",path="queue.sched"} 7.0'
        wait_until(lambda: line in text())
        assert 'ensemble_member_gauge{member="lab/one",path="waiting.nodes"} 3.0' in text()
        member.leave()
        wait_until(lambda: line not in text())


def test_a_stopping_service_tells_its_streams_and_finishes_requests_in_progress(
    tmp_path: Path, tls_folder: Path
) -> None:
    nodes = Nodes()
    chosen = Settings(state=tmp_path, port=0, tls=tls_folder, grace=PATIENCE)
    with ThreadPoolExecutor(2) as pool:
        with serving(chosen, nodes) as service:
            world = World(service, tls_folder, nodes)
            member, client = world.member("lab/one"), world.client("member", "lab/one")
            nodes.hold.clear()
            asked = pool.submit(client.resize, "lab/one", "a", 1)
            assert nodes.entered.acquire(timeout=PATIENCE)

            def go_on() -> bool:
                wait_until(lambda: not service._serving)
                under_way = not asked.done()
                nodes.hold.set()
                return under_way

            went_on = pool.submit(go_on)
            began = time.monotonic()
        assert went_on.result(PATIENCE)
        assert asked.result(PATIENCE).granted == 5
        assert refusal(member.hear) == ("UNAVAILABLE", "the service stops")
        assert time.monotonic() - began < PATIENCE
        world.close()
    assert nodes.closed


def test_a_hanging_resizer_does_not_keep_the_service_from_stopping(
    tmp_path: Path, tls_folder: Path
) -> None:
    nodes = Nodes()
    began = time.monotonic()
    with serving(Settings(state=tmp_path, port=0, tls=tls_folder, grace=0.2), nodes) as service:
        world = World(service, tls_folder, nodes)
        nodes.hold.clear()
        stub = world.stub(world.token("member", "lab/one"))
        call = stub.Resize.future(
            pb.ResizeRequest(member="lab/one", request="a", delta=1), timeout=PATIENCE
        )
        assert nodes.entered.acquire(timeout=PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    assert call.exception(PATIENCE) is not None
    nodes.hold.set()
    world.close()


def test_two_services_do_not_share_a_state_folder_or_a_port(world: World, tmp_path: Path) -> None:
    state, port = world.service.settings.state, world.service.port
    with (
        pytest.raises(EnsembleError, match="another service"),
        serving(Settings(state=state, port=0)),
    ):
        pytest.fail("it started")
    other = Settings(state=tmp_path / "other", port=port)
    with pytest.raises(EnsembleError, match="cannot listen"), serving(other):
        pytest.fail("it started")


def test_many_members_come_and_go(world: World) -> None:
    viewer = world.client("viewer", "lab")
    members = [world.member(f"lab/m{number}") for number in range(20)]
    assert sum(each.alive for each in viewer.status()) == 20
    for member in itertools.islice(members, 10):
        member.leave()
    wait_until(lambda: sum(each.alive for each in viewer.status()) == 10)
