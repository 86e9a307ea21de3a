"""The ensemble service with hostile callers: its memory, and the duration of honest requests.

A hundred honest members are connected. Each sends ten events per second to a run and one status
request per second. In alternation, a thousand other connections are idle or hostile (slow, endless,
huge, with wrong tokens, and with the tokens of ten members and a controller; see
``plugins/ensemble-service/tests/hostile_crowd.py``). Hostile callers run at the lowest priority,
because they share the cores. Prints the duration of honest requests as a ratio of medians, and the
service's memory at the end and at its peak. The exit code is 1 if the ratio or the memory exceeds
its limit, or if an honest request failed. With ``--bare``, the server is a bare grpc.aio server
with the same options that compares tokens and relays nothing.

    python benchmarks/service_hostile.py [--rounds N] [--seconds S] [--connections N] [--hours H]
        [--kinds KIND,KIND …] [--bare]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.server import Settings
from ensemble_service.tokens import TokenFile

CROWD = Path(__file__).parents[1] / "plugins" / "ensemble-service" / "tests" / "hostile_crowd.py"
KINDS = "slow,endless,huge,wrong,member,steering"
#: Limits: peak MiB of the service, and honest requests' slowdown compared with idle connections.
MOST_MEMORY, MOST_RATIO = 200.0, 2.0
#: Honest members that share a connection.
SHARE = 20
START = '{"type": "job", "job": "g.1", "name": "start"}'

SERVER = """
import sys
from pathlib import Path
from ensemble_service.server import Settings, run

settings = Settings(state=Path(sys.argv[1]), port=0, grace=1)
run(settings, None, lambda service: print(service.port, flush=True))
"""

BARE = """
import asyncio, json, sys
from pathlib import Path

import grpc
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.server import Settings, grpc_options

folder = Path(sys.argv[1])
tokens = json.loads((folder / "crowd.json").read_text("utf-8"))
honest = tokens["honest"]
known = {f"Bearer {each}" for each in
         [tokens["viewer"], tokens["controller"], *honest.values(), *tokens["members"].values()]}

async def checked(context):
    if dict(context.invocation_metadata()).get("authorization") not in known:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not known")

class Bare(api.EnsembleServicer):
    async def GetStatus(self, request, context):
        await checked(context)
        return pb.StatusReply()

    async def Member(self, messages, context):
        await checked(context)
        async for _ in messages:
            yield pb.ToMember()

    async def Steer(self, messages, context):
        await checked(context)
        for name in honest:
            yield pb.ToRun(presence=pb.Presence(member=name))
        async for _ in messages:
            pass

