"""Tests of resizes: one request per member at a time, each executed once, even after failures and
cancellations.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from ensemble_service import resize_requests
from ensemble_service.access import Identity
from ensemble_service.call_errors import Refused
from ensemble_service.monitoring import Counters
from ensemble_service.resize_requests import Entry, ResizeLog

from ensemble_core import EnsembleError, Resized, Resizer

ADMIN = Identity("admin", "")
PATIENCE = 60.0


class Nodes(Resizer):
    """Resizer that is slow, fails sometimes, counts its calls and detects concurrent ones."""

    def __init__(self, chance: random.Random) -> None:
        self.sizes: Counter[str] = Counter()
        self.calls = 0
        self.broken = False
        self._busy: set[str] = set()
        self._chance = chance

    def _enter(self, member: str) -> None:
        self.broken = self.broken or member in self._busy
        self._busy.add(member)
        time.sleep(self._chance.random() * 0.002)

    def resize(self, member: str, delta: int) -> Resized:
        self._enter(member)
        self.calls += 1
        before = self.sizes[member]
        self.sizes[member] += delta
        self._busy.discard(member)
        if self._chance.random() < 0.1:
            raise RuntimeError("it fails now and then")
        return Resized(
            outcome="granted", before=before, asked=before + delta, granted=before + delta
        )

    def size(self, member: str) -> int | None:
        self._enter(member)
        self._busy.discard(member)
        return self.sizes[member]


@pytest.mark.parametrize("seed", range(3))
def test_each_request_is_carried_out_once_in_all_circumstances(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resize_requests, "_FRESH", 0.001)
    chance = random.Random(seed)
    nodes, record = Nodes(chance), tmp_path / "resizes.sqlite"
    told: dict[tuple[str, str], Resized] = {}

    async def one(line: resize_requests.Resizes) -> None:
        await asyncio.sleep(chance.random() * 0.2)
        member, request = f"lab/m{chance.randrange(5)}", f"r{chance.randrange(30)}"
        patience = chance.choice([0.0005, 0.002, 0.01, 5.0])
        try:
            if chance.random() < 0.2:
                await asyncio.wait_for(line.look(member), patience)
                return
            answer = await asyncio.wait_for(line.ask(ADMIN, member, request, 1), patience)
        except (asyncio.TimeoutError, Refused):
            return
        assert told.setdefault((member, request), answer) == answer

    async def all_of_them() -> None:
        answers = ResizeLog(record)
        line = resize_requests.Resizes(nodes, answers, Counters())
        await asyncio.gather(*(one(line) for _ in range(400)))
        await line.close(5)

    asyncio.run(all_of_them())
    assert not nodes.broken
    kept = ResizeLog(record)
    lines = [kept.get(f"lab/m{m}", f"r{r}") for m in range(5) for r in range(30)]
    begun = [entry for entry in lines if entry is not None]
    assert nodes.calls == len(begun) == sum(nodes.sizes.values())
    assert all(entry.answer is not None for entry in begun)
    assert told
    for (member, request), answer in told.items():
        entry = kept.get(member, request)
        assert entry is not None
        assert entry.answer == answer
    kept.close()


def test_the_log_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    record = tmp_path / "resizes.sqlite"
    answers = ResizeLog(record, most=10)
    answer = Resized(outcome="granted", before=1, asked=2, granted=2)
    for number in range(200):
        answers.begin("lab/one", f"r{number}", 1)
        answers.end("lab/one", f"r{number}", answer)
    answers.close()
    again = ResizeLog(record, most=10)
    assert again.get("lab/one", "r199") is not None
    assert again.get("lab/one", "r100") is None
    again.close()


class Held(Resizer):
    """Resizer that stores the log's content at each call and then blocks until ``go``."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self.found: list[list[tuple[str, bool]]] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def resize(self, member: str, delta: int) -> Resized:
        self.found.append(on_record(self.record, "lab/one", "abc"))
        self.entered.release()
        assert self.go.acquire(timeout=PATIENCE)
        return Resized(outcome="granted", before=1, asked=1 + delta, granted=1 + delta)


