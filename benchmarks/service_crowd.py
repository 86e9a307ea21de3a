"""The ensemble service with many members, compared with bare gRPC streams.

Members run in separate processes. Each sends ten events per second, one per message. One run
receives them all and acknowledges those of each member once per second. The bare server returns
each message on its stream: one read and one write per message, like the service without batching.
Prints for both the time from the first event to the last, the delays, and the CPU time of all
processes, because on a small machine the clients may be the bottleneck.

    python benchmarks/service_crowd.py [--members N] [--seconds S] [--processes N] [--only KIND]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.server import Settings
from ensemble_service.tokens import TokenFile
from service_rate import RUN, Server, begin

#: Seconds between two events of a member.
PERIOD = 0.1
#: Seconds between two acknowledgements to a member.
ACKNOWLEDGED = 1.0
#: Members that share a connection: the service lets each have 128 streams.
SHARE = 20
START = '{"type": "job", "job": "g.1", "name": "start"}'
#: Without it, all channels of a process share one connection.
APART = (("grpc.use_local_subchannel_pool", 1),)


class Crowd:
    """A share of the members, in a separate process."""

    def __init__(
        self, server: Server, kind: str, numbers: range, count: int, offset: float
    ) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        metadata = [server.metadata(name_of(number)) for number in numbers]
        args = (server.target, kind, list(numbers), metadata, count, offset, theirs)
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=play, args=args, daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Wait until all are connected."""
        self._pipe.recv()

    def go(self, start: float) -> None:
        """Start sending at this time."""
        self._pipe.send(start)

    async def over(self) -> tuple[float, list[float]]:
        """Return CPU seconds and the delays of the answers."""
        told: tuple[float, list[float]] = await asyncio.to_thread(self._pipe.recv)
        return told

    def stop(self) -> None:
        self._pipe.close()
        self._process.join(10)


def name_of(number: int) -> str:
    return f"default/bench-{number}"