async def main():
    server = grpc.aio.server(options=grpc_options(Settings(state=folder, port=0)))
    api.add_EnsembleServicer_to_server(Bare(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


class Server:
    """The service, or another ``program``, in a separate process."""

    def __init__(self, folder: Path, program: str = SERVER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("w"),
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def memory(self) -> tuple[float, float]:
        """Return current and peak MiB (Linux)."""
        text = Path(f"/proc/{self._process.pid}/status").read_text("ascii")
        found = dict(line.split(":", 1) for line in text.splitlines())
        now, most = (int(found[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return now, most

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)


@contextlib.asynccontextmanager
async def crowd(
    server: Server, tokens: Path, kinds: str, connections: int
) -> AsyncIterator[dict[str, int]]:
    """Run hostile connections of these kinds inside the block; count their actions.

    Waits in a thread: honest members that are silent for 10 s are disconnected.
    """
    did: dict[str, int] = {}
    command = [sys.executable, str(CROWD), str(server.port), str(tokens)]
    command += ["--connections", str(connections), "--kinds", kinds]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        if await asyncio.to_thread(process.stdout.readline) != "ready\n":
            raise SystemExit("the crowd did not begin")
        try:
            yield did
        finally:
            process.stdin.close()
            did.update(json.loads(await asyncio.to_thread(process.stdout.read)))


class Honest:
    """The honest members and their run."""

    def __init__(self, server: Server, tokens: dict[str, Any], names: list[str]) -> None:
        target = f"127.0.0.1:{server.port}"
        apart = (("grpc.use_local_subchannel_pool", 1),)
        self._channels = [
            grpc.aio.insecure_channel(target, options=apart)
            for _ in range(1 + -(-len(names) // SHARE))
        ]
        self._stubs: list[Any] = [api.EnsembleStub(channel) for channel in self._channels]
        self._names, self._tokens = names, tokens
        self.took: list[float] = []
        self.failed: list[str] = []
        self.events = 0
        #: Requests that were cancelled and repeated.
        self.again = 0

    def _metadata(self, token: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {token}"),)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._member(at, name)) for at, name in enumerate(self._names)]
        tasks.append(asyncio.create_task(self._steer()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError):
                    self.failed.append(repr(ended))
            for channel in self._channels:
                await channel.close()

    async def _steer(self) -> None:
        run = self._stubs[0].Steer(metadata=self._metadata(self._tokens["controller"]))
        await run.write(pb.FromRun(begin=pb.Begin(run="run-1", epoch=1)))
        missing = set(self._names)
        while missing:
            message = await run.read()
            missing.discard(message.presence.member)
        for number, name in enumerate(self._names, start=1):
            call = pb.Call(run="run-1", member=name, epoch=1, id=number, open=pb.Open())
            await run.write(pb.FromRun(call=call))
        while True:
            message = await run.read()
            if message is grpc.aio.EOF:
                raise RuntimeError(f"the run's stream was ended: {await run.details()}")
            self.events += len(message.batch.events)

    async def _status(self, stub: Any, name: str, metadata: tuple[tuple[str, str], ...]) -> None:
        """Request a status; like ``ServiceClient``, repeat the request if it was cancelled."""
        pause = 0.1
        while True:
            try:
                await stub.GetStatus(pb.StatusRequest(member=name), metadata=metadata, timeout=60)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:
                    raise
                self.again += 1
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def _member(self, at: int, name: str) -> None:
        stub, metadata = self._stubs[1 + at // SHARE], self._metadata(self._tokens["honest"][name])
        stream = stub.Member(metadata=metadata)
        await stream.write(pb.FromMember(hello=pb.Hello(member=name, executor="bench")))
        await stream.read()

        async def read() -> None:
            while await stream.read() is not grpc.aio.EOF:
                continue
            raise RuntimeError(f"{name}'s stream was ended: {await stream.details()}")

        async def ask() -> None:
            await asyncio.sleep(at / len(self._names))
            while True:
                began = time.perf_counter()
                await self._status(stub, name, metadata)
                self.took.append(time.perf_counter() - began)
                await asyncio.sleep(1)

        async def send() -> None:
            number = 0
            while True:
                number += 1
                event = pb.Event(timestamp=time.time(), data=START)
                batch = pb.Batch(run="run-1", member=name, life="l", first=number, events=[event])
                await stream.write(pb.FromMember(batch=batch))
                await asyncio.sleep(0.1)

        await asyncio.gather(read(), ask(), send())


async def measure(server: Server, folder: Path, options: argparse.Namespace) -> bool:
    tokens = json.loads((folder / "crowd.json").read_text("utf-8"))
    honest = Honest(server, tokens, list(tokens["honest"]))
    end = time.monotonic() + 3600 * options.hours
    times: dict[str, list[float]] = {"idle": [], options.kinds: []}
    ratios: list[float] = []
    did: dict[str, int] = {}
    async with honest.at_work():
        await asyncio.sleep(2)
        at = 0
        while at < options.rounds or time.monotonic() < end:
            at += 1
            for kinds, all_of_them in times.items():
                tokens_file = folder / "crowd.json"
                async with crowd(server, tokens_file, kinds, options.connections) as done:
                    await asyncio.sleep(2)
                    honest.took.clear()
                    before = honest.events
                    await asyncio.sleep(options.seconds)
                    took, events = sorted(honest.took), honest.events - before
                    all_of_them[:] = took
                for name, count in done.items():
                    did[name] = did.get(name, 0) + count
                now, most = server.memory()
                print(
                    f"round {at}, {kinds}: {len(took)} requests, median "
                    f"{1000 * statistics.median(took):.1f} ms, 95 % "
                    f"{1000 * took[int(0.95 * len(took))]:.1f} ms; {events:,} events; "
                    f"memory {now:.0f} MiB, at its highest {most:.0f} MiB",
                    flush=True,
                )
            idle, hostile = (statistics.median(all_of_them) for all_of_them in times.values())
            ratios.append(hostile / idle)
    now, most = server.memory()
    ratio = statistics.median(ratios)
    print(f"what the crowds did: {json.dumps(did)}")
    for failure in honest.failed:
        print(f"failed: {failure}")
    print(
        f"honest requests beside {options.connections} hostile connections took {ratio:.2f} times "
        f"as long as beside as many idle ones (rounds {min(ratios):.2f} to {max(ratios):.2f}; at "
        f"most {MOST_RATIO:g}); the service took {most:.0f} MiB at its highest (at most "
        f"{MOST_MEMORY:g}), {now:.0f} at the end; {honest.again} honest requests were asked "
        f"again, {len(honest.failed)} honest connections failed"
    )
    return most <= MOST_MEMORY and ratio <= MOST_RATIO and not honest.failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--hours", type=float, default=0.0, help="minimum duration in hours")
    parser.add_argument(
        "--bare", action="store_true", help="use a server that only compares tokens"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ensemble-service-") as text:
        folder = Path(text)
        file = TokenFile(Settings(state=folder).token_path)
        counts = {"honest": 100, "bad": 10}
        names = {
            kind: [f"default/{kind}-{at}" for at in range(count)] for kind, count in counts.items()
        }
        tokens = {
            "viewer": file.add("viewer", "default")[0],
            "controller": file.add("controller", "default")[0],
            "honest": {name: file.add("member", name)[0] for name in names["honest"]},
            "members": {name: file.add("member", name)[0] for name in names["bad"]},
        }
        (folder / "crowd.json").write_text(json.dumps(tokens), "utf-8")
        server = Server(folder, BARE if options.bare else SERVER)
        try:
            good = asyncio.run(measure(server, folder, options))
        finally:
            server.stop()
        if not good:
            print((folder / "log").read_text("utf-8")[-2_000:], file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
