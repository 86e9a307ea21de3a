"""The ensemble service: cost of its requests and streams compared with bare gRPC.

Prints ratios of medians over alternating rounds:

- status and resize requests per second, compared with a unary echo of the same messages (with a
  resizer that never blocks, and with one that is called in threads);
- events per second from a member through the service to its run, compared with a bidirectional
  stream that returns the same messages.

The servers are separate processes without TLS; both have the same clients. The servers' CPU time
per request is printed as well: it is more reliable on a busy machine. ``service_crowd.py`` measures
many members at once.

    python benchmarks/service_rate.py [--rounds N] [--requests N] [--events N]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.server import Service, Settings
from ensemble_service.tokens import TokenFile

from ensemble_core import Resized, Resizer

MEMBER, RUN = "default/bench", "bench-run"
#: Concurrent requests; events per message; messages in flight.
AT_ONCE, BATCH, AHEAD = 8, 100, 20
#: Requests per block: alternating blocks make both servers suffer equally on a busy machine.
BLOCK = 200
START = '{"type": "job", "job": "group.1", "name": "start"}'


class Echo(api.EnsembleServicer):
    """Echo server: the limit of bare gRPC."""

    async def Member(self, requests: Any, context: Any) -> Any:  # noqa: N802
        async for _ in requests:
            yield pb.ToMember()

    async def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.StatusReply(members=[pb.MemberStatus(member=request.member)])

    async def Resize(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ResizeReply(outcome=pb.ResizeReply.GRANTED, before=1, asked=2, granted=2)


async def relay(requests: Any, context: Any) -> AsyncIterator[Any]:
    """Relay a member's events in one stream, like the service, and do nothing else."""
    async for message in requests:
        yield pb.ToRun(batch=message.batch)


RELAY = grpc.method_handlers_generic_handler(
    "bench",
    {
        "Relay": grpc.stream_stream_rpc_method_handler(
            relay,
            request_deserializer=pb.FromMember.FromString,
            response_serializer=pb.ToRun.SerializeToString,
        )
    },
)


class Willing(Resizer):
    """Resizer that grants everything without blocking, so that only the service is measured."""

    waits = False

    def resize(self, member: str, delta: int) -> Resized:
        return Resized(outcome="granted", before=1, asked=1 + delta, granted=1 + delta)


class Slow(Willing):
    """Resizer that is called in threads because it may block, like one that calls Kubernetes."""

    waits = True


def serve(kind: str, state: Path, pipe: Connection) -> None:
    """Run a server in a separate process; print its port; end with the pipe."""

    async def main() -> None:
        if kind == "bare":
            server = grpc.aio.server()
            api.add_EnsembleServicer_to_server(Echo(), server)
            server.add_generic_rpc_handlers((RELAY,))
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
        else:
            resizer = Slow() if kind == "threads" else Willing()
            service = Service(Settings(state=state, port=0, rate=0.0), resizer)
            await service.start()
            port = service.port
        pipe.send(port)
        await asyncio.get_running_loop().run_in_executor(None, tell_used)

    def tell_used() -> None:
        with suppress(EOFError):
            while True:
                pipe.recv()
                pipe.send(time.process_time())

    asyncio.run(main())


