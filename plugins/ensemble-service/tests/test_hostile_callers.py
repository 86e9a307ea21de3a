"""Tests of endless or too large messages: the service holds little memory for them, briefly."""

from __future__ import annotations

import asyncio
import gc
import json
import platform
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from ensemble_service import rpc_guard, servicer
from ensemble_service.call_errors import Refused
from ensemble_service.client import ServiceClient
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.request_limits import Messages
from ensemble_service.server import MAX_REQUEST, Service, Settings, serving
from ensemble_service.servicer import EnsembleServicer
from ensemble_service.tokens import TokenFile
from ensemble_testing import wait_until
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ensemble_core import ExecutorError

_STATUS = "/ensemble.v1.Ensemble/GetStatus"
_WATCH = "/ensemble.v1.Ensemble/Watch"
_STEER = "/ensemble.v1.Ensemble/Steer"
_LEGACY = "/convergedcomputing.org.grpc.v1.EnsembleOperator/RequestStatus"
_CHECK, _HEALTH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
_ENDLESS = MAX_REQUEST - 100


class Endless:
    """One connection with many requests whose messages are announced and never end.

    ``first`` is the initial window of each request, ``room`` the additional window granted by the
    service, and ``over`` the requests that the service has ended.
    """

    def __init__(self, port: int) -> None:
        self.room: Counter[int] = Counter()
        self.over: set[int] = set()
        self.first = 65_535
        self._plug = socket.create_connection(("127.0.0.1", port), 5)
        self._plug.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(4, 0, 0))
        self._next = 1
        self._rest = b""

    @staticmethod
    def _frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
        return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data

    def ask(self, path: str, token: str = "") -> None:
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "x",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        if token:
            headers["authorization"] = f"Bearer {token}"
        block = b"".join(
            b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in headers.items()
        )
        number, self._next = self._next, self._next + 2
        begun = b"\0" + struct.pack(">I", _ENDLESS) + b"\n"
        self._plug.sendall(self._frame(1, 4, number, block) + self._frame(0, 0, number, begun))

    def extend(self) -> None:
        """Send a little more of each message."""
        for number in range(1, self._next, 2):
            self._plug.sendall(self._frame(0, 0, number, b"x" * 400))

    def listen(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._plug.settimeout(left)
            try:
                data = self._plug.recv(65_536)
            except TimeoutError:
                return
            assert data, "the connection was ended"
            self._rest += data
            while len(self._rest) >= 9:
                length = int.from_bytes(self._rest[:3], "big")
                if len(self._rest) < 9 + length:
                    break
                kind, flags, stream = struct.unpack(">BBI", self._rest[3:9])
                body, self._rest = self._rest[9 : 9 + length], self._rest[9 + length :]
                if kind == 8 and stream:
                    self.room[stream] += int.from_bytes(body, "big")
                elif kind == 3 or (kind in (0, 1) and flags & 1):
                    self.over.add(stream)
                elif kind == 4 and not flags & 1:
                    for at in range(0, len(body), 6):
                        name, value = struct.unpack(">HI", body[at : at + 6])
                        self.first = value if name == 4 else self.first
                    self._plug.sendall(self._frame(4, 1, 0))
                elif kind == 6 and not flags & 1:
                    self._plug.sendall(self._frame(6, 1, 0, body))

    def until_over(self, count: int, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while len(self.over) < count and time.monotonic() < end:
            self.listen(0.1)
        assert len(self.over) >= count

    def close(self) -> None:
        self._plug.close()

    def large(self) -> int:
        """Return the number of messages for which the service has granted more than a window."""
        return sum(room > 500_000 for room in self.room.values())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Service, str]]:
    settings = Settings(state=tmp_path, port=0, grace=1)
    token, _ = TokenFile(settings.token_path).add("admin")
    with serving(settings) as service:
        yield service, token


@pytest.fixture
def endless(service: tuple[Service, str]) -> Iterator[Endless]:
    caller = Endless(service[0].port)
    yield caller
    caller.close()


@pytest.mark.parametrize("path", [_STATUS, _WATCH, _LEGACY])
def test_without_a_token_no_message_is_read(path: str, endless: Endless) -> None:
    for _ in range(100):
        endless.ask(path)
    endless.until_over(100)
    assert not endless.large()


def calls_kept() -> int:
    return sum(isinstance(each, Messages) for each in gc.get_objects())


@pytest.mark.parametrize("path", [_STATUS, _WATCH, _LEGACY, _CHECK, _HEALTH])
def test_nothing_of_a_call_without_a_token_is_kept_in_memory(
    path: str, service: tuple[Service, str], endless: Endless
) -> None:
    for _ in range(100):
        endless.ask(path)
    endless.until_over(90)
    endless.close()

    def few() -> bool:
        gc.collect()
        return calls_kept() <= 2  # the frames of the last call are kept until the next call

    wait_until(few)