async def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def test_each_queued_request_is_recorded_before_it_is_carried_out_and_answered_after(
    tmp_path: Path,
) -> None:
    record = tmp_path / "resizes.sqlite"
    held = Held(record)

    async def ask() -> None:
        line = resize_requests.Resizes(held, ResizeLog(record), Counters())
        asked = [
            asyncio.ensure_future(line.ask(ADMIN, "lab/one", name, 1)) for name in ("a", "b", "c")
        ]
        await until(lambda: held.entered.acquire(blocking=False))
        # The third request waits. If its caller leaves now, it is never carried out.
        asked[2].cancel()
        held.go.release()
        await until(lambda: held.entered.acquire(blocking=False))
        await until(asked[0].done)  # answered, though the next one has not ended
        assert not asked[1].done()
        # If the service is killed now, its successor repeats the first answer. It does not repeat
        # the second request, which may have taken effect. It does not know the third.
        again = resize_requests.Resizes(
            Never(), ResizeLog(copied(record, tmp_path / "copy")), Counters()
        )
        assert await again.ask(ADMIN, "lab/one", "a", 1) == await asked[0]
        assert (await again.ask(ADMIN, "lab/one", "b", 1)).code == "interrupted"
        assert (await again.ask(ADMIN, "lab/one", "c", 1)).code == "resizer-failed"
        await again.close(1)
        held.go.release()
        assert (await asked[1]).granted == 2
        await line.close(1)

    asyncio.run(ask())
    assert held.found == [[("a", False)], [("a", True), ("b", False)]]


class Never(Resizer):
    def resize(self, member: str, delta: int) -> Resized:
        raise AssertionError("carried out")


def copied(record: Path, to: Path) -> Path:
    """Copy the log, as if the service were killed now."""
    to.mkdir(exist_ok=True)
    for path in record.parent.glob(f"{record.name}*"):
        shutil.copy(path, to)
    return to / record.name


def on_record(record: Path, member: str, requests: Iterable[str]) -> list[tuple[str, bool]]:
    """Return the recorded requests, and whether each has an answer."""
    log = ResizeLog(copied(record, record.parent / "looked-at"))
    found = [(each, log.get(member, each)) for each in requests]
    log.close()
    return [(each, entry.answer is not None) for each, entry in found if entry is not None]


def test_if_the_disk_is_full_the_next_request_is_rejected_and_a_finished_one_answered(
    tmp_path: Path, full_disk: Callable[[], AbstractContextManager[None]]
) -> None:
    record = tmp_path / "resizes.sqlite"
    held = Held(record)

    async def ask() -> None:
        line = resize_requests.Resizes(held, ResizeLog(record), Counters())
        first, second = (
            asyncio.ensure_future(line.ask(ADMIN, "lab/one", name, 1)) for name in ("a", "b")
        )
        await until(lambda: held.entered.acquire(blocking=False))
        with full_disk():
            held.go.release()
            assert (await first).granted == 2
            with pytest.raises(Refused, match="no record"):
                await second
        assert on_record(record, "lab/one", "ab") == [("a", False)]
        held.go.release()
        assert (await line.ask(ADMIN, "lab/one", "b", 1)).granted == 2
        assert await line.ask(ADMIN, "lab/one", "a", 1) == await first
        assert on_record(record, "lab/one", "ab") == [("a", True), ("b", True)]
        await line.close(1)

    asyncio.run(ask())
    assert len(held.found) == 2


@pytest.mark.parametrize(
    "answer",
    [
        Resized(outcome="refused"),  # type: ignore[arg-type]  # mistakes of a plugin
        Resized(outcome="granted", before=1.5),  # type: ignore[arg-type]
        Resized(outcome="denied", reason=object()),  # type: ignore[arg-type]
        Resized(outcome="denied", reason="/scratch/\udcff"),  # not serializable
        Resized(outcome="denied", transient="no"),  # type: ignore[arg-type]
        Resized(outcome="granted", granted=1 << 70),
        None,
    ],
)
def test_an_invalid_answer_is_reported_as_the_resizers_fault(answer: Any, tmp_path: Path) -> None:
    class Odd(Resizer):
        def resize(self, member: str, delta: int) -> Resized:
            told: Resized = answer
            return told

    async def ask() -> list[Resized]:
        line = resize_requests.Resizes(Odd(), ResizeLog(tmp_path / "record"), Counters())
        told = [await asyncio.wait_for(line.ask(ADMIN, "lab/one", "a", 1), PATIENCE)]
        told.append(await asyncio.wait_for(line.ask(ADMIN, "lab/one", "b", 1), PATIENCE))
        await line.close(1)
        return told

    assert [each.code for each in asyncio.run(ask())] == ["resizer-failed"] * 2