def play(
    target: str,
    kind: str,
    numbers: list[int],
    metadata: list[Any],
    count: int,
    offset: float,
    pipe: Connection,
) -> None:
    """Run the members of one process."""
    late: list[float] = []

    async def member(number: int, stream: Any, start: float) -> None:
        name = name_of(number)

        async def back() -> None:
            """Read the answers: returned messages of the bare server, or acknowledgements."""
            acknowledged = 0
            while acknowledged < count:
                message = await stream.read()
                if kind == "bare":
                    acknowledged += 1
                    late.append(time.time() - message.batch.events[0].timestamp)
                elif message.HasField("ack"):
                    acknowledged = message.ack.seq

        reading = asyncio.create_task(back())
        start += PERIOD * (number - numbers[0]) / len(numbers) + offset
        for at in range(count):
            await asyncio.sleep(max(0.0, start + PERIOD * at - time.monotonic()))
            event = pb.Event(timestamp=time.time(), data=START)
            batch = pb.Batch(run=RUN, member=name, life="l", first=at + 1, events=[event])
            await stream.write(pb.FromMember(batch=batch))
        await reading

    async def main() -> None:
        channels = [
            grpc.aio.insecure_channel(target, options=APART)
            for _ in range(1 + len(numbers) // SHARE)
        ]
        streams = []
        for at, number in enumerate(numbers):
            channel = channels[at % len(channels)]
            if kind == "bare":
                stream: Any = channel.stream_stream(
                    "/bench/Relay",
                    request_serializer=pb.FromMember.SerializeToString,
                    response_deserializer=pb.ToRun.FromString,
                )()
            else:
                stub: Any = api.EnsembleStub(channel)
                stream = stub.Member(metadata=metadata[at])
                hello = pb.Hello(member=name_of(number), executor="bench")
                await stream.write(pb.FromMember(hello=hello))
                await stream.read()
            streams.append(stream)
        pipe.send(None)
        start = await asyncio.to_thread(pipe.recv)
        used = time.process_time()
        await asyncio.gather(
            *(member(number, each, start) for number, each in zip(numbers, streams, strict=True))
        )
        pipe.send((time.process_time() - used, late))
        await asyncio.to_thread(pipe.poll, 60)  # the run is complete
        for stream in streams:
            stream.cancel()
        for channel in channels:
            await channel.close()

    asyncio.run(main())


async def receive(run: Any, members: int, count: int, late: list[float]) -> tuple[int, int]:
    """Receive all events of the run; return the numbers of messages and of gaps."""
    got = dict.fromkeys(range(members), 0)
    due = dict.fromkeys(range(members), 0.0)
    left, lost, messages = members * count, 0, 0
    while left > 0:
        message = await asyncio.wait_for(run.read(), 30)
        if message is grpc.aio.EOF:
            raise SystemExit(f"the service ended the stream: {await run.details()}")
        if not message.HasField("batch"):
            continue
        messages += 1
        batch = message.batch
        number = int(batch.member.rpartition("-")[2])
        lost += batch.first != got[number] + 1
        got[number] = batch.first + len(batch.events) - 1
        left -= len(batch.events)
        now = time.time()
        late.extend(now - event.timestamp for event in batch.events)
        if now >= due[number] or got[number] == count:
            due[number] = now + ACKNOWLEDGED
            ack = pb.Ack(run=RUN, member=batch.member, life="l", seq=got[number])
            await run.write(pb.FromRun(ack=ack))
    return messages, lost


async def crowd(server: Server, kind: str, options: argparse.Namespace) -> None:
    """Run one of the two and return its figures."""
    members, count = options.members, int(options.seconds / PERIOD)
    shares = [
        range(members * at // options.processes, members * (at + 1) // options.processes)
        for at in range(options.processes)
    ]
    crowds = [
        Crowd(server, kind, share, count, PERIOD / members * at) for at, share in enumerate(shares)
    ]
    late: list[float] = []
    messages = lost = 0
    for each in crowds:
        await asyncio.to_thread(each.ready)
    async with grpc.aio.insecure_channel(server.target) as channel:
        if kind == "ours":
            run: Any = api.EnsembleStub(channel).Steer(metadata=server.metadata(RUN))
            await begin(run, [name_of(number) for number in range(members)])
            await asyncio.sleep(0.5)
        start = time.monotonic() + 0.5
        before, used = server.used(), time.process_time()
        for each in crowds:
            each.go(start)
        waiting = asyncio.gather(*(each.over() for each in crowds))
        if kind == "ours":
            messages, lost = await receive(run, members, count, late)
        took = time.monotonic() - start
        told = await waiting
        if kind == "bare":
            took = time.monotonic() - start
            late = [each for _, part in told for each in part]
            messages = len(late)
        used = time.process_time() - used
        if kind == "ours":
            run.cancel()
    for each in crowds:
        each.stop()
    clients = sum(each for each, _ in told)
    ordered = sorted(late)
    print(
        f"{kind}: {members} members, {len(late):,} events in {took:.1f} s, {lost} gaps, "
        f"{messages:,} messages; late by {1000 * ordered[len(late) // 2]:.0f} ms (median), "
        f"{1000 * ordered[int(0.99 * len(late))]:.0f} ms (99 %), "
        f"{1000 * max(late[-members:]):.0f} ms (the last); "
        f"processor: server {server.used() - before:.1f} s, members {clients:.1f} s"
        + (f", run {used:.1f} s" if kind == "ours" else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=("bare", "ours"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ensemble-service-") as folder:
        file = TokenFile(Settings(state=Path(folder)).token_path)
        names = [name_of(number) for number in range(options.members)]
        tokens = {name: file.add("member", name)[0] for name in names}
        tokens[RUN] = file.add("controller", "default")[0]
        for kind in (options.only,) if options.only else ("bare", "ours"):
            server = Server(kind, Path(folder), tokens)
            try:
                asyncio.run(crowd(server, kind, options))
            finally:
                server.stop()


if __name__ == "__main__":
    main()