@pytest.mark.parametrize("path", [_STATUS, _WATCH, _STEER, _CHECK])
def test_a_rejected_calls_data_is_freed_at_once(
    path: str, service: tuple[Service, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages too, before the garbage collector runs."""
    monkeypatch.setattr(rpc_guard, "_READING", 1.0)
    monkeypatch.setattr(servicer, "_HELLO", 1.0)
    gc.collect()
    gc.disable()
    try:
        caller = Endless(service[0].port)
        for _ in range(100):
            caller.ask(path, "" if path == _CHECK else service[1])
        caller.until_over(100)
        caller.close()
        wait_until(lambda: calls_kept() <= 2)
    finally:
        gc.enable()


@pytest.mark.parametrize("path", [_STATUS, _WATCH])
def test_with_a_token_a_few_messages_are_read_at_once_and_none_for_long(
    path: str, service: tuple[Service, str], endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_guard, "_READING", 3.0)
    for _ in range(100):
        endless.ask(path, service[1])
    endless.listen(0.5)
    endless.extend()
    endless.listen(0.5)
    assert 0 < endless.large() <= 4
    endless.until_over(100)


@pytest.mark.parametrize("path", [_CHECK, _HEALTH])
def test_health_is_answered_despite_endless_callers(
    path: str, service: tuple[Service, str], endless: Endless
) -> None:
    for _ in range(100):
        endless.ask(path)
    endless.until_over(100 - 8)  # the oldest were dropped
    with grpc.insecure_channel(f"127.0.0.1:{service[0].port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=150)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert len(service[0]._guard._reader.nameless) <= 8


def test_nothing_that_a_health_probe_sends_is_kept_in_memory(service: tuple[Service, str]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{service[0].port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        name = "x" * (MAX_REQUEST - 1_000)
        for _ in range(8):
            with pytest.raises(grpc.RpcError) as refused:
                next(health.Watch(health_pb2.HealthCheckRequest(service=name), timeout=150))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not service[0]._guard._live


def test_probes_have_few_streams_and_do_not_take_those_of_members(
    service: tuple[Service, str],
) -> None:
    served, token = service
    with grpc.insecure_channel(f"127.0.0.1:{served.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watches = []
        for _ in range(64):  # in sequence, because many at once are rejected as slow callers
            watches.append(health.Watch(health_pb2.HealthCheckRequest()))
            assert next(watches[-1]).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            next(health.Watch(health_pb2.HealthCheckRequest()))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        stub = api.EnsembleStub(channel)  # type: ignore[no-untyped-call]
        stub.GetStatus(pb.StatusRequest(), metadata=(("authorization", f"Bearer {token}"),))
        for watch in watches:
            watch.cancel()


def test_a_probes_stream_is_limited_in_time(
    service: tuple[Service, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_guard, "_PROBE_AGE", 0.2)
    with grpc.insecure_channel(f"127.0.0.1:{service[0].port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        next(watch)
        with pytest.raises(grpc.RpcError) as ended:
            next(watch)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


def test_honest_requests_are_answered_despite_idle_and_endless_ones(
    service: tuple[Service, str], endless: Endless
) -> None:
    served, token = service
    idle = [socket.create_connection(("127.0.0.1", served.port), 5) for _ in range(100)]
    for path in (_STATUS, _CHECK, _WATCH, _LEGACY):
        for _ in range(25):
            endless.ask(path)
    with ServiceClient(port=served.port, token=token, timeout=150) as client:
        for _ in range(20):
            assert client.status() == []
    for plug in idle:
        plug.close()


def test_unread_data_is_limited(endless: Endless) -> None:
    endless.listen(0.5)
    assert endless.first <= 32_768  # on each stream, before the service reads any of it


def test_one_token_can_hold_few_streams(service: tuple[Service, str], endless: Endless) -> None:
    others = [Endless(service[0].port) for _ in range(2)]
    for number in range(150):
        (endless, *others)[number % 3].ask(_STEER, service[1])
    end = time.monotonic() + 120
    while sum(len(each.over) for each in (endless, *others)) < 150 - 32:
        assert time.monotonic() < end
        for each in (endless, *others):
            each.listen(0.1)
    assert len(service[0]._guard._live) <= 32
    for each in others:
        each.close()


def test_the_services_memory_stays_bounded_with_hostile_callers(tmp_path: Path) -> None:
    """A smaller version of ``benchmarks/service_hostile.py``."""
    settings = Settings(state=tmp_path, port=0, grace=1)
    file = TokenFile(settings.token_path)
    name = "default/bad"
    tokens = {
        "viewer": file.add("viewer", "default")[0],
        "controller": file.add("controller", "default")[0],
        "members": {name: file.add("member", name)[0]},
    }
    (tmp_path / "crowd.json").write_text(json.dumps(tokens), "utf-8")
    honest, _ = file.add("viewer", "default")
    code = (
        "import asyncio, sys; from pathlib import Path; "
        "from ensemble_service.server import Settings, run; "
        "run(Settings(state=Path(sys.argv[1]), port=0), None, "
        "lambda service: print(service.port, flush=True))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        program = Path(__file__).with_name("hostile_crowd.py")
        command = [sys.executable, str(program), str(port), str(tmp_path / "crowd.json")]
        crowd = subprocess.Popen(
            [*command, "--connections", "120"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "ready\n"
            with ServiceClient(port=port, token=honest, timeout=150) as client:
                for _ in range(50):
                    client.status()
                    time.sleep(0.05)
            told, _ = crowd.communicate(timeout=150)
            did = json.loads(told)
            kinds = {kind.partition(":")[0] for kind in did}
            assert kinds == {"slow", "endless", "huge", "wrong", "member", "steering"}
            status = Path(f"/proc/{server.pid}/status")
            if status.exists():  # Linux
                found = dict(line.split(":", 1) for line in status.read_text().splitlines())
                assert int(found["VmHWM"].split()[0]) < 250 * 1024
        finally:
            crowd.kill()
            crowd.wait()
            server.terminate()


def test_many_concurrent_requests_with_one_token_are_all_answered(
    service: tuple[Service, str],
) -> None:
    served, token = service

    async def all_of_them() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
            stub = api.EnsembleStub(channel)  # type: ignore[no-untyped-call]
            metadata = (("authorization", f"Bearer {token}"),)
            replies = [stub.GetStatus(pb.StatusRequest(), metadata=metadata) for _ in range(100)]
            await asyncio.gather(*replies)

    asyncio.run(all_of_them())


def test_the_number_of_queued_requests_of_one_token_is_limited(
    service: tuple[Service, str],
) -> None:
    callers = [Endless(service[0].port) for _ in range(3)]
    for caller in callers:
        for _ in range(64):
            caller.ask(_STATUS, service[1])
    end = time.monotonic() + 120
    while sum(len(each.over) for each in callers) < 3 * 64 - 128:
        assert time.monotonic() < end
        for caller in callers:
            caller.listen(0.1)
    for caller in callers:
        caller.close()


class _Crowded(api.EnsembleServicer):
    """Cancels the first calls, like an overloaded gRPC."""

    def __init__(self) -> None:
        self.asked = 0

    def GetStatus(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802
        self.asked += 1
        if self.asked < 3:
            context.abort(grpc.StatusCode.CANCELLED, "")
        return pb.StatusReply()


def test_a_client_retries_if_the_service_was_overloaded() -> None:
    servicer = _Crowded()
    server = grpc.server(ThreadPoolExecutor(2))
    api.add_EnsembleServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with ServiceClient(port=port, timeout=150) as client:
        assert client.status() == []
    assert servicer.asked == 3
    server.stop(0)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the option is glibc's")
def test_memory_of_a_flood_of_small_messages_is_returned_to_the_system() -> None:
    code = """if True:
        import ctypes
        from pathlib import Path
        from ensemble_service.server import give_memory_back, trim_memory

        def taken():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        give_memory_back()
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        before = taken()
        had = [libc.malloc(20_000) for _ in range(5_000)]
        for each in had:
            ctypes.memset(each, 1, 20_000)
        most = taken() - before
        for each in had[:-1]:  # the last one keeps the heap's end
            libc.free(ctypes.c_void_p(each))
        kept = taken() - before
        trim_memory()
        print(most, kept, taken() - before)
    """
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150
    )
    most, kept, left = map(int, told.stdout.split())
    assert min(most, kept) > 50_000_000
    assert left < 10_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the option is glibc's")
def test_memory_of_large_messages_is_returned_to_the_system() -> None:
    code = """if True:
        from pathlib import Path
        from ensemble_service.server import give_memory_back

        def taken():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        give_memory_back()
        before = taken()
        kept = []
        for _ in range(300):
            large, small = bytearray(200_000), bytearray(2_000)
            kept.append((large, small))
        most = taken() - before
        kept = [(None, small) for _, small in kept]
        print(most, taken() - before)
    """
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150
    )
    most, left = map(int, told.stdout.split())
    assert most > 50_000_000
    assert left < 10_000_000


def test_a_rejection_is_one_short_line_without_control_characters(
    service: tuple[Service, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*asked: object) -> None:
        raise Refused("NOT_FOUND", "nothing\x1b[2J is known\nof " + 500 * "x\x07y\u202e")

    monkeypatch.setattr(EnsembleServicer, "one", refuse)
    served, token = service
    with (
        ServiceClient(port=served.port, token=token, timeout=150) as client,
        pytest.raises(ExecutorError) as caught,
    ):
        client.status("lab/a")
    told = [str(caught.value.cause)]
    for record in caplog.records:
        told += [record.ensemble_fields["why"]] if record.getMessage() == "refused" else []
    assert len(told) == 2
    for each in told:
        assert each.startswith("nothing [2J is known of x y")
        assert each.isprintable()
        assert len(each) <= 1_000


def test_nearly_valid_calls_lose_and_forge_nothing(tmp_path: Path) -> None:
    """Send a few of the calls of ``make soak`` in each role."""
    program = Path(__file__).with_name("wire_fuzz.py")
    done = subprocess.run(
        [sys.executable, str(program), "--base", str(tmp_path), "--calls", "200"],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["jobs"]