def test_a_resizer_that_never_blocks_is_called_without_a_thread(
    tmp_path: Path,
) -> None:
    record = tmp_path / "record"

    class Counting(Resizer):
        waits = False

        def __init__(self) -> None:
            self.nodes, self.threads, self.found = 1, set[int](), list[list[tuple[str, bool]]]()

        def resize(self, member: str, delta: int) -> Resized:
            self.threads.add(threading.get_ident())
            self.found.append(on_record(record, "lab/one", "abcd"))
            if delta == 13:
                raise ZeroDivisionError
            before, self.nodes = self.nodes, self.nodes + delta
            return Resized(outcome="granted", before=before, asked=self.nodes, granted=self.nodes)

        def size(self, member: str) -> int | None:
            self.threads.add(threading.get_ident())
            return self.nodes

    counting = Counting()

    async def ask() -> None:
        line = resize_requests.Resizes(counting, ResizeLog(record), Counters())
        assert await line.look("lab/one") == 1
        asked = [("a", 1), ("b", 2), ("a", 1), ("c", 13), ("d", 4)]
        told = await asyncio.gather(*(line.ask(ADMIN, "lab/one", *each) for each in asked))
        assert [answer.granted for answer in told] == [2, 4, 2, 0, 8]
        assert told[3].code == "resizer-failed"
        assert await line.ask(ADMIN, "lab/one", "b", 2) == told[1]
        await line.close(1)

    asyncio.run(ask())
    assert counting.nodes == 8
    assert counting.threads == {threading.get_ident()}
    # Each was recorded before it was carried out.
    assert [found[-1] for found in counting.found] == [(name, False) for name in "abcd"]
    assert counting.found[-1][:-1] == [(name, True) for name in "abc"]


def test_an_unknown_size_is_not_looked_up_each_time() -> None:
    class Unknown(Never):
        looks = 0

        def size(self, member: str) -> int | None:
            self.looks += 1
            return None

    resizer, now = Unknown(), [100.0]

    async def look() -> None:
        line = resize_requests.Resizes(resizer, ResizeLog(None), Counters(), lambda: now[0])
        for _ in range(3):
            assert await line.look("lab/one") is None
        assert resizer.looks == 1
        assert await line.look("lab/one", doubt=True) is None
        assert resizer.looks == 2
        now[0] += 10
        await line.look("lab/one")
        assert resizer.looks == 3
        await line.close(1)

    asyncio.run(look())


def test_a_request_waits_if_the_system_cannot_start_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resize_requests, "_NO_THREAD", 0.01)
    start, refused = threading.Thread.start, iter(range(3))

    def scarce(thread: threading.Thread) -> None:
        if next(refused, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def ask() -> tuple[Resized, Resized]:
        nodes = Nodes(random.Random(5))
        line = resize_requests.Resizes(nodes, ResizeLog(None), Counters())
        monkeypatch.setattr(threading.Thread, "start", scarce)
        answers = await asyncio.wait_for(
            asyncio.gather(*(line.ask(ADMIN, name, "a", 1) for name in ("lab/one", "lab/two"))),
            PATIENCE,
        )
        await line.close(1)
        return answers[0], answers[1]

    assert [each.asked for each in asyncio.run(ask())] == [1, 1]


@pytest.mark.parametrize("waiting", [True, False])
def test_a_resizer_that_exits_is_at_fault_and_the_next_request_is_answered(
    waiting: bool, tmp_path: Path
) -> None:
    class Exits(Resizer):
        waits = waiting

        def resize(self, member: str, delta: int) -> Resized:
            raise SystemExit("no configuration")

        def size(self, member: str) -> int | None:
            raise SystemExit("no configuration")

        def close(self) -> None:
            raise SystemExit("no configuration")

    async def ask() -> list[str]:
        line = resize_requests.Resizes(Exits(), ResizeLog(tmp_path / "record"), Counters())
        told = [
            (await asyncio.wait_for(line.ask(ADMIN, "lab/one", name, 1), PATIENCE)).code
            for name in ("a", "b")
        ]
        assert await line.look("lab/one") is None
        await line.close(1)
        return told

    assert asyncio.run(ask()) == ["resizer-failed"] * 2


def test_records_after_a_full_disk_are_complete(
    tmp_path: Path, full_disk: Callable[[], AbstractContextManager[None]]
) -> None:
    record = tmp_path / "resizes.sqlite"
    log = ResizeLog(record)
    log.begin("lab/one", "a", 1)
    with full_disk():
        for _ in range(2):
            with pytest.raises(EnsembleError, match="cannot record"):
                log.begin("lab/one", "b", 1)
    log.begin("lab/one", "c", 1)
    # The request has begun, so it must not be carried out again.
    assert on_record(record, "lab/one", "abc") == [("a", False), ("c", False)]
    log.close()


def test_an_invalid_log_is_rejected_at_the_start(tmp_path: Path) -> None:
    record = tmp_path / "resizes.sqlite"
    record.write_text("something else " * 100)
    with pytest.raises(EnsembleError, match="cannot read"):
        ResizeLog(record)


def test_the_log_is_private(tmp_path: Path) -> None:
    log = ResizeLog(tmp_path / "resizes.sqlite")
    log.begin("lab/one", "a", 1)
    found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    log.close()
    assert set(found.values()) == {0o600}
    assert "resizes.sqlite" in found


def test_a_stopping_service_does_not_wait_for_a_hanging_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resize_requests, "_CLOSING", 0.1)
    writing, back = threading.Event(), threading.Event()

    class Slow(ResizeLog):
        def begin(self, member: str, request: str, delta: int) -> Entry | None:
            with self._lock:
                writing.set()
                assert back.wait(PATIENCE)
            return super().begin(member, request, delta)

    async def stop() -> None:
        line = resize_requests.Resizes(Never(), Slow(tmp_path / "record"), Counters())
        asked = asyncio.ensure_future(line.ask(ADMIN, "lab/one", "a", 1))
        await until(writing.is_set)
        await line.close(0.1)
        assert not back.is_set()
        asked.cancel()
        back.set()

    asyncio.run(stop())


