"""Program that opens many hostile connections to a service.

    python hostile_crowd.py PORT TOKENS [--connections N] [--kinds KIND,KIND …]

``TOKENS`` is a JSON file: ``{"viewer": TOKEN, "controller": TOKEN, "members": {NAME: TOKEN}}``.
The program runs at the lowest priority until its standard input ends, and reopens connections that
the service closes. It prints ``ready`` once all connections are started, and its counts as JSON at
the end. It implements HTTP/2 itself, because client libraries refuse to send most of this.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import struct
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from ensemble_service.proto import ensemble_pb2 as pb

SERVICE = "/ensemble.v1.Ensemble/"
LEGACY = "/convergedcomputing.org.grpc.v1.EnsembleOperator/RequestStatus"
HEALTH = "/grpc.health.v1.Health/"
#: Methods that are called without a token.
NAMELESS = (f"{SERVICE}GetStatus", f"{SERVICE}Member", LEGACY, f"{HEALTH}Check", f"{HEALTH}Watch")
#: A message slightly below the service's size limit, without its last byte.
ENDLESS = struct.pack(">BI", 0, 1_114_000) + bytes(1_113_999)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
BOMB = gzip.compress(bytes(64 * 1024 * 1024))


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def message(data: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


class Caller:
    """One connection that sends hostile streams as fast as the service allows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._next = 1
        self._first, self._room = 65_535, 65_535
        self._rooms: dict[int, int] = {}
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        self.over = asyncio.Event()

    async def begin(self) -> None:
        await self.raw(PREFACE + frame(SETTINGS, 0, 0))
        self._begun.set()

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def listen(self) -> None:
        """Read and answer frames until the connection ends."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await self._reader.readexactly(9)
                await self._begun.wait()
                kind, flags, stream = struct.unpack(">BBI", head[3:])
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if kind == SETTINGS and not flags & 1:
                    self._settings(body)
                    await self.raw(frame(SETTINGS, 1, 0))
                elif kind == PING and not flags & 1:
                    await self.raw(frame(PING, 1, 0, body))
                elif kind == WINDOW:
                    self._widen(stream, int.from_bytes(body, "big"))
                elif kind == DATA and body:
                    room = struct.pack(">I", len(body))
                    await self.raw(frame(WINDOW, 0, 0, room) + frame(WINDOW, 0, stream, room))
                if kind == RESET or (kind in (DATA, HEADERS) and flags & 1):
                    self._rooms.pop(stream, None)
                self._news.set()
        self._rooms.clear()
        self.over.set()
        self._news.set()

    def _settings(self, body: bytes) -> None:
        for at in range(0, len(body), 6):
            name, value = struct.unpack(">HI", body[at : at + 6])
            if name == 4:  # the initial window of each stream
                for stream in self._rooms:
                    self._rooms[stream] += value - self._first
                self._first = value

    def _widen(self, stream: int, by: int) -> None:
        if not stream:
            self._room += by
        elif stream in self._rooms:
            self._rooms[stream] += by

    async def ask(self, path: str, token: str = "", **more: str) -> int:
        """Start a request and return its stream number."""
        headers = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": "x",
            "te": "trailers", "content-type": "application/grpc",
        }  # fmt: skip
        headers.update({name.replace("_", "-"): value for name, value in more.items()})
        if token:
            headers["authorization"] = f"Bearer {token}"
        block = b"".join(
            b"\0" + length(name.encode()) + length(value.encode())
            for name, value in headers.items()
        )
        number, self._next = self._next, self._next + 2
        self._rooms[number] = self._first
        parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
        for at, part in enumerate(parts):
            last = 4 if at == len(parts) - 1 else 0
            await self.raw(frame(HEADERS if not at else 9, last, number, part))
        return number

    async def say(self, stream: int, data: bytes, end: bool = False) -> bool:
        """Send data as flow control allows. Return whether the stream is still open."""
        at = 0
        while at < len(data):
            if stream not in self._rooms:
                return False
            size = min(16_000, self._room, self._rooms[stream], len(data) - at)
            if size <= 0:
                self._news.clear()
                await self._news.wait()
                continue
            self._room -= size
            self._rooms[stream] -= size
            await self.raw(frame(DATA, 0, stream, data[at : at + size]))
            at += size
        if end and stream in self._rooms:
            await self.raw(frame(DATA, 1, stream))
        return stream in self._rooms

    async def until_over(self, stream: int) -> None:
        while stream in self._rooms:
            self._news.clear()
            await self._news.wait()


def length(text: bytes) -> bytes:
    """Encode a text for HPACK, uncompressed."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    left, head = len(text) - 127, b"\x7f"
    while left >= 128:
        head += bytes([left % 128 + 128])
        left //= 128
    return head + bytes([left]) + text


