"""Fuzzer of the service's protocol, a program for ``make soak``.

    python wire_fuzz.py --seed N --rounds N --base FOLDER [--calls N]

In each round, a service receives many nearly valid calls: frames and messages with flipped bits,
truncated, duplicated, of other types or for other receivers. They use the token of a member, of a
controller, of a viewer, or none. At the same time, an honest member sends numbered events to a run.
The program prints a line of JSON for each round: lost and duplicate events, faults in the service's
log, and whether the service survived. If a round found a fault, the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.server import Settings
from ensemble_service.tokens import TokenFile
from hostile_crowd import DATA, HEALTH, LEGACY, SERVICE, Caller, frame, message

from ensemble_core import Event

CODE = """
import sys
from pathlib import Path
from ensemble_service.server import Settings, run

run(Settings(state=Path(sys.argv[1]), port=0, grace=1), None, lambda s: print(s.port, flush=True))
"""
METHODS = [
    f"{SERVICE}{name}" for name in ("Member", "Steer", "GetStatus", "Watch", "Resize", "Cancel")
]
METHODS += [LEGACY, f"{HEALTH}Check", f"{HEALTH}Watch", f"{SERVICE}None", "x", ""]
HONEST, BAD, RUN = "default/honest", "default/bad", "run-1"


class Round:
    """One service, and the calls that it receives."""

    def __init__(self, folder: Path, seed: int, calls: int) -> None:
        self.folder, self.calls = folder, calls
        self.random = random.Random(seed)
        self.got: list[int] = []
        self.sent = 0
        self.other: list[str] = []

    def run(self) -> None:
        self.folder.mkdir(parents=True)
        file = TokenFile(Settings(state=self.folder).token_path)
        self.tokens = {
            "honest": file.add("member", HONEST)[0],
            "owner": file.add("controller", "default")[0],
            "member": file.add("member", BAD)[0],
            "controller": file.add("controller", "else")[0],
            "viewer": file.add("viewer", "default")[0],
            "asker": file.add("viewer", "default")[0],
            "none": "",
        }
        log = self.folder / "log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                [sys.executable, "-c", CODE, str(self.folder)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as server,
        ):
            assert server.stdout is not None
            port = int(server.stdout.readline())
            try:
                asyncio.run(asyncio.wait_for(self._all(port), 300))
            except Exception as error:
                self.other.append(f"an honest caller failed: {type(error).__name__}: {error}")
            if server.poll() is not None:
                self.other.append(f"the service ended with {server.returncode}")
            server.terminate()
        self.other += [
            line for line in log.read_text("utf-8", "replace").splitlines() if '"fault"' in line
        ]

    async def _all(self, port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = api.EnsembleStub(channel)  # type: ignore[no-untyped-call]
            auth = lambda name: (("authorization", f"Bearer {self.tokens[name]}"),)  # noqa: E731
            member = stub.Member(metadata=auth("honest"))
            await member.write(pb.FromMember(hello=pb.Hello(member=HONEST)))
            await member.read()
            run = stub.Steer(metadata=auth("owner"))
            await run.write(pb.FromRun(begin=pb.Begin(run=RUN, epoch=1)))
            call = pb.Call(run=RUN, member=HONEST, epoch=1, id=1, open=pb.Open())
            await run.write(pb.FromRun(call=call))
            if (await member.read()).call.id != 1:
                self.other.append("the honest member was asked for something else")
            hostile = asyncio.create_task(self._hostile(port))
            hearing = asyncio.create_task(self._hear(run))
            while not hostile.done():
                self.sent += 1
                event = pb.Event(timestamp=float(self.sent))
                batch = pb.Batch(run=RUN, member=HONEST, life="l", first=self.sent, events=[event])
                await member.write(pb.FromMember(batch=batch))
                await stub.GetStatus(pb.StatusRequest(), metadata=auth("asker"), timeout=150)
                await asyncio.sleep(0.02)
            await hostile
            while len(self.got) < self.sent and not hearing.done():
                await asyncio.sleep(0.01)
            hearing.cancel()
            with suppress(asyncio.CancelledError):
                await hearing

    async def _hear(self, run: Any) -> None:
        while (heard := await run.read()) is not grpc.aio.EOF:
            if heard.WhichOneof("what") == "batch":
                if heard.batch.member != HONEST:
                    self.other.append(f"a batch of {heard.batch.member!r}")
                self.got += [int(event.timestamp) for event in heard.batch.events]

    # -- nearly valid calls ---------------------------------------------------------------------

    async def _hostile(self, port: int) -> None:
        left = self.calls
        while left > 0:
            some = min(left, self.random.randrange(1, 9))
            left -= some
            with suppress(OSError, asyncio.TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                caller = Caller(reader, writer)
                listening = asyncio.create_task(caller.listen())
                try:
                    await asyncio.wait_for(self._connection(caller, some), 5)
                finally:
                    listening.cancel()
                    writer.close()

    async def _connection(self, caller: Caller, calls: int) -> None:
        await caller.begin()
        for _ in range(calls):
            if caller.over.is_set():
                return
            path = self.random.choice(METHODS)
            role = self.random.choice(["member", "controller", "viewer", "none"])
            stream = await caller.ask(path, self.tokens[role])
            for _ in range(self.random.randrange(4)):
                data = message(self._bent(self._message().SerializeToString()))
                if self.random.random() < 0.2:
                    data = self._bent(data)
                last = self.random.random() < 0.3
                await caller.raw(frame(DATA, int(last), stream, data[:16_000]))
            if self.random.random() < 0.1:
                junk = self.random.randbytes(self.random.randrange(60))
                kind, flags = self.random.randrange(12), self.random.randrange(256)
                await caller.raw(frame(kind, flags, self.random.randrange(9), junk))
        await asyncio.sleep(0.02)

    def _bent(self, data: bytes) -> bytes:
        turn, size = self.random.randrange(5), len(data)
        if turn == 0 and size:
            at = self.random.randrange(size)
            return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
        if turn == 1:
            return data[: self.random.randrange(size + 1)]
        if turn == 2:
            return data + data
        return data

    def _message(self) -> Any:
        pick = self.random.choice
        name, run = pick([HONEST, BAD, "else/a", "", "x\n"]), pick([RUN, "run-2", "", "../x"])
        epoch, number = pick([0, 1, 2, 2**63]), pick([0, 1, 2**63])
        data = json.dumps({"type": pick(list(Event.kinds)), "job": "t.1", "name": "clean"})
        event = pb.Event(timestamp=pick([0.0, -1.0, 1e300]), data=data)
        batch = pb.Batch(run=run, member=name, life="l", first=number, events=[event])
        call = pb.Call(run=run, member=name, epoch=epoch, id=number)
        getattr(call, pick(["open", "submit", "cancel", "reattach", "close"])).SetInParent()
        answer = pb.Answer(run=run, member=name, epoch=epoch, id=number)
        return pick(
            [
                pb.FromMember(hello=pb.Hello(member=name)),
                pb.FromMember(batch=batch),
                pb.FromMember(answer=answer),
                pb.FromMember(beat=pb.Beat(gauges={name: 1.0})),
                pb.FromRun(begin=pb.Begin(run=run, epoch=epoch)),
                pb.FromRun(call=call),
                pb.FromRun(ack=pb.Ack(run=run, member=name, life="l", seq=number)),
                pb.ResizeRequest(member=name, request=run, delta=pick([0, -(2**31), 5])),
                pb.CancelRequest(member=name, run=run, jobs=["t.1"]),
                pb.StatusRequest(member=name),
            ]
        )


def one_round(folder: Path, seed: int, calls: int) -> dict[str, Any]:
    """Play one round. Return its result in the format of ``scripts/soak.py``, where jobs are the
    honest member's events.
    """
    fuzzed = Round(folder, seed, calls)
    fuzzed.run()
    wanted = list(range(1, fuzzed.sent + 1))
    lost = sorted(set(wanted) - set(fuzzed.got))
    doubled = [] if lost or fuzzed.got == wanted else fuzzed.got[:100]
    found = {
        "name": "wire", "seed": seed, "killed": [], "jobs": fuzzed.sent, "lost": lost[:100],
        "doubled": doubled, "fired_again": [], "replay_differences": [], "other": fuzzed.other,
    }  # fmt: skip
    return {**found, "good": not (lost or doubled or fuzzed.other)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--base", type=Path, required=True)
    chosen = parser.parse_args()
    good = True
    for seed in range(chosen.seed, chosen.seed + chosen.rounds):
        found = one_round(chosen.base / f"wire-{seed}", seed, chosen.calls)
        good = good and bool(found["good"])
        print(json.dumps(found), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