def test_a_fault_with_unencodable_text_is_reported_in_other_words() -> None:
    class Failing(Resizer):
        def resize(self, member: str, delta: int) -> Resized:
            raise OSError(f"no such file: {os.fsdecode(bytes([255]))}")

    async def ask() -> Resized:
        line = resize_requests.Resizes(Failing(), ResizeLog(None), Counters())
        answer = await line.ask(ADMIN, "lab/one", "a", 1)
        await line.close(1)
        return answer

    answer = asyncio.run(ask())
    assert "no such file" in answer.reason
    answer.reason.encode("utf-8")


@pytest.mark.parametrize("steps", [{"target": 3}, {}], ids=["a step", "no step"])
def test_a_resizer_is_asked_for_the_outcome_of_an_interrupted_request(
    tmp_path: Path, steps: Mapping[str, Any]
) -> None:
    """After a kill during the request, the next service asks the resizer and records the answer.

    The resizer gets the recorded steps. Without a step, the request had no effect.
    """
    decided: list[Mapping[str, Any]] = []

    class Killed(Resizer):
        def resize(self, member: str, delta: int) -> Resized:
            assert self.keep is not None
            if steps:
                self.keep(member, steps)
            raise KeyboardInterrupt  # as if it were killed before its answer

        def decide(self, member: str, delta: int, kept: Mapping[str, Any]) -> Resized | None:
            decided.append(kept)
            return Resized(outcome="granted", before=2, asked=3, granted=3)

    record = tmp_path / "resizes.sqlite"
    log = ResizeLog(record)
    line = resize_requests.Resizes(Killed(), log, Counters())
    with pytest.raises(KeyboardInterrupt):
        line._call_resizer("lab/one", "a", 1)
    log.close()

    async def ask() -> None:
        again = resize_requests.Resizes(Killed(), ResizeLog(record), Counters())
        answers = [await again.ask(ADMIN, "lab/one", "a", 1) for _ in range(2)]
        assert [(each.outcome, each.granted) for each in answers] == [("granted", 3)] * 2
        await again.close(1)

    asyncio.run(ask())
    assert decided == [steps]


def test_a_step_that_cannot_be_recorded_is_not_taken() -> None:
    log = ResizeLog(None)
    log.begin("lab/one", "a", 1)
    log.close()
    with pytest.raises(EnsembleError, match="cannot record") as info:
        log.keep("lab/one", "a", {"target": 3})
    assert info.value.transient


def test_a_request_is_synced_to_disk_before_it_is_carried_out(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: system calls cannot be traced")
    record, trace = tmp_path / "resizes.sqlite", tmp_path / "trace"
    source = (
        "import os, sys; from pathlib import Path; from ensemble_service.resize_requests import ResizeLog\n"
        "log = ResizeLog(Path(sys.argv[1])); log.begin('lab/one', 'a', 1)\n"
        "os.write(1, b'begun'); log.keep('lab/one', 'a', {}); os.write(1, b'kept')"
    )
    done = subprocess.run(
        ["strace", "-f", "-y", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o", str(trace),
         sys.executable, "-c", source, str(record)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip(f"strace cannot trace here: {done.stderr.strip()}")
    assert done.stdout == "begunkept", done.stderr
    unsynced: set[str] = set()
    for line in trace.read_text().splitlines():
        call, _, rest = line.partition(" ")[2].strip().partition("(")
        if rest.startswith("1<"):
            assert not unsynced, f"a power cut here loses what is in {unsynced}"
        elif str(record) in rest:
            file = rest.partition("<")[2].partition(">")[0]
            (unsynced.discard if "sync" in call else unsynced.add)(file)
