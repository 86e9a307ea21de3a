"""Whatever comes at once, is cancelled or fails: of one member one request at a time, each once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from ensemble_core.resizer import Resized, Resizer
from ensemble_core.service import resizes
from ensemble_core.service.access import Identity
from ensemble_core.service.answers import Answers
from ensemble_core.service.guard import Tally
from ensemble_core.service.hub import Refused

ADMIN = Identity("admin", "")


class Nodes(Resizer):
    """Counts, takes its time, fails now and then, and notices when it is called twice at once."""

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
def test_each_request_is_carried_out_once_whatever_comes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizes, "_FRESH", 0.001)
    chance = random.Random(seed)
    nodes, record = Nodes(chance), tmp_path / "resizes.jsonl"
    told: dict[tuple[str, str], Resized] = {}

    async def one(line: resizes.Resizes) -> None:
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
        answers = Answers(record)
        line = resizes.Resizes(nodes, answers, Tally())
        await asyncio.gather(*(one(line) for _ in range(400)))
        await line.close(5)

    asyncio.run(all_of_them())
    assert not nodes.broken
    kept = Answers(record)
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


def test_the_record_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    record = tmp_path / "resizes.jsonl"
    answers = Answers(record, most=10)
    answer = Resized(outcome="granted", before=1, asked=2, granted=2)
    for number in range(200):
        answers.begin("lab/one", f"r{number}", 1)
        answers.end("lab/one", f"r{number}", 1, answer)
    answers.close()
    assert len(record.read_text().splitlines()) <= 50
    again = Answers(record, most=10)
    assert again.get("lab/one", "r199") is not None
    assert again.get("lab/one", "r100") is None
    again.close()