class Crowd:
    """All connections. ``did`` counts sent messages by kind."""

    def __init__(self, port: int, tokens: dict[str, Any]) -> None:
        self.port, self.tokens = port, tokens
        self.did: Counter[str] = Counter()
        self.members = list(tokens["members"].items())
        self.begun = 0

    async def connection(self, kind: str, number: int) -> None:
        """Keep one connection open: reconnect whenever it ends."""
        first = True
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                self.did[f"{kind}: connections"] += 1
                self.begun += first
                first = False
                caller = Caller(reader, writer)
                listening = asyncio.create_task(caller.listen())
                acting = asyncio.create_task(getattr(self, kind)(caller, number))
                try:
                    await asyncio.wait({listening, acting}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in (listening, acting):
                        task.cancel()
                    await asyncio.gather(listening, acting, return_exceptions=True)
                    writer.close()
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def idle(self, caller: Caller, number: int) -> None:
        """Connect and stay silent."""
        await caller.begin()
        await caller.over.wait()

    async def slow(self, caller: Caller, number: int) -> None:
        """Send a connection's preface or a request slowly, byte by byte."""
        data = PREFACE + frame(SETTINGS, 0, 0) + b"\0\0\x50\1\4\0\0\0\1"
        begun = len(PREFACE) + 9 if number % 2 else 0
        await caller.raw(data[:begun])
        for at in range(begun, len(data) + 60):
            await caller.raw(data[at : at + 1] or b"\0")
            self.did["slow: bytes"] += 1
            await asyncio.sleep(2)

    async def endless(self, caller: Caller, number: int) -> None:
        """Send messages that never end."""
        await caller.begin()
        token = self.tokens["viewer"] if number % 2 else ""
        paths = NAMELESS if not token else (f"{SERVICE}GetStatus", f"{SERVICE}Watch")

        async def one(at: int) -> None:
            await asyncio.sleep(random.uniform(0, 5))
            stream = await caller.ask(paths[at % len(paths)], token)
            self.did["endless: requests"] += 1
            await caller.say(stream, ENDLESS)
            await caller.until_over(stream)

        while True:
            await asyncio.gather(*(one(at) for at in range(20)))

    async def huge(self, caller: Caller, number: int) -> None:
        """Send messages, headers and compressed messages that exceed the limits."""
        await caller.begin()
        token = self.tokens["viewer"] if number % 2 else ""
        while True:
            path = f"{SERVICE}GetStatus" if token else f"{HEALTH}Check"
            self.did["huge: requests"] += 1
            turn = random.randrange(3)
            if turn == 0:
                stream = await caller.ask(path, token)
                await caller.say(stream, struct.pack(">BI", 0, 2**31 - 1) + bytes(100_000))
            elif turn == 1:
                stream = await caller.ask(path, token, grpc_encoding="gzip")
                await caller.say(stream, message(BOMB, 1), end=True)
            else:
                stream = await caller.ask(path, token, x_more="x" * 200_000)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(caller.until_over(stream), 20)
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def wrong(self, caller: Caller, number: int) -> None:
        """Send unknown tokens of all lengths."""
        await caller.begin()
        while True:
            for _ in range(10):
                token = os.urandom(random.choice((1, 24, 3_000))).hex()
                stream = await caller.ask(f"{SERVICE}GetStatus", token)
                await caller.say(stream, message(b""), end=True)
                self.did["wrong: requests"] += 1
            await asyncio.sleep(random.uniform(1, 3))

    async def member(self, caller: Caller, number: int) -> None:
        """Use a member's token: impersonate others, flood the service, and never stop."""
        await caller.begin()
        name, token = self.members[number % len(self.members)]
        stream = await caller.ask(f"{SERVICE}Member", token)
        first = pb.FromMember(hello=pb.Hello(member=name, executor="x\n" * 50_000))
        there = await caller.say(stream, message(first.SerializeToString()))
        while there:
            self.did["member: messages"] += 1
            said = pb.FromMember()
            turn = random.randrange(6)
            if turn == 0:
                for at in range(1_000):
                    said.beat.metrics[f"{at:03}{'x' * 1_000}"] = said.beat.gauges[f"{at}"] = 1.0
            elif turn == 1:
                said.batch.CopyFrom(garbage("run-1", name))
            elif turn == 2:
                said.batch.CopyFrom(garbage("run-none", name))
            elif turn == 3:
                said.batch.CopyFrom(garbage("run-1", "default/honest-0"))
            elif turn == 4:
                said.answer.CopyFrom(pb.Answer(run="run-1", member=name, epoch=1, id=1))
            else:
                said.hello.member = name
            data = os.urandom(2_000) if random.random() < 0.1 else said.SerializeToString()
            there = await caller.say(stream, message(data))
            await asyncio.sleep(random.uniform(0.2, 2))

    async def steering(self, caller: Caller, number: int) -> None:
        """Use a controller's token: open many runs with endless messages."""
        await caller.begin()

        async def one(at: int) -> None:
            stream = await caller.ask(f"{SERVICE}Steer", self.tokens["controller"])
            self.did["steering: streams"] += 1
            begin = pb.FromRun(begin=pb.Begin(run=f"run-{number}-{at}", epoch=1))
            await caller.say(stream, message(begin.SerializeToString()))
            await asyncio.sleep(random.uniform(0, 5))
            await caller.say(stream, ENDLESS)
            await caller.until_over(stream)
            await asyncio.sleep(random.uniform(2, 8))

        while True:
            await asyncio.gather(*(one(at) for at in range(100)))


def garbage(run: str, member: str) -> pb.Batch:
    event = pb.Event(timestamp=1e300, data='{"type":"stop","x":"' + "y" * 900)
    return pb.Batch(run=run, member=member, life="l", first=2**40, events=[event] * 500)


async def run(options: argparse.Namespace) -> None:
    crowd = Crowd(options.port, json.loads(Path(options.tokens).read_text("utf-8")))
    kinds = options.kinds.split(",")
    tasks = [
        asyncio.create_task(crowd.connection(kinds[number % len(kinds)], number // len(kinds)))
        for number in range(options.connections)
    ]
    while crowd.begun < options.connections:
        await asyncio.sleep(0.1)
        for task in tasks:
            if task.done():
                task.result()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(json.dumps(dict(sorted(crowd.did.items()))), flush=True)
    os._exit(0)  # thousands of tasks wait for events that never come


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("tokens")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--kinds", default="slow,endless,huge,wrong,member,steering")
    options = parser.parse_args()
    os.nice(19)
    from ensemble_service.server import raise_file_limit

    raise_file_limit()
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