class Server:
    """One of the two servers with its tokens."""

    def __init__(self, kind: str, state: Path, tokens: Mapping[str, str]) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._start(kind, state, theirs)
        theirs.close()
        self.target = f"127.0.0.1:{self._pipe.recv()}"
        self._tokens = tokens

    def _start(self, kind: str, state: Path, theirs: Connection) -> None:
        context = multiprocessing.get_context("spawn")
        self._process: Any = context.Process(target=serve, args=(kind, state, theirs), daemon=True)
        self._process.start()

    def metadata(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata that authenticates this member or the controller."""
        return (("authorization", f"Bearer {self._tokens[name]}"),)

    def used(self) -> float:
        """Return the CPU seconds that the server has used."""
        self._pipe.send(None)
        seconds: float = self._pipe.recv()
        return seconds

    def stop(self) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()


async def timed(call: Callable[[int], Awaitable[object]], count: int) -> float:
    """Return the seconds for a number of requests with limited concurrency."""
    numbers = iter(range(count))

    async def one_after_another() -> None:
        for number in numbers:
            await call(number)

    began = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return time.perf_counter() - began


class Asker:
    """Client of a server, with a member for its requests."""

    def __init__(self, server: Server, what: str) -> None:
        self.server, self.seconds, self.cost = server, 0.0, 0.0
        self._channel = grpc.aio.insecure_channel(server.target)
        self._stub: Any = api.EnsembleStub(self._channel)
        self._metadata = server.metadata(MEMBER)
        self._call = self._status if what == "status" else self._resize
        self._names = itertools.count()
        self._name = time.time_ns()

    async def _status(self, _: int) -> object:
        request = pb.StatusRequest(member=MEMBER)
        return await self._stub.GetStatus(request, metadata=self._metadata, timeout=30)

    async def _resize(self, _: int) -> object:
        name = f"{self._name}-{next(self._names)}"
        request = pb.ResizeRequest(member=MEMBER, request=name, delta=1)
        return await self._stub.Resize(request, metadata=self._metadata, timeout=30)

    async def begin(self) -> None:
        """Connect the member, and warm up."""
        self._there: Any = self._stub.Member(metadata=self._metadata)
        await self._there.write(pb.FromMember(hello=pb.Hello(member=MEMBER, executor="bench")))
        await self._there.read()
        await timed(self._call, 50)

    async def ask(self, count: int) -> None:
        """Send a number of requests; add to ``seconds`` and to ``cost`` (the server's CPU time)."""
        used = self.server.used()
        self.seconds += await timed(self._call, count)
        self.cost += self.server.used() - used

    async def end(self) -> None:
        self._there.cancel()
        await self._channel.close()


async def requests(bare: Server, ours: Server, what: str, count: int) -> tuple[Asker, Asker]:
    """Send requests to both servers in alternating blocks."""
    askers = Asker(bare, what), Asker(ours, what)
    for each in askers:
        await each.begin()
    for _ in range(max(1, count // BLOCK)):
        for each in askers:
            await each.ask(BLOCK)
    for each in askers:
        await each.end()
    return askers


def batches(count: int, first: int = 1) -> list[Any]:
    event = pb.Event(timestamp=time.time(), data=START)
    return [
        pb.FromMember(
            batch=pb.Batch(
                run=RUN, member=MEMBER, life="life", first=first + at, events=[event] * BATCH
            )
        )
        for at in range(0, count, BATCH)
    ]


async def bare_events(server: Server, count: int) -> float:
    """Return events per second through a stream and back."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        stream = channel.stream_stream(
            "/bench/Relay",
            request_serializer=pb.FromMember.SerializeToString,
            response_deserializer=pb.ToRun.FromString,
        )
        messages, room = batches(count), asyncio.Semaphore(AHEAD)

        async def send() -> AsyncIterator[Any]:
            for message in messages:
                await room.acquire()
                yield message

        began = time.perf_counter()
        answers = stream(send())
        for _ in messages:
            await answers.read()
            room.release()
        took = time.perf_counter() - began
        answers.cancel()
        return count / took


async def begin(run: Any, members: list[str]) -> None:
    """Start a run with these members."""
    epoch = time.time_ns()
    await run.write(pb.FromRun(begin=pb.Begin(run=RUN, epoch=epoch)))
    while not (await run.read()).HasField("welcome"):
        continue
    for number, name in enumerate(members, start=1):
        call = pb.Call(run=RUN, member=name, epoch=epoch, id=number, open=pb.Open())
        await run.write(pb.FromRun(call=call))


class Relayed:
    """A member and a run of a service; the member sends events to the run."""

    async def begin(self, server: Server) -> None:
        """Connect both, each with a separate connection."""
        self._channels = [grpc.aio.insecure_channel(server.target) for _ in range(2)]
        one, other = (api.EnsembleStub(channel) for channel in self._channels)
        self._member: Any = one.Member(metadata=server.metadata(MEMBER))
        self._run: Any = other.Steer(metadata=server.metadata(RUN))
        self._next = 1
        await self._member.write(pb.FromMember(hello=pb.Hello(member=MEMBER, executor="bench")))
        await self._member.read()
        await begin(self._run, [MEMBER])
        await self._member.read()  # from now on the run receives the member's events

    async def seconds(self, count: int) -> float:
        """Return the seconds for a number of events."""
        room = asyncio.Semaphore(AHEAD)
        messages = batches(count, self._next)

        async def send() -> None:
            for message in messages:
                await room.acquire()
                await self._member.write(message)

        began = time.perf_counter()
        sending = asyncio.create_task(send())
        left = len(messages) * BATCH
        while left:
            message = await self._run.read()
            if message is grpc.aio.EOF:
                raise SystemExit(f"the service ended the stream: {await self._run.details()}")
            if message.HasField("batch"):
                if message.batch.first != self._next:
                    raise SystemExit(f"event {self._next} is missing")
                events = len(message.batch.events)  # several of the member's messages may be merged
                self._next += events
                left -= events
                for _ in range(events // BATCH):
                    room.release()
        took = time.perf_counter() - began
        await sending
        return took

    async def end(self) -> None:
        self._member.cancel()
        self._run.cancel()
        for channel in self._channels:
            await channel.close()


async def service_events(server: Server, count: int) -> float:
    """Return events per second from a member's stream through the service to its run."""
    relayed = Relayed()
    await relayed.begin(server)
    seconds = await relayed.seconds(count)
    await relayed.end()
    return count / seconds


async def compare(bare: Server, ours: Server, threads: Server, options: argparse.Namespace) -> None:
    for what, server in (("status", ours), ("resize", ours), ("resize (in threads)", threads)):
        word = what.partition(" ")[0]
        pairs = [
            await requests(bare, server, word, options.requests) for _ in range(options.rounds)
        ]
        ratios = [limit.seconds / mine.seconds for limit, mine in pairs]
        count = max(1, options.requests // BLOCK) * BLOCK
        bare_rate = statistics.median(count / limit.seconds for limit, _ in pairs)
        report(f"{what} requests/s against a bare echo", ratios, f"bare: {bare_rate:,.0f}/s")
        costs = [[1e6 * each.cost / count for each in pair] for pair in pairs]
        theirs, mine_each = (statistics.median(cost) for cost in zip(*costs, strict=True))
        print(f"  processor time of the server: {mine_each:.0f} us each; bare: {theirs:.0f} us")
    ratios = []
    for _ in range(options.rounds):
        limit = await bare_events(bare, options.events)
        ratios.append(await service_events(ours, options.events) / limit)
    report("events/s from member to run against a bare stream", ratios, f"bare: {limit:,.0f}/s")


def report(what: str, ratios: list[float], bare: str) -> None:
    median = statistics.median(ratios)
    print(f"{what}: {median:.2f} (rounds {min(ratios):.2f} to {max(ratios):.2f}; {bare})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--events", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ensemble-service-") as folder:
        state = Path(folder)
        file = TokenFile(Settings(state=state).token_path)
        tokens = {MEMBER: file.add("member", MEMBER)[0]}
        tokens[RUN] = file.add("controller", "default")[0]
        file = TokenFile(Settings(state=state / "threads").token_path)
        others = {MEMBER: file.add("member", MEMBER)[0]}
        servers = [
            Server("bare", state, tokens),
            Server("ours", state, tokens),
            Server("threads", state / "threads", others),
        ]
        try:
            asyncio.run(compare(servers[0], servers[1], servers[2], options))
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
